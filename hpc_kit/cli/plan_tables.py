"""The output of `hpc-kit plan`: ranked layouts, their memory, rejected layouts, and the advice of common rules."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpc_kit.cli.output import format_table, print_wrapped
from hpc_kit.cli.terminal import echo
from hpc_kit.planner import explain
from hpc_kit.planner.constants import memory_error, time_error
from hpc_kit.planner.explain import explain_terms
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.search import (
    Plan,
    PlanningTask,
    RejectedLayout,
    SearchResult,
    best_by_degrees,
    describe_layout,
)

if TYPE_CHECKING:
    from hpc_kit.planner.advice import Advice
    from hpc_kit.planner.target import PlanningTarget


class PlanReport(NamedTuple):
    """The result of a search, and the options for printing it."""

    task: PlanningTask
    target: PlanningTarget
    answer: SearchResult
    advice: Advice
    tokens: float
    """To train on."""
    storage: float
    """Bandwidth for checkpoints in bytes/s."""
    top: int
    """Number of layouts to print."""
    explained: bool
    """Also print every term of the first layout."""

    @property
    def shown(self) -> tuple[Plan, ...]:
        """The layouts to print: the fastest of each set of degrees."""
        return best_by_degrees(self.answer.plans)[: self.top]


_SHORT_TERMS = {"parameters": "params", "gradients": "grads", "optimizer": "optim", "activations": "activ"}
_DEGREES = ("dp", "tp", "pp", "cp", "v", "zero", "mb", "recomp")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print an indented table with right-aligned columns."""
    columns: list[Literal["right"]] = ["right"] * len(header)
    for line in format_table((header, *rows), *columns, indent=2):
        echo(f"  {line}")


def print_report(report: PlanReport) -> None:
    """Print the report as text."""
    task, target, answer, machine = report.task, report.target, report.answer, report.task.machine
    model = task.model
    echo(
        f"{model.name}: {model.parameters:,} parameters, {task.seq_len} tokens a sequence, "
        f"global batch {task.global_batch}"
    )
    echo(
        f"{task.gpus} x {machine.gpu.name}, {machine.gpus_per_node} a node, {machine.network * 8 / 1e9:g} Gb/s "
        f"{machine.fabric} a GPU"
    )
    for note in target.notes:
        print_wrapped(f"note    {note}")
    # Plans with the same degrees differ only in the micro-batch and the like, and would fill the table.
    shown = report.shown
    counts = f"{answer.layout_count} examined, {len(answer.plans)} fit"
    echo()
    print_wrapped(f"fastest layout of each set of degrees ({counts}); tok/s of a GPU")
    _print_table(
        (*_DEGREES, "step s", "tok/s", "MFU", "error", "GiB", "bubble"),
        [_time_row(plan) for plan in shown],
    )
    echo("\nseconds of communication in a step that computation does not hide")
    for number, plan in enumerate(shown, 1):
        traffic = ", ".join(
            f"{name} {_format_seconds(part['seconds'])} ({part['link']})"
            for name, part in explain.exposed_traffic(plan.layout, plan.time).items()
        )
        print_wrapped(f"  {number:>2}  {traffic or 'none'}", indent=4)
    echo(f"\nGiB a GPU of {machine.gpu.memory / GIB:.1f}; +-{memory_error(task.framework):.0%}")
    # A term that is zero in every layout would only widen the table.
    parts = [part for part in explain.MEMORY_TERMS if any(getattr(plan.memory, part) for plan in shown)]
    _print_table(
        ("dp", "tp", "pp", "cp", *(_SHORT_TERMS.get(part, part) for part in parts), "in all", "free"),
        [_memory_row(plan, machine.gpu.memory, parts) for plan in shown],
    )
    if sentence := answer.describe_margin(answer.plans[0], answer.with_margin):
        print_wrapped(sentence)
    _print_rejected(answer)
    _print_advice(report.advice)
    _print_training(answer.plans[0], report.tokens, report.storage)
    if report.explained:
        echo(f"\n{describe_layout(answer.plans[0].layout)}")
        for name, value, text in explain_terms(answer.plans[0], target.fitted):
            print_wrapped(f"  {name:<12}{value:>12}  {text}", indent=26)
        _print_links(answer.plans[0], target)
        _print_alternatives(answer.plans[0], target)
        echo()
        print_wrapped(explain.single_gpu_years(answer.plans[0], target.fitted, report.tokens))


def _degree_cells(plan: Plan) -> tuple[str, ...]:
    layout = plan.layout
    degrees = (layout.dp, layout.tp, layout.pp, layout.cp)
    numbers = (*degrees, layout.virtual_stages, layout.zero_stage, layout.micro_batch)
    return (*map(str, numbers), layout.recompute)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds >= 1e-3 else "0"


def _time_row(plan: Plan) -> tuple[str, ...]:
    error, _ = time_error(plan.layout)
    return (
        *_degree_cells(plan),
        f"{plan.time.total:.4g}",
        f"{plan.tokens_per_second:,.0f}",
        f"{plan.utilisation:.1%}",
        f"+-{error:.0%}",
        f"{plan.memory.gib:.1f}",
        f"{plan.time.bubble / plan.time.total:.1%}",
    )


def _memory_row(plan: Plan, memory: float, parts: Sequence[str]) -> tuple[str, ...]:
    cells = [f"{getattr(plan.memory, name) / GIB:.1f}" for name in parts]
    free = (memory - plan.memory.total) / GIB
    return (*_degree_cells(plan)[:4], *cells, f"{plan.memory.gib:.1f}", f"{free:.1f}")


