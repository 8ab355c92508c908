"""All-reduce among ranks of one host through shared memory.

For long tensors, MPI's own all-reduce sends each byte through its transport and has no bfloat16. Here each rank
publishes a piece, reduces its part of all pieces with torch's arithmetic, and copies the parts of the other ranks. For
short tensors, MPI's blocking call is fastest but has no time-out, so it is called after all ranks have met here.
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import DistBackendError

from hpc_kit.runtime.mpi.buffers import TORCH_OPERATIONS, combine
from hpc_kit.runtime.mpi.deadlines import size_mismatch

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

    from hpc_kit.runtime.mpi.deadlines import Deadline

PIECE = 1 << 20
"""Bytes of one piece. Two pieces of each rank and their result should fit into the last-level cache."""
LONG = 1 << 18
"""Bytes from which shared memory is faster."""
_NUMBERS = frozenset({
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.complex64, torch.complex128,
})  # fmt: skip
"""Types that torch can add. It has no arithmetic for the longer unsigned integers."""
_LINE = 64
_FLAGS = 4096
_SIZES, _LEAVING, _AGREED = 1, 16, 32
"""Indices into a rank's flags, after its count of meetings: two sizes for which it has arrived, then, each on its own
cache line, that it leaves, and on rank 0 whether all ranks do.
"""
_FREE, _KEEP = 1, 2


class SharedMemory:
    """Shared memory of the ranks of one communicator.

    Each rank has a count of its meetings and two alternating pieces. Rank 0 also has two alternating results.
    """

    def __init__(self, comm: Any, window: Any, cores: int) -> None:
        self._rank: int = comm.rank
        self._size: int = comm.size
        self.may_spin = comm.size <= cores
        self._window = window
        self._meetings = 0
        self._parity = 0
        self._views: dict[torch.dtype, tuple[list[list[Tensor]], list[Tensor]]] = {}
        areas = [window.Shared_query(rank)[0] for rank in range(self._size)]
        self._flags = [memoryview(area)[:_FLAGS].cast("B").cast("q") for area in areas]
        self._others = [flag for rank, flag in enumerate(self._flags) if rank != self._rank]
        self._memory = [torch.frombuffer(area, dtype=torch.uint8)[_FLAGS:] for area in areas]
        for place in (0, _LEAVING, _AGREED):
            self._flags[self._rank][place] = 0

    @classmethod
    def of(cls, comm: Any, module: ModuleType) -> SharedMemory | None:
        """Allocate the memory of a communicator.

        Returns None if its ranks are on several hosts or a rank cannot allocate it.
        """
        if comm.size == 1:
            return None
        host = comm.Split_type(module.COMM_TYPE_SHARED)
        alone = host.size == comm.size
        host.Free()
        if not alone:
            return None
        try:
            window = module.Win.Allocate_shared(_FLAGS + 4 * PIECE, 1, comm=comm)
            window.Lock_all()
            made = 1
        except module.Exception:
            made = 0
        # /dev/shm may be full for one rank only.
        if not comm.allreduce(made, op=module.MIN):
            return None
        # A container or a job may have only some of the host's CPUs.
        cores = set[int]().union(*comm.allgather(os.sched_getaffinity(0)))
        shared = cls(comm, window, len(cores))
        comm.Barrier()
        return shared

    def supports(self, tensor: Tensor, name: str) -> bool:
        """Return whether a tensor is long enough and torch can add its type."""
        return tensor.nbytes >= LONG and tensor.dtype in _NUMBERS and name in TORCH_OPERATIONS

    def close(self, clock: Deadline) -> None:
        """Free the memory after all ranks have arrived.

        Raises:
            DistBackendError: A rank did not arrive in time. Then no rank frees it, because freeing waits without
                end.
        """
        self._flags[self._rank][_LEAVING] = 1
        self._window.Sync()
        try:
            for flag in self._others:
                while not flag[_LEAVING]:
                    clock.pause()
        except DistBackendError:
            if self._agreed(_KEEP) == _KEEP:
                raise
        else:
            if self._agreed(_FREE) == _KEEP:
                raise DistBackendError("mpi: a rank had not come in time to the end of the group")
        self._flags, self._others, self._memory = [], [], []
        self._views.clear()
        self._window.Unlock_all()
        self._window.Free()

    def _agreed(self, wish: int) -> int:
        """Return the choice of the first rank that arrived. All ranks get the same answer."""
        before = array("q", [0])
        self._window.Compare_and_swap(array("q", [wish]), array("q", [0]), before, 0, _AGREED * before.itemsize)
        self._window.Flush(0)
        return before[0] or wish

    def _seen_as(self, dtype: torch.dtype) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Return the pieces of each parity, one per rank, and the results of each parity, with this type."""

        def area(rank: int, number: int) -> Tensor:
            return self._memory[rank][number * PIECE : (number + 1) * PIECE].view(dtype)

        with torch.inference_mode(mode=False):  # tensors created in inference mode cannot be written outside of it
            pieces = [[area(rank, parity) for rank in range(self._size)] for parity in (0, 1)]
            self._views[dtype] = pieces, [area(0, 2), area(0, 3)]
        return self._views[dtype]

    def all_reduce(self, clock: Deadline, tensor: Tensor, name: str) -> None:
        """Reduce a contiguous CPU tensor in place. Every rank gets the same bits."""
        areas, results = self._views.get(tensor.dtype) or self._seen_as(tensor.dtype)
        pieces = tensor.view(-1).split(PIECE // tensor.element_size())
        parity = self._parity
        self._copy_in(pieces[0], areas[parity])
        self.synchronize(clock, tensor.nbytes)
        for number, piece in enumerate(pieces):
            self._reduce(piece, areas[parity], results[parity], name)
            if number + 1 < len(pieces):
                self._copy_in(pieces[number + 1], areas[1 - parity])
            self.synchronize(clock, tensor.nbytes)
            piece.copy_(results[parity][: piece.numel()])
            # All ranks had read this piece before they came to the last meeting.
            parity = 1 - parity
        self._parity = parity

    def _bounds(self, piece: Tensor) -> tuple[int, int]:
        """Return the part of a piece that this rank reduces, aligned to cache lines."""
        line = max(1, _LINE // piece.element_size())
        share = -(-piece.numel() // (self._size * line)) * line
        return min(piece.numel(), self._rank * share), min(piece.numel(), (self._rank + 1) * share)

    def _copy_in(self, piece: Tensor, areas: list[Tensor]) -> None:
        """Publish the parts that the other ranks reduce."""
        start, end = self._bounds(piece)
        for first, last in ((0, start), (end, piece.numel())):
            if first < last:
                areas[self._rank][first:last].copy_(piece[first:last])

    def _reduce(self, piece: Tensor, areas: list[Tensor], result: Tensor, name: str) -> None:
        start, end = self._bounds(piece)
        if start == end:
            return
        parts = [area[start:end] for area in areas]
        parts[self._rank] = piece[start:end]
        out = result[start:end]
        combine(name, parts[0], parts[1], out)
        for part in parts[2:]:
            combine(name, out, part, out)

    def synchronize(self, clock: Deadline, size: int) -> None:
        """Wait until all ranks have arrived for a tensor of `size` bytes, and their writes are visible.

        Raises:
            DistBackendError: Ranks arrived for different sizes. Every rank raises it.
        """
        self._meetings += 1
        turn = self._meetings
        # The two places alternate: a fast rank writes its next size before a slow one has read this one.
        place = _SIZES + turn % 2
        self._flags[self._rank][place] = size
        self._window.Sync()
        self._flags[self._rank][0] = turn
        for flag in self._others:
            spins = clock.spins
            while flag[0] < turn:
                if spins:
                    spins -= 1
                else:
                    clock.pause()
        self._window.Sync()
        for flag in self._others:
            if flag[place] != size:
                raise size_mismatch(clock.what, f"another rank has come with {flag[place]} bytes")
