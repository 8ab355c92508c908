"""`hpc_kit.distributed()`: meets the other ranks, creates the process group, and destroys it."""

from __future__ import annotations

import atexit
import os
import shlex
import socket
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.runtime import devices, first_failure, mesh, shutdown, watchdog
from hpc_kit.runtime.launchers.ignored_variables import MISSING_SRUN
from hpc_kit.runtime.mpi import backend, library
from hpc_kit.runtime.placement import is_requested, report_placement
from hpc_kit.runtime.rendezvous.meeting import DEFAULT_TIMEOUT, meet
from hpc_kit.runtime.torch_environment import (
    command_variables,
    environment_set,
    expected_address,
    set_variables,
    torch_variables,
    unset_rank_variables,
)
from hpc_kit.runtime.torch_import import after_torch_import, quiet_torch_import
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from hpc_kit.runtime.rendezvous.meeting import Meeting

BACKEND, TIMEOUT = backend.BACKEND_VARIABLE, backend.TIMEOUT_VARIABLE
"""Environment variables with the defaults of `backend` and `timeout`."""


@dataclass(frozen=True, kw_only=True)
class Group(World):
    """A World whose ranks have met and created a process group. No number is None."""

    local_rank: int
    local_world_size: int
    node_rank: int
    nnodes: int
    backend: str
    device: torch.device
    """This rank's device, which is the current one."""
    timeout: float | None = None
    """Seconds after which a collective fails; None for torch's default."""

    @property
    def device_ids(self) -> list[int] | None:
        """The argument of DistributedDataParallel: this rank's device, or None on the CPU."""
        return None if self.device.type == "cpu" else [self.device.index]

    def mesh(self, **degrees: int) -> DeviceMesh:
        """Return a DeviceMesh over all ranks with the job's [layout]. Degrees given here take precedence.

        The axes are pp, dp, cp and tp, slowest first, including those of size 1. With `dp_shard`, dp becomes the two
        axes dp_replicate and dp_shard. Neighbouring ranks differ in tp, so tp stays inside a node that has enough
        ranks.

        Raises:
            SpecError: The product of the degrees is not the world size.
        """
        job_degrees = {name: size for name, size in mesh.read_layout(os.environ).items() if name in mesh.DEGREE_NAMES}
        return mesh.create_mesh(self.world_size, self.device.type, {**job_degrees, **degrees}, self.timeout)

    def barrier(self) -> None:
        """Wait for all ranks."""
        from torch import distributed as dist

        dist.barrier(device_ids=self.device_ids)


@contextmanager
def distributed(
    *, backend: str | None = None, timeout: float | timedelta | None = None, report: bool | None = None
) -> Iterator[Group]:
    """Meet the other ranks, create the default process group, and destroy it at the end.

    A rank that fails is recorded in the run folder and ends without waiting for the other ranks.
    Inside, torch's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) are set for libraries.

    Args:
        backend: nccl, gloo, ..., or auto: nccl with a CUDA device, otherwise gloo. Default: HPC_KIT_BACKEND, or
            auto.
        timeout: Seconds to wait for the other ranks, and for each collective. Default: HPC_KIT_TIMEOUT, or 300 for
            the meeting and torch's default for collectives.
        report: Print a table of all ranks on rank 0: host, device and UUID, CPUs, memory nodes, interface,
            versions.
            Default: HPC_KIT_REPORT, or no.

    Raises:
        LauncherError: The environment does not determine the rank of this process.
        RendezvousError: Not all ranks came in time.
        ContradictoryEnvironment: Ranks share a device.
    """
    seconds = timeout_seconds(timeout, os.environ)
    with ExitStack() as stack:
        stack.enter_context(shutdown.exit_on_failure())
        outer = current_meeting()
        world = outer.world if outer else first_failure.resolve_or_record(os.environ)
        stack.enter_context(first_failure.recording_failures(world.rank))
        meeting = outer or stack.enter_context(joined_ranks(world, seconds))
        requested = backend or os.environ.get(BACKEND) or "auto"
        with_table = is_requested(report, os.environ)
        yield stack.enter_context(_initialized_group(meeting, requested, seconds, with_table=with_table))


