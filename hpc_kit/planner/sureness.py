"""How far predictions can be trusted: what cross-validation over models left out found, and what is beyond it."""

from __future__ import annotations

from hpc_kit.planner.constants import table
from hpc_kit.planner.layout import Run

CALIBRATED = frozenset({"a100", "h100"})
SHARDED = 128
"""GPUs up to which ZeRO-3 alone was measured."""
BEYOND = 0.05
"""What each thing adds to the error that no measured run had so much of."""
WORDS = {"gpus": "GPUs", "pp": "stages", "cp": "ranks a sequence", "seq_len": "tokens a sequence"}


def time_error(run: Run) -> tuple[float, tuple[str, ...]]:
    """The expected relative error of a step time, and what makes it larger than in calibration."""
    entry = table()["error"]
    error = float(entry["frameworks"].get(run.framework, entry["time"]))
    reasons = []
    if run.machine.gpu.generation not in CALIBRATED:
        error += 0.20
        reasons.append(f"{run.machine.gpu.name} was not among the measured GPUs")
    if run.framework not in entry["frameworks"]:
        error += BEYOND
        reasons.append(f"no measured runs of {run.framework}: general constants")
    own = f" with {run.framework}" if run.framework in entry["most"] else ""
    for name, most in _most(run.framework).items():
        if getattr(run, name) > most:
            error += BEYOND
            reasons.append(f"at most {most} {WORDS[name]} were measured{own}")
    for kind in _unmeasured(run):
        error += BEYOND
        reasons.append(f"no {kind} was measured{own}")
    if run.zero_stage == 3 and run.pp == 1 and run.tp == 1 and run.gpus > SHARDED:
        error += BEYOND
        reasons.append(f"ZeRO-3 was measured on up to {SHARDED} GPUs")
    return error, tuple(reasons)


def _most(framework: str) -> dict[str, int]:
    """The most of each that a measured run had: of its framework, or of any where that has none."""
    known: dict[str, dict[str, int]] = table()["error"]["most"]
    return known.get(framework) or {name: max(one[name] for one in known.values()) for name in WORDS}


def _unmeasured(run: Run) -> list[str]:
    """Which of a run's GPU, network and kind of products no run of its framework had; GPUs that nobody had aside."""
    known: dict[str, list[str]] = table()["error"]["kinds"]
    own = known.get(run.framework) or [kind for kinds in known.values() for kind in kinds]
    there = [run.machine.gpu.generation] if run.machine.gpu.generation in CALIBRATED else []
    if run.gpus > run.machine.gpus_per_node:
        there.append(run.machine.fabric)
    return [kind for kind in (*there, run.precision) if kind not in own]


def memory_error(framework: str) -> float:
    """The expected relative error of the peak memory: of the framework's runs, or the mean of all sets."""
    entry = table()["error"]
    return float(entry["memory_frameworks"].get(framework, entry["memory"]))
