"""Access to matplotlib, which only the extra `plot` installs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from matplotlib.figure import Figure


def pyplot() -> ModuleType:
    """matplotlib.pyplot without a display.

    Raises:
        SpecError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise SpecError(
            "a plot needs matplotlib",
            found=f"{sys.executable} has none",
            remedy=f"pip install 'hpc_kit[plot]', or {sys.executable} -m pip install matplotlib",
        ) from None
    mpl.use("agg")
    from matplotlib import pyplot as module

    return module


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the name ends in, and close it.

    Raises:
        SpecError: The file cannot be written.
    """
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"cannot write {path}", found=str(error), remedy="a .png, .pdf or .svg in a folder that exists"
        ) from error
    finally:
        pyplot().close(figure)
