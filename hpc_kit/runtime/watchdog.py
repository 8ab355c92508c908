"""Finds a training that has stopped making progress, and the rank that it waits for.

A thread in each rank notes the steps of the training in the run folder. When no step ends for a long time, each rank
writes its Python stacks, and one rank compares them: ranks that wait in the same line wait for the ranks that do not.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import sysconfig
import threading
import time
import traceback
from collections import Counter, deque
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SpecError
from hpc_kit.run_files import (
    RUN_VARIABLE,
    STACKS,
    STACKS_REQUEST,
    VERDICT,
    RankStack,
    claim_first_failure,
    format_ranks,
    progress_file,
    rank_stacks,
    read_stacks,
    write_whole,
)
from hpc_kit.runtime import first_failure, shutdown

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
_LEAST_STEPS = 3
"""Steps before the first verdict. The first steps compile and allocate, and their time is not typical."""

_MOST_LOSSES = 40

_POLL_SECONDS = 5.0
_WRITE_SECONDS = 10.0
_COMPARE_SECONDS = 15.0
"""Time that ranks have to write their stacks before they are compared. A rank needs two polls to notice a stall."""


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
        _progress.note(step, total, numbers)


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
    watchdog = Watchdog(world, Path(folder), action=action, least=least)
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
    action, text = environ.get(ACTION) or "report", environ.get(TIMEOUT) or str(DEFAULT_TIMEOUT)
    if action not in {"report", "stop", "off"}:
        raise SpecError(f"{ACTION} has no meaning", found=f"{ACTION}={action}", remedy="write report, stop or off")
    try:
        least = float(text)
    except ValueError:
        least = 0.0
    if not 0 < least < float("inf"):
        raise SpecError(f"{TIMEOUT} is no number of seconds", found=f"{TIMEOUT}={text}", remedy="write 600")
    return action, least


class Watchdog:
    """The thread that watches one rank."""

    def __init__(self, world: World, run: Path, *, action: str, least: float) -> None:
        self.world, self.run, self.action, self.least = world, run, action, least
        self.host = first_failure.node_name()
        self.thread = threading.Thread(target=self._watch, name="hpc_kit_watchdog", daemon=True)
        self._over = threading.Event()
        self._began = time.time()
        self._written, self._written_step = 0.0, -1
        self._answered = self._requested()
        self._reported_step: int | None = None

    def stop(self) -> None:
        """End the thread, after the last progress is written."""
        self._over.set()
        self.thread.join(timeout=_POLL_SECONDS)

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            with suppress(OSError):  # a full disk or a lost file system must not end the training
                self._look()
        with suppress(OSError):
            self._write_progress()

    def _look(self) -> None:
        if time.monotonic() - self._written >= _WRITE_SECONDS:
            self._write_progress()
        requested = self._requested()
        if requested > self._answered:
            self._answered = requested
            self._write_stacks()
        quiet = _progress.stalled_for(self.least)
        if quiet is not None and self._reported_step != _progress.step:
            self._reported_step = _progress.step
            self._write_stacks()
            self._conclude(quiet)

    def _write_progress(self) -> None:
        """Write the progress of the first rank of each node, at most every 10 seconds, and only a new one."""
        if self.world.local_rank or _progress.count == self._written_step or _progress.step is None:
            return
        self._written, self._written_step = time.monotonic(), _progress.count
        seconds = statistics.median(_progress.seconds) if _progress.seconds else None
        self._write(
            self.run / progress_file(self.world.node_rank or 0),
            {
                "time": round(time.time(), 3),
                "rank": self.world.rank,
                "host": self.host,
                "step": _progress.step,
                "total": _progress.total,
                "phase": _progress.phases[-1] if _progress.phases else None,
                "seconds": seconds,
                "losses": list(_progress.losses),
                "numbers": {name: float(value) for name, value in _progress.numbers.items()},
            },
        )

    @staticmethod
    def _write(path: Path, content: object) -> None:
        write_whole(path, json.dumps(content).encode(), lasting=False)

    def _requested(self) -> float:
        """Return the time of the last request of the stacks; 0 if there was none."""
        try:
            return (self.run / STACKS / STACKS_REQUEST).stat().st_mtime
        except OSError:
            return 0.0

    def _write_stacks(self) -> None:
        folder = self.run / STACKS
        folder.mkdir(mode=0o700, exist_ok=True)
        self._write(folder / rank_stacks(self.world.rank), take_stacks(self.world.rank, self.host)._asdict())

    def _conclude(self, quiet: float) -> None:
        """Compare the stacks of all ranks. The first rank that is ready reports, and ends the training if asked to."""
        step = _progress.step
        if self._over.wait(_COMPARE_SECONDS) or _progress.step != step:
            return
        began = time.time() - quiet - _COMPARE_SECONDS
        verdict = compare_stacks(read_stacks(self.run, since=began), self.world.world_size)
        sentence = f"no step has ended for {quiet + _COMPARE_SECONDS:.0f} s after step {step}: {verdict.sentence}"
        path = self.run / STACKS / VERDICT
        with suppress(OSError):
            if path.stat().st_mtime < began:  # the verdict about an earlier stall
                path.unlink()
        draft = path.with_name(f".{VERDICT}.{self.world.rank}")
        self._write(draft, {"time": time.time(), "step": step, "sentence": sentence, "ranks": verdict.late})
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return
        finally:
            draft.unlink()
        sys.stderr.write(f"hpc-kit: {sentence}\n  do     read the stacks: hpc-kit stacks {self.run.name}\n")
        sys.stderr.flush()
        if self.action == "stop":
            self._end_training(verdict, sentence)

    def _end_training(self, verdict: Verdict, sentence: str) -> None:
        late = verdict.late[0] if verdict.late else self.world.rank
        host = verdict.hosts.get(late) or first_host(self.world, late) or self.host
        claim_first_failure(self.run, late, host, STALLED, sentence)
        shutdown.exit_rank(STALLED)


def first_host(world: World, rank: int) -> str | None:
    """Return the host of a rank that has written no stacks, if all nodes have the same number of ranks."""
    per_node = world.local_world_size
    if not world.hosts or not per_node or per_node * len(world.hosts) != world.world_size:
        return None
    return world.hosts[rank // per_node]


# Stacks


def take_stacks(rank: int, host: str) -> RankStack:
    """Return the stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    current = sys._current_frames()  # noqa: SLF001 - documented in spite of its name
    frames = {ident: strip_start(traceback.extract_stack(frame)) for ident, frame in current.items() if ident != own}
    ordered = sorted(frames, key=lambda ident: ident != main)
    threads = {names.get(ident) or f"thread {ident}": "".join(frames[ident].format()) for ident in ordered}
    summary = frames.get(main or 0) or traceback.StackSummary()
    inner = next((frame for frame in reversed(summary) if is_own(frame.filename)), None)
    line = f"{Path(inner.filename).name}:{inner.lineno} in {inner.name}" if inner else ""
    phase = _progress.phases[-1] if _progress.phases else None
    call = summary[-1].name if summary else ""
    waits = any(part in frame.filename for frame in summary for part in _WAITING)
    return RankStack(rank, host, time.time(), _progress.step, phase, line, call, waits, threads)


