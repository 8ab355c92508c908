"""Listings of jobs, and their end: one query for all jobs, however many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm import commands
from hpc_kit.slurm.states import State, explain_reason, explain_state
from hpc_kit.slurm.status import base_id
from hpc_kit.submit.outcome import end_of, recorded_end
from hpc_kit.submit.runs import RECENT, Runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_kit.slurm.commands import JobStatus
    from hpc_kit.submit.access import Access
    from hpc_kit.submit.runs import Run


class Line(NamedTuple):
    """One job of a listing."""

    job_id: str
    name: str
    state: State
    sentence: str
    """The state in plain words; of a waiting job why, of a failed one which rank failed first, and how."""

    next_step: str | None
    status: JobStatus | None
    run: Run | None


def statuses(ids: Sequence[str] | None, runs: Path, access: Access) -> list[Line]:
    """The state of jobs, in the order asked for; without ids, of all in the queue and of the latest in `runs`.

    One squeue, and for what it no longer knows one sacct, however many jobs.

    Raises:
        UnknownJob: Of an id, neither Slurm nor `runs` knows anything.
        SlurmUnavailable: Slurm does not answer.
    """
    known = Runs(runs)
    if ids is None:
        return _all(known, access)
    told = access.query(ids)
    lines: list[Line] = []
    missing: list[str] = []
    for job_id in dict.fromkeys(ids):
        own = [status for key, status in told.items() if job_id in {key, base_id(key)}]
        # While an array is being taken apart, Slurm may name it beside its elements.
        own = [status for status in own if status.job_id != job_id] or own
        lines += [_line(status.job_id, status, known) for status in own]
        if not own and known.find(job_id) is not None:
            lines.append(_line(job_id, None, known))
        elif not own:
            missing.append(job_id)
    if missing:
        raise known.unknown(missing)
    return lines


def _all(known: Runs, access: Access) -> list[Line]:
    recent = known.recent(4 * RECENT)
    queued = {status.job_id: status for status in _queue(access)}
    bases = {base_id(job_id) for job_id in queued}
    open_ends = [run.job_id for run in recent if run.job_id not in bases and recorded_end(run) is None]
    told: Mapping[str, JobStatus] = access.query(open_ends) if open_ends else {}
    lines = [_line(job_id, status, known) for job_id, status in {**told, **queued}.items()]
    named = {base_id(line.job_id) for line in lines}
    lines += [_line(run.job_id, None, known) for run in recent if run.job_id not in named]
    return sorted(lines, key=lambda line: _order(line.job_id), reverse=True)


def _queue(access: Access) -> list[JobStatus]:
    answer = access.ask(commands.squeue_argv(None))
    if answer.returncode:
        raise SlurmUnavailable(
            "squeue does not tell the state of the jobs", found=answer.stderr.strip(), remedy="scontrol ping"
        )
    return commands.parse_squeue(answer.stdout)


def _order(job_id: str) -> tuple[int, int]:
    base, _, index = job_id.partition("_")
    return int(base) if base.isdigit() else 0, int(index) if index.isdigit() else 0


def _line(job_id: str, status: JobStatus | None, known: Runs) -> Line:
    run = known.find(job_id)
    name = run.name if run else status.name if status else ""
    if status is not None and (run is None or not status.state.finished):
        if status.state is State.PENDING and status.reason:
            meaning = explain_reason(status.reason, job_id)
            return Line(job_id, name, status.state, meaning.sentence, meaning.next_step, status, run)
        return Line(job_id, name, status.state, explain_state(status.state), None, status, run)
    if run is None:
        return Line(job_id, name, State.UNKNOWN, explain_state(State.UNKNOWN), None, status, run)
    recorded = recorded_end(run)
    if recorded is not None and recorded.first_failure and (status is None or status.state == recorded.state):
        failure = recorded.first_failure
        sentence = _blame(failure.rank, failure.host, failure.headline)
        return Line(job_id, name, State(recorded.state), sentence, None, status, run)
    end = end_of(run, status)
    sentence = end.sentence
    if end.failure:
        sentence = _blame(end.failure.rank, end.failure.host, end.failure.headline)
    return Line(job_id, name, end.state, sentence, None, status, run)


def _blame(rank: int | None, host: str | None, headline: str) -> str:
    return headline if rank is None else f"rank {rank} on {host}: {headline}"


def cancel(ids: Sequence[str], runs: Path, access: Access) -> list[Line]:
    """End jobs; returns what each was before. One that has ended already is left as it is.

    Raises:
        UnknownJob: Of an id, neither Slurm nor `runs` knows anything; then none is cancelled.
        SlurmUnavailable: Slurm does not answer, or refuses.
    """
    before = statuses(ids, runs, access)
    going = [job_id for job_id in ids if any(_goes_on(line, job_id) for line in before)]
    if going:
        answer = access.ask(commands.scancel_argv(going))
        if answer.returncode and "already completing or completed" not in answer.stderr:
            raise SlurmUnavailable(
                f"scancel did not end {', '.join(going)}",
                found=answer.stderr.strip() or f"exit status {answer.returncode}",
                remedy="see who owns it: squeue --job=" + ",".join(going),
            )
    return before


def _goes_on(line: Line, job_id: str) -> bool:
    same = line.job_id == job_id or base_id(line.job_id) == job_id
    return same and line.status is not None and not line.status.state.finished
