"""Ranks all legal layouts of a model on a cluster by time, and explains why none fits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from msgspec import Struct, structs

from hpc_kit.errors import AnswerNo, SpecError
from hpc_kit.planner.compute_time import LayerTime, layer_time
from hpc_kit.planner.constants import Constants, memory_error
from hpc_kit.planner.hardware import GIB, Machine
from hpc_kit.planner.layout import (
    MICRO_BATCHES,
    Recompute,
    TrainingLayout,
    unsupported_reason,
    virtual_stage_options,
    zero_stages,
)
from hpc_kit.planner.memory import Memory, peak_memory
from hpc_kit.planner.step_time import StepTime, step_time
from hpc_kit.planner.transformer import Transformer

MIN_CONTEXT_TOKENS = 2048
"""Context parallelism is tried while each rank keeps at least this many tokens of a sequence."""


class PlanningTask(Struct, frozen=True, kw_only=True):
    """Model, machine and batch to plan for."""

    model: Transformer
    machine: Machine
    gpus: int
    global_batch: int
    seq_len: int
    framework: str = "torch"
    precision: str = "bf16"
    flash: bool = True
    offload: bool = False

    def layout(self, **degrees: int) -> TrainingLayout:
        """Return the layout of the task with the degrees `dp`, `tp`, `pp` and `cp`, which are 1 by default."""
        common: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__ if name != "gpus"}
        return TrainingLayout(**{**common, **degrees, "sequence_parallel": degrees.get("tp", 1) > 1})


class Plan(Struct, frozen=True):
    """A layout that fits, with its memory and time."""

    layout: TrainingLayout
    memory: Memory
    time: StepTime

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second and GPU."""
        return self.layout.global_batch * self.layout.seq_len / self.time.total / self.layout.gpus

    @property
    def utilisation(self) -> float:
        """Operations of the model, with full attention and no recomputation, over the data sheet's 16-bit rate."""
        layout = self.layout
        return self.tokens_per_second * layout.model.flops(1, layout.seq_len) / layout.machine.gpu.flops

    def fits_with_margin(self, limit: float) -> bool:
        """Return whether the memory stays below `limit` bytes even with the error of its prediction."""
        return self.memory.total * (1 + memory_error(self.layout.framework)) <= limit


class RejectedLayout(Struct, frozen=True):
    """A rejected layout and the reason; `missing_gib` is 0 unless memory is too small."""

    layout: TrainingLayout
    reason: str
    missing_gib: float = 0.0


class SearchResult(Struct, frozen=True):
    """Plans, fastest first; rejected layouts, nearest to fitting first; and the number of examined layouts."""

    plans: tuple[Plan, ...]
    rejected: tuple[RejectedLayout, ...]
    layout_count: int
    limit: float
    """Usable bytes of a GPU."""

    @property
    def with_margin(self) -> Plan | None:
        """The fastest plan that fits with a margin."""
        return next((plan for plan in self.plans if plan.fits_with_margin(self.limit)), None)

    def describe_margin(self, chosen: Plan, safe: Plan | None) -> str:
        """Return a sentence on a plan that may not fit and the plan with a margin; empty if both are the same."""
        if safe is chosen:
            return ""
        other = "no layout leaves a margin"
        if safe is not None:
            more = safe.time.total / chosen.time.total - 1
            other = f"the fastest with a margin: {describe_layout(safe.layout)}, {more:.1%} slower"
        name = "the first layout" if chosen is self.plans[0] else describe_layout(chosen.layout)
        share = chosen.memory.total / self.limit
        return f"{name} needs {share:.0%} of the usable memory of a GPU and may not fit; {other}"


