"""GPUs of a step: how many srun asks for, and which of a node's one task sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.sizes import GpuCounts, count_gpus
from pocketslurm.errors import CommandError
from pocketslurm.queue.job_size import read_gres, types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pocketslurm.steps.options import Asked


def asked_gpus(asked: Asked) -> GpuCounts:
    """GPUs by whichever option names them; `--gres=none` asks for none.

    Raises:
        Refused: --gres names what is no GPU.
    """
    gres = asked.get("gres")
    if gres.lower() == "none":
        return GpuCounts(per_node=0)
    per_node = count_gpus(asked.get("gpus-per-node"))
    if gres:
        per_node = (per_node or 0) + sum(number for _, number in read_gres(gres))
    return GpuCounts(count_gpus(asked.get("gpus")), per_node, count_gpus(asked.get("gpus-per-task")))


def check_types(asked: Asked, there: str | None, job_id: int) -> None:
    """Of the types of GPUs asked for, the job has none but the nodes' own.

    Raises:
        Refused: It is asked for another.
    """
    if unknown := [kind for kind in types(asked.values) if kind != there]:
        line = f"error: Step requested GRES (gpu:{unknown[0]}) not found in the job"
        denied = "Invalid generic resource (gres) specification"
        raise CommandError(line, f"error: Unable to create step for job {job_id}: {denied}")


def binding(asked: Asked) -> str:
    """How tasks share a node's GPUs, as SLURMD_TRES_BIND tells it; empty where each task sees all of them."""
    if bind := asked.get("gpu-bind"):
        return f"gpu:{bind}"
    if single := asked.get("ntasks-per-tres") or asked.get("ntasks-per-gpu"):
        return f"gpu:single:{single}"
    if per_task := asked.get("gpus-per-task"):
        return f"gpu:per_task:{per_task}"
    return ""


def visible(devices: Sequence[int], bind: str, local: int) -> list[int]:
    """The devices that a task sees.

    Args:
        devices: The step's on the task's node.
        bind: Of `binding`.
        local: The task's index on the node.
    """
    kind, _, listed = bind.removeprefix("gpu:").removeprefix("verbose,").partition(":")
    if not devices or kind not in {"per_task", "single", "map_gpu", "mask_gpu"}:
        return list(devices)
    if kind == "per_task":
        each = count_gpus(listed) or 1
        return [devices[index % len(devices)] for index in range(local * each, (local + 1) * each)]
    if kind == "single":
        return [devices[local // int(listed or 1) % len(devices)]]
    entries = _repeated(listed)
    number = int(entries[local % len(entries)], 16 if kind == "mask_gpu" else 0)
    wanted = [bit for bit in range(number.bit_length()) if number >> bit & 1] if kind == "mask_gpu" else [number]
    return [devices[index] for index in wanted if index < len(devices)]


def _repeated(listed: str) -> list[str]:
    """The entries of a list such as `0*2,1`."""
    pairs = (item.partition("*") for item in listed.split(","))
    return [value for value, _, times in pairs for _ in range(int(times or 1))]