_WAITING = ("/torch/distributed/", "/torch/autograd/")
"""Files of torch in whose functions a rank waits for others. Computing alone never takes as long as a stall."""


def strip_start(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Remove the frames that start the program: those of runpy and of `python -m hpc_kit.runtime`."""
    first = next((n for n, frame in enumerate(stack) if not frame.filename.startswith(("<frozen", _OWN_PACKAGE))), 0)
    return traceback.StackSummary.from_list(stack[first:])


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN_PACKAGE = str(Path(__file__).parents[1])


def is_own(filename: str) -> bool:
    """Return whether a file is part of the program, and not of Python, of an installed package or of hpc_kit."""
    return not filename.startswith(("<", *_LIBRARIES, _OWN_PACKAGE)) and "site-packages" not in filename


class Verdict(NamedTuple):
    """The cause of a stall, as far as the stacks show it."""

    sentence: str
    late: list[int]
    """The ranks that the others wait for; empty if all ranks are in the same line."""

    hosts: dict[int, str]


def compare_stacks(stacks: list[RankStack], world_size: int) -> Verdict:
    """Return which ranks the others wait for.

    Args:
        stacks: The stacks of the ranks that could write them.
        world_size: The number of ranks.
    """
    hosts = {stack.rank: stack.host for stack in stacks}
    if silent := sorted(set(range(world_size)) - set(hosts)):
        verb = "does" if len(silent) == 1 else "do"
        sentence = f"{format_ranks(silent)} {verb} not answer: stopped, ended, or in C code"
        if stacks:
            sentence += f"; {describe_place(stacks)}"
        return Verdict(sentence, silent, hosts)
    late = find_late(stacks)
    if not late:
        return Verdict(describe_place(stacks), [], hosts)
    waiting = [stack for stack in stacks if stack not in late]
    named = ", ".join(f"rank {stack.rank} on {stack.host} in {stack.line or stack.call}" for stack in late[:3])
    more = f" and {len(late) - 3} more" if len(late) > 3 else ""
    sentence = f"{describe_place(waiting, verbs=('waits', 'wait'))} for {named}{more}"
    return Verdict(sentence, [stack.rank for stack in late], hosts)


def find_late(stacks: list[RankStack]) -> list[RankStack]:
    """Return the stacks of the ranks that the others wait for; empty if the stacks do not show it."""
    least = min((stack.step or 0 for stack in stacks), default=0)
    common = Counter(stack.line for stack in stacks).most_common(1)
    line = common[0][0] if common and common[0][1] > len(stacks) / 2 else None
    for late in (
        [stack for stack in stacks if (stack.step or 0) == least],
        [stack for stack in stacks if not stack.waits],
        [stack for stack in stacks if line is not None and stack.line != line],
    ):
        if 0 < len(late) < len(stacks):
            return late
    return []


def describe_place(stacks: list[RankStack], verbs: tuple[str, str] = ("is", "are")) -> str:
    """Return the lines in which ranks are, the most frequent first: `ranks 0, 1 are in train.py:52 (all_reduce)`."""
    by_place: dict[str, list[int]] = {}
    for stack in stacks:
        by_place.setdefault(f"{stack.line} ({stack.call})" if stack.line else stack.call, []).append(stack.rank)
    places = sorted(by_place.items(), key=lambda item: (-len(item[1]), item[1]))[:3]
    return "; ".join(f"{format_ranks(ranks)} {verbs[len(ranks) > 1]} in {place}" for place, ranks in places)