def divisors(number: int) -> list[int]:
    """Return all divisors in ascending order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def search_layouts(task: PlanningTask, fitted: Constants) -> SearchResult:
    """Evaluate every legal layout.

    Raises:
        SpecError: The GPU lacks the precision.
    """
    if task.precision == "fp8" and not task.machine.gpu.flops8:
        raise SpecError(
            f"{task.machine.gpu.name} has no 8-bit products",
            found="precision fp8",
            remedy="bf16, or a GPU that has them",
        )
    plans: list[Plan] = []
    rejected: list[RejectedLayout] = []
    limit = task.machine.gpu.memory * fitted.usable
    layout_count = 0
    layer_times: dict[tuple[object, ...], LayerTime] = {}
    for degrees in _parallel_degrees(task):
        if reason := _illegal_reason(degrees):
            rejected.append(RejectedLayout(degrees, reason))
            continue
        nearest: RejectedLayout | None = None
        fits = False
        for layout in _layout_variants(degrees, fitted):
            layout_count += 1
            memory = peak_memory(layout, fitted)
            if memory.total > limit:
                missing = (memory.total - limit) / GIB
                if nearest is None or missing < nearest.missing_gib:
                    nearest = RejectedLayout(layout, f"does not fit by {missing:.1f} GiB", missing)
                continue
            fits = True
            # The fields on which `layer_time` depends: many layouts share one result.
            key = (layout.tp, layout.cp, layout.micro_batch, layout.recompute, layout.micro_batches > 1)
            if key not in layer_times:
                layer_times[key] = layer_time(layout, fitted)
            filled = memory.total / task.machine.gpu.memory
            plans.append(Plan(layout, memory, step_time(layout, fitted, filled, layer_times[key])))
        if nearest is not None and not fits:
            rejected.append(nearest)
    plans.sort(key=lambda plan: (plan.time.total, plan.memory.total))
    # Layouts that only lack memory come before those that are illegal.
    rejected.sort(key=lambda each: (each.missing_gib == 0, each.missing_gib))
    return SearchResult(tuple(plans), tuple(rejected), layout_count, limit)


def _parallel_degrees(task: PlanningTask) -> Iterator[TrainingLayout]:
    """Yield layouts whose degrees multiply to the number of GPUs."""
    for tp in divisors(task.gpus):
        # Larger degrees cross nodes and are illegal; one such degree is kept to name the reason.
        if tp > 2 * task.machine.gpus_per_node:
            continue
        for pp in divisors(task.gpus // tp):
            if pp > task.model.layers:
                continue
            for cp in divisors(task.gpus // tp // pp):
                # Powers of two only: other numbers seldom divide a sequence.
                if cp > 1 and (cp & (cp - 1) or task.seq_len // cp < MIN_CONTEXT_TOKENS):
                    continue
                yield task.layout(dp=task.gpus // tp // pp // cp, tp=tp, pp=pp, cp=cp)


def _illegal_reason(layout: TrainingLayout) -> str:
    """Return why degrees are illegal, or an empty text."""
    model, node = layout.model, layout.machine.gpus_per_node
    if reason := unsupported_reason(layout):
        return reason
    if layout.tp > 1 and (layout.tp > node or node % layout.tp):
        return f"tp {layout.tp} crosses nodes of {node} GPUs"
    if model.heads % layout.tp or (model.kv_heads % layout.tp and layout.tp % model.kv_heads):
        return f"tp {layout.tp} does not divide {model.heads} heads ({model.kv_heads} for keys)"
    if layout.global_batch % layout.dp:
        return f"dp {layout.dp} does not divide a batch of {layout.global_batch}"
    return ""


def _layout_variants(layout: TrainingLayout, fitted: Constants) -> Iterator[TrainingLayout]:
    """Yield micro-batch, recomputation, ZeRO stage and virtual stages for given degrees."""
    sequences, stages = layout.global_batch // layout.dp, zero_stages(layout)
    recompute_options: tuple[Recompute, ...] = ("none", "selective", "full")
    if layout.flash and fitted.selective_core:
        # `selective` saves the scores, which flash attention does not keep.
        recompute_options = ("none", "full")
    for micro_batch in MICRO_BATCHES:
        # A rank with several sequences needs no context parallelism: data parallelism has less communication.
        if sequences % micro_batch or (layout.cp > 1 and micro_batch > 1):
            continue
        variant = structs.replace(layout, micro_batch=micro_batch)
        for recompute, stage, v in product(recompute_options, stages, virtual_stage_options(variant)):
            yield structs.replace(variant, recompute=recompute, zero_stage=stage, virtual_stages=v)


def best_by_degrees(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return the best plan of each set of degrees, in order."""
    found: dict[tuple[int, ...], Plan] = {}
    for plan in plans:
        layout = plan.layout
        found.setdefault((layout.dp, layout.tp, layout.pp, layout.cp), plan)
    return tuple(found.values())


