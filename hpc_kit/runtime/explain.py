"""A world in words: each value, the variable it comes from, and what was left aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hpc_kit.runtime.world import World

VALUES = (
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "node_rank",
    "nnodes",
    "master_addr",
    "master_port",
)
_NAME_WIDTH, _VALUE_WIDTH = 16, 8


class ExplainedValue(NamedTuple):
    """One value of a world."""

    name: str
    value: str
    source: str


def explained_values(world: World) -> list[ExplainedValue]:
    """The table: a row a value; `-` is what the variables do not tell."""
    return [ExplainedValue(name, _format_value(getattr(world, name)), world.sources.get(name, "")) for name in VALUES]


def explain_world(world: World) -> str:
    """The table as it is printed, with what agrees, what was left aside, and the warnings."""
    wide = max(_VALUE_WIDTH, *(len(row.value) for row in explained_values(world)))
    lines = [heading(world)]
    lines += [
        f"  {row.name:<{_NAME_WIDTH}}  {row.value:<{wide}}  {row.source}".rstrip() for row in explained_values(world)
    ]
    if world.agrees:
        lines.append(f"agrees  {', '.join(world.agrees)}")
    if world.left:
        lines.append(f"left    {'; '.join(world.left)}")
    lines += [f"warning: {warning}" for warning in world.warnings]
    return "\n".join(lines) + "\n"


def heading(world: World) -> str:
    """`World of 4 from the srun step 1234.0`."""
    if world.launcher == "single":
        return f"A world of one: {world.name}"
    return f"World of {world.world_size} from {world.name}"


def to_json(world: World) -> dict[str, object]:
    """The same for programs."""
    return {name: getattr(world, name) for name in VALUES} | {
        "launcher": world.launcher,
        "sources": dict(world.sources),
        "warnings": list(world.warnings),
    }


def _format_value(value: object) -> str:
    return "-" if value is None else str(value)
