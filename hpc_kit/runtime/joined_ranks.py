"""Joins this process to the other ranks of its launch: with torch's import, or inside a `with` block."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.runtime import first_failure, watchdog
from hpc_kit.runtime.launchers.variable_conflicts import MISSING_SRUN
from hpc_kit.runtime.mpi import backend, library
from hpc_kit.runtime.rendezvous.ended_without_torch import EndsWithoutTorch
from hpc_kit.runtime.rendezvous.meeting import DEFAULT_TIMEOUT, meet
from hpc_kit.runtime.torch_environment import environment_set, torch_variables, update_environ
from hpc_kit.runtime.torch_import import after_torch_import, import_torch_quietly, require_torch
from hpc_kit.runtime.variables import TIMEOUT_VARIABLE, positive_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hpc_kit.runtime.rendezvous.meeting import Meeting
    from hpc_kit.runtime.world import World


def timeout_seconds(timeout: float | timedelta | None, environ: Mapping[str, str]) -> float | None:
    """Return a time-out in seconds: the argument, HPC_KIT_TIMEOUT, or None.

    Raises:
        SpecError: It is not a positive number.
    """
    if timeout is not None:
        return positive_seconds(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout, "timeout")
    text = environ.get(TIMEOUT_VARIABLE, "").strip()
    return positive_seconds(text, TIMEOUT_VARIABLE) if text else None


_current: list[Meeting] = []


def current_meeting() -> Meeting | None:
    """Return the meeting of `python -m hpc_kit.runtime` or of an outer `distributed()`, or None.

    The meeting that waits for the import of torch takes place now.
    """
    _join_postponed()
    return _current[-1] if _current else None


_postponed: list[Callable[[], None]] = []


def _join_postponed() -> None:
    if _postponed:
        _postponed.pop()()


@contextmanager
def ranks_joined_with_torch(
    world: World, timeout: float | None, program: Path | None = None, *, starts_ranks: bool = False
) -> Iterator[None]:
    """Like `joined_ranks`, but the ranks meet when the program imports torch.

    A rank without torch does not meet other ranks. It notes its end, so that no rank waits for it.
    Before the import, torch's variables have the values that are known; MASTER_PORT is the first port that rank 0 will
    try.
    """
    early = torch_variables(world, os.environ, is_expected=True, starts_ranks=starts_ranks)
    before = {name: os.environ.get(name) for name in early}

    def join() -> None:
        by_program = {name: os.environ.get(name) for name, value in early.items() if os.environ.get(name) != value}
        update_environ(before)
        stack.enter_context(joined_ranks(world, timeout, program, starts_ranks=starts_ranks))
        update_environ(by_program)

    update_environ(early)
    _postponed.append(join)
    try:
        with ExitStack() as stack, after_torch_import(_join_postponed):
            yield
        if join in _postponed:
            EndsWithoutTorch(world, os.environ).record()
    finally:
        if join in _postponed:
            _postponed.remove(join)
        update_environ(before)


@contextmanager
def joined_ranks(
    world: World, timeout: float | None, program: Path | None = None, *, starts_ranks: bool = False
) -> Iterator[Meeting]:
    """Meet the other ranks, with torch's variables set inside the `with` block.

    After a normal end this rank leaves the meeting in order. After a failure it does not wait for other ranks.

    Args:
        world: This process.
        timeout: Seconds to wait for the other ranks; 300 by default.
        program: The program of this process; the running program by default.
        starts_ranks: The program starts its own ranks. RANK, WORLD_SIZE and LOCAL_RANK are not set.

    Raises:
        HpcKitError: torch is not installed.
        ContradictoryEnvironment: The nodes do not run the same code.
        RendezvousError: Not all ranks came in time.
    """
    require_torch()
    if world.world_size > 1:
        import_torch_quietly()
    print_warnings(world)
    world = library.world_from_mpi(world, DEFAULT_TIMEOUT if timeout is None else timeout)
    meeting = meet(world, timeout=timeout, program=program)
    backend.install(current_meeting, started_by_mpi=world.launcher == "mpi")
    _current.append(meeting)
    first_failure.set_meeting(meeting)
    try:
        exports = torch_variables(meeting.world, os.environ, meeting, starts_ranks=starts_ranks)
        with environment_set(exports), watchdog.watching(meeting.world, os.environ):
            yield meeting
    finally:
        _current.remove(meeting)
    meeting.leave()


def print_warnings(world: World) -> None:
    """Print the warnings of a World, on rank 0 only."""
    if world.is_main:
        for warning in world.warnings:
            sys.stderr.write(f"hpc-kit: warning: {warning}\n")
            if warning.endswith(MISSING_SRUN):
                sys.stderr.write(f"  do     {_prepend_srun(sys.orig_argv)}\n")


def _prepend_srun(argv: list[str]) -> str:
    """Return a command line with srun in front, and the interpreter by its short name."""
    interpreter, *rest = argv or ["python"]
    return shlex.join(["srun", Path(interpreter).name, *rest])
