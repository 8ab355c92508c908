"""The option --mpi of srun: the MPI plug-ins, and their variables for tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.errors import CommandError
from pocketslurm.steps.step_creation import merge_step_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketslurm.pmi.server import PmiServer
    from pocketslurm.queue.records import Step
    from pocketslurm.steps.options import StepOptions
    from pocketslurm.steps.request import StepRequest

LISTED = "MPI plugin types are...\n\tnone\n\tpmi2"

_NONE = {"none", "openmpi"}
_VARIABLE = "SLURM_MPI_TYPE"


def with_default(values: StepOptions, default: str) -> StepOptions:
    """Return the options with the default plug-in of the cluster if they name none."""
    return values._replace(values={"mpi": default, **values.values})


def check_plugin(plugin: str, *, strict: bool = True) -> None:
    """Accept the plug-ins `none` (older name: `openmpi`) and `pmi2`.

    Unless the settings are strict, accept the plug-ins of other clusters, too: most programs that are started with
    them do not use MPI.

    Raises:
        CommandError: It is another.
    """
    elsewhere = plugin == "cray_shasta" or plugin.startswith("pmix")
    if plugin not in {*_NONE, "pmi2"} and (strict or not elsewhere):
        raise CommandError(
            f"error: Couldn't find the specified plugin name for mpi/{plugin} looking at all files",
            f"error: cannot find mpi plugin for mpi/{plugin}",
            f"error: MPI: Cannot create context for mpi/{plugin}",
            "error: MPI: Unable to load any plugin",
            f"error: Invalid MPI type '{plugin}', --mpi=list for acceptable types",
        )


def start_server(
    parts: Sequence[StepOptions], requests: Sequence[StepRequest], steps: Sequence[Step]
) -> PmiServer | None:
    """Start the PMI server of a step; return None if its tasks get no PMI."""
    plugin = parts[0].get("mpi")
    if plugin in _NONE:
        return None
    from pocketslurm.pmi.server import PmiServer

    distribution = requests[0].distribution.nodes or "block"
    return PmiServer(merge_step_parts(steps), distribution if len(parts) == 1 else "block")


def plugin_variables(values: StepOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a step with SLURM_MPI_TYPE as set by its plug-in."""
    plugin = values.get("mpi")
    found = {name: value for name, value in environ.items() if name != _VARIABLE}
    return found if plugin in _NONE else found | {_VARIABLE: plugin}
