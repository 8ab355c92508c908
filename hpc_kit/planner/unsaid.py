"""What a row of a cases file leaves open: the fastest choice that fits."""

from __future__ import annotations

from itertools import product

from msgspec import structs

from hpc_kit.planner import cells as words
from hpc_kit.planner import hardware
from hpc_kit.planner.cells import Cells
from hpc_kit.planner.constants import Rates, builtin
from hpc_kit.planner.memory import peak_memory
from hpc_kit.planner.run import Recompute, Run
from hpc_kit.planner.search import divisors
from hpc_kit.planner.steps import step_time

MICRO_BATCHES = (1, 2, 4, 8, 16)
INTERLEAVES = frozenset({"megatron", "nemo"})
"""Frameworks that are run with virtual stages where a row does not say how many."""


def rates_of(run: Run) -> Rates:
    """The calibrated constants of a run."""
    return builtin(run.framework, run.machine.gpu.generation, run.machine.fabric)


def completed(run: Run, cells: Cells, *, open_batch: bool) -> Run:
    """With what the row leaves open: of micro-batch, virtual stages and recomputation the fastest that fit.

    Args:
        run: What the row says.
        cells: The row.
        open_batch: Neither says the row a micro-batch, nor does one follow.
    """
    share = run.global_batch // run.dp
    schedule = cells.known("pipeline_schedule", words.SCHEDULE)
    open_stages = run.pp > 1 and not cells.text("virtual_stages")
    open_recompute = not cells.text("recompute")
    sizes = [b for b in MICRO_BATCHES if share % b == 0] if open_batch else [run.micro_batch]
    chunks = _chunks(run, schedule) if open_stages else [run.virtual_stages]
    again: list[Recompute] = ["none", "full"] if open_recompute else [run.recompute]
    options = [
        structs.replace(run, micro_batch=b, virtual_stages=v, recompute=r) for b, v, r in product(sizes, chunks, again)
    ]
    chosen = fastest([one for one in options if one.virtual_stages == 1 or one.micro_batches % one.pp == 0] or options)
    for name, is_open in (
        ("micro_batch", open_batch),
        ("virtual_stages", open_stages),
        ("recompute", open_recompute),
    ):
        if is_open:
            cells.assumed.append(f"{name} = {getattr(chosen, name)}, the fastest that fits")
    return chosen


def _chunks(run: Run, schedule: str) -> list[int]:
    """Numbers of virtual stages that a schedule can have; "": it is not known."""
    each, over = divmod(run.model.layers, run.pp)
    if over or schedule == "1f1b" or (not schedule and run.framework not in INTERLEAVES):
        return [1]
    return divisors(each)[bool(schedule) :] or [1]


def fastest(options: list[Run]) -> Run:
    """The fastest of some runs that fits; where none does, the one that needs least memory."""
    if len(options) == 1:
        return options[0]
    rates = rates_of(options[0])
    limit = hardware.memory(options[0].machine.gpu) * rates.usable
    peaks = [peak_memory(one, rates).total for one in options]
    good = [one for one, peak in zip(options, peaks, strict=True) if peak <= limit]
    if not good:
        return options[peaks.index(min(peaks))]
    return min(good, key=lambda one: step_time(one, rates).total)
