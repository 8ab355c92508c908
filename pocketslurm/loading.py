"""Parts of this package that are imported late, and what to say where that fails: files may change under a queue."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import AnswerNo

if TYPE_CHECKING:
    from types import ModuleType


def load(name: str) -> ModuleType:
    """A module of the embedded Slurm.

    Raises:
        AnswerNo: Its code cannot be imported, as in the midst of a checkout or an installation.
    """
    try:
        return import_module(f"pocketslurm.{name}")
    except Exception as error:
        raise AnswerNo(
            f"the code of the embedded Slurm ({name.rpartition('.')[2]}) cannot be loaded",
            found=f"{type(error).__name__}: {error}",
            remedy=f"if {Path(__file__).parent} is just being changed, wait until that is done and try again",
        ) from error
