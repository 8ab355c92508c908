"""Queries the status of any number of jobs with one squeue and one sacct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import (
    JobStatus,
    parse_queue,
    parse_sacct,
    parse_scontrol_job,
    parse_squeue,
    queue_argv,
    sacct_argv,
    scontrol_job_argv,
    squeue_argv,
    suggest_remedy,
)
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.slurm.client import Completed, SlurmClient

SACCT_IDS = 8000
"""Most ids of one sacct: Linux limits an argument to 128 KiB, and an id may have 15 characters."""


def query_jobs(client: SlurmClient, ids: Iterable[str]) -> dict[str, JobStatus]:
    """Return the status of jobs by id, with an entry for each array task. Unknown jobs are missing in the result.

    The function runs at most three commands for any number of ids. squeue comes first. scontrol adds the exit status of
    a single job, sacct all that is still unknown, and scontrol again what the accounting does not have.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    found = _select(_ask_squeue(client, wanted), wanted)
    _fill_gaps(client, found, wanted)
    return found


def add_canceller(client: SlurmClient, status: JobStatus) -> JobStatus:
    """Return the status of a cancelled job with the name of the user who cancelled it, if the accounting knows it."""
    if status.state is not JobState.CANCELLED or " by " in status.raw_state:
        return status
    booked = _select(_ask_sacct(client, [base_id(status.job_id)]), [status.job_id]).get(status.job_id)
    _, by, user = (booked.raw_state if booked else "").partition(" by ")
    return status._replace(raw_state=f"CANCELLED by {_user_name(user)}") if by else status


def _user_name(user: str) -> str:
    """Return the name of a user whose number sacct prints."""
    import pwd

    try:
        return pwd.getpwuid(int(user)).pw_name
    except (KeyError, ValueError):
        return user


class QueueSnapshot(NamedTuple):
    """The queue of all users, and the status of some jobs by id."""

    queue: list[JobStatus]
    found: dict[str, JobStatus]
    unreachable: SlurmUnavailable | None
    """Reason why `queue` is empty. `found` then comes from the accounting."""


def query_queue(client: SlurmClient, ids: Iterable[str], *, ended: bool = True) -> QueueSnapshot:
    """Return the queue of all users and the status of some jobs with one squeue, else like `query_jobs`.

    `ended`: also ask the accounting for array tasks that squeue has forgotten.
    """
    wanted = list(dict.fromkeys(ids))
    queue, unreachable = list[JobStatus](), None
    try:
        queue = parse_queue(_require_output(client.run(queue_argv())))
    except SlurmUnavailable as error:
        unreachable = error
    found = _select(queue, wanted)
    if wanted:
        _fill_gaps(client, found, wanted, ended=ended)
    return QueueSnapshot(queue, found, unreachable)


def _fill_gaps(client: SlurmClient, found: dict[str, JobStatus], wanted: Sequence[str], *, ended: bool = True) -> None:
    """Add the status of jobs, and exit codes, that squeue does not show."""
    missing = _incomplete(found, wanted)
    single = _base_ids(missing)[0] if len(_base_ids(missing)) == 1 else None
    shown = False
    if single is not None and missing == [single] and single in found:
        # The controller still has the job, and answers faster than the accounting, with newer data.
        shown = True
        _add_missing(found, _select(parse_scontrol_job(_output_or_nothing(client, scontrol_job_argv(single))), missing))
        missing = _incomplete(found, wanted)
    # squeue forgets an array's tasks one by one, minutes after their end.
    arrays = sorted({base_id(job_id) for job_id in found if "_" in job_id} & set(wanted)) if ended else []
    if missing := [*missing, *arrays]:
        booked = _ask_sacct(client, _base_ids(missing), clusters=client.environ.get("SLURM_CLUSTERS"))
        _add_missing(found, _select(booked, missing))
    if not shown and (missing := _incomplete(found, wanted)):
        bases = _base_ids(missing)
        argv = scontrol_job_argv(bases[0] if len(bases) == 1 else None)
        _add_missing(found, _select(parse_scontrol_job(_output_or_nothing(client, argv)), missing))
    # In a federation another cluster may have started the job.
    if revoked := [job_id for job_id, each in found.items() if each.state is JobState.REVOKED]:
        found.update(_ask_federation(client, revoked))


