"""`dist.ProcessGroup` over mpi4py, as used by DistributedDataParallel, fully_shard, pipelining and checkpoints."""

# torch declares every collective twice over, as its C++ side does; one of the two ways is enough to be called by.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from hpc_kit.runtime.mpi.collectives import Collectives, Reduction, all_reduce_sparse
from hpc_kit.runtime.mpi.deadlines import Deadline
from hpc_kit.runtime.mpi.operation_queue import OperationQueue
from hpc_kit.runtime.mpi.point_to_point import Messages
from hpc_kit.runtime.mpi.work import CombinedWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.deadlines import MpiErrors

_CLOSE_TIMEOUT = 5.0
"""Seconds that the end of a group waits for other ranks."""


class MpiGroup(dist.ProcessGroup):
    """One communicator as a torch process group.

    Collectives are queued and run one after another; one that the caller waits for runs in the caller's thread.
    Messages between two ranks start immediately.
    """

    def __init__(
        self,
        collectives: Collectives,
        messages: Messages,
        queue: OperationQueue,
        errors: MpiErrors,
        *,
        timeout: timedelta,
    ) -> None:
        super().__init__(collectives.rank, collectives.size)  # type: ignore[call-arg]
        self._collectives = collectives
        self._messages = messages
        self._seconds = timeout.total_seconds()
        self._errors = errors
        self._queue = queue
        self._done = CombinedWork()
        self._coalesced: list[dist.Work] | None = None
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """Return torch's name of the backend."""
        return "mpi"

    # torch's C++ code stores both names in its own backends, which this group does not have.
    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:  # noqa: N802 (torch's name)
        """Return the name by which torch's operators find the group."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802 (torch's name)
        """Return the description of the group."""
        return self._description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of later collectives."""
        self._seconds = timeout.total_seconds()

    def _run(self, name: str, options: Any, tensors: Sequence[Tensor], do: Callable[[Deadline], None]) -> dist.Work:
        """Run an operation now if the caller waits for it, otherwise queue it."""

        def run(eager: bool) -> None:
            clock = Deadline(name, tensors, self._seconds, options=options, eager=eager)
            try:
                do(clock)
            except self._errors.mpi_error as error:
                raise self._errors.describe(clock.what, error) from error

        if self._coalesced is None and not getattr(options, "asyncOp", True):
            self._queue.run_in_caller(run, tensors)
            return self._done
        work = self._queue.enqueue(run, list(tensors))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Reduce the tensors of all ranks; every rank receives the result."""
        opts = opts or c10d.AllreduceOptions()
        reduction = Reduction.of(opts.reduceOp)
        if any(tensor.is_sparse for tensor in tensors):
            return self._run(
                "all_reduce",
                opts,
                tensors,
                lambda clock: all_reduce_sparse(self._collectives, clock, tensors, reduction),
            )
        return self._run(
            "all_reduce", opts, tensors, lambda clock: self._collectives.all_reduce(clock, tensors, reduction)
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Reduce several tensors."""
        return self.allreduce(tensors, opts or c10d.AllreduceCoalescedOptions())

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Reduce the tensors of all ranks; the root receives the result."""
        reduction, root = Reduction.of(opts.reduceOp), opts.rootRank
        return self._run(
            "reduce", opts, tensors, lambda clock: self._collectives.reduce(clock, tensors, reduction, root)
        )

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Copy the root's tensor to every rank."""
        opts = opts or c10d.BroadcastOptions()
        root = opts.rootRank
        return self._run("broadcast", opts, tensors, lambda clock: self._collectives.broadcast(clock, tensors, root))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather one tensor of each rank."""
        opts = opts or c10d.AllgatherOptions()
        pairs = list(zip(outputs, inputs, strict=True))

        def do(clock: Deadline) -> None:
            for outs, given in pairs:
                self._collectives.all_gather(clock, outs, given)

        return self._run("all_gather", opts, [out for outs in outputs for out in outs], do)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather several tensors of each rank."""
        return self.allgather([list(each) for each in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        """Gather the inputs of all ranks, concatenated."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather several tensors."""
        opts = opts or c10d.AllgatherOptions()
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run("all_gather", opts, outputs, lambda clock: self._collectives.all_gather_single(clock, pairs))

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> dist.Work:
        """Reduce the inputs of all ranks for this rank."""
        opts = opts or c10d.ReduceScatterOptions()
        reduction = Reduction.of(opts.reduceOp)
        pairs = list(zip(outputs, inputs, strict=True))

        def do(clock: Deadline) -> None:
            for out, given in pairs:
                self._collectives.reduce_scatter(clock, out, given, reduction)

        return self._run("reduce_scatter", opts, outputs, do)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        """Reduce the inputs of all ranks; the output receives this rank's part."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Reduce and scatter several tensors."""
        opts = opts or c10d.ReduceScatterOptions()
        reduction = Reduction.of(opts.reduceOp)
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run(
            "reduce_scatter",
            opts,
            outputs,
            lambda clock: self._collectives.reduce_scatter_single(clock, pairs, reduction),
        )

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_rows: list[int], given_rows: list[int], opts: Any = None
    ) -> dist.Work:
        """Exchange rows between all ranks."""
        opts = opts or c10d.AllToAllOptions()
        return self._run(
            "all_to_all",
            opts,
            [output],
            lambda clock: self._collectives.all_to_all_single(
                clock, output, given, output_rows or (), given_rows or ()
            ),
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Send a tensor to each rank and receive one from each."""
        opts = opts or c10d.AllToAllOptions()
        return self._run(
            "all_to_all", opts, outputs, lambda clock: self._collectives.all_to_all(clock, outputs, inputs)
        )

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        """Gather the inputs of all ranks at the root."""
        outs, root = outputs[0] if outputs else [], opts.rootRank
        return self._run(
            "gather", opts, outs or inputs, lambda clock: self._collectives.gather(clock, outs, inputs[0], root)
        )

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> dist.Work:
        """Receive this rank's input from the root."""
        ins, root = inputs[0] if inputs else [], opts.rootRank
        return self._run(
            "scatter", opts, outputs, lambda clock: self._collectives.scatter(clock, outputs[0], ins, root)
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks."""
        return self._run("barrier", opts or c10d.BarrierOptions(), (), self._collectives.barrier)

    # Names up to torch 2.10. Its C++ code and other packages may still use them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        """Start sending to a rank of this group."""
        return self._record_coalesced(self._messages.send(tensors[0], rank, tag, self._seconds))

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        """Start receiving from a rank of this group."""
        return self._record_coalesced(self._messages.receive(tensors[0], rank, tag, self._seconds))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        """Start receiving from any rank."""
        return self._record_coalesced(self._messages.receive(tensors[0], None, tag, self._seconds))

    def _record_coalesced(self, work: dist.Work) -> dist.Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, _device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: torch.device) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        return CombinedWork(works)

    def shutdown(self) -> None:
        """Complete queued operations. The group cannot be used afterwards."""
        self._queue.close()
        self._messages.close()
        if self._queue.broken is None:
            # A rank is late or absent. Memory that is not freed is better than a wait without end.
            with suppress(dist.DistBackendError):
                self._collectives.close(Deadline("the end of a group", (), min(self._seconds, _CLOSE_TIMEOUT)))

    def abort(self) -> None:
        """Discard queued operations."""
        idle = self._queue.is_idle() and self._messages.is_idle()
        self._queue.fail(dist.DistBackendError("the group was aborted"), harmless=idle)
        self._queue.close()
        self._messages.close()
