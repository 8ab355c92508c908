"""Parses and formats durations, memory sizes and counts as Slurm does."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_kit.errors import UnitError

UNLIMITED = -1
"""The result of `parse_time` for `UNLIMITED`."""

_UNLIMITED_WORDS = frozenset({"-1", "unlimited", "infinite"})
_TIME_REMEDY = (
    "write minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, "
    "days-hours:minutes:seconds or UNLIMITED; two hours are 2:00:00"
)
_MEMORY_REMEDY = "write a whole number with K, M, G or T behind it; without a letter it means MiB: 512M, 64G"
_DAY, _HOUR, _MINUTE = 86400, 3600, 60
_MIB_PER_UNIT = {"M": 1, "G": 1024, "T": 1024**2}
# Slurm counts minutes in 32 bits, and the two largest numbers mean INFINITE and NO_VAL.
_MAX_SECONDS = (2**32 - 3) * _MINUTE


def parse_time(text: str) -> int:
    """Return the seconds of a duration, or `UNLIMITED`: `90` is minutes, `1:30` is minutes and seconds.

    sbatch rounds a time limit up to whole minutes and treats 0 as no limit. This function does neither.

    Raises:
        UnitError: `text` has none of the six forms that Slurm accepts.
    """
    if text.lower() in _UNLIMITED_WORDS:
        return UNLIMITED
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(is_number(field) for field in fields) or (dash and not is_number(days)) or len(fields) > 3:
        raise UnitError("not a duration that Slurm reads", found=repr(text), remedy=_TIME_REMEDY)
    numbers = [int(field) for field in fields]
    # After days the first number is hours. Without days it is minutes, unless there are three numbers.
    units = (_HOUR, _MINUTE, 1) if dash or len(fields) == 3 else (_MINUTE, 1)
    seconds = int(days or 0) * _DAY + sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if seconds > _MAX_SECONDS:
        raise UnitError("a duration longer than the longest in Slurm", found=repr(text), remedy="write UNLIMITED")
    return seconds


def format_time(seconds: int) -> str:
    """Return a duration as Slurm prints it: `00:10:00`, `1-12:30:05`, `UNLIMITED`."""
    if seconds == UNLIMITED:
        return "UNLIMITED"
    if seconds < 0:
        raise UnitError("a negative duration", found=str(seconds), remedy=_TIME_REMEDY)
    days, rest = divmod(seconds, _DAY)
    hours, rest = divmod(rest, _HOUR)
    clock = f"{hours:02d}:{rest // _MINUTE:02d}:{rest % _MINUTE:02d}"
    return f"{days}-{clock}" if days else clock


def parse_memory(text: str) -> int:
    """Return the MiB of a memory size such as `4096`, `4G` or `1T`. Slurm rounds KiB up, and so does this function.

    Raises:
        UnitError: `text` is not a whole number with one of Slurm's letters.
    """
    size = text.upper()
    number, unit = size, "M"
    if size and not size[-1].isdigit():
        # Slurm accepts 4GB for 4G, but not B alone.
        body = size[:-1] if size[-2:] in {"KB", "MB", "GB", "TB"} else size
        number, unit = body[:-1], body[-1]
    if not is_number(number) or unit not in {"K", *_MIB_PER_UNIT}:
        raise UnitError("not a memory size that Slurm reads", found=repr(text), remedy=_MEMORY_REMEDY)
    # Slurm stores memory in MiB.
    if unit == "K":
        return -(-int(number) // 1024)
    return int(number) * _MIB_PER_UNIT[unit]


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> format_count(1, "node"), format_count(2, "node"), format_count(0, "node")
    ('1 node', '2 nodes', '0 nodes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def name_some(words: Sequence[str]) -> str:
    """Return the first four words, and the number of further ones.

    >>> name_some(["n1", "n2", "n3", "n4", "n5"])
    'n1, n2, n3, n4 and 1 more'
    """
    more = len(words) - 4
    return ", ".join(words[:4]) + (f" and {more} more" if more > 0 else "")


def is_number(text: str) -> bool:
    """Return whether a text is a number without a sign, of at most 18 ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) <= 18
