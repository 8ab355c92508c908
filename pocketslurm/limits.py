"""Resource limits: a job has those that its submitter had (--propagate), whatever those of the controller are."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK")
_NUMBERS = {name: int(getattr(resource, f"RLIMIT_{name}")) for name in _NAMES}


def chosen(propagate: str | None) -> dict[str, int]:
    """The soft limits of this process that go along with a job.

    Args:
        propagate: The option's value: names between commas, ALL or nothing for all, NONE; None: it was not given.
    """
    words = {word.strip().upper().removeprefix("RLIMIT_") for word in (propagate or "ALL").split(",")}
    names = () if "NONE" in words else _NAMES if "ALL" in words else [name for name in _NAMES if name in words]
    return {name: resource.getrlimit(_NUMBERS[name])[0] for name in names}


def obey(limits: Mapping[str, int]) -> None:
    """Take them on, as far as this process may."""
    for name, soft in limits.items():
        most = resource.getrlimit(_NUMBERS[name])[1]
        _set(
            name,
            soft if most == resource.RLIM_INFINITY else most if soft == resource.RLIM_INFINITY else min(soft, most),
        )


def lift() -> None:
    """Let a daemon have all that it may: its submitter's limits are not made for it, which lives on for others."""
    for name in _NAMES:
        _set(name, resource.getrlimit(_NUMBERS[name])[1])


def _set(name: str, soft: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # a container may forbid it
        resource.setrlimit(_NUMBERS[name], (soft, resource.getrlimit(_NUMBERS[name])[1]))
