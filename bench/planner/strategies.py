"""Compares the planner's predictions with the results of `hpc-kit bench strategies` on CPU ranks.

    hpc-kit bench strategies --ranks 8 --repeats 3 --json > measured.json
    python -m bench.planner.strategies measured.json --cores 2

strategies_2ranks.json and strategies_8ranks.json are such results. Model states are those of fp32 training: 4 P, 4 P,
8 P, divided as ZeRO, tensor and pipeline parallelism do. Of the times only the order is compared. With `--comm`, the
links are those that `hpc-kit bench comm` measured on the same machine, as in `hpc-kit plan calibrate --comm`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from hpc_kit.planner import calibration, hardware
from hpc_kit.planner.constants import Constants, constants_for
from hpc_kit.planner.hardware import Machine
from hpc_kit.planner.job_files import BYTE_VOCABULARY
from hpc_kit.planner.layout import TrainingLayout, owned_parameters, split_stages
from hpc_kit.planner.memory import model_state_bytes
from hpc_kit.planner.step_time import step_time
from hpc_kit.planner.transformer import Transformer


class Split(NamedTuple):
    """Degrees (0: all ranks), ZeRO stage and micro-batches of a strategy.

    `stored` is the ZeRO stage that describes the states between two steps, if it differs: our ZeRO-2 keeps its
    parameters sharded there.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: int = 0
    micro_batches: int = 1
    stored: int | None = None


SPLITS = {
    "single": Split(),
    "ddp": Split(),
    "zero1": Split(zero=1),
    "zero2": Split(zero=2, stored=3),
    "zero3": Split(zero=3),
    "tensor": Split(tp=0),
    "context": Split(cp=0),
    "pipeline": Split(pp=0, micro_batches=16),
    "modelparallel": Split(pp=2),
    "pipelined": Split(pp=2, micro_batches=8),
    "hybrid_pp_dp": Split(pp=2, micro_batches=4),
    "hybrid_tp_dp": Split(tp=2),
    "hybrid_3d": Split(tp=2, pp=2, micro_batches=4),
    "hybrid_3d_zero1": Split(tp=2, pp=2, micro_batches=4, zero=1, stored=3),
}
SEQUENCE = 64
"""Tokens per sequence, the default of the programs in jobs/train."""
CLEAR_DIFFERENCE = 0.05
"""Minimum relative difference of two predicted times for which the order counts."""


def predicted_layout(strategy: str, ranks: int, options: dict[str, Any], machine: Machine) -> TrainingLayout:
    """Return the layout of a strategy in `bench strategies` with these options."""
    split, width = SPLITS[strategy], options["width"]
    model = Transformer(
        name="shipped",
        layers=options["layers"],
        hidden=width,
        ffn=4 * width,
        heads=options["heads"],
        kv_heads=options["heads"],
        head_dim=width // options["heads"],
        vocab=BYTE_VOCABULARY,
        seq_len=SEQUENCE,
        gated=False,
        positions=SEQUENCE + 1,
    )
    tp, pp, cp = (degree or ranks for degree in (split.tp, split.pp, split.cp))
    dp = ranks // (tp * pp * cp)
    return TrainingLayout(
        model=model,
        machine=machine,
        seq_len=SEQUENCE,
        global_batch=options["global_batch"],
        micro_batch=max(1, options["global_batch"] // dp // split.micro_batches),
        zero_stage=split.zero,
        flash=False,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
    )


def state_bytes(layout: TrainingLayout, zero_stage: int) -> float:
    """Return the bytes of parameters, gradients and optimizer of the rank with the most, all in fp32."""
    owned = owned_parameters(layout, split_stages(layout))
    return sum(model_state_bytes(owned, layout.dp, zero_stage, 4, master=True))


def measured_machine(ranks: int, nodes: int, cores: int | None, comm: Path | None) -> tuple[Machine, Constants]:
    """Return a machine whose ranks share `cores` cores, and the general constants."""
    card = hardware.find_gpu("cpu")
    if cores:
        card = structs.replace(card, flops=card.flops * min(1.0, cores / ranks))
    per_node = max(1, ranks // nodes)
    machine = Machine(gpu=card, gpus_per_node=per_node, network=card.usual_network)
    fitted = constants_for("torch", card.generation, machine.fabric)
    if comm is None:
        return machine, fitted
    links = calibration.read_comm_result(comm)
    if links.link is None and links.network:
        # All hosts are this machine, so the links between nodes also hold inside a node.
        links = structs.replace(links, link=links.network * per_node, latency=links.latency_network)
    return calibration.apply_measurement(links, machine, fitted)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation of values without ties."""
    one_ranks, other_ranks = (np.argsort(np.argsort(values)) for values in (one, other))
    return float(np.corrcoef(one_ranks, other_ranks)[0, 1])


def ordered_pairs(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Return the number of pairs with clearly different predictions, and how many of them have the measured order."""
    pairs = list(combinations(zip(measured, predicted, strict=True), 2))
    clear = [pair for pair in pairs if abs(math.log(pair[0][1] / pair[1][1])) > CLEAR_DIFFERENCE]
    return len(clear), sum((one[0] < other[0]) == (one[1] < other[1]) for one, other in clear)


def main() -> None:
    """Print measured and predicted values side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--cores", type=int, help="cores that all ranks share; default: each rank has its own")
    parser.add_argument("--comm", type=Path, help="results of hpc-kit bench comm --json on the same ranks")
    options = parser.parse_args()
    document = json.loads(options.measured.read_text())
    nodes = len(document["machine"]["hosts"])
    measured, predicted = [], []
    print(f"{'strategy':16} {'states MiB':>10} {'predicted':>10} {'step s':>10} {'predicted':>10}")
    for row in document["results"]:
        if row.get("strategy") not in SPLITS or "step" not in row:
            continue
        machine, fitted = measured_machine(row["ranks"], nodes if row["ranks"] > 2 else 1, options.cores, options.comm)
        split = SPLITS[row["strategy"]]
        layout = predicted_layout(row["strategy"], row["ranks"], document["parameters"], machine)
        seconds = step_time(layout, fitted).total
        states = state_bytes(layout, split.zero if split.stored is None else split.stored) / 2**20
        measured.append(row["step"])
        predicted.append(seconds)
        print(f"{row['strategy']:16} {row['states'] / 2**20:10.2f} {states:10.2f} {row['step']:10.4f} {seconds:10.4f}")
    if len(measured) > 1:
        print(f"order of the times: Spearman {rank_correlation(measured, predicted):+.2f}")
        clear, right = ordered_pairs(measured, predicted)
        print(
            f"pairs that are predicted more than {CLEAR_DIFFERENCE:.0%} apart: {right} of {clear} in the measured order"
        )


if __name__ == "__main__":
    main()
