"""Takes the Python stacks of a rank, and finds in the stacks of all ranks the ranks for which all other ranks wait."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from hpc_kit.run_files import RankStack, format_ranks
from hpc_kit.runtime.flight_recorder import latest_collectives

_WAITING = ("/torch/distributed/", "/torch/autograd/")
"""Files of torch in whose functions a rank waits for other ranks. Computing alone never takes as long as a stall."""

_COMPILATION = ("/torch/_dynamo/convert_frame.py", "/torch/_inductor/compile_fx.py", "/torch/utils/cpp_extension.py")
"""Files of torch whose functions only compile. Compiled programs run in other files of the same folders."""

_SAVES = (
    ("/torch/serialization.py", ("save", "_save", "_legacy_save")),
    ("/torch/distributed/checkpoint/state_dict_saver.py", ("save", "_save_state_dict")),
    ("/safetensors/torch.py", ("save_file",)),
)
_MODULE_CALL = ("/torch/nn/modules/module.py", "_call_impl")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN_PACKAGE = str(Path(__file__).parents[1])


def take_stacks(rank: int, host: str, *, step: int | None, phase: str | None, work: str | None = None) -> RankStack:
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
    call = summary[-1].name if summary else ""
    waits = any(part in frame.filename for frame in summary for part in _WAITING)
    return RankStack(rank, host, time.time(), step, phase, line, call, waits, threads, latest_collectives(), work)


def recognize_work(frames: dict[int, FrameType], main: int | None) -> str | None:
    """Return `compilation`, `save`, `import` or `evaluation` if the stacks show it: work that may take long.

    Args:
        frames: The innermost frame of each thread, as from `sys._current_frames`.
        main: The main thread.
    """
    # With CUDA, the first backward pass compiles in a thread of its own.
    for frame in frames.values():
        if any(each.f_code.co_filename.endswith(_COMPILATION) for each in _outward(frame)):
            return "compilation"
    evaluates = False
    for each in _outward(frames.get(main or 0)):
        name, function = each.f_code.co_filename, each.f_code.co_name
        if name.endswith("/torch/distributed/distributed_c10d.py") or "/torch/autograd/" in name:
            return None  # it waits for other ranks
        if any(name.endswith(file) and function in functions for file, functions in _SAVES):
            return "save"
        if name == "<frozen importlib._bootstrap>" and function == "_load_unlocked":
            return "import"
        if name.endswith(_MODULE_CALL[0]) and function == _MODULE_CALL[1]:
            # The outermost module decides: parts of a model in training may be frozen.
            evaluates = getattr(each.f_locals.get("self"), "training", True) is False
    return "evaluation" if evaluates else None


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def strip_start(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Remove frames that start the program, of runpy and `python -m hpc_kit.runtime`, and those of Python's import."""
    first = next((n for n, frame in enumerate(stack) if not frame.filename.startswith(("<frozen", _OWN_PACKAGE))), 0)
    return traceback.StackSummary.from_list(
        [frame for frame in stack[first:] if not frame.filename.startswith("<frozen importlib")]
    )


def is_own(filename: str) -> bool:
    """Return whether a file is part of the program, and not of Python, of an installed package or of hpc_kit."""
    return not filename.startswith(("<", *_LIBRARIES, _OWN_PACKAGE)) and "site-packages" not in filename


class StallCause(NamedTuple):
    """The cause of a stall, as far as the stacks show it."""

    sentence: str
    late: list[int]
    """Ranks for which all other ranks wait; empty if all ranks are in the same line."""

    hosts: dict[int, str]


