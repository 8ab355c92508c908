"""Finds a training that has stopped making progress, and the rank that it waits for.

A thread in each rank writes the progress of the training to the run folder. If no step ends for a long time, all ranks
write their Python stacks, and one rank compares them: ranks that wait in the same line wait for the ranks that do not.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError
from hpc_kit.run_files import (
    RUN_VARIABLE,
    STACKS,
    STACKS_REQUEST,
    UNKNOWN_HOST,
    VERDICT,
    claim_first_failure,
    progress_file,
    rank_stacks,
    read_stacks,
    write_whole,
)
from hpc_kit.runtime import shutdown
from hpc_kit.runtime.rendezvous import network
from hpc_kit.runtime.stack_comparison import StallCause, compare_stacks, recognize_work, take_stacks
from hpc_kit.runtime.variables import positive_seconds
from hpc_kit.runtime.wait_sampler import NodeNotes, WaitSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.runtime.world import World

ACTION, TIMEOUT = "HPC_KIT_WATCHDOG", "HPC_KIT_WATCHDOG_TIMEOUT"
"""Environment variables of the job's [watchdog]: `report`, `stop` or `off`; and the shortest stall in seconds."""

STALLED = 124
"""Exit code of a rank that ends a stalled training; `timeout` (coreutils) uses it, too."""

DEFAULT_TIMEOUT = 600.0
_STEP_FACTOR = 10
_GAP_FACTOR = 2
"""A stall lasts at least so many typical steps, and so many of the longest gap between two steps so far."""

_WORK_FACTOR = 10
"""In a compilation, save or evaluation that the stacks show, the main thread may be blocked for so many stalls."""

_FIRST_STEPS = 3
"""Steps that are not watched. The first steps compile and allocate, and their time is not typical."""

_MOST_LOSSES = 40
"""Number of losses that fit into a line of a terminal."""

_POLL_SECONDS = 5.0
_WRITE_SECONDS = 10.0
_COMPARE_SECONDS = 15.0
"""Time that ranks have to write their stacks before they are compared. A rank needs two polls to notice a stall."""

_RETRY_SECONDS = 60.0
"""Shortest time until the next comparison if a rank is at long work, which is then assumed to last as long."""


class Progress:
    """The progress of this rank in memory. The training sets it, and the thread of the watchdog reads it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a training: forget the steps of an earlier one, or of the process that forked this one."""
        self.pid = os.getpid()
        self.step: int | None = None
        self.total: int | None = None
        self.phases: list[str] = []
        self.numbers: dict[str, float] = {}
        self.moved_at = time.monotonic()
        """Time of the last step, or of the last end of a phase. Monotonic clock."""

        self.seconds: deque[float] = deque(maxlen=101)
        """Durations of the latest steps."""

        self.longest = 0.0
        self.count = 0
        self.losses: list[float] = []
        """The loss at regular steps since the beginning, at most `_MOST_LOSSES`."""

        self._loss_interval = 1

    @property
    def phase(self) -> str | None:
        """The innermost phase that the program has announced. The last one may end while this is read."""
        return next(reversed(self.phases), None)

    def note(self, step: int, total: int | None, numbers: Mapping[str, float]) -> None:
        """Note the end of a step."""
        now = time.monotonic()
        if step != self.step:
            if self.count and not self.phases:
                self.seconds.append(now - self.moved_at)
                self.longest = max(self.longest, now - self.moved_at)
            self.count += 1
            self.moved_at = now
        self.step, self.total = step, total if total is not None else self.total
        self.numbers.update(numbers)
        if "loss" in numbers and self.count % self._loss_interval == 0:
            self.losses.append(float(numbers["loss"]))
            if len(self.losses) == _MOST_LOSSES:
                del self.losses[1::2]
                self._loss_interval *= 2

    def limit(self, shortest_stall: float) -> float:
        """Return the number of seconds without a step that counts as a stall."""
        typical = statistics.median(self.seconds) if self.seconds else 0.0
        # A program may evaluate without announcing a phase, which makes some gaps between steps longer.
        return max(shortest_stall, _STEP_FACTOR * typical, _GAP_FACTOR * self.longest)

    def stalled_for(self, shortest_stall: float) -> float | None:
        """Return the seconds without a step, or None if that is no stall."""
        quiet = time.monotonic() - self.moved_at
        return quiet if self.count > _FIRST_STEPS and not self.phases and quiet > self.limit(shortest_stall) else None


