"""Two ranks transfer more than 2**31 bytes in one call."""

from __future__ import annotations

import os

import torch
from torch import distributed as dist

import hpc_kit

LENGTH = (1 << 31) + 8


def assert_ends(tensor: torch.Tensor, first: int, last: int) -> None:
    assert (tensor[0].item(), tensor[-1].item()) == (first, last), (tensor[0], tensor[-1])


with hpc_kit.distributed(backend="mpi", timeout=200) as world:
    rank, other = world.rank, 1 - world.rank
    mine = torch.full((LENGTH,), rank + 1, dtype=torch.uint8)
    arrived = torch.zeros(LENGTH, dtype=torch.uint8)
    if rank:
        dist.recv(arrived, 0)
    else:
        dist.send(mine, 1)
    assert_ends(arrived, rank, rank)
    dist.all_to_all_single(arrived, mine)
    assert_ends(arrived, 1, 2)
    dist.all_gather_into_tensor(arrived, mine[: LENGTH // 2])
    assert_ends(arrived, 1, 2)
    dist.broadcast(arrived, 1)
    dist.all_reduce(arrived, dist.ReduceOp.BXOR)
    assert_ends(arrived, 0, 0)
    part = arrived[: LENGTH // 2]
    dist.reduce_scatter_tensor(part, mine)
    assert_ends(part, 3, 3)
    dist.gather(mine[: LENGTH // 2], list(arrived.chunk(2)) if rank == 0 else None)
    assert_ends(arrived, *((1, 2) if rank == 0 else (3, 0)))
    os.write(1, f"rank {rank} has moved all\n".encode())
