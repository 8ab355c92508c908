"""Slurm job templates, submission and launcher bootstrap for PyTorch training.

Importing this package costs next to nothing: each name is imported when it is first used (PEP 562).
"""

from __future__ import annotations

TYPE_CHECKING = False  # the import of typing would double the time of this one

__version__ = "0.1.0"

__all__ = [
    "Checkpointer",
    "Executor",
    "Group",
    "HpcKitError",
    "ScriptJob",
    "World",
    "__version__",
    "convert_checkpoint",
    "distributed",
    "load_checkpoint",
    "phase",
    "progress",
    "render",
    "resolve",
    "save_checkpoint",
    "submit",
]

if TYPE_CHECKING:
    from hpc_kit.errors import HpcKitError as HpcKitError
    from hpc_kit.runtime import Group as Group
    from hpc_kit.runtime import World as World
    from hpc_kit.runtime import distributed as distributed
    from hpc_kit.runtime import resolve as resolve
    from hpc_kit.runtime.restart.checkpoint_file import convert_checkpoint as convert_checkpoint
    from hpc_kit.runtime.restart.checkpoint_file import load_checkpoint as load_checkpoint
    from hpc_kit.runtime.restart.checkpoint_file import save_checkpoint as save_checkpoint
    from hpc_kit.runtime.restart.checkpointer import Checkpointer as Checkpointer
    from hpc_kit.runtime.watchdog import phase as phase
    from hpc_kit.runtime.watchdog import progress as progress
    from hpc_kit.script.render import render as render
    from hpc_kit.submission.executor import Executor as Executor
    from hpc_kit.submission.job_handles import ScriptJob as ScriptJob
    from hpc_kit.submission.submit import submit as submit

_CHECKPOINTS = "hpc_kit.runtime.restart.checkpoint_file"
_HOME = {
    "Checkpointer": "hpc_kit.runtime.restart.checkpointer",
    "Executor": "hpc_kit.submission.executor",
    "Group": "hpc_kit.runtime",
    "HpcKitError": "hpc_kit.errors",
    "ScriptJob": "hpc_kit.submission.job_handles",
    "World": "hpc_kit.runtime",
    "convert_checkpoint": _CHECKPOINTS,
    "distributed": "hpc_kit.runtime",
    "load_checkpoint": _CHECKPOINTS,
    "phase": "hpc_kit.runtime.watchdog",
    "progress": "hpc_kit.runtime.watchdog",
    "render": "hpc_kit.script.render",
    "resolve": "hpc_kit.runtime",
    "save_checkpoint": _CHECKPOINTS,
    "submit": "hpc_kit.submission.submit",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hpc_kit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