def _ask_federation(client: SlurmClient, ids: Sequence[str]) -> dict[str, JobStatus]:
    """Return the status of revoked jobs, which run on another cluster of the federation.

    A job that the queue of the federation shows as revoked only runs on a cluster that does not answer now.
    """
    squeue, *options = squeue_argv(ids)
    queue = parse_squeue(_output_or_nothing(client, [squeue, "--federation", *options]))
    booked = _ask_sacct(client, ids, "--federation")
    going = {job_id: each._replace(state=JobState.UNKNOWN) for job_id, each in _select(queue, ids).items()}
    there = _select([each for each in (*booked, *queue) if each.state is not JobState.REVOKED], ids)
    return {**going, **there}


def _ask_squeue(client: SlurmClient, ids: Sequence[str]) -> list[JobStatus]:
    answer = client.run(squeue_argv(ids))
    unknown = answer.returncode and "Invalid job id" in answer.stderr
    if unknown and len(ids) > 1:
        # With one unknown id, squeue refuses the whole query.
        answer = client.run(squeue_argv(None))
    elif unknown:
        return []
    return parse_squeue(_require_output(answer))


def _ask_sacct(client: SlurmClient, ids: Sequence[str], *options: str, clusters: str | None = None) -> list[JobStatus]:
    found: list[JobStatus] = []
    for start in range(0, len(ids), SACCT_IDS):
        sacct, *words = sacct_argv(ids[start : start + SACCT_IDS], clusters=clusters)
        found += parse_sacct(_output_or_nothing(client, [sacct, *options, *words]))
    return found


def _require_output(answer: Completed) -> str:
    """Return the output of squeue."""
    if answer.returncode:
        raise SlurmUnavailable(
            "squeue does not show the state of the jobs",
            found=answer.stderr.strip() or f"exit status {answer.returncode}",
            remedy=suggest_remedy(answer.stderr),
        )
    return answer.stdout


def _output_or_nothing(client: SlurmClient, argv: Sequence[str]) -> str:
    """Return the output of a command; nothing if it is missing or fails, as sacct does without accounting."""
    try:
        answer = client.run(argv)
    except SlurmUnavailable:
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _base_ids(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(base_id(job_id) for job_id in ids))


def _select(statuses: Iterable[JobStatus], ids: Sequence[str]) -> dict[str, JobStatus]:
    """Return the requested jobs, and the tasks and components of requested jobs."""
    asked = set(ids)
    found = {}
    for each in statuses:
        if each.job_id in asked or base_id(each.job_id) in asked:
            found[each.job_id] = each
        elif each.raw_id in asked:
            found[each.raw_id] = each
    return found


def _incomplete(found: Mapping[str, JobStatus], wanted: Sequence[str]) -> list[str]:
    """Return the ids that are still unknown, and failed jobs without exit code."""
    known = set(found) | {base_id(job_id) for job_id in found}
    open_ends = [job_id for job_id, each in found.items() if each.state.failed and each.exit_code is None]
    return [*(job_id for job_id in wanted if job_id not in known), *open_ends]


def _add_missing(found: dict[str, JobStatus], known: Mapping[str, JobStatus]) -> None:
    """Add unknown jobs. For a job that squeue shows, only add the exit code, since its state there is newer."""
    for job_id, status in known.items():
        earlier = found.get(job_id)
        if earlier is None:
            found[job_id] = status
        elif status.exit_code is not None:
            found[job_id] = earlier._replace(exit_code=status.exit_code, signal=status.signal)
