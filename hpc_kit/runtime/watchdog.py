"""Finds a training that has stopped making progress, and the rank that it waits for.

A thread in each rank notes the steps of the training in the run folder. When no step ends for a long time, each rank
writes its Python stacks, and one rank compares them: ranks that wait in the same line wait for the ranks that do not.
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
_WORK_FACTOR = 10
"""Limits for which the main thread may be blocked inside a compilation, save or evaluation that the stacks show."""

_LEAST_STEPS = 3
"""Steps before the first verdict. The first steps compile and allocate, and their time is not typical."""

_MOST_LOSSES = 40

_POLL_SECONDS = 5.0
_WRITE_SECONDS = 10.0
_COMPARE_SECONDS = 15.0
"""Time that ranks have to write their stacks before they are compared. A rank needs two polls to notice a stall."""


_RETRY_SECONDS = 60.0
"""Shortest time until the next comparison if a rank is at long work. Work that the stacks showed counts as long."""


class Progress:
    """The progress of this rank, kept in memory; setting it takes microseconds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a training: forget the steps of an earlier one, or of the process that forked this one."""
        self.pid = os.getpid()
        self.step: int | None = None
        self.total: int | None = None
        self.phases: list[str] = []
        self.numbers: dict[str, float] = {}
        self.moved = time.monotonic()
        """Time of the last step, and of the last begin or end of a phase."""

        self.seconds: deque[float] = deque(maxlen=101)
        self.longest = 0.0
        self.count = 0
        self.losses: list[float] = []
        """The loss at regular steps since the beginning, as many as fit into a line of a terminal."""

        self._loss_interval = 1

    @property
    def phase(self) -> str | None:
        """The innermost phase that the program has announced. It may end while the watchdog's thread asks for it."""
        return next(reversed(self.phases), None)

    def note(self, step: int, total: int | None, numbers: Mapping[str, float]) -> None:
        """Note the end of a step."""
        now = time.monotonic()
        if step != self.step:
            if self.count and not self.phases:
                self.seconds.append(now - self.moved)
                self.longest = max(self.longest, now - self.moved)
            self.count += 1
            self.moved = now
        self.step, self.total = step, total if total is not None else self.total
        self.numbers.update(numbers)
        if "loss" in numbers and self.count % self._loss_interval == 0:
            self.losses.append(float(numbers["loss"]))
            if len(self.losses) == _MOST_LOSSES:
                del self.losses[1::2]
                self._loss_interval *= 2

    def limit(self, least: float) -> float:
        """Return the seconds without a step that are a stall."""
        typical = statistics.median(self.seconds) if self.seconds else 0.0
        # An evaluation that the program does not announce makes some gaps between steps longer than all others.
        return max(least, _STEP_FACTOR * typical, _GAP_FACTOR * self.longest)

    def stalled_for(self, least: float) -> float | None:
        """Return the seconds without a step, or None if that is no stall."""
        quiet = time.monotonic() - self.moved
        return quiet if self.count > _LEAST_STEPS and not self.phases and quiet > self.limit(least) else None


_progress = Progress()


