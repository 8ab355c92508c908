"""A job as its program takes it: its command holds over [layout] and [model], and the rest is the program's own."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.spec.job import Job, Layout, Model
from hpc_kit.spec.job_checks import Where
from hpc_kit.spec.stated import Option, Stated, options_of
from hpc_kit.spec.toml_documents import Document, Layer, merge_documents

TABLES: Mapping[str, type[Layout | Model]] = {"layout": Layout, "model": Model}
FREE = ("pp", "tp", "cp")
"""Degrees of which a program may take what the others leave."""


def as_taken(job: Job, where: Where, said: Stated, world_size: int) -> tuple[Job, Where]:
    """The job with the degrees that its program will have, and the places of the words that said them.

    Args:
        job: The job, of counted nodes and tasks.
        where: The places of its keys.
        said: What its program says of its options.
        world_size: Ranks.
    """
    values: dict[str, dict[str, int]] = {table: {} for table in TABLES}
    for table, kind in TABLES.items():
        for name in kind.__struct_fields__:
            text = said.given.get(name, "")
            if text.isdecimal() and (int(text) or name == "zero"):
                values[table][name] = int(text)
    layers = [
        Layer(f"the command, --{name.replace('_', '-')}", None, {table: {name: value}})
        for table, found in values.items()
        for name, value in found.items()
    ]
    where = Where(merge_documents(where.job, Document(values, tuple(layers))), where.cluster)
    layout = structs.replace(job.layout, **values["layout"])
    layout = structs.replace(layout, **_own(layout, where, said, world_size))
    return structs.replace(job, layout=layout, model=structs.replace(job.model, **values["model"])), where


def _own(layout: Layout, where: Where, said: Stated, world_size: int) -> dict[str, int]:
    """Of degrees that nobody has said, the program's own: a number, or what the others leave."""
    unsaid = [name for name in (*FREE, "zero") if name in said.options and not where.job.has_key(f"layout.{name}")]
    own = {name: said.options[name].default for name in unsaid}
    known = {name: number for name, number in own.items() if isinstance(number, int)}
    layout = structs.replace(layout, **known)
    others = layout.pp * layout.tp * layout.cp * (layout.dp or 1)
    return known | {name: max(1, world_size // others) for name, number in own.items() if number is None}


def completed(job: Job, where: Where, said: Stated) -> tuple[Job, Where]:
    """The job with the program's own batch and model where it says none: for the checks, not for the script."""
    numbers: dict[str, dict[str, int]] = {table: {} for table in TABLES}
    for table, kind in TABLES.items():
        for name in kind.__struct_fields__:
            option = said.options.get(name)
            if option and isinstance(option.default, int) and getattr(getattr(job, table), name) is None:
                numbers[table][name] = option.default
    where = Where(
        merge_documents(Document(numbers, (Layer(f"{said.file}, its own", None, numbers),)), where.job), where.cluster
    )
    layout, model = structs.replace(job.layout, **numbers["layout"]), structs.replace(job.model, **numbers["model"])
    return structs.replace(job, layout=layout, model=model), where


def servers(said: Stated) -> int:
    """Ranks of the world that have no part of the batch."""
    option = said.options.get("servers")
    return option.default if option and isinstance(option.default, int) else 0


def check_splits(job: Job, where: Where, said: Stated, world_size: int) -> None:
    """Whether the program splits by what the layout says.

    Raises:
        SpecError: It does not know a degree, or not that number.
    """
    layout = job.layout
    asked: dict[str, int] = dict(layout.degrees(world_size).items())
    asked |= {"zero": layout.zero, "dp_shard": layout.dp_shard or 1}
    for name, degree in asked.items() if said.options else ():
        option = said.options.get(name)
        if _does(said.options, name, degree):
            continue
        what, why = f"does not split by {name}", f"it has no --{name.replace('_', '-')}"
        if option:
            what, why = f"takes {name} {' or '.join(map(str, option.among))} only", f"{world_size} ranks, {layout}"
        programs = [
            each.name
            for each in sorted(said.path.parent.glob("*.py"))
            if (options := options_of(each)) and splits(options, asked)
        ]
        place = f" in {where.of(f'layout.{name}')}" if where.job.has_key(f"layout.{name}") else ""
        raise SpecError(
            f"{said.file} {what}",
            found=f"{name} = {degree}{place}; {why}",
            remedy="; or ".join([_remedy(name, said, world_size // max(1, degree)), *programs[:3]]),
        )


def splits(options: Mapping[str, Option], asked: Mapping[str, int]) -> bool:
    """Whether a program with these options splits by all of these degrees."""
    return all(_does(options, name, degree) for name, degree in asked.items())


def _does(options: Mapping[str, Option], name: str, degree: int) -> bool:
    """Whether a program splits by that; replicas are what every program makes that does not say otherwise."""
    option = options.get(name)
    if option is None:
        return name == "dp" or degree <= (name != "zero")
    return degree in option.among or not option.among


def _remedy(name: str, said: Stated, ranks: int) -> str:
    option = said.options.get(name)
    if name == "dp":  # what the other degrees leave
        free = [axis for axis in FREE if axis in said.options and not said.options[axis].among]
        return f"{ranks} rank{'s' * (ranks > 1)} in [resources]" + "".join(f", or a larger {axis}" for axis in free)
    return f"{name} = {' or '.join(map(str, option.among))}" if option else f"leave {name} out"
