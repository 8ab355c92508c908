"""Who started this process: one function a launcher, asked in order; the first that knows it answers for all values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import IncompleteEnvironment
from hpc_kit.runtime.launchers.mpi import from_mpi
from hpc_kit.runtime.launchers.plain import from_plain_variables
from hpc_kit.runtime.launchers.single import single
from hpc_kit.runtime.launchers.slurm import from_slurm_step
from hpc_kit.runtime.launchers.torchrun import from_torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpc_kit.runtime.world import World

LAUNCHERS: dict[str, Callable[[Mapping[str, str]], World | None]] = {
    # The innermost launcher first: torchrun's workers still carry the variables of the step or of the mpirun
    # that started their agent; ranks of mpirun carry those of the shell, or of the step that is its daemon.
    "torchrun": from_torchrun,
    "mpi": from_mpi,
    "slurm": from_slurm_step,
    # After the step: what was exported before srun must agree with it, and counts alone only outside of a step.
    "env": from_plain_variables,
    "single": single,
}

CHOICE = "HPC_KIT_LAUNCHER"
"""Environment variable with the name of a launcher: that one is believed, and no other is asked."""


def resolve(environ: Mapping[str, str]) -> World:
    """Say who this process is, from its environment variables alone.

    Args:
        environ: Usually `os.environ`; nothing else is read, and nothing is changed.

    Raises:
        IncompleteEnvironment: Variables are half-set, or are no numbers.
        ContradictoryEnvironment: Two launchers claim this process, or numbers do not fit together.
    """
    choice = environ.get(CHOICE, "").strip()
    if choice and choice not in LAUNCHERS:
        raise IncompleteEnvironment(
            f"{CHOICE} names no launcher", found=f"{CHOICE} = {choice}", remedy=f"one of {', '.join(LAUNCHERS)}"
        )
    for launcher in [choice] if choice else LAUNCHERS:
        world = LAUNCHERS[launcher](environ)
        if world is not None:
            return world
    raise IncompleteEnvironment(
        f"{CHOICE} = {choice}, but {choice} has not started this process",
        found="none of the variables that it sets",
        remedy=f"unset {CHOICE}",
    )
