"""torch.distributed's collectives as MPI calls: one non-blocking call each, with a time-out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from hpc_kit.runtime.mpi import buffers
from hpc_kit.runtime.mpi.buffers import (
    Datatypes,
    check_equal_size,
    concatenate,
    copy_to_device,
    copy_to_host,
    host_copy,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.deadlines import Deadline
    from hpc_kit.runtime.mpi.shared_memory import SharedMemory


_PIECES_IN_FLIGHT = 16
"""Number of pieces of a tensor that are reduced to one rank at the same time."""


class Reduction:
    """A reduction of torch: an operation, a factor before it, and a division after it."""

    __slots__ = ("factor", "mean", "name")

    def __init__(self, kind: str, factor: Any = None) -> None:
        self.mean = kind == "AVG"
        self.name = "SUM" if kind in {"AVG", "PREMUL_SUM"} else kind
        self.factor = factor

    @classmethod
    def of(cls, options: Any) -> Reduction:
        """Return the reduction of torch's options of a collective, by default a sum."""
        operation: Any = dist.ReduceOp.SUM if options is None else options.reduceOp
        kind = getattr(operation, "op", operation)
        if kind not in _KNOWN:
            _KNOWN[kind] = cls(kind.name)
        if kind.name == "PREMUL_SUM":
            return cls(kind.name, operation.__getstate__()[1])
        return _KNOWN[kind]

    def pre_scale(self, tensor: Tensor) -> Tensor:
        """Return the input multiplied by the factor."""
        return tensor if self.factor is None else tensor * self.factor

    def post_scale(self, tensor: Tensor, ranks: int) -> None:
        """Divide a sum by the number of ranks for a mean."""
        if self.mean:
            tensor.div_(ranks, rounding_mode=None if tensor.is_floating_point() or tensor.is_complex() else "trunc")


_KNOWN: dict[Any, Reduction] = {}


