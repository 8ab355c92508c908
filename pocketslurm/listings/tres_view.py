"""What jobs ask for per node, per task and the like, and steps hold, as Slurm writes it: `gres:gpu:a100:2`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.units import parse_memory
from pocketslurm.listings.views import megabytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Step


def asked(options: Mapping[str, str]) -> dict[str, str]:
    """The options that count by GPU, by scontrol's name for them, in its order."""
    found = {
        "CpusPerTres": _of("gpu", options.get("cpus-per-gpu", "")),
        "MemPerTres": _of("gpu", str(parse_memory(options["mem-per-gpu"])) if options.get("mem-per-gpu") else ""),
        "TresBind": f"gpu:{options['gpu-bind']}" if options.get("gpu-bind") else "",
        "TresPerJob": _of("gpu", options.get("gpus", "")),
        "TresPerNode": ",".join(filter(None, (_of("gpu", options.get("gpus-per-node", "")), _of_gres(options)))),
        "TresPerTask": _of("gpu", options.get("gpus-per-task", "")),
    }
    return {name: text for name, text in found.items() if text}


def of_step(step: Step) -> str:
    """What a step holds: `cpu=2,gres/gpu=1,mem=200M,node=1`."""
    mem, gpus = sum(step.mem), sum(map(len, step.gpus))
    found = (f"cpu={sum(step.cpus) or 1}", f"gres/gpu={gpus}" if gpus else "", f"mem={megabytes(mem)}" if mem else "")
    return ",".join(part for part in (*found, f"node={len(step.nodes)}") if part)


def _of(name: str, text: str) -> str:
    return ",".join(f"gres:{name}:{item}" for item in text.split(",") if item)


def _of_gres(options: Mapping[str, str]) -> str:
    items = [item.removeprefix("gres:") for item in options.get("gres", "").split(",")]
    return ",".join(f"gres:{item}" for item in items if item and item.lower() != "none")
