"""Collectives that compute: all-reduce, reduce and reduce-scatter, as torch asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpc_kit.runtime.mpi import buffers
from hpc_kit.runtime.mpi.buffers import Datatypes, hosted_one, joined, on_host, put_back, same_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.shared_memory import SharedMemory
    from hpc_kit.runtime.mpi.waiting import Clock

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

    def before(self, tensor: Tensor) -> Tensor:
        """The values that go in."""
        return tensor if self.factor is None else tensor * self.factor

    def after(self, tensor: Tensor, ranks: int) -> None:
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

    def _finish(self, clock: Clock, start: Callable[..., Any], *words: Any, **named: Any) -> None:
        clock.finish(start(*words, **named))

    def all_reduce(self, clock: Clock, tensors: Sequence[Tensor], reduction: Reduction) -> None:
        """Every rank's tensors become the reduction of all."""
        for tensor in tensors:
            host = hosted_one(tensor)
            if reduction.factor is not None:
                host.mul_(reduction.factor)
            self._reduce_all(clock, host, reduction.name)
            if reduction.mean:
                reduction.after(host, self.size)
            if host is not tensor:
                put_back(tensor, host)

    def _reduce_all(self, clock: Clock, host: Tensor, name: str) -> None:
        shared = self._shared
        if shared is not None and shared.serves(host, name):
            shared.all_reduce(clock, host, name)
            return
        operation = self._types.operation(name, host.dtype)
        for piece in pieces(host):
            buffer = self._types.reduced(piece)
            if shared is not None and shared.may_spin:
                shared.meet(clock, piece.nbytes)
                self.comm.Allreduce(self._in_place, buffer, operation)
            else:
                self._finish(clock, self.comm.Iallreduce, self._in_place, buffer, operation)

    def reduce(self, clock: Clock, tensors: Sequence[Tensor], reduction: Reduction, root: int) -> None:
        """The root's tensors become the reduction of all."""
        is_root = self.rank == root
        with on_host(tensors, written=is_root) as hosted:
            for tensor in hosted:
                operation = self._types.operation(reduction.name, tensor.dtype)
                given = reduction.before(tensor)
                if is_root and given is not tensor:
                    tensor.copy_(given)
                self._reduce_to(clock, root, tensor if is_root else given, operation)
                if is_root:
                    reduction.after(tensor, self.size)

    def _reduce_to(self, clock: Clock, root: int, tensor: Tensor, operation: Any) -> None:
        is_root, requests = self.rank == root, []
        for piece in pieces(tensor, self._types.step // tensor.element_size()):
            buffer = self._types.reduced(piece)
            send, receive = (self._in_place, buffer) if is_root else (buffer, None)
            requests.append(self.comm.Ireduce(send, receive, operation, root))
            if len(requests) == _AT_ONCE:
                clock.finish(requests)
                requests = []
        clock.finish(requests)

    def reduce_scatter_single(self, clock: Clock, pairs: Sequence[tuple[Tensor, Tensor]], reduction: Reduction) -> None:
        """Each output becomes this rank's part of the reduction of all inputs."""
        with (
            on_host([out for out, _ in pairs], written=True) as outputs,
            on_host([i for _, i in pairs], written=False) as inputs,
        ):
            for out, given in zip(outputs, inputs, strict=True):
                same_bytes(given, out, self.size, "reduce_scatter: input")
                inside = given.data_ptr() <= out.data_ptr() < given.data_ptr() + given.nbytes
                send = reduction.before(given.clone() if inside else given)
                self._reduce_and_scatter(clock, send, out, [out.numel()] * self.size, reduction)

    def reduce_scatter(self, clock: Clock, out: Tensor, inputs: Sequence[Tensor], reduction: Reduction) -> None:
        """The output becomes the reduction of what the ranks have for this one; parts may be of different sizes."""
        send = reduction.before(joined(inputs))
        with on_host([out], written=True) as (host,):
            self._reduce_and_scatter(clock, send, host, [tensor.numel() for tensor in inputs], reduction)

    def _reduce_and_scatter(
        self, clock: Clock, send: Tensor, out: Tensor, counts: list[int], reduction: Reduction
    ) -> None:
        operation = self._types.operation(reduction.name, out.dtype)
        if send.numel() > buffers.MOST:
            for rank, part in enumerate(send.view(-1).split(counts)):
                if rank == self.rank:
                    out.view(-1).copy_(part)
                self._reduce_to(clock, rank, out if rank == self.rank else part, operation)
        else:
            buffer, receive = self._types.reduced(send), self._types.reduced(out)
            self._finish(clock, self.comm.Ireduce_scatter, buffer, receive, counts, operation)
        reduction.after(out, self.size)


def pieces(tensor: Tensor, most: int | None = None) -> Sequence[Tensor]:
    """The tensor in pieces that one call of MPI can take, of `most` elements."""
    most = min(most or buffers.MOST, buffers.MOST)
    return (tensor,) if tensor.numel() <= most else tensor.view(-1).split(most)