class Collectives:
    """Collectives among the ranks of one communicator."""

    def __init__(self, comm: Any, types: Datatypes, in_place: Any, shared: SharedMemory | None) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._types = types
        self._in_place = in_place
        self._shared = shared

    def all_reduce(self, clock: Deadline, tensors: Sequence[Tensor], reduction: Reduction) -> None:
        """Reduce the tensors of all ranks; every rank receives the result."""
        for tensor in tensors:
            host = host_copy(tensor)
            if reduction.factor is not None:
                host.mul_(reduction.factor)
            self._reduce_all(clock, host, reduction.name)
            if reduction.mean:
                reduction.post_scale(host, self.size)
            if host is not tensor:
                copy_to_device(tensor, host)

    def all_reduce_sparse(self, clock: Deadline, tensors: Sequence[Tensor], reduction: Reduction) -> None:
        """Sum sparse tensors: each rank gathers the indices and values of all ranks.

        Raises:
            ValueError: The reduction is not a sum. An absent element has no other meaning.
        """
        if reduction.name != "SUM":
            raise ValueError(f"{reduction.name} means nothing for sparse tensors")
        for tensor in tensors:
            mine = tensor.detach().cpu().coalesce()
            indices, values = mine.indices(), mine.values()
            counts = torch.empty(self.size, dtype=torch.int64)
            self.all_gather_single(clock, [(counts, torch.tensor([indices.shape[1]]))])
            numbers = counts.tolist()
            all_indices = [indices.new_empty(indices.shape[0], number) for number in numbers]
            all_values = [values.new_empty(number, *values.shape[1:]) for number in numbers]
            self.all_gather(clock, [(all_indices, indices), (all_values, reduction.pre_scale(values))])
            total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), mine.shape).coalesce()
            reduction.post_scale(total.values(), self.size)
            with torch.no_grad():  # a copy into detach() would keep the tensor's old indices
                tensor.copy_(total)

    def _reduce_all(self, clock: Deadline, host: Tensor, name: str) -> None:
        shared = self._shared
        if shared is not None and shared.supports(host, name):
            shared.all_reduce(clock, host, name)
            return
        operation = self._types.operation(name, host.dtype)
        for piece in split_into_pieces(host):
            buffer = self._types.reduction_type(piece)
            if shared is not None and shared.may_spin:
                shared.synchronize(clock, piece.nbytes)
                self.comm.Allreduce(self._in_place, buffer, operation)
            else:
                clock.finish(self.comm.Iallreduce(self._in_place, buffer, operation))

    def reduce(self, clock: Deadline, tensors: Sequence[Tensor], reduction: Reduction, root: int) -> None:
        """Reduce the tensors of all ranks; the root receives the result."""
        is_root = self.rank == root
        with copy_to_host(tensors, written=is_root) as hosted:
            for tensor in hosted:
                operation = self._types.operation(reduction.name, tensor.dtype)
                given = reduction.pre_scale(tensor)
                if is_root and given is not tensor:
                    tensor.copy_(given)
                self._reduce_to(clock, root, tensor if is_root else given, operation)
                if is_root:
                    reduction.post_scale(tensor, self.size)

    def _reduce_to(self, clock: Deadline, root: int, tensor: Tensor, operation: Any) -> None:
        is_root, requests = self.rank == root, []
        for piece in split_into_pieces(tensor, self._types.step // tensor.element_size()):
            buffer = self._types.reduction_type(piece)
            send, receive = (self._in_place, buffer) if is_root else (buffer, None)
            requests.append(self.comm.Ireduce(send, receive, operation, root))
            if len(requests) == _PIECES_IN_FLIGHT:
                clock.finish(requests)
                requests = []
        clock.finish(requests)

    def reduce_scatter_single(
        self, clock: Deadline, pairs: Sequence[tuple[Tensor, Tensor]], reduction: Reduction
    ) -> None:
        """Reduce all inputs; each output receives this rank's part of the result."""
        with (
            copy_to_host([out for out, _ in pairs], written=True) as outputs,
            copy_to_host([i for _, i in pairs], written=False) as inputs,
        ):
            for out, given in zip(outputs, inputs, strict=True):
                check_equal_size(given, out, self.size, "reduce_scatter: input")
                inside = given.data_ptr() <= out.data_ptr() < given.data_ptr() + given.nbytes
                send = reduction.pre_scale(given.clone() if inside else given)
                self._reduce_and_scatter(clock, send, out, [out.numel()] * self.size, reduction)

    def reduce_scatter(
        self, clock: Deadline, pairs: Sequence[tuple[Tensor, Sequence[Tensor]]], reduction: Reduction
    ) -> None:
        """Reduce the inputs of all ranks for each output. Parts may have different sizes."""
        for out, inputs in pairs:
            send = reduction.pre_scale(concatenate(inputs))
            with copy_to_host([out], written=True) as (host,):
                self._reduce_and_scatter(clock, send, host, [tensor.numel() for tensor in inputs], reduction)

    def _reduce_and_scatter(
        self, clock: Deadline, send: Tensor, out: Tensor, counts: list[int], reduction: Reduction
    ) -> None:
        operation = self._types.operation(reduction.name, out.dtype)
        if send.numel() > buffers.MAX_COUNT:
            for rank, part in enumerate(send.view(-1).split(counts)):
                if rank == self.rank:
                    out.view(-1).copy_(part)
                self._reduce_to(clock, rank, out if rank == self.rank else part, operation)
        else:
            buffer, receive = self._types.reduction_type(send), self._types.reduction_type(out)
            clock.finish(self.comm.Ireduce_scatter(buffer, receive, counts, operation))
        reduction.post_scale(out, self.size)

    def broadcast(self, clock: Deadline, tensors: Sequence[Tensor], root: int) -> None:
        """Copy the root's tensors to every rank."""
        with copy_to_host(tensors, written=self.rank != root) as hosted:
            for tensor in hosted:
                self._broadcast(clock, tensor, root)

    def _broadcast(self, clock: Deadline, tensor: Tensor, root: int) -> None:
        for piece in split_into_pieces(tensor):
            clock.finish(self.comm.Ibcast(self._types.transfer_type(piece), root))

    def _broadcast_parts(self, clock: Deadline, parts: Sequence[Tensor], given: Tensor) -> None:
        """Broadcast the part of each rank, one rank after the other: an all-gather of more than MAX_COUNT elements."""
        if parts[self.rank].data_ptr() != given.data_ptr():
            parts[self.rank].copy_(given.view(parts[self.rank].shape))
        for rank, part in enumerate(parts):
            self._broadcast(clock, part, rank)

    def all_gather_single(self, clock: Deadline, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Gather the inputs of all ranks, concatenated, into each output."""
        with (
            copy_to_host([out for out, _ in pairs], written=True) as outputs,
            copy_to_host([i for _, i in pairs], written=False) as inputs,
        ):
            requests = []
            for out, given in zip(outputs, inputs, strict=True):
                check_equal_size(out, given, self.size, "all_gather: output")
                if out.numel() > buffers.MAX_COUNT:
                    self._broadcast_parts(clock, out.view(-1).split(given.numel()), given.view(-1))
                    continue
                own = given.data_ptr() == out.data_ptr() + self.rank * given.nbytes
                send = self._in_place if own else self._types.transfer_type(given)
                receive = [*self._types.transfer_type(out)[:1], *self._types.transfer_type(given)[1:]]
                requests.append(self.comm.Iallgather(send, receive))
            clock.finish(requests)

    def all_gather(self, clock: Deadline, pairs: Sequence[tuple[Sequence[Tensor], Tensor]]) -> None:
        """Gather the inputs of all ranks, one output per rank, which may differ in size."""
        for outputs, given in pairs:
            self._all_gather(clock, outputs, given)

    def _all_gather(self, clock: Deadline, outputs: Sequence[Tensor], given: Tensor) -> None:
        counts = [out.numel() for out in outputs]
        if sum(counts) > buffers.MAX_COUNT:
            with copy_to_host([given], written=False) as (host,), copy_to_host(outputs, written=True) as parts:
                self._broadcast_parts(clock, parts, host)
            return
        flat = torch.empty(sum(counts), dtype=given.dtype)
        with copy_to_host([given], written=False) as (host,):
            clock.finish(
                self.comm.Iallgatherv(self._types.transfer_type(host), self._types.transfer_type(flat, counts))
            )
        _copy_parts(flat, outputs)

    def all_to_all_single(
        self, clock: Deadline, out: Tensor, given: Tensor, out_rows: Sequence[int], given_rows: Sequence[int]
    ) -> None:
        """Exchange rows between all ranks. `*_rows` are the rows for and from each rank; empty for equal parts."""
        with copy_to_host([out], written=True) as (output,), copy_to_host([given], written=False) as (source,):
            send = self._types.transfer_type(source, _element_counts(source, given_rows, self.size))
            receive = self._types.transfer_type(output, _element_counts(output, out_rows, self.size))
            clock.finish(self.comm.Ialltoallv(send, receive))

    def all_to_all(self, clock: Deadline, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Send one input to each rank and receive one output from each rank."""
        source = concatenate(inputs)
        flat = torch.empty(sum(out.numel() for out in outputs), dtype=source.dtype)
        send = self._types.transfer_type(source, [tensor.numel() for tensor in inputs])
        receive = self._types.transfer_type(flat, [tensor.numel() for tensor in outputs])
        clock.finish(self.comm.Ialltoallv(send, receive))
        _copy_parts(flat, outputs)

    def gather(self, clock: Deadline, outputs: Sequence[Tensor], given: Tensor, root: int) -> None:
        """Gather the inputs of all ranks at the root."""
        with copy_to_host([given], written=False) as (host,):
            if self.rank != root:
                clock.finish(self.comm.Igatherv(self._types.transfer_type(host), None, root))
                return
            flat = torch.empty(sum(out.numel() for out in outputs), dtype=given.dtype)
            counts = [out.numel() for out in outputs]
            clock.finish(
                self.comm.Igatherv(self._types.transfer_type(host), self._types.transfer_type(flat, counts), root)
            )
        _copy_parts(flat, outputs)

    def scatter(self, clock: Deadline, out: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """Receive this rank's input from the root."""
        with copy_to_host([out], written=True) as (host,):
            if self.rank != root:
                clock.finish(self.comm.Iscatterv(None, self._types.transfer_type(host), root))
                return
            source = concatenate(inputs)
            send = self._types.transfer_type(source, [tensor.numel() for tensor in inputs])
            clock.finish(self.comm.Iscatterv(send, self._types.transfer_type(host), root))

    def barrier(self, clock: Deadline) -> None:
        """Wait for all ranks."""
        clock.finish(self.comm.Ibarrier())

    def close(self, clock: Deadline) -> None:
        """Free the communicator and the shared memory after all ranks have arrived."""
        leave = self.barrier if self._shared is None else self._shared.close
        leave(clock)
        self.comm.Free()


def split_into_pieces(tensor: Tensor, most: int | None = None) -> Sequence[Tensor]:
    """Split a tensor into pieces of at most `most` elements, the limit of one MPI call."""
    most = min(most or buffers.MAX_COUNT, buffers.MAX_COUNT)
    return (tensor,) if tensor.numel() <= most else tensor.view(-1).split(most)


def _copy_parts(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _element_counts(tensor: Tensor, rows: Sequence[int], ranks: int) -> list[int]:
    """Return the number of elements for each rank from its number of rows."""
    length = tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if length % ranks:
            raise ValueError(
                f"all_to_all: {length} rows do not divide among {ranks} ranks, and no split sizes are given"
            )
        return [tensor.numel() // ranks] * ranks
    if len(rows) != ranks or sum(rows) != length:
        raise ValueError(f"all_to_all: split sizes {list(rows)} do not fit {length} rows and {ranks} ranks")
    return [number * (tensor.numel() // max(1, length)) for number in rows]
