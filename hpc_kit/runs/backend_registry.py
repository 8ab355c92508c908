"""The registry of backends beside Slurm's. It imports no other module: registering a backend takes no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_kit.runs.backend import Backend

_loaders: dict[str, Callable[[], Backend]] = {}


def register_backend(name: str, load: Callable[[], Backend]) -> None:
    """Register the backend of all runs with this name in the record's field `slurm`.

    `load` imports and returns the backend. It is called for each run of the backend.
    """
    _loaders[name] = load


def registered_backend(name: str) -> Backend | None:
    """Return the backend with this name, or None."""
    return _loaders[name]() if name in _loaders else None
