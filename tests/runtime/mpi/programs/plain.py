"""A program of plain torch with the backend `mpi`, for `python -m hpc_kit.runtime`."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch import distributed as dist

dist.init_process_group("mpi", timeout=timedelta(seconds=40))
numbers = torch.full((4,), float(dist.get_rank()))
dist.all_reduce(numbers)
beside = dist.new_group(backend="gloo")
dist.all_reduce(numbers, group=beside)
# One write per line: print() needs several, and the ranks share the stream.
sys.stdout.write(f"{dist.get_backend()} {dist.get_world_size()} {numbers.tolist()}\n")
sys.stdout.flush()
dist.destroy_process_group()
