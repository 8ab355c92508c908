"""Selects this rank's device: the local rank, counted among the visible devices."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, SpecError
from hpc_kit.runtime.launchers.torch_variables import inner_launcher
from hpc_kit.runtime.mpi import backend as mpi_backend
from hpc_kit.runtime.variables import cpus_per_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from hpc_kit.runtime.world import World

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_GPUS_PER_TASK = re.compile(r"gpu(?::[^:=,]+)?[:=](\d+)")
"""Number of GPUs of one type in SLURM_TRES_PER_TASK: `cpu=1,gres/gpu=2`, `gres/gpu:a100:2`."""


def device_index(world: World, visible: int, environ: Mapping[str, str]) -> int:
    """Return the index of this rank's device among `visible` devices; 0 for a task with its own GPUs.

    Raises:
        ContradictoryEnvironment: The node has more ranks than devices.
    """
    local_rank, local_world_size = world.local_rank or 0, world.local_world_size or 1
    if visible == 1 or (visible == _gpus_per_task(environ) and _is_a_task(world, environ)):
        return 0
    if local_rank < visible:
        return local_rank
    seen = "; ".join(f"{name} = {environ[name]}" for name in _VISIBLE if name in environ) or "all of the node"
    raise ContradictoryEnvironment(
        f"local rank {local_rank} has no device: {local_world_size} ranks on this node see {visible}",
        found=f"{visible} devices are visible ({seen})",
        remedy=f"--ntasks-per-node={visible}; or --gpus-per-node={local_world_size}",
    )


def _gpus_per_task(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs of --gpus-per-task, which later releases list among other resources; or None."""
    # The option may name several types: a100:1,v100:1.
    counts = [part.rpartition(":")[2] for part in environ.get("SLURM_GPUS_PER_TASK", "").split(",")]
    if not all(map(str.isdigit, counts)):
        counts = _GPUS_PER_TASK.findall(environ.get("SLURM_TRES_PER_TASK", ""))
    return sum(map(int, counts)) or None


def _is_a_task(world: World, environ: Mapping[str, str]) -> bool:
    """Return whether this rank is a task of Slurm. Ranks of torchrun and mpirun share the GPUs of their task."""
    expected = {"SLURM_PROCID": world.rank, "SLURM_STEP_NUM_TASKS": world.world_size, "SLURM_LOCALID": world.local_rank}
    return all(environ.get(name, "").strip() == str(value) for name, value in expected.items())


def accelerator() -> str | None:
    """Return `cuda` (NVIDIA, or AMD with ROCm), `xpu` (Intel), or None if this process sees no such device."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "xpu" if torch.xpu.is_available() else None


def is_torch_for_cpus() -> bool:
    """Return whether torch was built without support for any accelerator.

    Unlike `accelerator` this initializes no driver. CUDA cannot be used in a process that is forked after that.
    """
    import torch

    return torch.accelerator.current_accelerator() is None


def choose_backend(requested: str) -> str:
    """Resolve `auto` to nccl (CUDA), xccl (Intel) or gloo, and check any other name.

    Raises:
        SpecError: torch has no such backend here, or nccl has no device.
    """
    import torch
    from torch import distributed as dist

    if requested == mpi_backend.BACKEND:
        mpi_backend.install()
        return requested
    cuda = torch.cuda.is_available()
    if requested == "auto":
        native = {"cuda": "nccl", "xpu": "xccl"}.get(accelerator() or "")
        return native if native and dist.is_backend_available(native) else "gloo"
    available = [name for name in ("gloo", "nccl", "ucc", "xccl") if dist.is_backend_available(name)]
    if not dist.is_backend_available(requested):
        raise SpecError(
            f"torch has no backend {requested!r} here",
            found=f"torch {torch.__version__} has {', '.join(available)}",
            remedy='backend = "auto"',
        )
    if requested == "nccl" and not cuda:
        raise SpecError(
            "the backend nccl needs a CUDA device",
            found="torch.cuda.is_available() is False on this node",
            remedy='backend = "auto" or "gloo"; or ask for GPUs: --gpus-per-node=N',
        )
    return requested


def select_device(backend: str, world: World) -> torch.device:
    """Make this rank's device the current one and return it; the CPU under gloo or without an accelerator.

    Raises:
        ContradictoryEnvironment: The node has more ranks than devices.
    """
    import torch

    kind = None if backend == "gloo" else accelerator()
    if kind is None:
        return torch.device("cpu")
    module = torch.cuda if kind == "cuda" else torch.xpu
    device = torch.device(kind, device_index(world, module.device_count(), os.environ))
    module.set_device(device)
    return device


def thread_count(environ: Mapping[str, str], local_world_size: int) -> int | None:
    """Return the number of threads for this rank's operators; None if OMP_NUM_THREADS is set."""
    if environ.get("OMP_NUM_THREADS"):
        return None
    if cpus := cpus_per_task(environ):
        # Under torchrun or deepspeed the task is the agent, and its ranks share the task's CPUs.
        inside = environ.get("TORCHELASTIC_RUN_ID") or inner_launcher(environ)
        return max(1, cpus // (local_world_size if inside else 1))
    return max(1, _cpu_count(cores=local_world_size == 1) // local_world_size)


def _cpu_count(*, cores: bool) -> int:
    """Return the number of CPUs that this process may use; with `cores`, two hardware threads of a core count once."""
    cpus = os.sched_getaffinity(0)
    if cores:
        with suppress(OSError):  # a kernel without this folder
            return len({Path(_SIBLINGS.format(cpu)).read_text() for cpu in cpus})
    return len(cpus)
