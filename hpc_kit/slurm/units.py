"""Durations and memory sizes, as Slurm reads and prints them."""

from __future__ import annotations

from hpc_kit.errors import UnitError

UNLIMITED = -1
"""What `parse_time` gives for a limit that never comes."""

_UNLIMITED_WORDS = frozenset({"-1", "unlimited", "infinite"})
_TIME_REMEDY = (
    "write minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, "
    "days-hours:minutes:seconds or UNLIMITED; two hours are 2:00:00"
)
_MEMORY_REMEDY = "write a whole number with K, M, G or T behind it; without a letter it means MiB: 512M, 64G"
_DAY, _HOUR, _MINUTE = 86400, 3600, 60
_MIB_PER_UNIT = {"M": 1, "G": 1024, "T": 1024**2}
# What a 32-bit count of minutes holds: Slurm has no longer limit than this.
_MAX_SECONDS = (2**32 - 3) * _MINUTE


def parse_time(text: str) -> int:
    """Seconds of a Slurm duration, or `UNLIMITED`: `90` is minutes, `1:30` minutes and seconds.

    sbatch rounds a time limit up to whole minutes, and takes 0 for no limit; here both stay as they are written.

    Raises:
        UnitError: `text` is none of Slurm's six forms.
    """
    if text.lower() in _UNLIMITED_WORDS:
        return UNLIMITED
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(_is_number(field) for field in fields) or (dash and not _is_number(days)) or len(fields) > 3:
        raise UnitError("not a duration that Slurm reads", found=repr(text), remedy=_TIME_REMEDY)
    numbers = [int(field) for field in fields]
    # Behind days the first number is hours; without them it is minutes unless three stand there.
    units = (_HOUR, _MINUTE, 1) if dash or len(fields) == 3 else (_MINUTE, 1)
    seconds = int(days or 0) * _DAY + sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if seconds > _MAX_SECONDS:
        raise UnitError("a duration longer than Slurm can hold", found=repr(text), remedy="write UNLIMITED")
    return seconds


def format_time(seconds: int) -> str:
    """A duration as Slurm prints it: `00:10:00`, `1-12:30:05`, `UNLIMITED`."""
    if seconds == UNLIMITED:
        return "UNLIMITED"
    if seconds < 0:
        raise UnitError("a negative duration", found=str(seconds), remedy=_TIME_REMEDY)
    days, rest = divmod(seconds, _DAY)
    hours, rest = divmod(rest, _HOUR)
    clock = f"{hours:02d}:{rest // _MINUTE:02d}:{rest % _MINUTE:02d}"
    return f"{days}-{clock}" if days else clock


def parse_memory(text: str) -> int:
    """MiB of a Slurm memory size: `4096`, `4G`, `1T`; kibibytes are rounded up, as Slurm does.

    Raises:
        UnitError: `text` is no whole number with one of Slurm's letters.
    """
    size = text.upper()
    number, unit = size, "M"
    if size and not size[-1].isdigit():
        # Slurm takes 4GB for 4G, but not a lone B.
        body = size[:-1] if size[-2:] in {"KB", "MB", "GB", "TB"} else size
        number, unit = body[:-1], body[-1]
    if not _is_number(number) or unit not in {"K", *_MIB_PER_UNIT}:
        raise UnitError("not a memory size that Slurm reads", found=repr(text), remedy=_MEMORY_REMEDY)
    if unit == "K":
        return -(-int(number) // 1024)
    return int(number) * _MIB_PER_UNIT[unit]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
