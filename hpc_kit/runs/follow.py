"""What happens to jobs, as values: nothing here prints. One query serves all jobs, however many."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs import launched
from hpc_kit.runs.first_failure import SHELL_MESSAGE
from hpc_kit.runs.logs import LogReader
from hpc_kit.runs.outcome import Outcome, read_state, record_outcome
from hpc_kit.slurm.job_status import status_of_job
from hpc_kit.slurm.start_forecast import QUEUE_REASONS, reason_name
from hpc_kit.slurm.states import JobState, Reason, explain_reason, explain_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpc_kit.runs.access import Access
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus

FILE_PAUSE = 0.1
"""Seconds between two looks at the logs, which cost Slurm nothing."""

LOST_LOOKS = 3
"""So often a job must be unknown to Slurm, and its script's end unmarked, before it counts as gone."""

_KILLED = re.compile(r"slurmstepd\S*: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED")
"""What Slurm leaves in the log of a rank that was ended: no word of the program's."""

PASSING = frozenset({JobState.COMPLETING, JobState.UNKNOWN})
"""States too short or too vague for a line of their own."""


class StateChanged(NamedTuple):
    """A job went from one state to another; `elapsed` seconds were spent in the old one, as far as was seen."""

    job_id: str
    old: JobState | None
    new: JobState
    elapsed: float
    sentence: str


class Waiting(NamedTuple):
    """A job is kept waiting by something other than the jobs before it."""

    job_id: str
    reason: str
    meaning: Reason


class RankLine(NamedTuple):
    """A line that a rank has written."""

    job_id: str
    rank: int
    text: str


class Unreachable(NamedTuple):
    """Slurm does not answer for now; the jobs go on, and so do the questions."""

    error: SlurmUnavailable


class Ended(NamedTuple):
    """A job is over."""

    job_id: str
    outcome: Outcome


Event = StateChanged | Waiting | RankLine | Unreachable | Ended


class _Watched:
    """One job being followed."""

    def __init__(self, run: Run, ranks: Sequence[int] | None, now: float) -> None:
        self.run = run
        self.tails = {rank: LogReader(run.rank_log(rank)) for rank in (run.ranks() if ranks is None else ranks)}
        self.state: JobState | None = None
        self.reason: str | None = None
        self.since = now
        self.unknown = 0
        self.files = self._files()

    def _files(self) -> tuple[bool, bool]:
        first = next(iter(self.tails.values()), None)
        begun = self.run.folder.is_dir() and (first is None or first.path.exists())
        return begun, self.run.end_marker() is not None

    def files_changed(self) -> bool:
        """The job has begun to write, or its script has reached its end: Slurm will have news."""
        before, self.files = self.files, self._files()
        return before != self.files

    def lines(self, *, end: bool = False) -> Iterator[RankLine]:
        for rank, tail in self.tails.items():
            for text in tail.read(end=end):
                if _KILLED.match(text) or SHELL_MESSAGE.match(text):
                    continue
                yield RankLine(self.run.job_id, rank, text)

    def changes(self, status: JobStatus | None, now: float) -> Iterator[StateChanged | Waiting]:
        """What a status brings that was not known."""
        state = read_state(self.run, status) if status is None else status.state
        # A word that only a newer Slurm has is a state, too: the job is there.
        self.unknown = self.unknown + 1 if state is JobState.UNKNOWN and status is None else 0
        if state not in PASSING and state is not self.state:
            yield StateChanged(self.run.job_id, self.state, state, now - self.since, explain_state(state))
            self.state, self.since, self.reason = state, now, None
        reason = status.reason if status and state is JobState.PENDING else None
        if status and reason is not None and reason != self.reason and reason_name(status) not in QUEUE_REASONS:
            self.reason = reason
            yield Waiting(self.run.job_id, reason, explain_reason(reason, self.run.job_id))

    def over(self, status: JobStatus | None) -> bool:
        """Nothing more will come of it."""
        state = read_state(self.run, status)
        return state.finished or self.unknown >= LOST_LOOKS


def follow(
    jobs: Sequence[Run],
    access: Access,
    *,
    ranks: Sequence[int] | None = (0,),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Event]:
    """Follow jobs to their ends: each change of state once, the ranks' lines as they come, how each ended.

    Stopping it (a `KeyboardInterrupt` comes through) does nothing to the jobs.

    Args:
        jobs: Their runs; of an array, its elements.
        access: The Slurm.
        ranks: Whose lines; None for all.
        sleep: Waits that many seconds.
        clock: Seconds that never go back.
    """
    watched = [_Watched(run, ranks, clock()) for run in jobs]
    # Each look at the files of many costs the file system something, after all.
    look = FILE_PAUSE * max(1.0, sum(len(job.tails) or 1 for job in watched) / 20)
    asked, reachable, stirred = float("-inf"), True, False
    while watched:
        for job in watched:
            yield from job.lines()
        # All are looked at: each look takes note.
        stirred = sum(job.files_changed() for job in watched) > 0 or stirred
        pause = access.pause if stirred or not access.embedded else _embedded_pause(access, watched, clock())
        if clock() - asked < pause:
            sleep(min(look, pause))
            continue
        asked, stirred = clock(), False
        question = _Question(access, [job.run.job_id for job in watched if not job.run.is_launch])
        while not question.answered.wait(look):
            for job in watched:
                yield from job.lines()
        try:
            told = question.answer()
        except SlurmUnavailable as error:
            if reachable:
                yield Unreachable(error)
            reachable = False
            continue
        reachable = True
        for job in list(watched):
            status = launched.status_of(job.run) if job.run.is_launch else status_of_job(told, job.run.job_id)
            news = list(job.changes(status, clock()))
            over = job.over(status)
            # What it wrote last it wrote before it ended.
            yield from job.lines(end=True) if over else ()
            yield from news
            if over:
                watched.remove(job)
                yield Ended(job.run.job_id, record_outcome(job.run, status))


class _Question:
    """The state of jobs, asked beside all else: a squeue that is slow holds up neither the ranks' lines nor Ctrl-C."""

    def __init__(self, access: Access, ids: list[str]) -> None:
        self.answered = threading.Event()
        self._found: dict[str, JobStatus] = {}
        self._error: BaseException | None = None
        # A daemon: the end of the following does not wait for it.
        threading.Thread(target=self._ask, args=(access, ids), daemon=True).start()

    def _ask(self, access: Access, ids: list[str]) -> None:
        try:
            self._found = access.query(ids)
        except BaseException as error:  # noqa: BLE001 - raised where the answer is read
            self._error = error
        self.answered.set()

    def answer(self) -> dict[str, JobStatus]:
        """The answer.

        Raises:
            SlurmUnavailable: There is none.
        """
        if self._error is not None:
            raise self._error
        return self._found


def _embedded_pause(access: Access, watched: Sequence[_Watched], now: float) -> float:
    """Often at first and after each change; more seldom the longer nothing happens: the ranks want the cores."""
    quiet = min(now - job.since for job in watched)
    return max(access.pause, min(1.0, quiet / 10))
