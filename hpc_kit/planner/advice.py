"""What the usual table of ways says for a model and a cluster, beside what the numbers say.

One node: the model fits one GPU: DDP. It does not: pipeline, then ZeRO, then tensor parallelism. Its largest layer does
not fit one GPU: tensor parallelism or ZeRO. Several nodes, fast links: ZeRO, or pipeline + tensor + data parallelism;
slow links and little memory: all of them with ZeRO-1.
"""

from __future__ import annotations

from msgspec import Struct

from hpc_kit.planner.constants import Rates
from hpc_kit.planner.hardware import GIB, Machine
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.search import Plan, PlanningTask

FAST_NETWORK = 12.5e9
"""Bytes/s of network a GPU from which links between nodes count as fast: 100 Gb/s."""
EQUAL_SHARE = 0.03
"""Ways whose times differ by less than this share are taken for equally good."""


class Advice(Struct, frozen=True):
    """The table's answer, the numbers' answer, and whether they agree.

    Attributes:
        situation: Which row of the table holds.
        said: Ways that the row names, the first choice first.
        best: The fastest plan of each way.
        agrees: Whether the fastest of all is a way that the row names, or as fast as one.
        text: The comparison in a sentence.
    """

    situation: str
    recommended: tuple[str, ...]
    best: dict[str, Plan]
    agrees: bool
    text: str


def strategy_of(layout: TrainingLayout) -> str:
    """Which way a layout goes."""
    if layout.tp > 1 and layout.pp > 1:
        return "PP + TP + DP"
    if layout.pp > 1:
        return "PP"
    if layout.tp > 1:
        return "TP"
    if layout.cp > 1:
        return "CP"
    return "ZeRO" if layout.zero_stage else "DDP"


def matching_rule(task: PlanningTask, rates: Rates) -> tuple[str, tuple[str, ...]]:
    """The row of the table that holds, and the ways that it names."""
    alone = TrainingLayout(
        model=task.model,
        machine=task.machine,
        seq_len=task.seq_len,
        global_batch=1,
        recompute="full",
        flash=task.flash,
        framework=task.framework,
    )
    limit = task.machine.gpu.memory * rates.usable
    layer = 18.0 * task.model.largest_layer
    several = task.gpus > task.machine.gpus_per_node
    if layer > limit:
        return f"the largest layer ({layer / GIB:.0f} GiB with its states) does not fit one GPU", (
            "TP",
            "ZeRO",
            "PP + TP + DP",
        )
    if several and peak_memory(alone, rates).total > limit:
        if has_fast_network(task.machine):
            return "several nodes, fast links, the model does not fit one GPU", ("ZeRO", "PP + TP + DP")
        return "several nodes, slow links, the model does not fit one GPU", ("PP + TP + DP",)
    if peak_memory(alone, rates).total <= limit:
        return "the model fits one GPU", ("DDP",)
    return "one node, the model does not fit one GPU", ("PP", "ZeRO", "TP")


def has_fast_network(machine: Machine) -> bool:
    """Whether links between nodes count as fast."""
    return machine.network >= FAST_NETWORK


def advise(task: PlanningTask, rates: Rates, plans: tuple[Plan, ...]) -> Advice:
    """Set the table beside the numbers; `plans` are sorted, the fastest first, and not empty."""
    row, said = matching_rule(task, rates)
    best: dict[str, Plan] = {}
    for plan in plans:
        best.setdefault(strategy_of(plan.layout), plan)
    winner = strategy_of(plans[0].layout)
    named = [best[one] for one in said if one in best]
    if winner in said:
        first = said[0]
        order = "" if winner == first else f", before {first}" + ("" if first in best else ", which does not fit")
        return Advice(row, said, best, agrees=True, text=f"the numbers agree: {winner}{order}")
    if not named:
        sharded = " with ZeRO-3" if plans[0].layout.zero_stage == 3 and winner != "ZeRO" else ""
        text = f"the numbers say {winner}{sharded}: none of {', '.join(said)} fits by itself"
        return Advice(row, said, best, agrees=False, text=text)
    nearest = min(named, key=lambda plan: plan.time.total)
    loss = nearest.time.total / plans[0].time.total - 1
    if loss <= EQUAL_SHARE:
        return Advice(
            row,
            said,
            best,
            agrees=True,
            text=f"the numbers agree: {strategy_of(nearest.layout)} is within {loss:.1%} of the fastest",
        )
    return Advice(
        row,
        said,
        best,
        agrees=False,
        text=f"the numbers disagree: {winner} takes {plans[0].time.total:.3g} s a step, {strategy_of(nearest.layout)} "
        f"{nearest.time.total:.3g} s ({loss:.0%} more): {_main_cause(nearest, plans[0])}",
    )


def _main_cause(slower: Plan, faster: Plan) -> str:
    """What the slower way loses its time to: the term that grew most."""
    causes = {
        "data": "its gradients travel longer",
        "shard": "its parameters travel for every micro-batch",
        "bubble": "its pipeline stands idle",
        "boundary": "its stages wait for one another's activations",
        "tensor": "its tensor-parallel traffic",
        "context": "its keys and values go round",
        "launch": "its kernels are too small",
        "compute": "it recomputes activations" if slower.layout.recompute == "full" else "its products are smaller",
        "optimizer": "its optimizer has more to do",
    }
    return causes[max(causes, key=lambda term: getattr(slower.time, term) - getattr(faster.time, term))]
