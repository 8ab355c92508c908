"""What training.py uses if hpc_kit is not installed: torch alone, without measurements and restarts.

Rank 0 saves the parameters in one file.
"""

# mypy: ignore-errors
# training.py is checked against hpc_kit, whose functions these replace.

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace

import torch
from torch import distributed as dist


class SpecError(SystemExit):
    """An option is wrong, or the training failed: the message is printed, and the process ends."""

    def __init__(self, what, *, found="", remedy=""):
        super().__init__(f"{what}\n  found  {found}\n  do     {remedy}")


JobFailed = SpecError


@contextmanager
def distributed(timeout=None):
    """Join the ranks that torchrun has started; without torchrun, this process is the only rank."""
    local, is_cuda = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.is_available()
    device = torch.device("cuda", local) if is_cuda else torch.device("cpu")
    torch.cuda.set_device(device if is_cuda else -1)  # NCCL sends objects from the current GPU; -1 does nothing
    backend = os.environ.get("HPC_KIT_BACKEND") or ("nccl" if is_cuda else "gloo")
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    limit = timedelta(seconds=timeout or float(os.environ.get("HPC_KIT_TIMEOUT", "1800")))
    dist.init_process_group(backend, timeout=limit, device_id=device if backend == "nccl" else None, **alone)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def mesh(pp=1, dp_shard=0, cp=1, tp=1):
        replicas = ranks // (pp * cp * tp * (dp_shard or 1))
        axes, degrees = (("dp_replicate", "dp_shard"), (replicas, dp_shard)) if dp_shard else (("dp",), (replicas,))
        return dist.init_device_mesh(device.type, (pp, *degrees, cp, tp), mesh_dim_names=("pp", *axes, "cp", "tp"))

    yield SimpleNamespace(
        rank=rank,
        world_size=ranks,
        local_rank=local,
        node_rank=int(os.environ.get("GROUP_RANK", "0")),
        is_main=rank == 0,
        mesh=mesh,
        timeout=timeout,
        device=device,
        device_ids=[local] if is_cuda else None,
        barrier=dist.barrier,
    )
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads may still free tensors, and abort if the interpreter ends


def gather(value):
    """Return the value of each rank, on all ranks."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class Checkpointer:
    """Saves the parameters at the end of the training."""

    def __init__(self, folder, **_):
        self.folder, self.modules = folder, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def restore(self, *, model, **_):
        self.modules = model if isinstance(model, list) else [model]
        return 0

    def step(self, *_):
        return False

    def save(self, _step):
        if not self.folder:
            return
        pairs = [pair for module in self.modules for pair in module.named_parameters()]
        parts = gather({name: getattr(each, "full_tensor", each.clone)().detach().cpu() for name, each in pairs})
        if dist.get_rank() == 0:
            torch.save({name: part[name] for part in parts for name in part}, f"{self.folder}.pt")


def _nothing(*_, **__):
    return ""


class StepTimer:
    """Measures nothing."""

    __init__ = begin_step = end_loading = end_backward = end_step = collect = lambda *_, **__: None


explain_timeouts = record_failure_of = nullcontext
progress = report_training = require_equal = summarize_training = _nothing