_progress = Progress()


def progress(step: int, *, total: int | None = None, **numbers: float) -> None:
    """Report that a step of the training has ended, to the watchdog and to `hpc-kit watch`.

    Costs a few microseconds, and does not communicate. In a process that the rank forked, such as a worker of a
    DataLoader, it does nothing.

    Args:
        step: Number of the step.
        total: Number of steps of the whole training, for the estimate of its end.
        numbers: More figures for `hpc-kit watch`, such as `loss` and `tokens_per_second`.
    """
    if os.getpid() == _progress.pid:
        # NumPy's and torch's integers cannot be written as JSON.
        _progress.note(int(step), None if total is None else int(total), numbers)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Announce work of unknown length, such as an evaluation: inside the `with` block there is no stall."""
    _progress.phases.append(name)
    try:
        yield
    finally:
        _progress.phases.pop()
        _progress.moved_at = time.monotonic()


@contextmanager
def watching(world: World, environ: Mapping[str, str]) -> Iterator[None]:
    """Watch this rank inside the `with` block, unless HPC_KIT_WATCHDOG is `off` or there is no run folder.

    Raises:
        SpecError: A variable of the watchdog has no meaning.
    """
    action, shortest_stall = read_settings(environ)
    folder = environ.get(RUN_VARIABLE)
    if action == "off" or not folder:
        yield
        return
    _progress.reset()
    watchdog = RankWatchdog(world, Path(folder), action=action, shortest_stall=shortest_stall)
    watchdog.thread.start()
    try:
        yield
    finally:
        watchdog.stop()


def read_settings(environ: Mapping[str, str]) -> tuple[str, float]:
    """Return action and shortest stall in seconds.

    Raises:
        SpecError: A variable has no meaning.
    """
    action = environ.get(ACTION) or "report"
    if action not in {"report", "stop", "off"}:
        raise SpecError(f"{ACTION} has no meaning", found=f"{ACTION}={action}", remedy="write report, stop or off")
    return action, positive_seconds(environ.get(TIMEOUT) or DEFAULT_TIMEOUT, TIMEOUT)


class RankWatchdog:
    """The thread that watches one rank."""

    def __init__(self, world: World, run: Path, *, action: str, shortest_stall: float) -> None:
        self.world, self.run, self.action, self.shortest_stall = world, run, action, shortest_stall
        self.host = network.this_node_name(os.environ)
        self.thread = threading.Thread(target=self._watch, name="hpc_kit_watchdog", daemon=True)
        self._is_over = threading.Event()
        self._written_at, self._written_step = 0.0, -1
        self._sampler = WaitSampler()
        self._node_notes = NodeNotes(run, world.node_rank or 0, is_first=not world.local_rank)
        self._answered_request = self._request_time()
        self._reported_step: int | None = None
        self._next_comparison = 0.0
        self._work: tuple[str, float] | None = None
        """Long work that the stacks have shown, and the time of that."""

        self._switches, self._ran_at = 0, time.monotonic()
        """Context switches of the main thread, and the time of their last change: a blocked thread has none."""

    def stop(self) -> None:
        """End the thread, after the last progress is written."""
        self._is_over.set()
        self.thread.join(timeout=_POLL_SECONDS)

    def _watch(self) -> None:
        checked_at = time.monotonic()
        while not self._is_over.wait(self._sampler.draw_pause() if self._is_sampling() else _POLL_SECONDS):
            if self._is_sampling():
                self._sampler.sample()
            else:
                self._sampler.interrupt()
            if time.monotonic() - checked_at >= _POLL_SECONDS:
                with suppress(OSError):  # a full disk or a lost file system must not end the training
                    self._check()
                self._sampler.interrupt()
                checked_at = time.monotonic()
        with suppress(OSError):
            self._write_progress()
        self._node_notes.close()

    def _is_sampling(self) -> bool:
        """Return whether the waits of this rank are measured: only in the usual steps, outside of phases."""
        return self.world.world_size > 1 and _progress.count > _FIRST_STEPS and not _progress.phases

    def _check(self) -> None:
        if time.monotonic() - self._written_at >= _WRITE_SECONDS:
            self._write_progress()
        self._recognize_long_work()
        requested = self._request_time()
        if requested > self._answered_request:
            self._answered_request = requested
            self._write_stacks()
        quiet = _progress.stalled_for(self.shortest_stall)
        if quiet is None or self._reported_step == _progress.step or time.monotonic() < self._next_comparison:
            return
        try:
            self._request_stacks()
            self._compare_and_report(quiet)
        except OSError as error:  # a lost file system may be the cause of the stall
            self._reported_step = _progress.step
            problem = f"{self.run} cannot be written: {error.strerror or error}"
            self._report(StallCause(problem, [], {}), self._describe_stall(quiet, problem))

    def _recognize_long_work(self) -> None:
        """Look for long work in the stacks. It counts for a while longer: some of its code cannot be recognized."""
        now, switches = time.monotonic(), context_switches()
        if switches != self._switches or now - _progress.moved_at < _POLL_SECONDS:
            self._switches, self._ran_at = switches, now
        longest = _WORK_FACTOR * _progress.limit(self.shortest_stall)
        is_blocked = now - self._ran_at > longest
        if now - _progress.moved_at >= _POLL_SECONDS and not is_blocked:
            frames = sys._current_frames()  # noqa: SLF001 - documented in spite of its name
            del frames[threading.get_ident()]
            work = recognize_work(frames, threading.main_thread().ident)
            # A thread that waits for a GPU looks like one that computes.
            is_certain = work != "evaluation" and not _uses_gpu()
            if work and (is_certain or now - _progress.moved_at < longest):
                self._work = work, now
        if self._work and (is_blocked or self._work[1] < _progress.moved_at or now - self._work[1] > _RETRY_SECONDS):
            self._work = None

    def _write_progress(self) -> None:
        """Write the progress, if it has changed. The first rank of a node writes it for all ranks of the node."""
        if _progress.count == self._written_step or _progress.step is None:
            return
        self._written_at, self._written_step = time.monotonic(), _progress.count
        self._node_notes.add(self.world.rank, self._rank_note())
        if self.world.local_rank:
            return
        seconds = statistics.median(_progress.seconds) if _progress.seconds else None
        self._write(
            self.run / progress_file(self.world.node_rank or 0),
            {
                "time": round(time.time(), 3),
                "rank": self.world.rank,
                "host": self.host,
                "step": _progress.step,
                "total": _progress.total,
                "phase": _progress.phase,
                "seconds": seconds,
                "losses": list(_progress.losses),
                # A copy, because the training may add names while the value of a tensor is copied from the GPU.
                "numbers": {name: float(value) for name, value in list(_progress.numbers.items())},
                "ranks": self._node_notes.collect(),
            },
        )

    def _rank_note(self) -> dict[str, object]:
        """Return the part of the progress that differs between ranks."""
        note: dict[str, object] = {"step": _progress.step, "phase": _progress.phase, **memory_in_use()}
        if self._sampler.share is not None:
            note["waits"] = round(self._sampler.share, 4)
        return note

    @staticmethod
    def _write(path: Path, content: object, *, replace: bool = True) -> None:
        write_whole(path, json.dumps(content).encode(), lasting=False, replace=replace)

    def _request_time(self) -> float:
        """Return the time of the last request of the stacks; 0 if there was none."""
        try:
            return (self.run / STACKS / STACKS_REQUEST).stat().st_mtime
        except OSError:
            return 0.0

    def _request_stacks(self) -> None:
        """Ask all ranks for their stacks, unless a rank has just asked. A rank in a phase notices no stall itself."""
        if self._answered_request <= time.time() - self._stack_age():
            self._write_stacks()
            (self.run / STACKS / STACKS_REQUEST).write_text(f"{time.time()}\n")
            self._answered_request = self._request_time()

    def _write_stacks(self) -> None:
        folder = self.run / STACKS
        folder.mkdir(mode=0o700, exist_ok=True)
        work = self._work[0] if self._work else None
        stacks = take_stacks(self.world.rank, self.host, step=_progress.step, phase=_progress.phase, work=work)
        self._write(folder / rank_stacks(self.world.rank), stacks._asdict())

    def _retry_seconds(self) -> float:
        """Return the seconds until the next comparison if a rank is at long work."""
        return max(_RETRY_SECONDS, _progress.limit(self.shortest_stall) / 2)

    def _stack_age(self) -> float:
        """Return the largest age of compared stacks, in seconds. The clocks of nodes may differ by the same time."""
        return min(time.monotonic() - _progress.moved_at, self._retry_seconds()) / 2

    def _compare_and_report(self, quiet: float) -> None:
        """Compare the stacks of all ranks. The first rank that writes the verdict reports it."""
        step, since = _progress.step, time.time() - self._stack_age()
        if self._is_over.wait(_COMPARE_SECONDS) or _progress.step != step:
            return
        stacks = read_stacks(self.run, since=since)
        if any(stack.phase or stack.work for stack in stacks):
            self._next_comparison = time.monotonic() + self._retry_seconds()
            return
        self._reported_step = step
        cause = compare_stacks(stacks, self.world.world_size)
        began = time.time() - quiet - _COMPARE_SECONDS
        sentence = self._describe_stall(quiet + _COMPARE_SECONDS, cause.sentence)
        path = self.run / STACKS / VERDICT
        with suppress(OSError):
            if path.stat().st_mtime < began:  # the verdict about an earlier stall
                path.unlink()
        verdict = {"time": time.time(), "step": step, "sentence": sentence, "ranks": cause.late}
        with suppress(FileExistsError):  # another rank has written it
            self._write(path, verdict, replace=False)
            self._report(cause, sentence)

    @staticmethod
    def _describe_stall(quiet: float, cause: str) -> str:
        return f"no step has ended for {quiet:.0f} s after step {_progress.step}: {cause}"

    def _report(self, cause: StallCause, sentence: str) -> None:
        """Print the verdict. With the action `stop`, end the training."""
        sys.stderr.write(f"hpc-kit: {sentence}\n  do     read the stacks: hpc-kit stacks {self.run.name}\n")
        sys.stderr.flush()
        if self.action == "stop":
            late = cause.late[0] if cause.late else self.world.rank
            known = {**cause.hosts, self.world.rank: self.host}
            host = known.get(late) or expected_host(self.world, late, known) or UNKNOWN_HOST
            claim_first_failure(self.run, late, host, STALLED, sentence)
            shutdown.exit_rank(STALLED)


def context_switches() -> int:
    """Return the number of context switches of the main thread; 0 if the system does not count them."""
    with suppress(OSError):
        # The id of the main thread is the id of the process.
        lines = Path(f"/proc/self/task/{os.getpid()}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return 0


def memory_in_use() -> dict[str, int]:
    """Return the bytes of main memory that this process uses (`memory`), and the peak of its GPU (`gpu_memory`)."""
    used: dict[str, int] = {}
    with suppress(OSError, IndexError, ValueError):  # not Linux
        used["memory"] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if _uses_gpu():
        used["gpu_memory"] = sys.modules["torch"].cuda.max_memory_allocated()
    return used


def _uses_gpu() -> bool:
    with suppress(AttributeError):  # torch may be half imported
        return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())
    return False


def expected_host(world: World, rank: int, known: Mapping[int, str]) -> str | None:
    """Return the host of a rank, if the ranks fill the nodes one after another; None if this is not certain.

    Args:
        world: This process.
        rank: A rank that has written no stacks.
        known: Hosts of other ranks, which must confirm the order: `--distribution=cyclic` has another one.
    """
    per_node = world.local_world_size
    if not per_node or per_node * len(world.hosts) != world.world_size:
        return None
    confirmed = all(world.hosts[other // per_node] == host for other, host in known.items())
    return world.hosts[rank // per_node] if confirmed else None
