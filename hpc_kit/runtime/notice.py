"""The runtime's words in a log: warnings, once a job."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError
from hpc_kit.runtime.launchers.leftovers import MISSING_SRUN

if TYPE_CHECKING:
    from hpc_kit.runtime.world import World


def print_warnings(world: World) -> None:
    """Write the warnings of a world; rank 0 speaks for all."""
    if world.is_main:
        for warning in world.warnings:
            sys.stderr.write(f"hpc-kit: warning: {warning}\n")
            if warning.endswith(MISSING_SRUN):
                sys.stderr.write(f"  do     {prepend_srun(sys.orig_argv)}\n")
        sys.stderr.flush()


def quiet_torch() -> None:
    """Before torch is imported: no warnings of its C++ side, unless somebody has asked for them.

    Where no name service answers, it warns of each connection, in a training that goes well; errors stay.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def require_torch() -> None:
    """Say what is missing where torch is not installed, before anything of it is imported.

    Raises:
        HpcKitError: There is no torch for this interpreter.
    """
    if find_spec("torch") is None:
        raise HpcKitError(
            "there is no torch for this Python",
            found=f"{sys.executable} on {socket.gethostname()}",
            remedy=f"{sys.executable} -m pip install torch; or python = '/path/to/python' in the cluster file",
        )


def prepend_srun(argv: list[str]) -> str:
    """A command line with srun in front; the interpreter by the name that people type."""
    interpreter, *rest = argv or ["python"]
    return shlex.join(["srun", Path(interpreter).name, *rest])
