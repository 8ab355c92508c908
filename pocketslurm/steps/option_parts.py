"""Which components of its job an srun starts tasks on, and what it was asked for on each.

`srun a : b` has a part for each component, `srun --het-group=0,1 a` is the same part several times. Whatever a job has
of a component beside the plain variables (`SLURM_NTASKS_HET_GROUP_1`) counts for that component alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.components import BETWEEN, carried
from pocketslurm.errors import CommandError
from pocketslurm.option_support import INPUT
from pocketslurm.steps import options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pocketslurm.steps.options import Asked

_MEMORY = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")
_MOST = 4096
_OF_THE_JOB = frozenset({"SLURM_JOB_ID"})


class Words(NamedTuple):
    """One part of the command line, read as it stands for a job of one component, and what it has from those before."""

    argv: list[str]
    asked: Asked
    before: dict[str, str]


class Component(NamedTuple):
    """One part of an srun: the number of the job's component that it is for, and what was asked for."""

    group: int
    asked: Asked


def read(argv: Sequence[str], environ: Mapping[str, str], *, strict: bool = True) -> list[Words]:
    """The parts of a command line: one, unless there are colons.

    Raises:
        Refused: An option is wrong.
    """
    found: list[Words] = []
    before: dict[str, str] = {}
    for words in _parted(argv):
        asked = options.read(words, environ, strict=strict, before=before)
        found.append(Words(words, asked, before))
        before = carried({name: asked.get(name) for name in asked.typed})
    return found


def assign(parts: Sequence[Words], environ: Mapping[str, str], size: int, *, strict: bool = True) -> list[Component]:
    """The components, in their order, of a job that has so many; 0 for one that is not heterogeneous, or for none.

    Raises:
        Refused: A component is named twice, or one that the job does not have.
    """
    found: dict[int, Asked] = {}
    for index, part in enumerate(parts):
        for group in _groups(part.asked.values.get("het-group"), index, size):
            if group in found:
                raise CommandError("fatal: Duplicate het groups in single srun not supported")
            found[group] = part.asked
            if size:
                theirs = of_group(environ, group)
                found[group] = options.read(part.argv, theirs, strict=strict, before=part.before)
    components = [Component(group, found[group]) for group in sorted(found)]
    return list(_with_programs(components))


def of_group(environ: Mapping[str, str], group: int) -> dict[str, str]:
    """The environment as it stands for one component."""
    own = {name: environ[key] for name in INPUT if (key := f"{name}_HET_GROUP_{group}") in environ}
    own = {name: value for name, value in own.items() if name not in _OF_THE_JOB}
    memory = any(name in own for name in _MEMORY)
    return {name: value for name, value in environ.items() if not (memory and name in _MEMORY)} | own


def _parted(argv: Sequence[str]) -> Iterator[list[str]]:
    """The command line of each part; a colon that stands alone is never an argument of a program."""
    part: list[str] = []
    for word in argv:
        if word == BETWEEN:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _groups(text: str | None, index: int, size: int) -> list[int]:
    """The components that a part is for, of a job of so many; without --het-group it is the part's own number."""
    if text is None:
        groups = [index]
    else:
        groups = _numbers(text)
        if not size:
            raise CommandError("error: No directives to start application on any available hetjob components")
    beyond = max(groups)
    if size and beyond >= size:
        if text is not None and len(groups) == 1:
            raise CommandError(
                f"error: Requested het-group offset exceeds highest hetjob index ({beyond} > {size - 1})"
            )
        raise CommandError(
            f"error: Attempt to run a job step with het group value of {beyond}, but the job allocation has maximum "
            f"value of {size - 1}"
        )
    return groups


def _numbers(text: str) -> list[int]:
    """The numbers of `0,2-3`, with or without brackets."""
    groups: set[int] = set()
    for part in text.removeprefix("[").removesuffix("]").split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise CommandError(
                f"error: _parse_single_range: Invalid range: `{part}'", f"error: Invalid --het-group value: {text}"
            )
        # No job has so many components: of what is beyond them, the highest is enough to be told.
        groups |= {*range(first, min(last, _MOST) + 1), last}
    return sorted(groups)


def _with_programs(parts: Sequence[Component]) -> Iterator[Component]:
    """A part without a program has that of the next part with one."""
    for index, part in enumerate(parts):
        command = next((later.asked.command for later in parts[index:] if later.asked.command), ())
        yield part._replace(asked=part.asked._replace(command=command))
