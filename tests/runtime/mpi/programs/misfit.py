"""Rank 0 catches the error of a group whose tensors did not match, and exits normally after its last output."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

import hpc_kit

folder, code = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
atexit.register((folder / f"early-{rank}").touch)
metrics = (folder / f"metrics-{rank}").open("w")
with hpc_kit.distributed(backend="mpi", timeout=60):
    atexit.register((folder / f"late-{rank}").touch)
    odd = dist.new_group()
    with pytest.raises(dist.DistBackendError, match=r"with \d+ bytes\n  the ranks' tensors do not fit one another"):
        dist.all_reduce(torch.ones(1 << 20 if rank else 256), group=odd)
    if rank:
        dist.send(torch.zeros(100), 0)
        dist.recv(torch.zeros(1), 0, tag=1)  # never arrives: the end of rank 0 ends this rank
    try:
        dist.recv(torch.zeros(10), 1)
    except dist.DistBackendError as error:
        metrics.write(str(error))
    if code:
        raise SystemExit(code)
