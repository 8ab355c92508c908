"""Predict the shipped trainings, then compare with what `hpc-kit bench strategies` measured on CPU ranks.

    hpc-kit bench strategies --only ddp,zero1,zero2,zero3,tensor,pipeline --ranks 2 --json > measured.json
    python -m bench.planner.own measured.json

Bytes of model states are those of fp32 training: 4 P, 4 P, 8 P, divided as ZeRO, tensor and pipeline parallelism do.
Of the time only the order is compared: what a core computes in a second nobody has calibrated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_kit.planner import hardware
from hpc_kit.planner.constants import builtin
from hpc_kit.planner.jobmodel import BYTES, DEFAULTS
from hpc_kit.planner.machine import Machine
from hpc_kit.planner.memory import model_states
from hpc_kit.planner.model import Model
from hpc_kit.planner.run import Run, stages
from hpc_kit.planner.steps import step_time

WAYS: dict[str, tuple[str, int]] = {
    "ddp": ("dp", 0),
    "zero1": ("dp", 1),
    "zero2": ("dp", 2),
    "zero3": ("dp", 3),
    "tensor": ("tp", 0),
    "pipeline": ("pp", 0),
}
"""What each strategy splits, and its ZeRO stage."""


def run_of(strategy: str, ranks: int, asked: dict[str, Any]) -> Run:
    degree, zero = WAYS[strategy]
    sequence, width = DEFAULTS["sequence"], asked["width"]
    model = Model(
        name="shipped",
        layers=asked["layers"],
        hidden=width,
        ffn=4 * width,
        heads=asked["heads"],
        kv_heads=asked["heads"],
        head_dim=width // asked["heads"],
        vocab=BYTES,
        seq_len=sequence,
        gated=False,
        positions=sequence + 1,
    )
    card = hardware.gpu("cpu")
    machine = Machine(gpu=card, gpus_per_node=ranks, network=hardware.network(card))
    share = asked["global_batch"] // (ranks if degree == "dp" else 1)
    return Run(
        model=model,
        machine=machine,
        seq_len=sequence,
        global_batch=asked["global_batch"],
        micro_batch=max(1, share // 16) if degree == "pp" else share,
        zero_stage=zero,
        flash=False,
        dp=ranks if degree == "dp" else 1,
        tp=ranks if degree == "tp" else 1,
        pp=ranks if degree == "pp" else 1,
    )


def states(run: Run) -> float:
    """Bytes of parameters, gradients and optimizer of the rank that holds most, all in fp32."""
    model, part = run.model, max(stage.layers for stage in stages(run.model, run.pp))
    tables = model.embedding_parameters + (model.head_parameters if run.pp == 1 else 0)
    owned = (part * model.layer_parameters) / run.tp + tables
    return sum(model_states(owned, run.dp, run.zero_stage, 4, master=True))


def ranks_of(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(order.index(i)) for i in range(len(values))]


def agreement(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    n = len(one)
    apart = sum((a - b) ** 2 for a, b in zip(ranks_of(one), ranks_of(other), strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    document = json.loads(parser.parse_args().measured.read_text())
    asked, found, guessed = document["parameters"], [], []
    print(f"{'strategy':10} {'states MiB':>10} {'predicted':>10} {'step s':>10} {'predicted':>10}")
    for row in document["results"]:
        if row.get("strategy") not in WAYS or "step" not in row:
            continue
        run = run_of(row["strategy"], row["ranks"], asked)
        rates = builtin("torch", run.machine.gpu.generation, run.machine.fabric)
        guess, held = step_time(run, rates).total, states(run) / 2**20
        found.append(row["step"])
        guessed.append(guess)
        print(f"{row['strategy']:10} {row['states'] / 2**20:10.2f} {held:10.2f} {row['step']:10.4f} {guess:10.4f}")
    if len(found) > 1:
        print(f"order of the times: Spearman {agreement(found, guessed):+.2f}")


if __name__ == "__main__":
    main()
