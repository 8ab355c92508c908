"""A job as its program sees it: the command overrides [layout] and [model]; [program] has the program's defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

from msgspec import ValidationError, convert, structs

from hpc_kit.errors import SpecError
from hpc_kit.slurm.units import format_count
from hpc_kit.spec import search_path
from hpc_kit.spec.job import Job, Layout, Model, Program
from hpc_kit.spec.job_checks import Origins
from hpc_kit.spec.toml_documents import Document, merge_documents

TABLE_OF = {name: table for table, kind in (("layout", Layout), ("model", Model)) for name in kind.__struct_fields__}
"""The table of the job file in which each number is."""
ALL_RANKS_DEGREES = ("pp", "tp", "cp")


class RunProgram(NamedTuple):
    """The program that a command runs; `program` is None if no job file describes it."""

    file: str
    program: Program | None
    values: Mapping[str, str] = {}
    """Values of its options in the command, by name."""


def find_program(command: Sequence[str], described: Program | None, root: Path, folder: Path) -> RunProgram:
    """Return the description of the program in `python FILE ...`: [program] of the job, or of another job file."""
    # A command may be empty. The empty words at its end also give `pairwise` a word after the last option.
    interpreter, file, *words = [*command, "", ""]
    if not PurePath(interpreter).name.startswith("python") or not file.endswith(".py"):
        return RunProgram(file, None)
    path = folder / file
    program = described
    if program is None or (file != program.file and path != root / program.file):
        # Other job files are read only for a program that lies beside them.
        beside = any(path.is_relative_to(jobs / "train") for jobs in search_path.search_folders("jobs", root))
        programs = list_programs(root) if beside else []
        program = next((each for each in programs if PurePath(each.file).name == path.name), None)
    if program:
        return RunProgram(file, program, _last_values(words, program))
    return RunProgram(file, None)


def list_programs(root: Path) -> list[Program]:
    """Return the [program] tables of all job files by file; the user's own come first."""
    found: dict[str, Program] = {}
    for folder in search_path.search_folders("jobs", root):
        for path in sorted(folder.glob("*.toml")):
            try:
                table = tomllib.loads(path.read_text(encoding="utf-8")).get("program")
                program = convert(table, Program) if table else None
            except (OSError, ValueError, ValidationError, RecursionError):
                continue  # reported when this job is submitted
            if program:
                found.setdefault(PurePath(program.file).name, program)
    return [found[name] for name in sorted(found)]


def _last_values(words: Sequence[str], program: Program) -> dict[str, str]:
    """Return the last value of each option, as argparse does."""
    found: dict[str, str] = {}
    for word, following in pairwise(words):
        name, equals, value = word.partition("=")
        option = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and option in program.names:
            found[option] = value if equals else following
    return found


def apply_command(job: Job, origins: Origins, run: RunProgram, world_size: int) -> tuple[Job, Origins]:
    """Return the job with the degrees that its program will use, and where each was set."""
    document = origins.job
    for name, table in TABLE_OF.items():
        text = run.values.get(name, "")
        # Other values, such as `$N`, are known only in the job. 0 is a value of --zero, and elsewhere means unset.
        if text.isdecimal() and (int(text) or name == "zero"):
            job = _with_number(job, name, int(text))
            own = Document.from_table(f"the command, --{name.replace('_', '-')}", {table: {name: int(text)}})
            document = merge_documents(document, own)
    origins = Origins(document, origins.cluster)
    if run.program:
        for name, degree in _default_degrees(job.layout, origins, run.program, world_size).items():
            job = _with_number(job, name, degree)
    return job, origins


def _with_number(job: Job, name: str, number: int) -> Job:
    table = TABLE_OF[name]
    return structs.replace(job, **{table: structs.replace(getattr(job, table), **{name: number})})


def _default_degrees(layout: Layout, origins: Origins, program: Program, world_size: int) -> dict[str, int]:
    """Return the program's own values of the degrees that are not set."""
    unset = [name for name in (*ALL_RANKS_DEGREES, "zero") if not origins.job.has_key(f"layout.{name}")]
    numbers = {name: program.defaults[name] for name in unset if name in program.defaults}
    layout = structs.replace(layout, **numbers)
    others = layout.pp * layout.tp * layout.cp * (layout.dp or 1)
    return numbers | {name: max(1, world_size // others) for name in unset if name in program.all_ranks}


def fill_defaults(job: Job, origins: Origins, run: RunProgram) -> tuple[Job, Origins]:
    """Return the job with the program's own batch and model, for the checks; the script leaves them to the program."""
    document = origins.job
    for name, number in run.program.defaults.items() if run.program else ():
        table = TABLE_OF.get(name)
        if table is not None and getattr(getattr(job, table), name) is None:
            job = _with_number(job, name, number)
            document = merge_documents(Document.from_table(f"{run.file}, its own", {table: {name: number}}), document)
    return job, Origins(document, origins.cluster)


def check_splits(job: Job, origins: Origins, run: RunProgram, world_size: int, root: Path) -> None:
    """Check that the program splits the work as the layout asks."""
    program = run.program
    if program is None:
        return
    layout = job.layout
    degrees: dict[str, int] = dict(layout.degrees(world_size).items())
    degrees |= {"zero": layout.zero, "dp_shard": layout.dp_shard or 1}
    for name, degree in degrees.items():
        if _supports(program, name, degree):
            continue
        if name in program.names:
            what, why = f"takes {name} {_listed(program, name)} only", f"{world_size} ranks, {layout}"
        else:
            what, why = f"does not split by {name}", f"it has no --{name.replace('_', '-')}"
        others = [PurePath(each.file).name for each in list_programs(root) if can_split(each, degrees)]
        place = f" in {origins.of(f'layout.{name}')}" if origins.job.has_key(f"layout.{name}") else ""
        raise SpecError(
            f"{run.file} {what}",
            found=f"{name} = {degree}{place}; {why}",
            remedy="; or ".join([_degree_remedy(name, program, world_size // max(1, degree)), *others[:3]]),
        )


def can_split(program: Program, degrees: Mapping[str, int]) -> bool:
    """Return whether a program supports all of these degrees."""
    return all(_supports(program, name, degree) for name, degree in degrees.items())


def _supports(program: Program, name: str, degree: int) -> bool:
    """Return whether a program supports this degree. Every program makes replicas unless `only` limits dp."""
    if name not in program.names:
        unused = 0 if name == "zero" else 1
        return name == "dp" or degree <= unused
    return name not in program.only or degree in program.only[name]


def _listed(program: Program, name: str) -> str:
    return " or ".join(map(str, program.only[name]))


def _degree_remedy(name: str, program: Program, ranks: int) -> str:
    if name == "dp":  # the ranks that the other degrees leave
        free = [axis for axis in ALL_RANKS_DEGREES if axis in program.names and axis not in program.only]
        return f"{format_count(ranks, 'rank')} in [resources]" + "".join(f", or a larger {axis}" for axis in free)
    return f"{name} = {_listed(program, name)}" if name in program.names else f"leave {name} out"
