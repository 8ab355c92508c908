"""The state of any number of jobs, by one squeue and one sacct."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import QUERY_SECONDS
from hpc_kit.slurm.command_environment import query_environment
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpc_kit.slurm.client import Completed, Runner

MAX_NAMED = 10_000
"""So many ids, with their commas, stay below the kernel's limit for one argument."""


def query_jobs(runner: Runner, ids: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, JobStatus]:
    """The state of jobs by id, an array's tasks each under its own; a job that nobody knows is left out.

    One squeue for all; for a single job whose exit status squeue does not tell, one scontrol; one sacct for all that
    is not known yet; where the accounting is off or behind, one scontrol. At most three commands, whatever the number
    of ids.

    Raises:
        SlurmUnavailable: squeue itself cannot be asked.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    plain = query_environment(os.environ if environ is None else environ)
    found = _select(_ask_squeue(runner, wanted, plain), wanted)
    _fill_gaps(runner, found, wanted, plain)
    return found


class QueueSnapshot(NamedTuple):
    """Everybody's queue, and what is known of some jobs, by id."""

    queue: list[JobStatus]
    found: dict[str, JobStatus]
    unreachable: SlurmUnavailable | None
    """Why there is no queue; what the accounting tells is there all the same."""


def query_queue(
    runner: Runner, ids: Iterable[str], environ: Mapping[str, str] | None = None, *, ended: bool = True
) -> QueueSnapshot:
    """Everybody's queue, and the state of some jobs as `query` has it; one squeue for both.

    Args:
        runner: What runs the commands.
        ids: The jobs.
        environ: The environment of the commands (default: this process's).
        ended: Ask the accounting, too, for tasks of an array that squeue has forgotten.
    """
    wanted = list(dict.fromkeys(ids))
    plain = query_environment(os.environ if environ is None else environ)
    queue, unreachable = list[JobStatus](), None
    try:
        queue = parse_queue(_require_output(runner(queue_argv(), timeout=QUERY_SECONDS, environ=plain)))
    except SlurmUnavailable as error:
        unreachable = error
    found = _select(queue, wanted)
    if wanted:
        _fill_gaps(runner, found, wanted, plain, ended=ended)
    return QueueSnapshot(queue, found, unreachable)


def _fill_gaps(
    runner: Runner,
    found: dict[str, JobStatus],
    wanted: Sequence[str],
    environ: Mapping[str, str],
    *,
    ended: bool = True,
) -> None:
    """Add what squeue does not tell."""
    missing = _incomplete(found, wanted)
    single = _base_ids(missing)[0] if len(_base_ids(missing)) == 1 else None
    shown = False
    if single is not None and missing == [single] and single in found:
        # The controller still has it, and is quicker and fresher than the accounting.
        shown = True
        _merge(found, _select(parse_scontrol_job(_output_of(runner, scontrol_job_argv(single), environ)), missing))
        missing = _incomplete(found, wanted)
    # squeue forgets an array's tasks one by one, minutes after their end.
    arrays = sorted({base_id(job_id) for job_id in found if "_" in job_id} & set(wanted)) if ended else []
    if missing := [*missing, *arrays]:
        for bases in _chunks(_base_ids(missing)):
            argv = sacct_argv(bases, clusters=environ.get("SLURM_CLUSTERS"))
            statuses = parse_sacct(_output_of(runner, argv, environ))
            _merge(found, _select(statuses, missing))
    if not shown and (missing := _incomplete(found, wanted)):
        bases = _base_ids(missing)
        argv = scontrol_job_argv(bases[0] if len(bases) == 1 else None)
        _merge(found, _select(parse_scontrol_job(_output_of(runner, argv, environ)), missing))
    if revoked := [job_id for job_id, each in found.items() if each.state is JobState.REVOKED]:
        found.update(_ask_federation(runner, revoked, environ))


def _ask_federation(runner: Runner, ids: Sequence[str], environ: Mapping[str, str]) -> dict[str, JobStatus]:
    """Jobs that another cluster of the federation has taken, as that one has them.

    Who stands in the queue of the federation as revoked still runs, on a cluster that does not answer just now.
    """
    queue, booked = (
        parse(_output_of(runner, [argv[0], "--federation", *argv[1:]], environ))
        for parse, argv in ((parse_squeue, squeue_argv(ids)), (parse_sacct, sacct_argv(ids)))
    )
    going = {job_id: each._replace(state=JobState.UNKNOWN) for job_id, each in _select(queue, ids).items()}
    there = _select([each for each in (*booked, *queue) if each.state is not JobState.REVOKED], ids)
    return {**going, **there}


def _chunks(ids: list[str]) -> Iterator[list[str]]:
    """No more ids at once than fit into one word of a command line."""
    yield from (ids[start : start + MAX_NAMED] for start in range(0, len(ids), MAX_NAMED))


def _ask_squeue(runner: Runner, ids: Sequence[str], environ: Mapping[str, str]) -> list[JobStatus]:
    answer = runner(squeue_argv(ids), timeout=QUERY_SECONDS, environ=environ)
    unknown = answer.returncode and "Invalid job id" in answer.stderr
    if unknown and len(ids) > 1:
        # One id that Slurm has forgotten may spoil the answer for all.
        answer = runner(squeue_argv(None), timeout=QUERY_SECONDS, environ=environ)
    elif unknown:
        return []
    return parse_squeue(_require_output(answer))


def _require_output(answer: Completed) -> str:
    """What squeue says of the queue.

    Raises:
        SlurmUnavailable: It says nothing.
    """
    if answer.returncode:
        raise SlurmUnavailable(
            "squeue does not tell the state of the jobs",
            found=answer.stderr.strip() or f"exit status {answer.returncode}",
            remedy=suggest_remedy(answer.stderr),
        )
    return answer.stdout


def _output_of(runner: Runner, argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a command prints; nothing where it is missing or fails, as sacct does without accounting."""
    try:
        answer = runner(argv, timeout=QUERY_SECONDS, environ=environ)
    except SlurmUnavailable:
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _base_ids(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(base_id(job_id) for job_id in ids))


def _select(statuses: Iterable[JobStatus], ids: Sequence[str]) -> dict[str, JobStatus]:
    """Those that were asked for, by id or by the array or heterogeneous job that they belong to."""
    asked = set(ids)
    found = {}
    for each in statuses:
        if each.job_id in asked or base_id(each.job_id) in asked:
            found[each.job_id] = each
        elif each.raw_id in asked:
            found[each.raw_id] = each
    return found


def _incomplete(found: Mapping[str, JobStatus], wanted: Sequence[str]) -> list[str]:
    """Ids that nobody knows yet, and jobs that ended with an exit status not yet told."""
    known = set(found) | {base_id(job_id) for job_id in found}
    open_ends = [job_id for job_id, each in found.items() if each.state.failed and each.exit_code is None]
    return [*(job_id for job_id in wanted if job_id not in known), *open_ends]


def _merge(found: dict[str, JobStatus], known: Mapping[str, JobStatus]) -> None:
    """Add what was unknown; of a job that squeue knows take the exit status alone, its state being the fresher."""
    for job_id, status in known.items():
        earlier = found.get(job_id)
        if earlier is None:
            found[job_id] = status
        elif status.exit_code is not None:
            found[job_id] = earlier._replace(exit_code=status.exit_code, signal=status.signal)