def _print_rejected(answer: SearchResult) -> None:
    """Print rejected layouts by kind of reason: three that almost fit into memory, and one of each further kind."""
    if not answer.rejected:
        return
    echo(f"\nrejected ({len(answer.rejected)} sets of degrees)")
    # Reasons of one kind differ only in their numbers.
    kinds: dict[str, list[RejectedLayout]] = {}
    for each in answer.rejected:
        kinds.setdefault(re.sub(r"[\d.]+", "#", each.reason.partition(" (")[0]), []).append(each)
    for layouts in kinds.values():
        *shown, last = layouts[: 3 if layouts[0].missing_gib else 1]
        for each in shown:
            print_wrapped(f"  {describe_layout(each.layout)}: {each.reason}")
        more = len(layouts) - len(shown) - 1
        print_wrapped(f"  {describe_layout(last.layout)}: {last.reason}" + (f" (and {more} sets more)" if more else ""))


def _print_advice(advice: Advice) -> None:
    echo()
    print_wrapped(f"the usual table   {advice.rule.situation}: {advice.rule}")
    for way, plan in advice.best.items():
        print_wrapped(f"  best {way:<13}{plan.time.total:>10.4g} s   {describe_layout(plan.layout)}")
    for sentence in (advice.text, *advice.differences):
        print_wrapped(f"  {sentence}")


def _print_links(plan: Plan, target: PlanningTarget) -> None:
    uses = explain.link_uses(plan, target.fitted)
    if not uses:
        return
    echo("\ntraffic of a GPU in one step, and its links")
    _print_table(
        ("traffic", "link", "GB", "capacity GB/s", "reached GB/s", "s", "exposed s"),
        [
            (
                use.kind,
                use.link,
                f"{use.size / 1e9:.3g}",
                f"{use.capacity / 1e9:.0f}",
                f"{use.reached / 1e9:.0f}",
                _format_seconds(use.seconds),
                _format_seconds(use.exposed),
            )
            for use in uses
        ],
    )
    for sentence in explain.link_sentences(plan, target.fitted):
        print_wrapped(f"  {sentence}")


def _print_alternatives(plan: Plan, target: PlanningTarget) -> None:
    """Print the alternatives to splitting, and whether the model fits one GPU with each."""
    gpu = plan.layout.machine.gpu
    limit = gpu.memory * target.fitted.usable
    echo(f"\nalternatives to splitting: this layout, and one GPU with {limit / GIB:.1f} GiB to fill")
    _print_table(
        ("alternative", "GiB", "step s", "tok/s/GPU", "GiB on one GPU", "fits"),
        [
            (
                each.name,
                f"{each.memory / GIB:.1f}",
                f"{each.seconds:.4g}",
                f"{each.tokens_per_second:,.0f}",
                f"{each.single_memory / GIB:.1f}",
                "yes" if each.single_memory <= limit else "no",
            )
            for each in explain.alternatives(plan, target.fitted)
        ],
    )


def _print_training(plan: Plan, tokens: float, storage: float) -> None:
    found = explain.training_values(plan, tokens, storage)
    _, reasons = time_error(plan.layout)
    echo()
    print_wrapped(
        f"{tokens:.3g} tokens: {found['steps']:,.0f} steps, {found['days']:.3g} days, "
        f"{found['gpu_hours']:,.0f} GPU-hours; "
        f"a checkpoint {found['checkpoint_bytes'] / 1e9:,.1f} GB, {found['checkpoint_seconds']:.3g} s"
        f" at {storage / 1e9:g} GB/s"
    )
    if reasons:
        print_wrapped(f"larger error: {'; '.join(reasons)}")


def print_json(report: PlanReport) -> None:
    """Print the report as one JSON object."""
    task, target, answer, advice = report.task, report.target, report.answer, report.advice
    first = answer.plans[0]
    safe = answer.with_margin
    error, reasons = time_error(first.layout)
    value = {
        "model": {"name": task.model.name, "parameters": task.model.parameters, "seq_len": task.seq_len},
        "gpus": task.gpus,
        "gpu": task.machine.gpu.name,
        "global_batch": task.global_batch,
        "notes": list(target.notes),
        "looked_at": answer.layout_count,
        "with_room": explain.plan_values(safe) if safe else None,
        "plans": [explain.plan_values(plan) for plan in report.shown],
        "rejected": [{"layout": describe_layout(one.layout), "reason": one.reason} for one in answer.rejected],
        "advice": {
            "situation": advice.rule.situation,
            "table": list(advice.rule.strategies),
            "order": list(advice.compared.order),
            "best": {way: explain.plan_values(plan)["step_time_s"] for way, plan in advice.best.items()},
            "agrees": advice.agrees,
            "text": advice.text,
            "differences": list(advice.differences),
        },
        "training": explain.training_values(first, report.tokens, report.storage),
        "time_error": error,
        "less_sure": list(reasons),
        "memory_error": memory_error(task.framework),
    }
    if report.explained:
        value["explain"] = [
            {"term": name, "value": text, "formula": formula}
            for name, text, formula in explain_terms(first, target.fitted)
        ]
        uses = explain.link_uses(first, target.fitted)
        value["links"] = [{**use._asdict(), "seconds": use.seconds} for use in uses]
        value["link_notes"] = explain.link_sentences(first, target.fitted) if uses else []
        value["alternatives"] = [each._asdict() for each in explain.alternatives(first, target.fitted)]
        value["one_gpu"] = explain.single_gpu_years(first, target.fitted, report.tokens)
    echo(json.dumps(value, indent=2))
