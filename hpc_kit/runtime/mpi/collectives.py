"""The collectives of torch.distributed in the words of MPI: one call each, never blocking, waited for with a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpc_kit.runtime.mpi.buffers import Datatypes, hosted_one, on_host, put_back
from hpc_kit.runtime.mpi.waiting import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.shared import SharedMemory
    from hpc_kit.runtime.mpi.waiting import Clock


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


class Collectives:
    """What the ranks of one communicator do together."""

    def __init__(self, comm: Any, types: Datatypes, in_place: Any, shared: SharedMemory | None) -> None:
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self._types = types
        self._in_place = in_place
        self._shared = shared

    def _finish(self, clock: Clock, start: Callable[..., Any], *words: Any, **named: Any) -> None:
        with CALLS:
            request = start(*words, **named)
        clock.finish(request)

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
        operation, buffer = self._types.operation(name, host.dtype), self._types.reduced(host)
        if shared is not None and shared.may_spin:
            shared.meet(clock)
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
                send = self._in_place if is_root else self._types.reduced(given)
                receive = self._types.reduced(tensor) if is_root else None
                self._finish(clock, self.comm.Ireduce, send, receive, operation, root)
                if is_root:
                    reduction.after(tensor, self.size)

    def broadcast(self, clock: Clock, tensors: Sequence[Tensor], root: int) -> None:
        """Every rank's tensors become the root's."""
        with on_host(tensors, written=self.rank != root) as hosted:
            for tensor in hosted:
                self._finish(clock, self.comm.Ibcast, self._types.moved(tensor), root)

    def all_gather_single(self, clock: Clock, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Each output becomes the inputs of all ranks, one after the other."""
        with (
            on_host([out for out, _ in pairs], written=True) as outputs,
            on_host([i for _, i in pairs], written=False) as inputs,
        ):
            requests = []
            for out, given in zip(outputs, inputs, strict=True):
                _same_bytes(out, given, self.size, "all_gather: output")
                own = given.data_ptr() == out.data_ptr() + self.rank * given.nbytes
                send = self._in_place if own else self._types.moved(given)
                with CALLS:
                    requests.append(
                        self.comm.Iallgather(send, [*self._types.moved(out)[:1], *self._types.moved(given)[1:]])
                    )
            clock.finish(requests)

    def all_gather(self, clock: Clock, outputs: Sequence[Tensor], given: Tensor) -> None:
        """The outputs become the inputs of the ranks, a tensor each; they may be of different sizes."""
        flat = torch.empty(sum(out.numel() for out in outputs), dtype=given.dtype)
        with on_host([given], written=False) as (host,):
            counts = [out.numel() for out in outputs]
            self._finish(clock, self.comm.Iallgatherv, self._types.moved(host), self._types.moved(flat, counts))
        _spread(flat, outputs)

    def reduce_scatter_single(self, clock: Clock, pairs: Sequence[tuple[Tensor, Tensor]], reduction: Reduction) -> None:
        """Each output becomes this rank's part of the reduction of all inputs."""
        with (
            on_host([out for out, _ in pairs], written=True) as outputs,
            on_host([i for _, i in pairs], written=False) as inputs,
        ):
            for out, given in zip(outputs, inputs, strict=True):
                _same_bytes(given, out, self.size, "reduce_scatter: input")
                operation = self._types.operation(reduction.name, given.dtype)
                inside = given.data_ptr() <= out.data_ptr() < given.data_ptr() + given.nbytes
                send = reduction.before(given.clone() if inside else given)
                self._finish(
                    clock,
                    self.comm.Ireduce_scatter_block,
                    self._types.reduced(send, out.numel()),
                    self._types.reduced(out),
                    operation,
                )
                reduction.after(out, self.size)

    def reduce_scatter(self, clock: Clock, out: Tensor, inputs: Sequence[Tensor], reduction: Reduction) -> None:
        """The output becomes the reduction of what the ranks have for this one; parts may be of different sizes."""
        send = reduction.before(_joined(inputs))
        with on_host([out], written=True) as (host,):
            operation = self._types.operation(reduction.name, out.dtype)
            counts = [tensor.numel() for tensor in inputs]
            receive = self._types.reduced(host)
            self._finish(clock, self.comm.Ireduce_scatter, self._types.reduced(send), receive, counts, operation)
            reduction.after(host, self.size)

    def all_to_all_single(
        self, clock: Clock, out: Tensor, given: Tensor, out_rows: Sequence[int], given_rows: Sequence[int]
    ) -> None:
        """Rows of the input go to the ranks in turn; `*_rows`: how many for and from each, all alike where empty."""
        with on_host([out], written=True) as (output,), on_host([given], written=False) as (source,):
            send = self._types.moved(source, _counts(source, given_rows, self.size))
            receive = self._types.moved(output, _counts(output, out_rows, self.size))
            self._finish(clock, self.comm.Ialltoallv, send, receive)

    def all_to_all(self, clock: Clock, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """The input of a rank's number goes to it; the outputs come from the ranks in turn."""
        source = _joined(inputs)
        flat = torch.empty(sum(out.numel() for out in outputs), dtype=source.dtype)
        send = self._types.moved(source, [tensor.numel() for tensor in inputs])
        receive = self._types.moved(flat, [tensor.numel() for tensor in outputs])
        self._finish(clock, self.comm.Ialltoallv, send, receive)
        _spread(flat, outputs)

    def gather(self, clock: Clock, outputs: Sequence[Tensor], given: Tensor, root: int) -> None:
        """The root's outputs become the inputs of the ranks."""
        with on_host([given], written=False) as (host,):
            if self.rank != root:
                self._finish(clock, self.comm.Igatherv, self._types.moved(host), None, root)
                return
            flat = torch.empty(sum(out.numel() for out in outputs), dtype=given.dtype)
            counts = [out.numel() for out in outputs]
            self._finish(clock, self.comm.Igatherv, self._types.moved(host), self._types.moved(flat, counts), root)
        _spread(flat, outputs)

    def scatter(self, clock: Clock, out: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """The output becomes the root's input for this rank."""
        with on_host([out], written=True) as (host,):
            if self.rank != root:
                self._finish(clock, self.comm.Iscatterv, None, self._types.moved(host), root)
                return
            source = _joined(inputs)
            send = self._types.moved(source, [tensor.numel() for tensor in inputs])
            self._finish(clock, self.comm.Iscatterv, send, self._types.moved(host), root)

    def barrier(self, clock: Clock) -> None:
        """Wait until every rank is here."""
        self._finish(clock, self.comm.Ibarrier)

    def close(self, clock: Clock) -> None:
        """Give the communicator and its memory back when every rank has come to this."""
        leave = self.barrier if self._shared is None else self._shared.close
        leave(clock)
        with CALLS:
            self.comm.Free()


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one after the other, on the CPU."""
    return torch.cat([tensor.detach().cpu().reshape(-1) for tensor in tensors])


def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def _counts(tensor: Tensor, rows: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank, of rows for each."""
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


def _same_bytes(whole: Tensor, part: Tensor, ranks: int, what: str) -> None:
    if whole.numel() != part.numel() * ranks or whole.dtype != part.dtype:
        raise ValueError(
            f"{what} has {whole.numel()} elements of {whole.dtype}; {ranks} ranks of {part.numel()} {part.dtype} need "
            f"{ranks * part.numel()}"
        )
