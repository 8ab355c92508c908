"""Rules of thumb for choosing a strategy, compared with the computed result.

On one node: DDP if the model fits one GPU, otherwise pipeline, then ZeRO, then tensor parallelism. If the largest layer
does not fit one GPU: tensor parallelism or ZeRO. On several nodes with fast links: ZeRO, or pipeline + tensor + data
parallelism; with slow links and little memory: all of them with ZeRO-1.
"""

from __future__ import annotations

from msgspec import Struct

from hpc_kit.planner.constants import Rates
from hpc_kit.planner.hardware import GIB, Machine
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.search import Plan, PlanningTask

FAST_NETWORK = 12.5e9
"""Minimum bytes/s of network for each GPU that counts as fast: 100 Gb/s."""
EQUAL_SHARE = 0.03
"""Strategies whose times differ by less than this share count as equally good."""


class Advice(Struct, frozen=True):
    """The rule's recommendation, the computed result, and whether they agree.

    Attributes:
        situation: The matching rule.
        said: Ways that the row names, the first choice first.
        best: The fastest plan of each strategy.
        agrees: Whether the fastest of all is a way that the row names, or as fast as one.
        text: The comparison in a sentence.
    """

    situation: str
    recommended: tuple[str, ...]
    best: dict[str, Plan]
    agrees: bool
    text: str


def strategy_of(layout: TrainingLayout) -> str:
    """Return the strategy of a layout."""
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
    """Return the matching rule and the strategies that it recommends."""
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
    """Return whether the network between nodes counts as fast."""
    return machine.network >= FAST_NETWORK


def advise(task: PlanningTask, rates: Rates, plans: tuple[Plan, ...]) -> Advice:
    """Compare the rule with the plans, which are sorted by time and not empty."""
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
    """Return the reason for the slower time: the term that grew most."""
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
