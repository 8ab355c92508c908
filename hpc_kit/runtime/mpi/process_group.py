"""`dist.ProcessGroup` over mpi4py, as used by DistributedDataParallel, fully_shard, pipelining and checkpoints."""

# torch declares every collective twice over, as its C++ side does; one of the two ways is enough to be called by.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from hpc_kit.runtime.mpi.collectives import Collectives, Reduction
from hpc_kit.runtime.mpi.deadlines import Deadline
from hpc_kit.runtime.mpi.point_to_point import Messages
from hpc_kit.runtime.mpi.work import CombinedWork, OperationQueue

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

    def _run(
        self, name: str, options: Any, tensors: Sequence[Tensor], collective: Callable[..., None], *arguments: Any
    ) -> dist.Work:
        """Run a collective now if the caller waits for it, otherwise queue it. None: torch's default options."""

        def run(eager: bool) -> None:
            clock = Deadline(name, tensors, self._seconds, options=options, eager=eager)
            try:
                collective(clock, *arguments)
            except self._errors.mpi_error as error:
                raise self._errors.describe(clock.what, error) from error

        if self._coalesced is None and not getattr(options, "asyncOp", True):
            self._queue.run_in_caller(run, tensors)
            return self._done
        return self._record_coalesced(self._queue.enqueue(run, list(tensors)))

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Reduce the tensors of all ranks; every rank receives the result."""
        do = self._collectives
        collective = do.all_reduce_sparse if any(tensor.is_sparse for tensor in tensors) else do.all_reduce
        return self._run("all_reduce", opts, tensors, collective, tensors, Reduction.of(opts))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Reduce the tensors of all ranks; the root receives the result."""
        return self._run("reduce", opts, tensors, self._collectives.reduce, tensors, Reduction.of(opts), opts.rootRank)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Copy the root's tensor to every rank."""
        root = 0 if opts is None else opts.rootRank
        return self._run("broadcast", opts, tensors, self._collectives.broadcast, tensors, root)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather one tensor of each rank."""
        pairs, written = list(zip(outputs, inputs, strict=True)), [out for outs in outputs for out in outs]
        return self._run("all_gather", opts, written, self._collectives.all_gather, pairs)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather several tensors of each rank."""
        return self.allgather([list(each) for each in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        """Gather the inputs of all ranks, concatenated."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Gather several tensors."""
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run("all_gather", opts, outputs, self._collectives.all_gather_single, pairs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> dist.Work:
        """Reduce the inputs of all ranks for this rank."""
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run("reduce_scatter", opts, outputs, self._collectives.reduce_scatter, pairs, Reduction.of(opts))

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        """Reduce the inputs of all ranks; the output receives this rank's part."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Reduce and scatter several tensors."""
        collective, pairs = self._collectives.reduce_scatter_single, list(zip(outputs, inputs, strict=True))
        return self._run("reduce_scatter", opts, outputs, collective, pairs, Reduction.of(opts))

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_rows: list[int], given_rows: list[int], opts: Any = None
    ) -> dist.Work:
        """Exchange rows between all ranks."""
        collective = self._collectives.all_to_all_single
        return self._run("all_to_all", opts, [output], collective, output, given, output_rows or (), given_rows or ())

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Send a tensor to each rank and receive one from each."""
        return self._run("all_to_all", opts, outputs, self._collectives.all_to_all, outputs, inputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        """Gather the inputs of all ranks at the root."""
        outs = outputs[0] if outputs else []
        return self._run("gather", opts, outs or inputs, self._collectives.gather, outs, inputs[0], opts.rootRank)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> dist.Work:
        """Receive this rank's input from the root."""
        ins = inputs[0] if inputs else []
        return self._run("scatter", opts, outputs, self._collectives.scatter, outputs[0], ins, opts.rootRank)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks."""
        return self._run("barrier", opts, (), self._collectives.barrier)

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
