"""Time and memory over layouts, as a picture. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_kit.planner.machine import GIB
from hpc_kit.planner.report import PARTS
from hpc_kit.planner.search import Plan, shown
from hpc_kit.plotting import pyplot, save

TERMS = ("compute", "tensor", "shard", "launch", "boundary", "bubble", "data", "optimizer", "fixed", "allocator")


def draw(plans: Sequence[Plan], path: Path, limit: float) -> None:
    """Two bars a layout: its step time and its memory, each by what it is made of; `limit` in bytes.

    Raises:
        SpecError: matplotlib is not installed, or the file cannot be written.
    """
    names = [shown(plan.run) for plan in plans][::-1]
    figure, (left, right) = pyplot().subplots(1, 2, sharey=True, figsize=(12, 1.2 + 0.45 * len(plans)))
    for axes, parts, scale in ((left, TERMS, 1.0), (right, PARTS, GIB)):
        start = [0.0] * len(plans)
        for part in parts:
            width = [getattr(plan.time if axes is left else plan.memory, part) / scale for plan in plans][::-1]
            if any(width):
                axes.barh(names, width, left=start, label=part)
            start = [a + b for a, b in zip(start, width, strict=True)]
        axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    left.set_xlabel("seconds a step")
    right.set_xlabel("GiB a GPU")
    right.axvline(limit / GIB, color="black", linestyle=":")
    figure.tight_layout()
    save(figure, path)
