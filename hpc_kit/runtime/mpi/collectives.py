"""The collectives of torch.distributed in the words of MPI: one call each, never blocking, waited for with a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hpc_kit.runtime.mpi import buffers
from hpc_kit.runtime.mpi.buffers import check_equal_size, concatenate, copy_to_host
from hpc_kit.runtime.mpi.reductions import Reductions, split_into_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.waiting import Deadline


class Collectives(Reductions):
    """What the ranks of one communicator do together."""

    def broadcast(self, clock: Deadline, tensors: Sequence[Tensor], root: int) -> None:
        """Every rank's tensors become the root's."""
        with copy_to_host(tensors, written=self.rank != root) as hosted:
            for tensor in hosted:
                self._give(clock, tensor, root)

    def _give(self, clock: Deadline, tensor: Tensor, root: int) -> None:
        for piece in split_into_pieces(tensor):
            self._finish(clock, self.comm.Ibcast, self._types.transfer_type(piece), root)

    def _give_parts(self, clock: Deadline, parts: Sequence[Tensor], given: Tensor) -> None:
        """Each part becomes what its rank gives: an all-gather of more elements than MPI counts."""
        if parts[self.rank].data_ptr() != given.data_ptr():
            parts[self.rank].copy_(given.view(parts[self.rank].shape))
        for rank, part in enumerate(parts):
            self._give(clock, part, rank)

    def all_gather_single(self, clock: Deadline, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Each output becomes the inputs of all ranks, one after the other."""
        with (
            copy_to_host([out for out, _ in pairs], written=True) as outputs,
            copy_to_host([i for _, i in pairs], written=False) as inputs,
        ):
            requests = []
            for out, given in zip(outputs, inputs, strict=True):
                check_equal_size(out, given, self.size, "all_gather: output")
                if out.numel() > buffers.MAX_COUNT:
                    self._give_parts(clock, out.view(-1).split(given.numel()), given.view(-1))
                    continue
                own = given.data_ptr() == out.data_ptr() + self.rank * given.nbytes
                send = self._in_place if own else self._types.transfer_type(given)
                receive = [*self._types.transfer_type(out)[:1], *self._types.transfer_type(given)[1:]]
                requests.append(self.comm.Iallgather(send, receive))
            clock.finish(requests)

    def all_gather(self, clock: Deadline, outputs: Sequence[Tensor], given: Tensor) -> None:
        """The outputs become the inputs of the ranks, a tensor each; they may be of different sizes."""
        counts = [out.numel() for out in outputs]
        if sum(counts) > buffers.MAX_COUNT:
            with copy_to_host([given], written=False) as (host,), copy_to_host(outputs, written=True) as parts:
                self._give_parts(clock, parts, host)
            return
        flat = torch.empty(sum(counts), dtype=given.dtype)
        with copy_to_host([given], written=False) as (host,):
            self._finish(
                clock, self.comm.Iallgatherv, self._types.transfer_type(host), self._types.transfer_type(flat, counts)
            )
        _spread(flat, outputs)

    def all_to_all_single(
        self, clock: Deadline, out: Tensor, given: Tensor, out_rows: Sequence[int], given_rows: Sequence[int]
    ) -> None:
        """Rows of the input go to the ranks in turn; `*_rows`: how many for and from each, all alike where empty."""
        with copy_to_host([out], written=True) as (output,), copy_to_host([given], written=False) as (source,):
            send = self._types.transfer_type(source, _counts(source, given_rows, self.size))
            receive = self._types.transfer_type(output, _counts(output, out_rows, self.size))
            self._finish(clock, self.comm.Ialltoallv, send, receive)

    def all_to_all(self, clock: Deadline, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """The input of a rank's number goes to it; the outputs come from the ranks in turn."""
        source = concatenate(inputs)
        flat = torch.empty(sum(out.numel() for out in outputs), dtype=source.dtype)
        send = self._types.transfer_type(source, [tensor.numel() for tensor in inputs])
        receive = self._types.transfer_type(flat, [tensor.numel() for tensor in outputs])
        self._finish(clock, self.comm.Ialltoallv, send, receive)
        _spread(flat, outputs)

    def gather(self, clock: Deadline, outputs: Sequence[Tensor], given: Tensor, root: int) -> None:
        """The root's outputs become the inputs of the ranks."""
        with copy_to_host([given], written=False) as (host,):
            if self.rank != root:
                self._finish(clock, self.comm.Igatherv, self._types.transfer_type(host), None, root)
                return
            flat = torch.empty(sum(out.numel() for out in outputs), dtype=given.dtype)
            counts = [out.numel() for out in outputs]
            self._finish(
                clock,
                self.comm.Igatherv,
                self._types.transfer_type(host),
                self._types.transfer_type(flat, counts),
                root,
            )
        _spread(flat, outputs)

    def scatter(self, clock: Deadline, out: Tensor, inputs: Sequence[Tensor], root: int) -> None:
        """The output becomes the root's input for this rank."""
        with copy_to_host([out], written=True) as (host,):
            if self.rank != root:
                self._finish(clock, self.comm.Iscatterv, None, self._types.transfer_type(host), root)
                return
            source = concatenate(inputs)
            send = self._types.transfer_type(source, [tensor.numel() for tensor in inputs])
            self._finish(clock, self.comm.Iscatterv, send, self._types.transfer_type(host), root)

    def barrier(self, clock: Deadline) -> None:
        """Wait until every rank is here."""
        self._finish(clock, self.comm.Ibarrier)

    def close(self, clock: Deadline) -> None:
        """Give the communicator and its memory back when every rank has come to this."""
        leave = self.barrier if self._shared is None else self._shared.close
        leave(clock)
        self.comm.Free()


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
