"""The pictures of docs/strategies.md: for each rank of a job, which part of everything it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hpc_kit.spec import load
from hpc_kit.spec.job import Axis, Layout
from hpc_kit.spec.resolve import Resolved, resolve

PAGE = Path(__file__).parents[1] / "docs" / "strategies.md"
MARK = re.compile(r"(<!-- picture (\S+) -->\n)(?:```\n.*?```\n)?", re.DOTALL)
MOST = 8
"""Ranks that are drawn."""


def page() -> str:
    """The page with its pictures as they are drawn now."""
    return MARK.sub(lambda found: f"{found[1]}```\n{picture(found[2])}```\n", PAGE.read_text())


def picture(job: str) -> str:
    """A row a rank; parts that are whole are left out."""
    root = PAGE.parents[1]
    rows = list(_rows(resolve(load.load(job, "local", root=root), root=root)))
    columns = [name for name in rows[0] if any(row[name] != "all" for row in rows) or name in {"parameters", "batch"}]
    table = [columns, *([row[name] for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    return "".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in table
    )


def _rows(resolved: Resolved) -> Iterator[dict[str, str]]:
    job, size = resolved.job, resolved.world_size
    layout, degrees = job.layout, job.layout.degrees(size)
    shards = layout.dp_shard or degrees["dp"]
    each = max(1, stages_per_rank(job.command))
    for rank in range(min(size, MOST)):
        at = coordinates(layout, rank, size)
        stages = [at["pp"] + degrees["pp"] * turn for turn in range(each)]
        shard = _part(at["dp"] % shards, shards)
        yield {
            "node": str(rank // (resolved.ranks_per_node or 1) + 1),
            "rank": str(rank),
            "layers": _layers(stages, degrees["pp"] * each, job.model.layers) if degrees["pp"] > 1 else "all",
            "matrices": _part(at["tp"], degrees["tp"]),
            "text": _part(at["cp"], degrees["cp"]),
            "batch": _part(at["dp"], degrees["dp"]),
            "parameters": shard if layout.zero >= 3 else "all",
            "gradients": shard if layout.zero >= 2 else "all",
            "moments": shard if layout.zero >= 1 else "all",
        }


def coordinates(layout: Layout, rank: int, world_size: int) -> dict[Axis, int]:
    """Where a rank lies on each axis."""
    found: dict[Axis, int] = {}
    for axis, degree in reversed(layout.degrees(world_size).items()):
        rank, found[axis] = divmod(rank, degree)
    return found


def stages_per_rank(command: tuple[str, ...]) -> int:
    """Two where the schedule takes several."""
    return 2 if any(word.startswith(("Interleaved", "ZBV")) for word in command) else 1


def _layers(stages: list[int], total: int, layers: int | None) -> str:
    count = layers or total
    cuts = [round(count * cut / total) for cut in range(total + 1)]
    parts = [range(cuts[stage], cuts[stage + 1]) for stage in stages]
    return " and ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _part(number: int, of: int) -> str:
    """[..#.....]: the third of eight."""
    return "all" if of == 1 else "[" + "".join("#" if each == number else "." for each in range(of)) + "]"
