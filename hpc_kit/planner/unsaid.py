"""What a row of a cases file leaves open: the fastest choice that fits, and as few virtual stages as will do."""

from __future__ import annotations

from itertools import product

from msgspec import structs

from hpc_kit.planner import hardware
from hpc_kit.planner.cells import Cells
from hpc_kit.planner.constants import Rates, builtin
from hpc_kit.planner.frameworks import CHUNKS, MICRO_BATCHES, interleaves
from hpc_kit.planner.layout import Recompute, Run
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.step_time import step_time

BUBBLE = 0.1
"""Share of the ideal time below which more virtual stages are not taken for granted."""
INTERLEAVES = frozenset({"megatron", "nemo"})
"""Frameworks that are run with virtual stages where a row does not say how many."""


def rates_of(run: Run) -> Rates:
    """The calibrated constants of a run."""
    return builtin(run.framework, run.machine.gpu.generation, run.machine.fabric)


def completed(run: Run, cells: Cells, schedule: str, *, open_batch: bool) -> Run:
    """With what the row leaves open: of micro-batch, virtual stages and recomputation the fastest that fit.

    Args:
        run: What the row says.
        cells: The row.
        schedule: The pipeline's, where there is one; "": not known.
        open_batch: Neither says the row a micro-batch, nor does one follow.
    """
    share = run.global_batch // run.dp
    open_stages = run.pp > 1 and not cells.text("virtual_stages")
    open_recompute = not cells.text("recompute")
    sizes = [b for b in MICRO_BATCHES if share % b == 0] if open_batch else [run.micro_batch]
    chunks = _chunks(run, schedule) if open_stages else [run.virtual_stages]
    again: list[Recompute] = ["none", "full"] if open_recompute else [run.recompute]
    options = [
        structs.replace(run, micro_batch=b, virtual_stages=v, recompute=r) for b, v, r in product(sizes, chunks, again)
    ]
    options = [one for one in options if one.virtual_stages == 1 or one.micro_batches % one.pp == 0] or options
    moderate = open_stages and not schedule
    chosen = fastest(_moderate(options) if moderate else options)
    why = "the fastest that fits" if fits(chosen, rates_of(chosen)) else "which needs the least memory; nothing fits"
    few = f"the fewest for a bubble below {BUBBLE:.0%}, or the most there can be"
    for name, is_open, reason in (
        ("micro_batch", open_batch, why),
        ("virtual_stages", open_stages, few if moderate else why),
        ("recompute", open_recompute, why),
    ):
        if is_open:
            cells.assumed.append(f"{name} = {getattr(chosen, name)}, {reason}")
    return chosen


def _moderate(options: list[Run]) -> list[Run]:
    """Of each micro-batch and recomputation the fewest virtual stages whose bubble is short, else the most."""
    found: dict[tuple[int, str], Run] = {}
    for one in sorted(options, key=lambda one: one.virtual_stages):
        best = found.get((one.micro_batch, one.recompute))
        if best is None or (best.pp - 1) / (best.micro_batches * best.virtual_stages) >= BUBBLE:
            found[one.micro_batch, one.recompute] = one
    return list(found.values())


def _chunks(run: Run, schedule: str) -> list[int]:
    """Numbers of virtual stages that a schedule can have; "": it is not known."""
    if schedule == "1f1b" or (not schedule and run.framework not in INTERLEAVES):
        return [1]
    known = [v for v in (*CHUNKS, run.model.layers // run.pp) if interleaves(run.model.layers, run.pp, v)]
    return sorted(set(known))[bool(schedule) :] or [1]


def fits(run: Run, rates: Rates) -> bool:
    """Whether it fits; where a GPU's memory is not known, in that of the usual card of its family."""
    return peak_memory(run, rates).total <= rates.usable * hardware.memory(run.machine.gpu)


def fastest(options: list[Run]) -> Run:
    """The fastest of some runs that fits; where none does, the one that needs least memory."""
    if len(options) == 1:
        return options[0]
    rates = rates_of(options[0])
    if good := [one for one in options if fits(one, rates)]:
        return min(good, key=lambda one: step_time(one, rates).total)
    return min(options, key=lambda one: peak_memory(one, rates).total)
