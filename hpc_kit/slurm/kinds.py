"""Whether Slurm would take a value for an option: one small check for each kind in the table of options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.errors import DirectiveError, HpcKitError
from hpc_kit.slurm import option_values, units
from hpc_kit.slurm.option_table import Option, Value

if TYPE_CHECKING:
    from collections.abc import Callable

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
"""Options whose value is one of a few words."""

_PATTERNS = {
    "number": (r"[0-9]{1,10}", "a whole number, not below 0"),
    "count": (r"0*[1-9][0-9]{0,9}", "a whole number, at least 1"),
    "nice": (r"[+-]?[0-9]{1,18}", "a whole number; above 0 lowers the priority"),
    "priority": (r"[0-9]{1,18}|(?i:TOP)", "a whole number or TOP"),
    "node-info": (r"([0-9]+|\*)(:([0-9]+|\*)){0,2}", "sockets[:cores[:threads]] such as 2:16:1"),
    "user-env": (r"[0-9]*[SL]?", "[TIMEOUT][S|L] such as 10L"),
    "switches": (r"0*[1-9][0-9]*(@.+)?", "COUNT[@TIME] such as 1@30:00"),
    "gpu-bind": (
        r"(verbose,)?(closest|none|(single|per_task):[0-9]+|(map|mask)_gpu:.+)",
        "closest, none, single:N, per_task:N or map_gpu:LIST",
    ),
    "mem-bind": (
        r"(?=.)((quiet|q|verbose|v|none|no|rank|local|sort|nosort|prefer|p)(,|$))*((map|mask)_mem:.+)?",
        "none, rank, local or map_mem:LIST",
    ),
    "gres": (r"[^\s\0,]+(,[^\s\0,]+)*", "NAME[[:TYPE]:COUNT] such as gpu:a100:4"),
    "path": (r"[^\n\0]+", "a file name"),
    "text": (r"[^\0]*", "text"),
}


_MOST = {"nice": 2147483645, "priority": 4294967293}
"""The largest numbers of some kinds."""


def check_value(option: Option, value: str | None) -> None:
    """Raise where Slurm, or plain sense, would refuse this value for this option.

    Raises:
        DirectiveError: It names the option, the value and what to write.
    """
    if option.value is Value.NONE:
        if value:
            raise _refusal(option, value, "an option that takes no value", f"write --{option.name} alone")
        return
    if not value and option.value is Value.OPTIONAL:
        return
    try:
        _CHECKS.get(option.kind, _check_words)(option, value or "")
    except HpcKitError as error:
        if isinstance(error, DirectiveError) and error.what.startswith("--"):
            raise
        raise _refusal(option, value or "", error.what, error.remedy) from error


def slurm_words(option: Option, value: str | None) -> str:
    """How Slurm itself refuses a value: the line behind `sbatch: error: `."""
    if option.kind in {"number", "count"}:
        return f'Invalid numeric value "{value or ""}" for --{option.name}.'
    if option.kind == "nodes":
        return f'"{value or ""}" is not a valid node count'
    if option.kind in _MOST and re.fullmatch(r"[+-]?[0-9]+", value or ""):
        if option.kind == "nice":
            return f"Invalid --nice value, out of range (+/- {_MOST['nice']})"
        return "Priority must be >= 0" if str(value).startswith("-") else f"Priority must be < {_MOST['priority'] + 1}"
    return f"Invalid --{option.name} specification"


def _refusal(option: Option, value: str, what: str, remedy: str | None) -> DirectiveError:
    return DirectiveError(f"--{option.name}: {what}", found=f"--{option.name}={value}", remedy=remedy)


def _check_words(option: Option, value: str) -> None:
    """Kinds that a pattern or a few words describe."""
    if option.kind in {"choice", "choices"}:
        allowed = CHOICES[option.name]
        words = value.split(",") if option.kind == "choices" else [value]
        if any(word.lower() not in allowed for word in words):
            raise _refusal(option, value, "not a word that it knows", f"write one of {', '.join(allowed)}")
        return
    pattern, example = _PATTERNS[option.kind]
    if not re.fullmatch(pattern, value):
        raise _refusal(option, value, "not a value that Slurm takes", f"write {example}")
    if option.kind in _MOST and value.upper() != "TOP" and abs(int(value)) > _MOST[option.kind]:
        raise _refusal(option, value, "a number that is too large", f"write {_MOST[option.kind]} at most")
    if option.kind == "switches" and "@" in value:
        units.parse_time(value.partition("@")[2])


def _check_hosts(_: Option, value: str) -> None:
    # With a slash in it, it is the name of a file that holds the list.
    if "/" not in value:
        from hpc_kit.slurm import nodelist

        nodelist.expand(value)


def _check_instant(_: Option, value: str) -> None:
    from hpc_kit.slurm.datetimes import parse_instant

    parse_instant(value)


def _plain(parse: Callable[[str], object]) -> Callable[[Option, str], None]:
    def check(_: Option, value: str) -> None:
        """Parsing is the check."""
        parse(value)

    return check


_CHECKS: dict[str, Callable[[Option, str], None]] = {
    "array": _plain(option_values.parse_array),
    "dependency": _plain(option_values.parse_dependency),
    "distribution": _plain(option_values.parse_distribution),
    "gpus": _plain(option_values.parse_gpus),
    "hostlist": _check_hosts,
    "instant": _check_instant,
    "mail-type": _plain(option_values.parse_mail_types),
    "memory": _plain(units.parse_memory),
    "nodes": _plain(option_values.parse_nodes),
    "open-mode": _plain(option_values.parse_open_mode),
    "signal": _plain(option_values.parse_signal),
    "time": _plain(units.parse_time),
}
