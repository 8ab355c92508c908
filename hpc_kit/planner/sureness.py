"""How far predictions can be trusted: what cross-validation over models left out found, and what is beyond it."""

from __future__ import annotations

from hpc_kit.planner.constants import table
from hpc_kit.planner.run import Run

CALIBRATED = frozenset({"a100", "h100"})
MOST_GPUS = 2560


def time_error(run: Run) -> tuple[float, tuple[str, ...]]:
    """The expected relative error of a step time, and what makes it larger than in calibration."""
    entry = table()["error"]
    error = float(entry["frameworks"].get(run.framework, entry["time"]))
    reasons = []
    if run.machine.gpu.generation not in CALIBRATED:
        error += 0.20
        reasons.append(f"{run.machine.gpu.name} was not among the measured GPUs")
    if run.framework not in entry["frameworks"]:
        error += 0.05
        reasons.append(f"no measured runs of {run.framework}: general constants")
    if run.gpus > MOST_GPUS:
        error += 0.05
        reasons.append(f"more than {MOST_GPUS} GPUs")
    if run.zero_stage == 3 and run.pp == 1 and run.tp == 1 and run.gpus > 128:
        error += 0.05
        reasons.append("ZeRO-3 was measured on up to 128 GPUs")
    return error, tuple(reasons)


def memory_error() -> float:
    """The expected relative error of the peak memory."""
    return float(table()["error"]["memory"])
