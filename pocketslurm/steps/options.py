"""Parses the options of srun from its environment and its command line, also the parts of `srun a : b`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.command_environment import SRUN_VARIABLES
from hpc_kit.slurm.components import BETWEEN, inherited_options
from hpc_kit.slurm.getopt import SRUN, GetoptError, ParsedOption, ParsedOptions, parse_options
from hpc_kit.slurm.option_table import MEMORY_OPTIONS, Option, ValueUse
from hpc_kit.slurm.option_values import parse_array
from pocketslurm.errors import CommandError
from pocketslurm.option_support import ALLOCATION, SRUN_SUPPORT, Support, check_options, option_error
from pocketslurm.queue.job_size import check_exclusions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_LATER = frozenset({"distribution", "kill-on-bad-exit"})


class StepOptions(NamedTuple):
    """The options and the command of one srun.

    Attributes:
        values: Options by long name, flags with an empty value.
        typed: Names of options from the command line.
        command: The program and its arguments.
        given: The options of the command line as typed.
        verbosity: Number of -v minus number of -Q.
    """

    values: Mapping[str, str]
    typed: frozenset[str]
    command: tuple[str, ...]
    given: ParsedOptions
    verbosity: int = 0

    def has(self, name: str) -> bool:
        """Return whether an option is set."""
        return name in self.values

    def get(self, name: str, default: str = "") -> str:
        """Return the value of an option."""
        return self.values.get(name, default)

    def number(self, name: str) -> int | None:
        """Return the number of an option; None if it is not given."""
        value = self.values.get(name)
        return None if value is None else int(value or 0)


def read_options(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    strict: bool = True,
    carried: Mapping[str, str] | None = None,
) -> StepOptions:
    """Parse srun's environment and command line; without `strict`, also options of newer releases.

    Args:
        argv: The command line, or one part of it.
        environ: srun's environment.
        strict: Refuse options that 22.05 does not know.
        carried: Options that this part inherits from the part before it.

    Raises:
        CommandError: An option is unknown, has a wrong value, or is not supported here.
    """
    try:
        given, command = parse_options(argv, "srun")
    except GetoptError as error:
        raise option_error(error.message) from None
    set_options = [each for each in given.given if not _is_nothing(each.option, each.value)]
    check_options(set_options, strict=strict, later=_LATER)
    typed = dict(carried or {}) | {each.option.name: each.value or "" for each in set_options}
    check_exclusions(typed)
    inherited = _from_environ(environ)
    # Only one of them may be given: the command line replaces all variables of the job.
    if MEMORY_OPTIONS & typed.keys():
        inherited = {name: value for name, value in inherited.items() if name not in MEMORY_OPTIONS}
    values = inherited | typed
    _refuse(values)
    loud = len(given.all("verbose")) or int(inherited.get("verbose") or 0)
    return StepOptions(values, frozenset(typed), tuple(command), given, loud - len(given.all("quiet")))


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable, name in SRUN_VARIABLES.items():
        value = environ.get(variable)
        if value is None:
            continue
        option = SRUN[name]
        if name == "verbose":
            found[name] = value if value.isdecimal() else ""
        elif option.value is not ValueUse.NONE:
            if not _is_nothing(option, value):
                check_options([ParsedOption(option, value, 0)], strict=False, later=_LATER)
                found[name] = value
        elif _is_yes(value):
            found[name] = ""
    return found


def _is_yes(value: str) -> bool:
    """Return whether the value of a variable sets a flag."""
    return value in {"", "yes"} or (value.lstrip("-").isdecimal() and int(value) != 0)


def _is_nothing(option: Option, value: str | None) -> bool:
    """Return whether an empty value means that the option is not given."""
    return value == "" and (option.kind == "path" or option.name in {"dependency", "gpus", "wait"})


def _refuse(values: Mapping[str, str]) -> None:
    """Check that no option is refused here. Options of an allocation do not count inside a job."""
    for name, value in values.items():
        row = SRUN_SUPPORT[name]
        inside = "jobid" in values and name in ALLOCATION
        empty = name.endswith(("prolog", "epilog")) and value.lower() in {"", "none"}
        if row.support is Support.REFUSED and not inside and not empty:
            raise CommandError(f"error: --{name} is not supported by the embedded Slurm: {row.note}")


_MEMORY_VARIABLES = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")
_OF_THE_JOB = frozenset({"SLURM_JOB_ID"})


class CommandPart(NamedTuple):
    """One part of the command line, and the options that it inherits from the parts before it."""

    argv: list[str]
    options: StepOptions
    carried: dict[str, str]


class StepPart(NamedTuple):
    """One part of an srun: the number of the job's component that it is for, and what was asked for."""

    group: int
    options: StepOptions


