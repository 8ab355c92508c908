"""The constants that `fit.py` fits: each with its prior and the width of that prior."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hpc_kit.planner.layout import TrainingLayout


@dataclass(frozen=True)
class Parameter:
    """A constant to be fitted: positive ones by their logarithm, shares between 0 and 1 by their logit."""

    name: str
    start: float
    width: float
    kind: str = ""
    share: bool = False
    about: str = "time"

    @property
    def key(self) -> str:
        return f"{self.name}.{self.kind}" if self.kind else self.name

    def transformed(self, value: float) -> float:
        if self.share:
            value = min(max(value, 1e-4), 1 - 1e-4)
            return math.log(value / (1 - value))
        return math.log(value)

    def value(self, at: float) -> float:
        return 1 / (1 + math.exp(-at)) if self.share else math.exp(at)


P = Parameter
FIXED = {
    "quality": 1.0,
    "attention_quality": 1.0,
    "hop": 0.0,
    "launch_scores": 0.0,
    "logit_kept": 0.0,
    "zero_cost": 1.0,
    "zero_calls": 0.0,
    **dict.fromkeys(("data_overlap.cpu", "zero_overlap.cpu", "shard_overlap.cpu", "wave.cpu"), 0.0),
    "rowwise": 2.0,
    "selective_again": 0.0,
    "selective_again.torchtitan": 0.5,
    "selective_core": 1.0,
    "selective_core.torchtitan": 0.0,
    "by_cost": 0.0,
    "by_cost.nanotron": 1.0,
    "usable": 0.95,
    "usable.nanotron": 0.95,
    "thrash": 0.0,
    "wait": 0.0,
    "gap": 0.0,
    "scatter": 0.0,
    "scatter.megatron-deepspeed": 1.0,
    "gate": 8.0,
    "gate.megatron": 6.0,
    "gate.nemo": 6.0,
    "ahead": 0.0,
    "data_overlap.megatron-deepspeed": 0.0,
}
FREE = [
    P("gemm", 0.85, 0.8, share=True),
    P("gemm.h100", 0.8, 0.8, share=True),
    P("gemm8", 0.6, 0.3, share=True),
    P("quality.nanotron", 1.0, 0.1),
    P("quality.megatron", 1.0, 0.1),
    P("quality.megatron-deepspeed", 1.0, 0.2),
    P("quality.nemo", 1.05, 0.05),
    P("quality.fsdp", 1.0, 0.1),
    P("quality.torchtitan", 1.0, 0.1),
    P("wave", 0.6, 0.7, share=True),
    P("traffic", 1.0, 0.1),
    P("attention", 0.45, 0.4),
    P("attention.h100", 0.45, 0.4),
    P("attention_quality.fsdp", 0.8, 0.3),
    P("attention_quality.nemo", 1.5, 0.2),
    P("attention_quality.megatron", 1.5, 0.2),
    P("attention_back", 2.5, 0.2),
    P("scores", 14.0, 0.5),
    P("scores.megatron-deepspeed", 8.0, 0.5),
    P("context", 0.5, 0.7),
    P("sharpness", 4.0, 0.5),
    P("sharpness.nanotron", 7.0, 0.5),
    P("sharpness.megatron-deepspeed", 8.0, 0.2),
    P("rails", 0.9, 0.15),
    P("rails.efa", 0.6, 0.5),
    P("zero_overlap", 0.9, 0.5, share=True),
    P("zero_overlap.nanotron", 0.3, 1.0, share=True),
    P("zero_overlap.nemo", 0.9, 0.7, share=True),
    P("boundary.megatron-deepspeed", 1.0, 0.7),
    P("micro.megatron-deepspeed", 4e-3, 1.0),
    P("unaligned", 2.0, 0.5),
    P("elementwise", 2.0, 0.3),
    P("elementwise.nanotron", 2.0, 0.4),
    P("elementwise.fsdp", 1.6, 0.4),
    P("elementwise.nemo", 1.2, 0.4),
    P("elementwise.megatron-deepspeed", 1.6, 0.4),
    P("compiled", 0.6, 0.4),
    P("cast8", 3.0, 0.7),
    P("logits", 24.0, 0.6),
    P("launch", 1.5e-3, 0.8),
    P("launch.nanotron", 1.5e-3, 0.8),
    P("launch.megatron-deepspeed", 2.5e-3, 0.8),
    P("launch_tensor", 0.5e-3, 1.0),
    P("launch_tensor.nanotron", 3e-3, 1.0),
    P("launch_scores.megatron-deepspeed", 1e-3, 0.7),
    P("hop.nanotron", 2.5e-3, 1.0),
    P("gap.megatron-deepspeed", 0.2, 0.7, share=True),
    P("wait.omnipath", 2e-3, 0.7),
    P("thrash.nanotron", 1.0, 0.5),
    P("micro", 2e-3, 1.0),
    P("micro.nanotron", 4e-3, 1.0),
    P("step", 10e-3, 1.0),
    P("step.nanotron", 20e-3, 1.0),
    P("link", 0.75, 0.6, share=True),
    P("link.nanotron", 0.75, 0.6, share=True),
    P("network", 0.75, 0.4, share=True),
    P("network.efa", 0.85, 0.6, share=True),
    P("network.omnipath", 0.5, 0.8, share=True),
    P("spread", 200.0, 0.7),
    P("spread.efa", 30.0, 0.7),
    P("latency", 20e-6, 0.8),
    P("latency.megatron-deepspeed", 50e-6, 0.8),
    P("latency_network", 10e-6, 0.8),
    P("tensor_overlap", 0.6, 1.0, share=True),
    P("tensor_overlap.nanotron", 0.4, 1.0, share=True),
    P("tensor_overlap.megatron", 0.85, 0.7, share=True),
    P("tensor_overlap.torchtitan", 0.4, 0.7, share=True),
    P("data_overlap", 0.5, 1.0, share=True),
    P("data_overlap.nanotron", 0.5, 1.0, share=True),
    P("shard_overlap", 0.8, 1.0, share=True),
    P("shard_overlap.megatron-deepspeed", 0.1, 1.0, share=True),
    P("zero_cost.nanotron", 1.2, 0.5),
    P("zero_calls.nanotron", 6.0, 0.7),
    P("boundary", 1.0, 0.7),
    P("boundary.nanotron", 1.0, 0.7),
    P("optimizer", 1.2, 0.5),
    P("activation_scale", 1.0, 0.3, about="memory"),
    P("activation_scale.nanotron", 1.25, 0.3, about="memory"),
    P("selective_share", 0.6, 0.4, about="memory"),
    P("logit_bytes", 10.0, 0.5, about="memory"),
    P("logit_bytes.nanotron", 9.5, 0.3, about="memory"),
    P("logit_bytes.fsdp", 6.0, 0.3, about="memory"),
    P("activation_scale.fsdp", 0.9, 0.3, about="memory"),
    P("activation_scale.nemo", 0.8, 0.3, about="memory"),
    P("logit_kept.nanotron", 4.0, 0.5, about="memory"),
    P("ahead.nanotron", 20.0, 0.5, about="memory"),
    P("reserve", 1.5, 0.25, about="memory"),
    P("reserve.megatron-deepspeed", 6.0, 0.7, about="memory"),
    P("state_waste.megatron-deepspeed", 0.5, 0.8, about="memory"),
    P("reserve.nanotron", 0.5, 0.7, about="memory"),
    P("state_waste", 0.5, 0.8, about="memory"),
    P("state_waste.nanotron", 1.5, 0.8, about="memory"),
]


Errors = dict[tuple[str, str], list[float]]
LIMITED = ("gpus", "pp", "cp", "seq_len")
"""Properties whose largest measured value limits how far the error applies."""


def expected_errors(found: Sequence[tuple[str, TrainingLayout, float | None, float | None]]) -> dict[str, Any]:
    """Return the expected errors: for each framework that of its worst set, in general the mean of all sets.

    Args:
        found: For each run its set, its layout, and the relative errors of its time and its memory.
    """
    times: Errors = defaultdict(list)
    memories: Errors = defaultdict(list)
    most: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(LIMITED, 0))
    kinds: dict[str, set[str]] = defaultdict(set)
    for group, run, time, memory in found:
        if time is not None:
            times[run.framework, group].append(time)
        if memory is not None:
            memories[run.framework, group].append(memory)
        kinds[run.framework] |= {run.machine.gpu.generation, run.machine.fabric, run.precision}
        most[run.framework] = {name: max(n, getattr(run, name)) for name, n in most[run.framework].items()}
    return {
        "time": fmean(map(fmean, times.values())),
        "memory": fmean(map(fmean, memories.values())),
        "frameworks": _worst(times),
        "memory_frameworks": _worst(memories),
        "most": dict(sorted(most.items())),
        "kinds": {name: sorted(found) for name, found in sorted(kinds.items())},
    }


def _worst(errors: Errors) -> dict[str, float]:
    each = {key: fmean(values) for key, values in errors.items()}
    return {name: max(e for (own, _), e in each.items() if own == name) for name, _ in sorted(each)}


def rendered_errors(error: dict[str, Any]) -> str:
    """Return the section `[error]` as TOML."""
    lines = ["[error] # of models that were left out of the fit: bench/planner/fit.py --cross OUT.csv --write"]
    lines += [f"{name} = {error[name]:.2f}" for name in ("time", "memory")]
    for part in ("frameworks", "memory_frameworks"):
        lines += ["", f"[error.{part}]", *(f"{name} = {value:.2f}" for name, value in error[part].items())]
    lines += ["", "[error.most] # that was measured"]
    for name, most in error["most"].items():
        lines.append(f"{name} = {{ {', '.join(f'{key} = {n}' for key, n in most.items())} }}")
    lines += ["", "[error.kinds] # of GPUs, networks and products that were measured"]
    lines += [f"{name} = {json.dumps(found)}" for name, found in error["kinds"].items()]
    return "\n".join(lines) + "\n"


def render(values: dict[str, float], errors: dict[str, float], runs: int, expected: dict[str, Any]) -> str:
    """Return the constants as TOML, with the errors of runs that were left out of the fit."""
    about = "# Constants of the planner; hpc_kit/planner/constants.py explains each.\n"
    about += f"# Fitted to {runs} measured runs by bench/planner/fit.py; error: one standard error, relative.\n"
    lines = [about]
    names = sorted({key.partition(".")[0] for key in values})
    fitted = {p.key for p in FREE}
    for name in names:
        lines.append(f"[constants.{name}]")
        for key in sorted(values, key=lambda key: (key != name, key)):
            own, _, kind = key.partition(".")
            if own == name:
                error = f", error = {errors[key]:.2g}" if key in fitted else ""
                lines.append(f"{kind or 'all'} = {{ value = {values[key]:.5g}{error} }}")
        lines.append("")
    return "\n".join(lines) + "\n" + rendered_errors(expected)
