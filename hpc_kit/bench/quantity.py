"""Numbers with their units, for readers."""

from __future__ import annotations

import math

from hpc_kit.bench.results import Value

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_POWERS = ("B", "KiB", "MiB", "GiB", "TiB")


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """`412.3 us`, `64 MiB`, `0.31 GB/s`: seconds and bytes with the prefix that fits."""
    number, shown = scaled(value, unit)
    return f"{plain(number, digits)} {shown}".rstrip()


def scaled(value: float, unit: str) -> tuple[float, str]:
    """A number of seconds or bytes in the unit that fits its size; others as they are."""
    if unit == "s":
        size, shown = next(((size, name) for size, name in _SECONDS if abs(value) >= size), _SECONDS[-1])
        return (value / size, shown) if value else (value, unit)
    if unit == "B":
        power = min(len(_POWERS) - 1, max(0, math.frexp(abs(value))[1] - 1) // 10) if math.isfinite(value) else 0
        return value / 1024**power, _POWERS[power]
    return value, unit


def plain(number: float, digits: int = 4) -> str:
    """A number of so many digits, without exponent where it needs none: `0.0412`, `1234`."""
    if number == int(number) if math.isfinite(number) else True:
        return f"{number:.0f}"
    text = f"{number:.{digits}g}"
    return f"{number:.0f}" if "e+" in text else text


def shown(value: Value, name: str = "") -> str:
    """A label: sizes, which are called so, in bytes with their prefix."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in {"bytes", "size"} and isinstance(value, int | float):
        return quantity(value, "B")
    if isinstance(value, float):
        return plain(value)
    return "" if value is None else str(value)
