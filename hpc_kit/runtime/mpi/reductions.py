"""Collectives that compute: all-reduce, reduce and reduce-scatter, as torch asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.shared_memory import SharedMemory
    from hpc_kit.runtime.mpi.waiting import Deadline

_AT_ONCE = 16
"""Pieces of a tensor that are reduced to one rank at the same time."""


class Reduction:
    """What torch asks of a reduction: the operation, a factor before it, a mean after it."""

    __slots__ = ("factor", "mean", "name")

    def __init__(self, kind: str, factor: Any = None) -> None:
        self.mean = kind == "AVG"
        self.name = "SUM" if kind in {"AVG", "PREMUL_SUM"} else kind
        self.factor = factor

    @classmethod
    def of(cls, operation: Any) -> Reduction:
        """What a ReduceOp or a RedOpType means."""
        kind = getattr(operation, "op", operation)
        if kind not in _KNOWN:
            _KNOWN[kind] = cls(kind.name)
        if kind.name == "PREMUL_SUM":
            return cls(kind.name, operation.__getstate__()[1])
        return _KNOWN[kind]

    def pre_scale(self, tensor: Tensor) -> Tensor:
        """The values that go in."""
        return tensor if self.factor is None else tensor * self.factor

    def post_scale(self, tensor: Tensor, ranks: int) -> None:
        """Make the mean of a sum."""
        if self.mean:
            tensor.div_(ranks, rounding_mode=None if tensor.is_floating_point() or tensor.is_complex() else "trunc")


_KNOWN: dict[Any, Reduction] = {}


class Reductions:
    """What the ranks of one communicator compute together."""

    def __init__(self, comm: Any, types: Datatypes, in_place: Any, shared: SharedMemory | None) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._types = types
        self._in_place = in_place
        self._shared = shared

    def _finish(self, clock: Deadline, start: Callable[..., Any], *words: Any, **named: Any) -> None:
        clock.finish(start(*words, **named))

    def all_reduce(self, clock: Deadline, tensors: Sequence[Tensor], reduction: Reduction) -> None:
        """Every rank's tensors become the reduction of all."""
        for tensor in tensors:
            host = host_copy(tensor)
            if reduction.factor is not None:
                host.mul_(reduction.factor)
            self._reduce_all(clock, host, reduction.name)
            if reduction.mean:
                reduction.post_scale(host, self.size)
            if host is not tensor:
                copy_to_device(tensor, host)

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
                self._finish(clock, self.comm.Iallreduce, self._in_place, buffer, operation)

    def reduce(self, clock: Deadline, tensors: Sequence[Tensor], reduction: Reduction, root: int) -> None:
        """The root's tensors become the reduction of all."""
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
            if len(requests) == _AT_ONCE:
                clock.finish(requests)
                requests = []
        clock.finish(requests)

    def reduce_scatter_single(
        self, clock: Deadline, pairs: Sequence[tuple[Tensor, Tensor]], reduction: Reduction
    ) -> None:
        """Each output becomes this rank's part of the reduction of all inputs."""
        with (
            copy_to_host([out for out, _ in pairs], written=True) as outputs,
            copy_to_host([i for _, i in pairs], written=False) as inputs,
        ):
            for out, given in zip(outputs, inputs, strict=True):
                check_equal_size(given, out, self.size, "reduce_scatter: input")
                inside = given.data_ptr() <= out.data_ptr() < given.data_ptr() + given.nbytes
                send = reduction.pre_scale(given.clone() if inside else given)
                self._reduce_and_scatter(clock, send, out, [out.numel()] * self.size, reduction)

    def reduce_scatter(self, clock: Deadline, out: Tensor, inputs: Sequence[Tensor], reduction: Reduction) -> None:
        """The output becomes the reduction of what the ranks have for this one; parts may be of different sizes."""
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
            self._finish(clock, self.comm.Ireduce_scatter, buffer, receive, counts, operation)
        reduction.post_scale(out, self.size)


def split_into_pieces(tensor: Tensor, most: int | None = None) -> Sequence[Tensor]:
    """The tensor in pieces that one call of MPI can take, of `most` elements."""
    most = min(most or buffers.MAX_COUNT, buffers.MAX_COUNT)
    return (tensor,) if tensor.numel() <= most else tensor.view(-1).split(most)