def timeout_seconds(timeout: float | timedelta | None, environ: Mapping[str, str]) -> float | None:
    """Return a time-out in seconds: the argument, HPC_KIT_TIMEOUT, or None.

    Raises:
        SpecError: It is not a positive number.
    """
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    text = environ.get(TIMEOUT, "").strip()
    try:
        seconds = timeout if timeout is not None else float(text) if text else None
    except ValueError:
        seconds = 0.0
    if seconds is not None and not 0 < seconds < float("inf"):
        found = f"{TIMEOUT} = {text}" if timeout is None else f"timeout = {timeout}"
        raise SpecError("the time-out is no number of seconds", found=found, remedy="a number above 0: 300")
    return seconds


@contextmanager
def _initialized_group(meeting: Meeting, requested: str, seconds: float | None, *, with_table: bool) -> Iterator[Group]:
    """Create the default process group, or use the one that the program has created, and leave that to the program."""
    from torch import distributed as dist

    if dist.is_initialized():
        yield _group(meeting, dist.get_backend(), seconds)
        return
    _apply_thread_count()
    group = _group(meeting, devices.choose_backend(requested), seconds)
    report_placement(meeting, group.device, with_table=with_table)
    dist.init_process_group(
        group.backend,
        store=meeting.substore("group"),
        rank=group.rank,
        world_size=group.world_size,
        timeout=None if seconds is None else timedelta(seconds=seconds),
        device_id=group.device if group.backend == "nccl" else None,
    )
    try:
        yield group
    except BaseException:
        # If the exception is caught outside, the process ends later while the group's threads still run.
        atexit.register(shutdown.wait_for_gloo_threads)
        raise
    shutdown.destroy_process_group()


def _group(meeting: Meeting, backend: str, seconds: float | None) -> Group:
    world = meeting.world
    values = {field.name: getattr(world, field.name) for field in fields(World)}
    return Group(**values, backend=backend, device=devices.select_device(backend, meeting.world), timeout=seconds)


def _apply_thread_count() -> None:
    """Apply OMP_NUM_THREADS to a torch that was imported before the variable was set."""
    import torch

    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text):
        torch.set_num_threads(int(text))


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
    """Like `joined_ranks`, but the ranks meet when the program imports torch. A program without torch meets nobody.

    Before the import, torch's variables have the values that are known; MASTER_PORT is the first port that rank 0 will
    try.
    """
    variables = command_variables(world, os.environ, expected_address(world, os.environ))
    early = unset_rank_variables(variables) if starts_ranks else dict(variables)
    before = {name: os.environ.get(name) for name in early}

    def join() -> None:
        by_program = {name: os.environ.get(name) for name, value in early.items() if os.environ.get(name) != value}
        set_variables(before)
        stack.enter_context(joined_ranks(world, timeout, program, starts_ranks=starts_ranks))
        set_variables(by_program)

    set_variables(early)
    _postponed.append(join)
    try:
        with ExitStack() as stack, after_torch_import(_join_postponed):
            yield
    finally:
        if join in _postponed:
            _postponed.remove(join)
        set_variables(before)


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
        variables = torch_variables(meeting, os.environ)
        exports = unset_rank_variables(variables) if starts_ranks else dict(variables)
        with environment_set(exports), watchdog.watching(world, os.environ):
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
                sys.stderr.write(f"  do     {prepend_srun(sys.orig_argv)}\n")
        sys.stderr.flush()


def import_torch_quietly() -> None:
    """Import torch without the warnings of its C++ code: see `quiet_torch_import`."""
    with quiet_torch_import():
        import torch  # noqa: F401


def require_torch() -> None:
    """Raise an error with a remedy if torch is not installed.

    Raises:
        HpcKitError: This interpreter has no torch.
    """
    if find_spec("torch") is None:
        raise HpcKitError(
            "there is no torch for this Python",
            found=f"{sys.executable} on {socket.gethostname()}",
            remedy=f"{sys.executable} -m pip install torch; or python = '/path/to/python' in the cluster file",
        )


def prepend_srun(argv: list[str]) -> str:
    """Return a command line with srun in front, and the interpreter by its short name."""
    interpreter, *rest = argv or ["python"]
    return shlex.join(["srun", Path(interpreter).name, *rest])