def progress(step: int, *, total: int | None = None, **numbers: float) -> None:
    """Note that a step of the training has ended. The watchdog and `hpc-kit watch` use these notes.

    Costs a few microseconds, and does not communicate. In a process that the rank forked, such as a worker of a
    DataLoader, it does nothing.

    Args:
        step: Number of the step.
        total: Number of steps of the whole training, for the estimate of its end.
        numbers: More figures for `hpc-kit watch`, such as `loss` and `tokens_per_second`.
    """
    if os.getpid() == _progress.pid:
        # Programs also count with NumPy or with tensors, whose numbers JSON does not take.
        _progress.note(int(step), None if total is None else int(total), numbers)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Announce work of unknown length, such as an evaluation: inside the `with` block there is no stall."""
    _progress.phases.append(name)
    try:
        yield
    finally:
        _progress.phases.pop()
        _progress.moved = time.monotonic()


@contextmanager
def watching(world: World, environ: Mapping[str, str]) -> Iterator[None]:
    """Watch this rank inside the `with` block, unless HPC_KIT_WATCHDOG is `off` or there is no run folder.

    Raises:
        SpecError: A variable of the watchdog has no meaning.
    """
    action, least = read_settings(environ)
    folder = environ.get(RUN_VARIABLE)
    if action == "off" or not folder:
        yield
        return
    _progress.reset()
    watchdog = RankWatchdog(world, Path(folder), action=action, least=least)
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

    def __init__(self, world: World, run: Path, *, action: str, least: float) -> None:
        self.world, self.run, self.action, self.least = world, run, action, least
        self.host = network.this_node_name(os.environ)
        self.thread = threading.Thread(target=self._watch, name="hpc_kit_watchdog", daemon=True)
        self._over = threading.Event()
        self._written, self._written_step = 0.0, -1
        self._sampler = WaitSampler()
        self._notes = NodeNotes(run, world.node_rank or 0, is_first=not world.local_rank)
        self._answered = self._requested()
        self._reported_step: int | None = None
        self._next_comparison = 0.0
        self._work: tuple[str, float] | None = None
        """Long work that the stacks have shown, and when."""

        self._switches, self._ran = 0, time.monotonic()
        """Context switches of the main thread, and when their number has changed: a blocked thread has none."""

    def stop(self) -> None:
        """End the thread, after the last progress is written."""
        self._over.set()
        self.thread.join(timeout=_POLL_SECONDS)

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(self._sampler.draw_pause() if self._samples() else _POLL_SECONDS):
            if self._samples():
                self._sampler.sample()
            else:
                self._sampler.interrupt()
            if time.monotonic() - looked >= _POLL_SECONDS:
                with suppress(OSError):  # a full disk or a lost file system must not end the training
                    self._look()
                self._sampler.interrupt()
                looked = time.monotonic()
        with suppress(OSError):
            self._write_progress()
        self._notes.close()

    def _samples(self) -> bool:
        """Return whether the training is at its usual work, in which a slow rank lets the others wait."""
        # The first steps also compile, and create process groups.
        return self.world.world_size > 1 and _progress.count > _LEAST_STEPS and not _progress.phases

    def _look(self) -> None:
        if time.monotonic() - self._written >= _WRITE_SECONDS:
            self._write_progress()
        self._look_for_work()
        requested = self._requested()
        if requested > self._answered:
            self._answered = requested
            self._write_stacks()
        quiet = _progress.stalled_for(self.least)
        if quiet is None or self._reported_step == _progress.step or time.monotonic() < self._next_comparison:
            return
        try:
            self._request_stacks()
            self._conclude(quiet)
        except OSError as error:  # a lost file system may be the cause of the stall
            self._reported_step = _progress.step
            problem = f"{self.run} cannot be written: {error.strerror or error}"
            self._report(StallCause(problem, [], {}), self._describe_stall(quiet, problem))

    def _look_for_work(self) -> None:
        """Note long work that the stacks show. A loop of an evaluation is not always inside the model."""
        now, switches = time.monotonic(), context_switches()
        if switches != self._switches or now - _progress.moved < _POLL_SECONDS:
            self._switches, self._ran = switches, now
        longest = _WORK_FACTOR * _progress.limit(self.least)
        is_blocked = now - self._ran > longest
        if now - _progress.moved >= _POLL_SECONDS and not is_blocked:
            frames = sys._current_frames()  # noqa: SLF001 - documented in spite of its name
            del frames[threading.get_ident()]
            work = recognize_work(frames, threading.main_thread().ident)
            # A thread that waits for a GPU looks like one that computes.
            is_certain = work != "evaluation" and not _uses_gpu()
            if work and (is_certain or now - _progress.moved < longest):
                self._work = work, now
        if self._work and (is_blocked or self._work[1] < _progress.moved or now - self._work[1] > _RETRY_SECONDS):
            self._work = None

    def _write_progress(self) -> None:
        """Write the progress of the first rank of each node, at most every 10 seconds, and only a new one."""
        if _progress.count == self._written_step or _progress.step is None:
            return
        self._written, self._written_step = time.monotonic(), _progress.count
        self._notes.add(self.world.rank, self._rank_note())
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
                # A copy: the training adds names, also while the value of a tensor is on its way from the GPU.
                "numbers": {name: float(value) for name, value in list(_progress.numbers.items())},
                "ranks": self._notes.collect(),
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

    def _requested(self) -> float:
        """Return the time of the last request of the stacks; 0 if there was none."""
        try:
            return (self.run / STACKS / STACKS_REQUEST).stat().st_mtime
        except OSError:
            return 0.0

    def _request_stacks(self) -> None:
        """Ask all ranks for their stacks, unless that has just happened. A rank in a phase has no stall of its own."""
        if self._answered <= time.time() - self._stack_age():
            self._write_stacks()
            (self.run / STACKS / STACKS_REQUEST).write_text(f"{time.time()}\n")
            self._answered = self._requested()

    def _write_stacks(self) -> None:
        folder = self.run / STACKS
        folder.mkdir(mode=0o700, exist_ok=True)
        work = self._work[0] if self._work else None
        stacks = take_stacks(self.world.rank, self.host, step=_progress.step, phase=_progress.phase, work=work)
        self._write(folder / rank_stacks(self.world.rank), stacks._asdict())

    def _retry_seconds(self) -> float:
        """Return the time until the next comparison if a rank is at long work."""
        return max(_RETRY_SECONDS, _progress.limit(self.least) / 2)

    def _stack_age(self) -> float:
        """Return the largest age of compared stacks, in seconds. The clocks of nodes may differ by as much."""
        return min(time.monotonic() - _progress.moved, self._retry_seconds()) / 2

    def _conclude(self, quiet: float) -> None:
        """Compare the stacks of all ranks. The first rank that is ready reports, and ends the training if asked to."""
        step, since = _progress.step, time.time() - self._stack_age()
        if self._over.wait(_COMPARE_SECONDS) or _progress.step != step:
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
        with suppress(FileExistsError):  # another rank was earlier
            self._write(path, verdict, replace=False)
            self._report(cause, sentence)

    @staticmethod
    def _describe_stall(quiet: float, cause: str) -> str:
        return f"no step has ended for {quiet:.0f} s after step {_progress.step}: {cause}"

    def _report(self, cause: StallCause, sentence: str) -> None:
        """Print the verdict, and end the training if asked to."""
        sys.stderr.write(f"hpc-kit: {sentence}\n  do     read the stacks: hpc-kit stacks {self.run.name}\n")
        sys.stderr.flush()
        if self.action == "stop":
            late = cause.late[0] if cause.late else self.world.rank
            known = {**cause.hosts, self.world.rank: self.host}
            host = known.get(late) or expected_host(self.world, late, known) or UNKNOWN_HOST
            claim_first_failure(self.run, late, host, STALLED, sentence)
            shutdown.exit_rank(STALLED)


def context_switches() -> int:
    """Return how often the main thread has begun or ceased to run; 0 if the system does not count it."""
    with suppress(OSError):
        # The main thread has the number of the process.
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
    """Return the host of a rank if the ranks fill the nodes one after the other, and None if that is not certain.

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
