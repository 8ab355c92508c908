"""Runs inside the job: determines the rank, meets the other ranks, and ends a failing rank.

Importing it takes a few milliseconds. torch is imported at the first call that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Group", "World", "distributed", "resolve", "write_steps", "write_summary"]

if TYPE_CHECKING:
    from hpc_kit.runtime.launchers import resolve as resolve
    from hpc_kit.runtime.process_group import Group as Group
    from hpc_kit.runtime.process_group import distributed as distributed
    from hpc_kit.runtime.summary import write_steps as write_steps
    from hpc_kit.runtime.summary import write_summary as write_summary
    from hpc_kit.runtime.world import World as World

_HOME = {
    "Group": "process_group",
    "World": "world",
    "distributed": "process_group",
    "resolve": "launchers",
    "write_steps": "summary",
    "write_summary": "summary",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hpc_kit.runtime' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hpc_kit.runtime.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
