"""`with hpc_kit.distributed() as world:`: from who am I to a process group, and back."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError
from hpc_kit.runtime import devices, first_failure, session, shutdown
from hpc_kit.runtime import mesh as layout
from hpc_kit.runtime import report as reports
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from hpc_kit.runtime.rendezvous.meeting import Meeting

BACKEND, TIMEOUT = "HPC_KIT_BACKEND", "HPC_KIT_TIMEOUT"
"""Environment variables: what `backend` and `timeout` are when a program does not say."""


@dataclass(frozen=True, kw_only=True)
class Group(World):
    """A world whose ranks have met and made a process group; no number is None."""

    local_rank: int
    local_world_size: int
    node_rank: int
    nnodes: int
    backend: str
    device: torch.device
    """This rank's device, the current one."""
    timeout: float | None = None
    """Seconds after which a collective gives up waiting; None: torch's own."""

    @property
    def device_ids(self) -> list[int] | None:
        """What DistributedDataParallel asks for: this rank's device, or None on the CPU."""
        return None if self.device.type == "cpu" else [self.device.index]

    def mesh(self, **degrees: int) -> DeviceMesh:
        """A DeviceMesh over all ranks with the job's [layout]; degrees given here win.

        Its axes are pp, dp, cp and tp, slowest first, also those of size 1; with `dp_shard`, dp is the two axes
        dp_replicate and dp_shard. Neighbouring ranks differ in tp: it stays inside a node where nodes hold as many.

        Raises:
            SpecError: The degrees do not fill the world.
        """
        said = {name: degree for name, degree in layout.read_layout(os.environ).items() if name in layout.DEGREE_NAMES}
        return layout.create_mesh(self, {**said, **degrees})

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        from torch import distributed as dist

        dist.barrier(device_ids=self.device_ids)


@contextmanager
def distributed(
    *, backend: str | None = None, timeout: float | timedelta | None = None, report: bool | None = None
) -> Iterator[Group]:
    """Meet the other ranks, make the default process group, and destroy it at the end.

    A rank that fails leaves its name in the run's folder and ends without waiting for the others.
    torch's names (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) are set inside, for libraries.

    Args:
        backend: nccl, gloo, ... or auto: nccl where there is a CUDA device, else gloo. Default: HPC_KIT_BACKEND, or
            auto.
        timeout: Seconds to wait for the other ranks, and for each collective. Default: HPC_KIT_TIMEOUT, or 300 for
            the meeting and torch's own for collectives.
        report: Whether rank 0 prints a table of all ranks: host, device and UUID, CPUs, memory nodes, interface,
            versions. Default: HPC_KIT_REPORT, or no.

    Raises:
        LauncherError: The environment does not say who this process is.
        RendezvousError: Not all ranks came in time.
        ContradictoryEnvironment: Ranks have no device of their own.
    """
    seconds = timeout_seconds(timeout, os.environ)
    with ExitStack() as stack:
        stack.enter_context(first_failure.exit_on_failure())
        outer = session.current_meeting()
        world = outer.world if outer else first_failure.resolve_or_record(os.environ)
        stack.enter_context(first_failure.recording_failures(world.rank))
        meeting = outer or stack.enter_context(session.joined_ranks(world, seconds))
        wanted = reports.is_requested(report, os.environ)
        asked = backend or os.environ.get(BACKEND) or "auto"
        yield stack.enter_context(_initialized_group(meeting, asked, seconds, wanted=wanted))


def timeout_seconds(timeout: float | timedelta | None, environ: Mapping[str, str]) -> float | None:
    """A time-out in seconds: as given, or HPC_KIT_TIMEOUT, or None.

    Raises:
        SpecError: It is no positive number.
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
def _initialized_group(meeting: Meeting, asked: str, seconds: float | None, *, wanted: bool) -> Iterator[Group]:
    """The default process group; one that the program has made itself is taken, and left to it."""
    from torch import distributed as dist

    if dist.is_initialized():
        yield _group(meeting, dist.get_backend(), seconds)
        return
    _apply_thread_count()
    group = _group(meeting, devices.choose_backend(asked), seconds)
    reports.report_placement(meeting, group.device, wanted=wanted)
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
        # Whoever catches this ends the process later, with the group's threads still there.
        atexit.register(shutdown.wait_for_gloo_threads)
        raise
    shutdown.destroy_process_group()


def _group(meeting: Meeting, backend: str, seconds: float | None) -> Group:
    world = meeting.world
    values = {field.name: getattr(world, field.name) for field in fields(World)}
    return Group(**values, backend=backend, device=devices.select_device(backend, meeting.world), timeout=seconds)


def _apply_thread_count() -> None:
    """OMP_NUM_THREADS comes too late for a torch that is already imported."""
    import torch

    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text):
        torch.set_num_threads(int(text))
