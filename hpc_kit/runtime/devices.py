"""Which device this rank uses: its local rank, counted among the devices that it sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def index(local_rank: int, local_world_size: int, visible: int, environ: Mapping[str, str]) -> int:
    """The number of this rank's device among `visible` ones; one that is alone is this rank's own.

    Raises:
        ContradictoryEnvironment: There are more ranks on this node than devices.
    """
    if visible == 1:
        return 0
    if local_rank < visible:
        return local_rank
    seen = "; ".join(f"{name} = {environ[name]}" for name in _VISIBLE if name in environ) or "all of the node"
    raise ContradictoryEnvironment(
        f"local rank {local_rank} has no device: {local_world_size} ranks on this node see {visible}",
        found=f"{visible} devices are visible ({seen})",
        remedy=f"--ntasks-per-node={visible}; or --gpus-per-node={local_world_size}",
    )


def backend_for(asked: str) -> str:
    """`auto` is nccl where there is a CUDA device, else gloo; any other name is taken as it is.

    Raises:
        SpecError: Torch has no such backend here, or nccl has no device.
    """
    import torch
    from torch import distributed as dist

    cuda = torch.cuda.is_available()
    if asked == "auto":
        return "nccl" if cuda and dist.is_nccl_available() else "gloo"
    available = [name for name in ("gloo", "nccl", "mpi", "ucc", "xccl") if dist.is_backend_available(name)]
    if not dist.is_backend_available(asked):
        raise SpecError(
            f"torch has no backend {asked!r} here",
            found=f"torch {torch.__version__} has {', '.join(available)}",
            remedy='backend = "auto"',
        )
    if asked == "nccl" and not cuda:
        raise SpecError(
            "the backend nccl needs a CUDA device",
            found="torch.cuda.is_available() is False on this node",
            remedy='backend = "auto" or "gloo"; or ask for GPUs: --gpus-per-node=N',
        )
    return asked


def choose(backend: str, local_rank: int, local_world_size: int) -> torch.device:
    """The device of this rank, made the current one: the CPU under gloo or without CUDA.

    Raises:
        ContradictoryEnvironment: There are more ranks on this node than devices.
    """
    import torch

    if backend == "gloo" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", index(local_rank, local_world_size, torch.cuda.device_count(), os.environ))
    torch.cuda.set_device(device)
    return device


def threads(environ: Mapping[str, str], local_world_size: int) -> int | None:
    """Threads for this rank's operators; None where somebody has said it, or where a process alone may take all."""
    if environ.get("OMP_NUM_THREADS"):
        return None
    for name in ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK"):
        text = environ.get(name, "")
        if text.isdigit() and int(text):
            # Under torchrun the task is the agent, and its ranks share the task's CPUs.
            shared_by = local_world_size if environ.get("TORCHELASTIC_RUN_ID") else 1
            return max(1, int(text) // shared_by)
    if local_world_size == 1:
        return None
    return max(1, len(os.sched_getaffinity(0)) // local_world_size)
