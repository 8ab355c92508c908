"""A message that never arrives breaks its group. No rank waits forever for a rank that does not destroy its group."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

import hpc_kit
from hpc_kit.errors import SpecError

with hpc_kit.distributed(backend="mpi", timeout=40) as world:
    with pytest.raises(SpecError, match="cannot be one of several"):
        dist.new_group(backend="cpu:mpi,cuda:nccl")
    kept = dist.new_group()
    dist.all_reduce(torch.ones(3), group=kept)
    if world.rank == 0:
        dist.destroy_process_group(kept)
    dist.barrier()
    short = dist.new_group(timeout=timedelta(seconds=1))
    told = ""
    if world.rank == 0:
        for _ in range(2):
            try:
                dist.recv(torch.ones(2), 1, group=short)
            except dist.DistBackendError as error:
                told += str(error).splitlines()[0] + "; "
    dist.barrier()
    os.write(1, f"rank {world.rank}: {told}\n".encode())
