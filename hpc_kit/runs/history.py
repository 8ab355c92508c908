"""The attempts of a job. `shell/history.sh` writes events to the file `history` of the run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from hpc_kit.run_files import HISTORY, read_end


class HistoryLine(Struct, frozen=True, kw_only=True):
    """One line of the history."""

    event: str
    """`start`, `end`, `submitted` (again, as another job), `node` (excluded) or `step` (started again)."""

    attempt: int
    job_id: str
    time: float
    nodes: str | int = ""
    decision: str = ""
    reason: str | int = ""
    state: str = ""
    exit_code: int | None = None
    progress: str = ""
    saved: float | None = None
    step: int | str | None = None
    next: str | int = ""


class RecordedAttempt(Struct, frozen=True, kw_only=True):
    """One attempt of a job. Times are in seconds since 1970."""

    number: int
    job_id: str
    nodes: str
    start: float
    end: float | None = None
    """None: the attempt runs, or Slurm killed its batch script."""

    exit_code: int | None = None
    decision: str = ""
    """`finished`, `failed`, `requeue`, `spare` (another step), `gave_up`, or `ended` by Slurm; empty: no end was
    written."""

    reason: str = ""
    saved: float | None = None
    """Time of the newest checkpoint."""

    step: int | None = None
    """The last saved step, of a program that uses `hpc_kit.Checkpointer`."""

    excluded: tuple[str, ...] = ()
    """Nodes that failed in this attempt, and were replaced by spare nodes."""

    waited: float = 0
    """Seconds between the end of the attempt before, or its last checkpoint if it wrote no end, and this start."""

    @property
    def unsaved(self) -> float:
        """Seconds of work after the newest checkpoint, which the next attempt does again."""
        if self.end is None or self.decision == "finished":
            return 0
        return max(0, self.end - (self.start if self.saved is None else max(self.start, self.saved)))


class History(Struct, frozen=True):
    """All attempts of a job, over requeues and resubmissions."""

    attempts: tuple[RecordedAttempt, ...] = ()

    @property
    def lost(self) -> float:
        """Seconds that the restarts cost: time in the queue, and work that was done again."""
        return sum(each.waited for each in self.attempts) + sum(each.unsaved for each in self.attempts[:-1])

    def latest_job(self, job_id: str) -> str:
        """Return the id of the job that goes on with the run of a job."""
        ids = [each.job_id for each in self.attempts]
        # While a resubmitted job starts, its history has the attempts of the earlier job only.
        return ids[-1] if job_id in ids else job_id


def read_history(run: Path) -> History:
    """Return the attempts of a run; none without [restart] and [preflight]. Incomplete lines are left out."""
    try:
        lines = (run / HISTORY).read_bytes().splitlines()
    except OSError:
        return History()
    attempts = _collect_attempts(_parse_events(lines))
    if attempts and attempts[-1].end is None and (marker := read_end(run)):
        # A job without [restart] records its preflight, and writes this file only at its end.
        decision = "failed" if marker.exit_code else "finished"
        attempts[-1] = structs.replace(attempts[-1], end=marker.time, exit_code=marker.exit_code, decision=decision)
    return History(tuple(attempts))


def _parse_events(lines: Iterable[bytes]) -> Iterable[HistoryLine]:
    for line in lines:
        with suppress(msgspec.MsgspecError):
            yield msgspec.json.decode(line, type=HistoryLine)


def _collect_attempts(events: Iterable[HistoryLine]) -> list[RecordedAttempt]:
    attempts: list[RecordedAttempt] = []
    for event in events:
        if event.event == "start":
            waited = 0.0
            if attempts:
                last = attempts[-1]
                # Slurm killed an attempt that noted no end: its latest checkpoint shows how far it came.
                waited = max(0.0, event.time - (last.end or last.saved or event.time))
            number, nodes = event.attempt, str(event.nodes)
            attempts.append(
                RecordedAttempt(number=number, job_id=event.job_id, nodes=nodes, start=event.time, waited=waited)
            )
        elif attempts and event.event == "end":
            attempts[-1] = structs.replace(
                attempts[-1],
                end=event.time,
                exit_code=event.exit_code,
                decision=event.decision,
                reason=" ".join(filter(None, (str(event.reason), event.state and f"({event.state})"))),
                saved=event.saved,
                step=event.step if isinstance(event.step, int) else None,
            )
        elif attempts and event.event == "node":
            attempts[-1] = structs.replace(attempts[-1], excluded=(*attempts[-1].excluded, str(event.nodes)))
    return attempts
