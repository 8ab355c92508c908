"""The last rank stops in the middle of the program, and the waits of all other ranks end."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import torch
from torch import distributed as dist

import hpc_kit

with hpc_kit.distributed(backend="mpi", timeout=60) as world:
    numbers = torch.ones(1000)
    dist.all_reduce(numbers)
    short = dist.new_group(timeout=timedelta(seconds=3))
    if world.rank == world.world_size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(numbers, async_op=world.rank % 2 == 0, group=short)
    dist.all_reduce(numbers, group=short)
