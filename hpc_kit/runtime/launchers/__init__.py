"""Resolves which launcher started this process.

One pure function per launcher reads the environment. They are asked in a fixed order, and the first that recognizes its
own variables decides all values of the `World`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from hpc_kit.errors import IncompleteEnvironment, LauncherError
from hpc_kit.runtime.launchers import inherited_variables, slurm_step, variable_conflicts
from hpc_kit.runtime.launchers.mpi_variables import MPI_LAUNCHERS
from hpc_kit.runtime.launchers.mpirun import from_mpi
from hpc_kit.runtime.launchers.single_process import single_process
from hpc_kit.runtime.launchers.slurm_step import from_slurm_step
from hpc_kit.runtime.launchers.ssh import from_ssh
from hpc_kit.runtime.launchers.submitit import from_submitit
from hpc_kit.runtime.launchers.torch_variables import from_plain_variables, inner_launcher
from hpc_kit.runtime.launchers.torchrun import from_torchrun
from hpc_kit.runtime.variables import CHOICE

if TYPE_CHECKING:
    from hpc_kit.runtime.world import World

Launcher: TypeAlias = "Callable[[Mapping[str, str]], World | None]"

LAUNCHERS: dict[str, Launcher] = {
    # The innermost launcher comes first. torchrun's workers still carry the variables of the step or of the mpirun that
    # started their agent, and ranks of mpirun carry those of the batch shell or of the step that is its daemon.
    "torchrun": from_torchrun,
    # Its agents carry the variables of the user's shell, or of a step from which the user launches.
    "ssh": from_ssh,
    "mpi": from_mpi,
    "submitit": from_submitit,
    "slurm": from_slurm_step,
    # This comes after the step. Variables that were exported before srun must agree with the step, and they count alone
    # only outside of a step.
    "env": from_plain_variables,
    "single": single_process,
}

PLUGIN_GROUP = "hpc_kit.launchers"
"""Group of entry points. Each entry point names a function of the environment that returns a World or None."""

_SLURM_VARIABLES = re.compile(r"SLURM_(STEP.*|PROCID|LOCALID|NODEID|GTIDS|JOB_NUM_NODES|SUBMIT_HOST)|SLURMD_NODENAME")
"""Variables by which Slurm contradicts another launcher inside a step or in a batch shell."""


def has_plugins(path: Iterable[str]) -> bool:
    """Return whether a package on the path may provide a launcher.

    To import importlib.metadata takes longer than all else at the start of a rank, and few environments have a plug-in.
    """
    for folder in path:
        try:
            names = [name for name in os.listdir(folder or ".") if name.endswith(("-info", ".egg"))]  # noqa: PTH208 - faster
        except NotADirectoryError:
            return True  # an archive, which importlib.metadata can read
        except OSError:
            continue
        for name in names:
            for file in (f"{folder}/{name}/entry_points.txt", f"{folder}/{name}/EGG-INFO/entry_points.txt"):
                with suppress(OSError), open(file, encoding="utf-8", errors="replace") as text:  # noqa: PTH123 - faster
                    if PLUGIN_GROUP in text.read():
                        return True
    return False


@cache
def plugin_launchers() -> dict[str, Launcher]:
    """Return the launchers that installed packages provide, by name.

    Raises:
        IncompleteEnvironment: One of them cannot be imported.
    """
    if not has_plugins(sys.path):
        return {}
    from importlib.metadata import entry_points

    found: dict[str, Launcher] = {}
    for point in entry_points(group=PLUGIN_GROUP):
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise IncompleteEnvironment(
                f"the launcher {point.name!r} cannot be loaded",
                found=f"entry point {point.value} of {PLUGIN_GROUP}: {type(error).__name__}: {error}",
                remedy="fix or uninstall the package that provides it",
            ) from error
    return found


def _candidate_launchers(environ: Mapping[str, str]) -> Iterator[Launcher]:
    """Yield all launchers in order.

    Plug-ins come after the built-in launchers, because looking for them reads a file of every installed package.
    """
    inside = inner_launcher(environ) is not None
    for name, launcher in LAUNCHERS.items():
        if name == "mpi" and inside:
            yield from_plain_variables
        if name == "env":
            yield from plugin_launchers().values()
        yield launcher


_INSIDE_A_STEP = {"torchrun", "ssh", "mpi", "submitit", "env"}
"""Launchers that may run inside a step."""


def _requested_launcher(choice: str) -> Launcher:
    launchers = LAUNCHERS if choice in LAUNCHERS else {**LAUNCHERS, **plugin_launchers()}
    if choice not in launchers:
        raise IncompleteEnvironment(
            f"{CHOICE} names no launcher", found=f"{CHOICE} = {choice}", remedy=f"one of {', '.join(launchers)}"
        )
    return launchers[choice]


def guess_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank that most likely belongs to this process, also where launchers contradict each other; or None."""
    try:
        in_step = slurm_step.reason_not_in_step(environ) is None
    except LauncherError:
        in_step = True
    names = ("SLURM_PROCID",) if in_step else (*(names.rank for names in MPI_LAUNCHERS.values()), "RANK")
    return next((int(text) for name in names if (text := environ.get(name, "")).isdecimal()), None)


def resolve(environ: Mapping[str, str]) -> World:
    """Determine rank, world size and the rest of the `World` from environment variables alone.

    Args:
        environ: Usually `os.environ`. Nothing else is read, and nothing is changed.

    Raises:
        IncompleteEnvironment: Some variables of a launcher are missing or are not numbers.
        ContradictoryEnvironment: Two launchers claim this process, or numbers contradict each other.
    """
    choice = environ.get(CHOICE, "").strip()
    removed = {} if choice == "env" else inherited_variables.inherited_exports(environ)
    if choice in _INSIDE_A_STEP:
        removed |= {name: value for name, value in environ.items() if _SLURM_VARIABLES.fullmatch(name)}
    environ = {name: value for name, value in environ.items() if name not in removed}
    for launcher in [_requested_launcher(choice)] if choice else _candidate_launchers(environ):
        world = launcher(environ)
        if world is not None:
            return replace(world, ignored=world.ignored + variable_conflicts.describe_removed(removed, choice))
    raise IncompleteEnvironment(
        f"{CHOICE} = {choice}, but {choice} has not started this process",
        found="none of the variables that it sets",
        remedy=f"unset {CHOICE}",
    )