def compare_stacks(stacks: list[RankStack], world_size: int) -> StallCause:
    """Return the ranks for which all other ranks wait, from the stacks of those that could write them."""
    hosts = {stack.rank: stack.host for stack in stacks}
    if silent := sorted(set(range(world_size)) - set(hosts)):
        verb = "does" if len(silent) == 1 else "do"
        sentence = f"{format_ranks(silent)} {verb} not answer: stopped, ended, or in C code"
        if stacks:
            sentence += f"; {describe_place(stacks)}"
        return StallCause(sentence, silent, hosts)
    if mismatch := find_mismatch(stacks, hosts):
        return mismatch
    late = stacks_of_late_ranks(stacks)
    if not late:
        return StallCause(describe_place(stacks), [], hosts)
    waiting = [stack for stack in stacks if stack not in late]
    named = ", ".join(f"rank {stack.rank} on {stack.host} in {stack.line or stack.call}" for stack in late[:3])
    more = f" and {len(late) - 3} more" if len(late) > 3 else ""
    sentence = f"{describe_place(waiting, verbs=('waits', 'wait'))} for {named}{more}"
    return StallCause(sentence, [stack.rank for stack in late], hosts)


def stacks_of_late_ranks(stacks: list[RankStack]) -> list[RankStack]:
    """Return the stacks of the ranks for which all other ranks wait; empty if the stacks do not show it."""
    # A program may report steps on rank 0 only.
    steps = [stack.step for stack in stacks if stack.step is not None]
    least = min(steps) if len(steps) == len(stacks) and steps else None
    common = Counter(stack.line for stack in stacks).most_common(1)
    line = common[0][0] if common and common[0][1] > len(stacks) / 2 else None
    for late in (
        find_behind(stacks),
        [stack for stack in stacks if least is not None and stack.step == least],
        [stack for stack in stacks if not stack.waits],
        [stack for stack in stacks if line is not None and stack.line != line],
    ):
        if 0 < len(late) < len(stacks):
            return late
    return []


def find_behind(stacks: list[RankStack]) -> list[RankStack]:
    """Return the ranks that have begun the fewest collectives; empty if all have begun as many."""
    for backend in _common_backends(stacks):
        numbers = [stack.collectives[backend][0] for stack in stacks]
        if min(numbers) < max(numbers):
            return [stack for stack, number in zip(stacks, numbers, strict=True) if number == min(numbers)]
    return []


def find_mismatch(stacks: list[RankStack], hosts: dict[int, str]) -> StallCause | None:
    """Return the cause if the latest collectives of the ranks have the same number, but differ."""
    if find_behind(stacks):
        return None
    for backend in _common_backends(stacks):
        by_call: dict[str, list[int]] = {}
        for stack in stacks:
            by_call.setdefault(stack.collectives[backend][1], []).append(stack.rank)
        if len(by_call) > 1:
            calls = sorted(by_call.items(), key=lambda item: (-len(item[1]), item[1]))
            parts = "; ".join(f"{format_ranks(ranks)} in {call}" for call, ranks in calls[:3])
            # With two ranks, either may be wrong.
            few = calls[-1][1] if len(calls[-1][1]) < len(calls[0][1]) else []
            number = stacks[0].collectives[backend][0]
            return StallCause(f"the ranks differ in collective {number} of {backend}: {parts}", few, hosts)
    return None


def _common_backends(stacks: list[RankStack]) -> list[str]:
    """Return the backends with a collective on all ranks: many messages in other groups displace older entries."""
    names = stacks[0].collectives if stacks else {}
    return [name for name in names if all(name in stack.collectives for stack in stacks)]


def describe_place(stacks: list[RankStack], verbs: tuple[str, str] = ("is", "are")) -> str:
    """Return the lines in which ranks are, the most frequent first: `ranks 0, 1 are in train.py:52 (all_reduce)`."""
    by_place: dict[str, list[int]] = {}
    for stack in stacks:
        by_place.setdefault(f"{stack.line} ({stack.call})" if stack.line else stack.call, []).append(stack.rank)
    places = sorted(by_place.items(), key=lambda item: (-len(item[1]), item[1]))[:3]
    return "; ".join(f"{format_ranks(ranks)} {verbs[len(ranks) > 1]} in {place}" for place, ranks in places)
