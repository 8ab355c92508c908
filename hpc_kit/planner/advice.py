"""The usual table of which strategy to choose, compared with computed or measured times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from hpc_kit.planner.constants import Constants, time_error
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import model_state_bytes, peak_memory
from hpc_kit.planner.search import Plan, PlanningTask

FAST_NETWORK = 12.5e9
"""Minimum bytes/s of network for each GPU that counts as fast: 100 Gb/s."""
EQUAL_SHARE = 0.03
"""Strategies whose computed times differ by less than this share count as equally good."""


class AdviceRule(NamedTuple):
    """A row of the table: its strategies, the first choice first, or alternatives of the same rank."""

    situation: str
    strategies: tuple[str, ...]
    is_ordered: bool = True

    def __str__(self) -> str:
        return (", then " if self.is_ordered else " or ").join(self.strategies)


FITS = AdviceRule("the model fits one GPU", ("DDP", "ZeRO"))
ONE_NODE = AdviceRule("one node, the model does not fit one GPU", ("PP", "ZeRO", "TP"))
LARGE_LAYER = AdviceRule("the largest layer does not fit one GPU", ("TP", "ZeRO", "PP + TP + DP"), is_ordered=False)
FAST_LINKS = AdviceRule(
    "several nodes, fast links, the model does not fit one GPU", ("ZeRO", "PP + TP + DP"), is_ordered=False
)
SLOW_LINKS = AdviceRule("several nodes, slow links, the model does not fit one GPU", ("PP + TP + DP", "ZeRO"))


class ComparedOrder(NamedTuple):
    """The strategies of a rule in the order of their times, the fastest first, and whether the times confirm the rule.

    `reversed_pairs` are pairs (faster, slower) that the rule has in reverse order; the times of `equal_pairs` do not
    differ.
    """

    order: tuple[str, ...]
    reversed_pairs: tuple[tuple[str, str], ...]
    equal_pairs: tuple[tuple[str, str], ...]
    verdict: Literal["yes", "no", "cannot be told", "no order"]


def compare_order(
    rule: AdviceRule, seconds: Mapping[str, float], are_equal: Callable[[str, str], bool]
) -> ComparedOrder:
    """Compare the whole order of a rule with times, pair by pair. Strategies without a time are left out.

    `are_equal` returns whether the times of two strategies are too close to compare. Pairs of alternatives without an
    order are neither reversed nor equal.
    """
    known = [name for name in rule.strategies if name in seconds]
    pairs = list(combinations(known, 2)) if rule.is_ordered else []
    equal = tuple(pair for pair in pairs if are_equal(*pair))
    contradicted = tuple(
        (second, first) for first, second in pairs if (first, second) not in equal and seconds[second] < seconds[first]
    )
    verdict: Literal["yes", "no", "cannot be told", "no order"] = "yes" if rule.is_ordered else "no order"
    if contradicted or equal:
        verdict = "no" if contradicted else "cannot be told"
    return ComparedOrder(tuple(sorted(known, key=seconds.__getitem__)), contradicted, equal, verdict)


class Advice(Struct, frozen=True):
    """The rule that applies, the fastest plan of each strategy, and a sentence on each difference with its reason."""

    rule: AdviceRule
    best: dict[str, Plan]
    compared: ComparedOrder
    agrees: bool
    """The computed order is that of the rule, and no other strategy is clearly faster."""
    text: str
    differences: tuple[str, ...] = ()


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


def matching_rule(task: PlanningTask, fitted: Constants) -> AdviceRule:
    """Return the row of the table that applies."""
    single_gpu = structs.replace(task.layout(), global_batch=1, recompute="full", offload=False)
    limit = task.machine.gpu.memory * fitted.usable
    # 16-bit parameters, fp32 gradients, and the 12 bytes of Adam with its fp32 copy.
    layer = sum(model_state_bytes(task.model.largest_layer, 1, 0, grad_bytes=4))
    if layer > limit:
        situation = f"the largest layer ({layer / GIB:.0f} GiB with its states) does not fit one GPU"
        return LARGE_LAYER._replace(situation=situation)
    if peak_memory(single_gpu, fitted).total <= limit:
        return FITS
    if task.gpus <= task.machine.gpus_per_node:
        return ONE_NODE
    return FAST_LINKS if task.machine.network >= FAST_NETWORK else SLOW_LINKS


def advise(task: PlanningTask, fitted: Constants, plans: tuple[Plan, ...]) -> Advice:
    """Compare the rule with the plans, which are sorted by time and not empty."""
    rule = matching_rule(task, fitted)
    best: dict[str, Plan] = {}
    for plan in plans:
        best.setdefault(strategy_of(plan.layout), plan)
    seconds = {name: plan.time.total for name, plan in best.items()}

    def are_equal(one: str, other: str) -> bool:
        low, high = sorted((seconds[one], seconds[other]))
        return high / low - 1 <= EQUAL_SHARE

    compared = compare_order(rule, seconds, are_equal)
    fastest = next(iter(best))
    if not compared.order:
        sharded = " with ZeRO-3" if best[fastest].layout.zero_stage == 3 and fastest != "ZeRO" else ""
        text = f"the numbers disagree: {fastest}{sharded}, for none of {', '.join(rule.strategies)} fits by itself"
        return Advice(rule, best, compared, agrees=False, text=text)
    pairs = compared.reversed_pairs
    if fastest not in rule.strategies and not are_equal(fastest, compared.order[0]):
        pairs = ((fastest, compared.order[0]), *pairs)
    if not pairs:
        return Advice(rule, best, compared, agrees=True, text=_describe_agreement(compared, fastest, seconds))
    error, _ = time_error(best[fastest].layout)
    return Advice(
        rule,
        best,
        compared,
        agrees=False,
        text=f"the numbers disagree: by time {', then '.join(dict.fromkeys((pairs[0][0], *compared.order)))}",
        differences=tuple(_describe_difference(best[one], best[other], error) for one, other in pairs),
    )


def _describe_agreement(compared: ComparedOrder, fastest: str, seconds: Mapping[str, float]) -> str:
    order, first = compared.order, compared.order[0]
    # The fastest is none of the rule's strategies, but not clearly faster than the first of them.
    if fastest != first:
        share = seconds[first] / seconds[fastest] - 1
        return f"the numbers agree: {first} is within {share:.1%} of {fastest}, the fastest"
    equal = "; ".join(
        f"{one} and {other} are within {abs(seconds[one] / seconds[other] - 1):.1%}"
        for one, other in compared.equal_pairs
    )
    return f"the numbers agree: {', then '.join(order)}" + (f"; {equal}" if equal else "")


def _describe_difference(faster: Plan, slower: Plan, error: float) -> str:
    """Return a sentence on two plans whose order differs from the table's, with the reason."""
    more = slower.time.total / faster.time.total - 1
    unsure = f", less than the +-{error:.0%} of a prediction" if more < error else ""
    return (
        f"{strategy_of(faster.layout)} takes {faster.time.total:.3g} s a step, {strategy_of(slower.layout)} "
        f"{slower.time.total:.3g} s ({more:.1%} more{unsure}): {_main_cause(slower, faster)}"
    )


def _main_cause(slower: Plan, faster: Plan) -> str:
    """Return the reason for the slower time: the term that grew most."""
    compute = "its matrix products are smaller"
    if slower.layout.recompute == "full" != faster.layout.recompute:
        compute = "it recomputes activations"
    elif slower.layout.pp > faster.layout.pp:
        compute = "its last stage also computes the output, and the other stages wait for it"
    causes = {
        "data": "its gradients travel longer",
        "shard": "its parameters travel for every micro-batch",
        "bubble": "its pipeline is idle while it fills and drains",
        "boundary": "its stages wait for the activations of their neighbours",
        "tensor": "its tensor-parallel traffic",
        "context": "its keys and values travel around the ring",
        "launch": "its kernels are too small",
        "compute": compute,
        "optimizer": "its optimizer updates more parameters on each GPU",
        "offload": "its optimizer states travel to the CPU's memory and back",
    }
    known = {term: cause for term, cause in causes.items() if term in slower.time.__struct_fields__}
    return known[max(known, key=lambda term: getattr(slower.time, term) - getattr(faster.time, term))]