def describe_layout(layout: TrainingLayout) -> str:
    """Format a layout briefly."""
    words = [
        f"dp {layout.dp}",
        *(f"{name} {n}" for name, n in (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp)) if n > 1),
    ]
    if layout.virtual_stages > 1:
        words.append(f"{layout.virtual_stages} virtual stages")
    if layout.zero_stage:
        words.append(f"ZeRO-{layout.zero_stage}")
    words.append(f"micro-batch {layout.micro_batch}")
    if layout.recompute != "none":
        words.append(f"{layout.recompute} recompute")
    if layout.offload:
        words.append("offload")
    return ", ".join(words)


MAX_NODES = 1024
"""Larger clusters are not searched."""
NODES_TRIED_BELOW = 16
"""Numbers of nodes tried below one that fits."""


def explain_no_fit(task: PlanningTask, answer: SearchResult, fitted: Constants) -> AnswerNo:
    """Return the error for a cluster on which nothing fits: the nearest layout and the fewest nodes."""
    nearest = next((each for each in answer.rejected if each.missing_gib), None)
    if nearest is None:
        batch = _round_up_batch(task.global_batch, task.gpus)
        return AnswerNo(
            f"no layout of {task.model.name} on {task.gpus} GPUs is legal",
            found="\n".join(sorted({each.reason for each in answer.rejected})[:6]),
            remedy=f"a global batch that the data-parallel degree divides, such as {batch}",
        )
    return AnswerNo(
        f"{task.model.name} does not fit on {task.gpus} x {task.machine.gpu.name} under any layout",
        found=f"nearest: {describe_layout(nearest.layout)}:\n{nearest.reason}",
        remedy=_suggest_nodes(task, fitted),
    )


def _suggest_nodes(task: PlanningTask, fitted: Constants) -> str:
    nodes = fewest_nodes(task, fitted)
    if nodes is None:
        return "GPUs with more memory, or a smaller model"
    batch = _round_up_batch(task.global_batch, nodes * task.machine.gpus_per_node)
    if batch == task.global_batch or _has_plan(task, fitted, nodes, task.global_batch):
        return f"use at least --nodes {nodes}"
    least = f"use at least --nodes {nodes} --global-batch {batch}"
    more = next((n for n in range(nodes + 1, 2 * nodes) if _has_plan(task, fitted, n, task.global_batch)), None)
    return f"{least}\nwith a batch of {task.global_batch}: --nodes {more}" if more else least


def fewest_nodes(task: PlanningTask, fitted: Constants) -> int | None:
    """Return the fewest nodes on which a plan fits, with a divisible batch; None beyond MAX_NODES.

    Doubles, then bisects the last interval. Then it tries smaller numbers, because not every number splits equally
    well.
    """

    def enough(nodes: int) -> bool:
        return _has_plan(task, fitted, nodes, _round_up_batch(task.global_batch, nodes * task.machine.gpus_per_node))

    own = max(1, task.gpus // task.machine.gpus_per_node)
    if enough(own):
        return own
    low, high = own, 2 * own
    while not enough(high):
        low, high = high, 2 * high
        if high > MAX_NODES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    below = range(max(own + 1, high - min(NODES_TRIED_BELOW, high // 4)), high)
    return next((nodes for nodes in below if enough(nodes)), high)


def _round_up_batch(batch: int, gpus: int) -> int:
    """Round the batch up to a multiple of the GPUs."""
    return -(-batch // gpus) * gpus


def _has_plan(task: PlanningTask, fitted: Constants, nodes: int, batch: int) -> bool:
    gpus = nodes * task.machine.gpus_per_node
    return bool(search_layouts(structs.replace(task, gpus=gpus, global_batch=batch), fitted).plans)