def read_parts(argv: Sequence[str], environ: Mapping[str, str], *, strict: bool = True) -> list[CommandPart]:
    """Parse the parts of a command line: one, unless there are colons.

    Raises:
        CommandError: An option is wrong.
    """
    found: list[CommandPart] = []
    carried: dict[str, str] = {}
    for words in _parted(argv):
        options = read_options(words, environ, strict=strict, carried=carried)
        found.append(CommandPart(words, options, carried))
        carried = inherited_options({name: options.get(name) for name in options.typed})
    return found


def assign_groups(
    parts: Sequence[CommandPart], environ: Mapping[str, str], size: int, *, strict: bool = True
) -> list[StepPart]:
    """Assign the parts to the components of a job of `size` components; 0 for an ordinary job or none.

    Raises:
        CommandError: A component is named twice, or one that the job does not have.
    """
    if len(parts) > 1 and not size:
        raise CommandError("error: `srun a : b` is supported by the embedded Slurm in a heterogeneous job only")
    found: dict[int, StepOptions] = {}
    for index, part in enumerate(parts):
        for group in _groups(part.options.values.get("het-group"), index, size):
            if group in found:
                raise CommandError("fatal: Duplicate het groups in single srun not supported")
            found[group] = part.options
            # Variables of a component replace those of the whole job, so the part is read again with them.
            if size:
                theirs = group_variables(environ, group)
                found[group] = read_options(part.argv, theirs, strict=strict, carried=part.carried)
    components = [StepPart(group, found[group]) for group in sorted(found)]
    return list(_with_programs(components))


def group_variables(environ: Mapping[str, str], group: int) -> dict[str, str]:
    """Return the environment with the variables of one component."""
    own = {name: environ[key] for name in SRUN_VARIABLES if (key := f"{name}_HET_GROUP_{group}") in environ}
    own = {name: value for name, value in own.items() if name not in _OF_THE_JOB}
    memory = any(name in own for name in _MEMORY_VARIABLES)
    return {name: value for name, value in environ.items() if not (memory and name in _MEMORY_VARIABLES)} | own


def _parted(argv: Sequence[str]) -> Iterator[list[str]]:
    """Split a command line at colons; a colon by itself is never an argument of a program."""
    part: list[str] = []
    for word in argv:
        if word == BETWEEN:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _groups(text: str | None, index: int, size: int) -> list[int]:
    """Return the components of a part; without --het-group, the part's own number."""
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
    """Parse `0,2-3`, with or without brackets."""
    parts = text.removeprefix("[").removesuffix("]").split(",")
    for part in parts:
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match or int(match[1]) > int(match[2] or match[1]):
            raise CommandError(
                f"error: _parse_single_range: Invalid range: `{part}'", f"error: Invalid --het-group value: {text}"
            )
    return list(parse_array(",".join(parts)).indices)


def _with_programs(parts: Sequence[StepPart]) -> Iterator[StepPart]:
    """Give a part without a program that of the next part with one."""
    for index, part in enumerate(parts):
        command = next((later.options.command for later in parts[index:] if later.options.command), ())
        yield part._replace(options=part.options._replace(command=command))
