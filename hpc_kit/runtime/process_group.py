"""`hpc_kit.distributed()`: meets the other ranks, creates the process group, and destroys it."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING

from hpc_kit.runtime import devices, first_failure, mesh, shutdown
from hpc_kit.runtime.joined_ranks import current_meeting, joined_ranks, timeout_seconds
from hpc_kit.runtime.placement import is_requested, report_placement
from hpc_kit.runtime.variables import BACKEND_VARIABLE
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from hpc_kit.runtime.rendezvous.meeting import Meeting


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

    Inside the block, torch's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) are set for libraries. A rank
    that fails is recorded in the run folder, and ends without waiting for the other ranks. At a normal end, a rank
    waits for at most 60 s until all ranks have created the group.

    Args:
        backend: nccl, gloo, ..., or auto: nccl with a CUDA device, otherwise gloo. Default: HPC_KIT_BACKEND, or auto.
        timeout: Seconds to wait for the other ranks, and for each collective. Default: HPC_KIT_TIMEOUT, or 300 for
            the meeting and torch's default for collectives.
        report: Print a table of all ranks on rank 0: host, device and UUID, CPUs, memory nodes, interface, versions.
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
        requested = backend or os.environ.get(BACKEND_VARIABLE) or "auto"
        with_table = is_requested(report, os.environ)
        yield stack.enter_context(_initialized_group(meeting, requested, seconds, with_table=with_table))


@contextmanager
def _initialized_group(meeting: Meeting, requested: str, seconds: float | None, *, with_table: bool) -> Iterator[Group]:
    """Create the default process group and destroy it. If the program has created one, use it and do not destroy it."""
    from torch import distributed as dist

    if dist.is_initialized():
        yield _make_group(meeting, dist.get_backend(), seconds)
        return
    _apply_thread_count()
    group = _make_group(meeting, devices.choose_backend(requested), seconds)
    report_placement(meeting, group.device, with_table=with_table)
    number, store = meeting.next_group_store()
    dist.init_process_group(
        group.backend,
        store=store,
        rank=group.rank,
        world_size=group.world_size,
        timeout=None if seconds is None else timedelta(seconds=seconds),
        # With a device, nccl connects the ranks now, and not in the first collective.
        device_id=group.device if group.backend == "nccl" else None,
    )
    try:
        with meeting.until_all_have_created(number):
            yield group
    except BaseException:
        # If a caller catches the exception, the process ends later, and must then wait for the threads of the group.
        atexit.register(shutdown.wait_for_gloo_threads)
        raise
    shutdown.destroy_process_group()


def _make_group(meeting: Meeting, backend: str, seconds: float | None) -> Group:
    world = meeting.world
    values = {field.name: getattr(world, field.name) for field in fields(World)}
    return Group(**values, backend=backend, device=devices.select_device(backend, meeting.world), timeout=seconds)


def _apply_thread_count() -> None:
    """Apply OMP_NUM_THREADS to a torch that was imported before the variable was set."""
    import torch

    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text):
        torch.set_num_threads(int(text))
