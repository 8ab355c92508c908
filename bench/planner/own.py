"""Predict the shipped trainings, then compare with what `hpc-kit bench strategies` measured on CPU ranks.

    hpc-kit bench strategies --ranks 8 --repeats 3 --json > measured.json
    python -m bench.planner.own measured.json --cores 2

bench/planner/own.json and own8.json are such measurements. Bytes of model states are those of fp32 training: 4 P, 4 P,
8 P, divided as ZeRO, tensor and pipeline parallelism do. Of the time only the order is compared. With `--comm` the
links are those that `hpc-kit bench comm` measured on the same machine, as `hpc-kit plan calibrate --comm` takes them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from hpc_kit.planner import calibration, hardware
from hpc_kit.planner.constants import Rates, rates_for
from hpc_kit.planner.hardware import Machine
from hpc_kit.planner.job_files import BYTE_VOCABULARY, PROGRAM_DEFAULTS
from hpc_kit.planner.layout import TrainingLayout, split_stages
from hpc_kit.planner.memory import model_state_bytes
from hpc_kit.planner.model import Model
from hpc_kit.planner.step_time import step_time


class Way(NamedTuple):
    """How a strategy splits: degrees (0: all ranks), ZeRO stage, micro-batches, and what is sharded between steps."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: int = 0
    micro_batches: int = 1
    held: int | None = None


WAYS = {
    "single": Way(),
    "ddp": Way(),
    "zero1": Way(zero=1),
    "zero2": Way(zero=2, held=3),
    "zero3": Way(zero=3),
    "tensor": Way(tp=0),
    "context": Way(cp=0),
    "pipeline": Way(pp=0, micro_batches=16),
    "modelparallel": Way(pp=2),
    "pipelined": Way(pp=2, micro_batches=8),
    "hybrid_pp_dp": Way(pp=2, micro_batches=4),
    "hybrid_tp_dp": Way(tp=2),
    "hybrid_3d": Way(tp=2, pp=2, micro_batches=4),
    "hybrid_3d_zero1": Way(tp=2, pp=2, micro_batches=4, zero=1, held=3),
}
DRAW = 0.05
"""Predicted times that are nearer than this share are a draw."""


def run_of(strategy: str, ranks: int, asked: dict[str, Any], machine: Machine) -> TrainingLayout:
    way, sequence, width = WAYS[strategy], PROGRAM_DEFAULTS["sequence"], asked["width"]
    model = Model(
        name="shipped",
        layers=asked["layers"],
        hidden=width,
        ffn=4 * width,
        heads=asked["heads"],
        kv_heads=asked["heads"],
        head_dim=width // asked["heads"],
        vocab=BYTE_VOCABULARY,
        seq_len=sequence,
        gated=False,
        positions=sequence + 1,
    )
    tp, pp, cp = (degree or ranks for degree in (way.tp, way.pp, way.cp))
    dp = ranks // (tp * pp * cp)
    return TrainingLayout(
        model=model,
        machine=machine,
        seq_len=sequence,
        global_batch=asked["global_batch"],
        micro_batch=max(1, asked["global_batch"] // dp // way.micro_batches),
        zero_stage=way.zero,
        flash=False,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
    )


def states(run: TrainingLayout, held: int) -> float:
    """Bytes of parameters, gradients and optimizer of the rank that holds most, all in fp32."""
    model, part = run.model, max(stage.layers for stage in split_stages(run.model, run.pp))
    tables = model.embedding_parameters + (model.head_parameters if run.pp == 1 else 0)
    owned = (part * model.layer_parameters + tables) / run.tp
    return sum(model_state_bytes(owned, run.dp, held, 4, master=True))


def machine_of(ranks: int, nodes: int, cores: int | None, comm: Path | None) -> tuple[Machine, Rates]:
    """Ranks that share some cores, on one host or several, and the general constants."""
    card = hardware.find_gpu("cpu")
    if cores:
        card = structs.replace(card, flops=card.flops * min(1.0, cores / ranks))
    per_node = max(1, ranks // nodes)
    machine = Machine(gpu=card, gpus_per_node=per_node, network=hardware.usual_network(card))
    rates = rates_for("torch", card.generation, machine.fabric)
    if comm is None:
        return machine, rates
    links = calibration.read_comm_result(comm, per_node)
    if links.link is None and links.network:
        # All hosts are this machine: what was measured between nodes holds inside one.
        links = structs.replace(links, link=links.network * per_node, latency=links.latency_network)
    return calibration.apply_measurement(links, machine, rates)


def ranks_of(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(order.index(i)) for i in range(len(values))]


def agreement(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    n = len(one)
    apart = sum((a - b) ** 2 for a, b in zip(ranks_of(one), ranks_of(other), strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))


def told_apart(found: Sequence[float], guessed: Sequence[float]) -> tuple[int, int]:
    """Pairs whose predictions differ by more than `DRAW`, and how many of them are in the measured order."""
    pairs = list(combinations(zip(found, guessed, strict=True), 2))
    apart = [pair for pair in pairs if abs(math.log(pair[0][1] / pair[1][1])) > DRAW]
    return len(apart), sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--cores", type=int, help="cores that all ranks share; not given: each has its own")
    parser.add_argument("--comm", type=Path, help="results of hpc-kit bench comm --json on the same ranks")
    given = parser.parse_args()
    document = json.loads(given.measured.read_text())
    asked, nodes = document["parameters"], len(document["machine"]["hosts"])
    found, guessed = [], []
    print(f"{'strategy':16} {'states MiB':>10} {'predicted':>10} {'step s':>10} {'predicted':>10}")
    for row in document["results"]:
        if row.get("strategy") not in WAYS or "step" not in row:
            continue
        machine, rates = machine_of(row["ranks"], nodes if row["ranks"] > 2 else 1, given.cores, given.comm)
        run, way = run_of(row["strategy"], row["ranks"], asked, machine), WAYS[row["strategy"]]
        guess = step_time(run, rates).total
        held = states(run, way.zero if way.held is None else way.held) / 2**20
        found.append(row["step"])
        guessed.append(guess)
        print(f"{row['strategy']:16} {row['states'] / 2**20:10.2f} {held:10.2f} {row['step']:10.4f} {guess:10.4f}")
    if len(found) > 1:
        print(f"order of the times: Spearman {agreement(found, guessed):+.2f}")
        apart, right = told_apart(found, guessed)
        print(f"pairs that are predicted more than {DRAW:.0%} apart: {right} of {apart} in the measured order")


if __name__ == "__main__":
    main()
