"""Parses and checks the values of options: node counts, arrays, signals, dependencies and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hpc_kit.errors import DirectiveError, HpcKitError, UnitError
from hpc_kit.slurm import units
from hpc_kit.slurm.option_table import Option, ValueUse

SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15,
    "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24,
}  # fmt: skip
"""The signals that Slurm knows by name (with or without SIG); any other goes by its number."""

DEFAULT_SIGNAL_SECONDS = 60
MAX_ARRAY_INDEX = 4_000_000
"""Slurm takes no MaxArraySize above 4000001."""

MAIL_TYPES = frozenset({
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "ARRAY_TASKS",
    "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50",
})  # fmt: skip

DEPENDENCIES = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok")

_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_COUNT = r"([0-9]{1,9})([kKmM]?)"
_ARRAY_ITEM = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?(?:%([0-9]{1,9}))?"
_SIGNAL = r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@([0-9]{1,5}))?"
_JOB = r"([0-9]+)(?:_([0-9]+|\*))?(?:\+([0-9]+))?"
_SPREADS = ("block", "cyclic", "fcyclic")


class NodeCount(NamedTuple):
    """A number of nodes from `minimum` to `maximum`, or one of `sizes` if the value is a list (Slurm 23.11)."""

    minimum: int
    maximum: int
    sizes: tuple[int, ...] = ()


class ArraySpec(NamedTuple):
    """The indices of a job array, ascending, and how many of its tasks may run at the same time."""

    indices: tuple[int, ...]
    at_once: int | None


class SignalSpec(NamedTuple):
    """A signal before the time limit: its number, the seconds before the limit, and `B:` for the batch shell only."""

    number: int
    seconds: int
    batch_shell: bool
    reservation: bool


class DependencyJob(NamedTuple):
    """A job to wait for: its id, an index (or `*`) of its array, and minutes to wait after it began."""

    job_id: int
    task: str | None = None
    minutes: int = 0


class Condition(NamedTuple):
    """One condition of a dependency: its kind such as `afterok` and its jobs. `singleton` has no jobs."""

    kind: str
    jobs: tuple[DependencyJob, ...] = ()


class Dependency(NamedTuple):
    """All conditions must hold (`,` between them) or any one of them (`?`)."""

    conditions: tuple[Condition, ...]
    any_of: bool = False


class Distribution(NamedTuple):
    """Distribution of tasks over nodes, sockets, cores: `block`, `cyclic`, `fcyclic`, `plane`, `arbitrary`, or None."""

    nodes: str | None
    sockets: str | None = None
    cores: str | None = None
    plane_size: int | None = None
    pack: bool | None = None


def parse_nodes(text: str) -> NodeCount:
    """Parse `--nodes`: `4`, `2-4`, `2K`, and the newer lists such as `1,5,9-13:2`."""
    # Slurm 23.11 accepts lists of node counts in the form of --array.
    if "," in text or ":" in text:
        sizes = parse_array(text).indices
        if not sizes[0]:
            raise UnitError("not a number of nodes", found=repr(text), remedy="write node counts from 1")
        return NodeCount(sizes[0], sizes[-1], sizes)
    low, dash, high = text.partition("-")
    minimum = _count(low, text)
    maximum = _count(high, text) if dash else minimum
    if not 1 <= minimum <= maximum:
        raise UnitError("not a range of node counts", found=repr(text), remedy="write a number from 1, such as 4")
    return NodeCount(minimum, maximum)


def parse_array(text: str, max_array_size: int = MAX_ARRAY_INDEX + 1) -> ArraySpec:
    """Parse `--array`: `0-9:2%4,12`. Slurm requires that the highest index is below MaxArraySize."""
    body, at_once = text.removeprefix("[").removesuffix("]"), 0
    indices: set[int] = set()
    for item in body.split(","):
        match = re.fullmatch(_ARRAY_ITEM, item)
        first, last, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (0, 0, 0)
        if not match or last < first or not 1 <= step < max_array_size:
            raise UnitError("not an array of indices", found=repr(text), remedy="write 0-9, 1,3,5 or 0-15:4%2")
        if last >= max_array_size:
            raise UnitError(
                f"an array index above the limit of this Slurm: {last}",
                found=f"{text!r}; MaxArraySize is {max_array_size}",
                remedy=f"keep every index at {max_array_size - 1} or below",
            )
        indices.update(range(first, last + 1, step))
        # Only the first % limit counts, behind any item. 0 means no limit.
        at_once = at_once or int(match[4] or 0)
    return ArraySpec(tuple(sorted(indices)), at_once or None)


def fold_indices(indices: Iterable[int], *, steps: bool = True) -> str:
    """Return indices as Slurm writes them. A step such as `:2` is only used for more than five indices.

    Args:
        indices: The indices.
        steps: Use steps. Slurm uses none for the numbers of tasks.

    >>> fold_indices([0, 1, 2, 7]), fold_indices([1, 3, 5]), fold_indices(range(0, 12, 2))
    ('0-2,7', '1,3,5', '0-10:2')
    """
    numbers = sorted(indices)
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    regular = steps and step > 1 and numbers == list(range(numbers[0], numbers[-1] + 1, step))
    if regular and len(numbers) > 5 and numbers[-1] - numbers[0] >= 10:
        return f"{numbers[0]}-{numbers[-1]}:{step}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def parse_signal(text: str) -> SignalSpec:
    """Parse `--signal`: `USR1@90`, `B:TERM@120`, `10`. The default is 60 seconds."""
    match = re.fullmatch(_SIGNAL, text, re.IGNORECASE)
    name = match[2].upper() if match else ""
    number = int(name) if name.isdigit() else SIGNALS.get(name, 0)
    seconds = int(match[3]) if match and match[3] else DEFAULT_SIGNAL_SECONDS
    if match is None or not 1 <= number <= 64 or seconds > 65535:
        remedy = f"write [B:]SIGNAL[@SECONDS], for example B:USR1@120; names: {', '.join(SIGNALS)}"
        raise DirectiveError("not a signal that Slurm knows", found=repr(text), remedy=remedy)
    flags = (match[1] or "").upper()
    return SignalSpec(number, seconds, "B" in flags, "R" in flags)


def parse_dependency(text: str) -> Dependency:
    """Parse `--dependency`: `afterok:12:13,afterany:14`, `afterok:12?afterok:13`, `after:12+5`, `singleton`."""
    separator = "?" if "?" in text else ","
    conditions = tuple(_condition(part, text) for part in text.split(separator))
    return Dependency(conditions, separator == "?")


def parse_distribution(text: str) -> Distribution:
    """Parse `--distribution`: `block:cyclic`, `plane=4`, `arbitrary`, also with `,Pack` or `,NoPack`."""
    layout, _, packing = text.lower().partition(",")
    first, *others = layout.split(":")
    pack = {"pack": True, "nopack": False}.get(packing)
    bad = (packing and pack is None) or len(others) > 2
    if re.fullmatch(r"plane=[1-9][0-9]{0,8}", layout):
        found = Distribution("plane", plane_size=int(layout.partition("=")[2]), pack=pack)
    else:
        spreads = [None if name in {"*", ""} else name for name in (first, *others, "", "")]
        bad = bad or first not in {"*", "block", "cyclic", "arbitrary"}
        bad = bad or any(name not in {None, *_SPREADS} for name in spreads[1:])
        found = Distribution(spreads[0], spreads[1], spreads[2], pack=pack)
    if bad:
        remedy = "write block, cyclic, block:cyclic, plane=4 or arbitrary"
        raise DirectiveError("not a distribution that Slurm knows", found=repr(text), remedy=remedy)
    return found


_PACK_FLAGS = {True: "pack", False: "nopack"}


def parse_step_distribution(text: str, plane_size: str | None = None) -> Distribution:
    """Parse `--distribution` as srun does, which also accepts `pack`, `hostfile`, and `plane` without a size.

    `plane_size` is the value of SLURM_DIST_PLANESIZE.
    """
    word = text.lower()
    if word in _PACK_FLAGS.values():
        return Distribution(None, pack=word == "pack")
    if word == "plane" and plane_size:
        return parse_distribution(f"plane={plane_size}")
    return parse_distribution("arbitrary" if word == "hostfile" else text)


def format_distribution(distribution: Distribution) -> str:
    """Return a distribution as SLURM_DISTRIBUTION shows it.

    >>> [format_distribution(parse_distribution(text)) for text in ("*:cyclic", "plane=4", "cyclic,NoPack")]
    ['block:cyclic', 'plane', 'cyclic,nopack']
    """
    levels = [distribution.nodes or "block", distribution.sockets, distribution.cores]
    flag = "" if distribution.pack is None else "," + _PACK_FLAGS[distribution.pack]
    return ":".join(level for level in levels if level) + flag


def parse_mail_types(text: str) -> tuple[str, ...]:
    """Parse `--mail-type`: names such as END, FAIL, in upper case."""
    # Slurm ignores empty items, as in END,,FAIL.
    names = tuple(name.strip().upper() for name in text.split(",") if name)
    unknown = [name for name in names if name not in MAIL_TYPES]
    if unknown or not names:
        remedy = f"write some of {', '.join(sorted(MAIL_TYPES))}"
        raise DirectiveError(f"no such mail type: {unknown[0] if unknown else 'none'}", found=repr(text), remedy=remedy)
    return names


def parse_open_mode(text: str) -> str:
    """Parse `--open-mode`: `append` or `truncate`. Slurm only reads the first letter."""
    mode = {"a": "append", "t": "truncate"}.get(text[:1].lower())
    if mode is None:
        raise DirectiveError("not an open mode", found=repr(text), remedy="write append or truncate")
    return mode


# MIG devices have types such as 1g.10gb.
_GPUS = r"(?:([A-Za-z_][\w.-]*|[0-9]+[A-Za-z][\w.+-]*):)?([0-9]{1,9})|([A-Za-z_][\w.-]*)"


def parse_gpus(text: str) -> tuple[tuple[str | None, int], ...]:
    """Parse `--gpus` and similar options: (type or None, count) each; `a100:2`, `4`, `volta:3,kepler:5`."""
    parts = [re.fullmatch(_GPUS, part) for part in text.split(",")]
    found = tuple((part[1] or part[3], int(part[2] or 1)) for part in parts if part)
    if len(found) != len(parts):
        raise UnitError("not a number of GPUs", found=repr(text), remedy="write a number, or TYPE:NUMBER as a100:4")
    return found


def multiply_gpus(text: str, factor: int) -> str:
    """Return the value of a GPU option with each count multiplied: `a100:2` for `a100:1` and 2."""
    counts = [(kind, number * factor) for kind, number in parse_gpus(text)]
    return ",".join(f"{kind}:{number}" if kind else str(number) for kind, number in counts)


class GresItem(NamedTuple):
    """One generic resource: its name, its type if one is asked for, and how many."""

    name: str
    type: str | None
    number: int


# A type may begin with a digit only if a count follows, as in gpu:1g.10gb:2.
_GRES = r"(?:gres[:/])?([A-Za-z_][\w-]*)(?::([A-Za-z_][\w.-]*|[\w.-]+(?=:)))?(?::([0-9]{1,9})([kKmM]?))?"


def parse_gres(text: str) -> tuple[GresItem, ...]:
    """Parse `--gres`: `gpu:4`, `gpu:a100:2,nvme:1`; without a number an item asks for one."""
    matches = [re.fullmatch(_GRES, item) for item in text.split(",")]
    found = tuple(GresItem(m[1], m[2], int(m[3] or 1) * _UNITS[(m[4] or "").lower()]) for m in matches if m)
    if len(found) != len(matches):
        raise UnitError("not a list of generic resources", found=repr(text), remedy="write NAME[:TYPE]:COUNT as gpu:4")
    return found


def _condition(part: str, text: str) -> Condition:
    kind, colon, jobs = part.strip().partition(":")
    kind = kind.lower()
    if kind == "singleton" and not colon:
        return Condition(kind)
    # A job id alone is the oldest form and means afterany.
    words = [part.strip()] if kind.isdigit() else jobs.split(":")
    matches = [re.fullmatch(_JOB, word) for word in words]
    found = tuple(DependencyJob(int(m[1]), m[2], int(m[3] or 0)) for m in matches if m and int(m[1]))
    if len(found) != len(matches) or not (kind in DEPENDENCIES or kind.isdigit()):
        remedy = f"write TYPE:JOBID with a type of {', '.join(DEPENDENCIES)}; or singleton"
        raise DirectiveError(f"not a dependency: {part!r}", found=repr(text), remedy=remedy)
    return Condition("afterany" if kind.isdigit() else kind, found)


def _count(text: str, whole: str) -> int:
    match = re.fullmatch(_COUNT, text)
    if match is None:
        raise UnitError("not a number of nodes", found=repr(whole), remedy="write a number from 1, such as 4")
    return int(match[1]) * _UNITS[match[2].lower()]


CHOICES: dict[str, tuple[str, ...]] = {
    "exclusive": ("user", "mcs", "topo"),
    "gres-flags": (
        "disable-binding",
        "enforce-binding",
        "allow-task-sharing",
        "multiple-tasks-per-sharing",
        "one-task-per-sharing",
    ),
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "kill-on-bad-exit": ("0", "1"),
    "kill-on-invalid-dep": ("yes", "no"),
    "no-kill": ("off",),
    "oom-kill-step": ("0", "1"),
    "profile": ("all", "none", "energy", "filesystem", "lustre", "network", "task"),
    "requeue": ("expedite",),
    "send-libs": ("yes", "no"),
    "wait-all-nodes": ("0", "1"),
    "x11": ("all", "batch", "first", "last"),
}
"""Options with a fixed set of values."""

_PATTERNS = {
    "number": (r"[0-9]{1,10}", "a whole number, not below 0"),
    "count": (r"0*[1-9][0-9]{0,9}", "a whole number, at least 1"),
    "nice": (r"[+-]?[0-9]{1,18}", "a whole number; above 0 lowers the priority"),
    "priority": (r"[0-9]{1,18}|(?i:TOP)", "a whole number or TOP"),
    "node-info": (r"([0-9]+|\*)(:([0-9]+|\*)){0,2}", "sockets[:cores[:threads]] such as 2:16:1"),
    "user-env": (r"[0-9]*[SL]?", "[TIMEOUT][S|L] such as 10L"),
    "switches": (r"0*[1-9][0-9]*(@.+)?", "COUNT[@TIME] such as 1@30:00"),
    "gpu-bind": (
        r"(?i:(verbose,)?(closest|none|(single|per_task):[0-9]+|(map|mask)_gpu:.+))",
        "closest, none, single:N, per_task:N or map_gpu:LIST",
    ),
    "mem-bind": (
        r"(?i:(?=.)((quiet|q|verbose|v|none|no|rank|local|sort|nosort|prefer|p)(,|$))*((map|mask)_mem:.+)?)",
        "none, rank, local or map_mem:LIST",
    ),
    "gres": (r"[^\s\0,]+(,[^\s\0,]+)*", "NAME[[:TYPE]:COUNT] such as gpu:a100:4"),
    "path": (r"[^\n\0]+", "a file name"),
    "text": (r"[^\0]*", "text"),
}


_LARGEST = {"nice": 2147483645, "priority": 4294967293}
"""Largest numbers of some kinds of values."""


def check_value(option: Option, value: str | None) -> None:
    """Check the value of an option.

    Raises:
        DirectiveError: Slurm refuses the value, or the value makes no sense.
    """
    if option.value is ValueUse.NONE:
        if value:
            raise _refusal(option, value, "an option without value", f"write --{option.name} alone")
        return
    # An option with an optional value may be given as --exclusive or --exclusive=.
    if not value and option.value is ValueUse.OPTIONAL:
        return
    try:
        if parse := _PARSERS.get(option.kind):
            parse(value or "")
        else:
            _check_pattern(option, value or "")
    except HpcKitError as error:
        if isinstance(error, DirectiveError) and error.what.startswith("--"):
            raise
        raise _refusal(option, value or "", error.what, error.remedy) from error


def sbatch_error_line(option: Option, value: str | None) -> str:
    """Return the message of Slurm for a wrong value, without `sbatch: error: `."""
    if option.kind in {"number", "count"}:
        return f'Invalid numeric value "{value or ""}" for --{option.name}.'
    if option.kind == "nodes":
        return f'"{value or ""}" is not a valid node count'
    if option.kind in _LARGEST and re.fullmatch(r"[+-]?[0-9]+", value or ""):
        if option.kind == "nice":
            return f"Invalid --nice value, out of range (+/- {_LARGEST['nice']})"
        return (
            "Priority must be >= 0" if str(value).startswith("-") else f"Priority must be < {_LARGEST['priority'] + 1}"
        )
    return f"Invalid --{option.name} specification"


def _refusal(option: Option, value: str, what: str, remedy: str | None) -> DirectiveError:
    return DirectiveError(f"--{option.name}: {what}", found=f"--{option.name}={value}", remedy=remedy)


def _check_pattern(option: Option, value: str) -> None:
    """Check the kinds that are defined by a pattern or a list of words."""
    if option.kind in {"choice", "choices"}:
        allowed = CHOICES[option.name]
        words = value.split(",") if option.kind == "choices" else [value]
        if any(word.lower() not in allowed for word in words):
            raise _refusal(option, value, "not one of its values", f"write one of {', '.join(allowed)}")
        return
    pattern, example = _PATTERNS[option.kind]
    if not re.fullmatch(pattern, value):
        raise _refusal(option, value, "not a value that Slurm accepts", f"write {example}")
    if option.kind in _LARGEST and value.upper() != "TOP" and abs(int(value)) > _LARGEST[option.kind]:
        raise _refusal(option, value, "a number that is too large", f"write {_LARGEST[option.kind]} at most")
    if option.kind == "switches" and "@" in value:
        units.parse_time(value.partition("@")[2])


def _check_hosts(value: str) -> None:
    # A value with a slash names a file that contains the list.
    if "/" not in value:
        from hpc_kit.slurm import nodelist

        nodelist.expand(value)


def _check_datetime(value: str) -> None:
    from hpc_kit.slurm.datetimes import parse_datetime

    parse_datetime(value)


_PARSERS: dict[str, Callable[[str], object]] = {
    "array": parse_array,
    "dependency": parse_dependency,
    "distribution": parse_distribution,
    "gpus": parse_gpus,
    "hostlist": _check_hosts,
    "instant": _check_datetime,
    "mail-type": parse_mail_types,
    "memory": units.parse_memory,
    "nodes": parse_nodes,
    "open-mode": parse_open_mode,
    "signal": parse_signal,
    "time": units.parse_time,
}
"""The kinds of values that are checked by parsing them."""
