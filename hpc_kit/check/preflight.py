"""What must exist on this machine before a job is queued: found missing now, it costs no wait in the queue.

Each check is a function of the job and the project's folder that yields errors; its docstring explains it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.check.preflight_program import MissingInterpreter, check_agents, libraries, program_file
from hpc_kit.errors import SpecError
from hpc_kit.script.context import working_folder
from hpc_kit.spec.layout_checks import machine_too_small
from hpc_kit.spec.resolve import Resolved

if TYPE_CHECKING:
    from hpc_kit.check.rules.base import Finding, Severity


class Check(NamedTuple):
    """One check, with its code and the text that explains it."""

    code: str
    check: Callable[[Resolved, Path], Iterator[SpecError]]
    severity: Severity = "error"

    @property
    def text(self) -> str:
        """What happens, why, how to mend it."""
        return inspect.getdoc(self.check) or ""


def check_program(resolved: Resolved, root: Path) -> None:
    """Refuse a job whose program, folder or partition is not there, or whose ranks would each start ranks.

    Args:
        resolved: The job.
        root: The user's project: sbatch runs there.

    Raises:
        SpecError: What is missing, with near matches.
    """
    check_agents(resolved)
    for each in CHECKS:
        for error in each.check(resolved, root):
            raise error


def findings(resolved: Resolved, root: Path, *, elsewhere: bool = False) -> list[Finding]:
    """Everything that is missing, as findings.

    Args:
        resolved: The job.
        root: The user's project.
        elsewhere: The job's cluster is another machine: its interpreter need not be here.
    """
    # With it comes the parser of shell, and submit, which asks `check_program` only, does without.
    from hpc_kit.check.rules.base import Finding

    found = []
    for each in CHECKS:
        for error in each.check(resolved, root):
            doubtful = elsewhere and isinstance(error, MissingInterpreter)
            severity: Severity = "warning" if doubtful else each.severity
            found.append(Finding(each.code, severity, 0, 0, error.what, error.remedy or "", error.found))
    return found


def _chdir(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The job's working folder does not exist.

    Slurm then starts the batch script in /tmp, with one line in the log, and nothing is found there.

    Mend: the path in `chdir`, or make the folder.
    Documented: sbatch(1), --chdir.
    """
    chdir = resolved.job.resources.chdir
    if chdir is not None and not (root / chdir).is_dir():
        yield SpecError(f"the folder {chdir} does not exist", found="chdir of the job", remedy=f"mkdir -p {chdir}")


def _log_folder(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The folder of logs and records cannot be made.

    Something that is no folder is in its way, or this user may not write there. Slurm would take the job, and end it
    without a file that tells why.

    Mend: another `runs` in the cluster file, or the permissions.
    Documented: docs/submitting.md.
    """
    wanted = working_folder(resolved, root) / resolved.log_folder
    # Path.exists raises where it may not look, below the runs of another user.
    there = next(path for path in (wanted, *wanted.parents) if os.path.exists(path))  # noqa: PTH110
    why = f"{there} is a file" if not there.is_dir() else f"no write permission in {there}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield SpecError(f"{wanted} cannot be made", found=why, remedy="--set cluster.runs=FOLDER")


def _partition(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The embedded Slurm is strict, and has no such partition.

    Where it is not, the job goes to the default one.

    Mend: one of those that the cluster file names under [embedded], or `strict = false` there.
    Documented: docs/embedded-slurm.md.
    """
    wanted, embedded = resolved.job.resources.partition, resolved.cluster.embedded
    if resolved.cluster.slurm != "embedded" or wanted is None or not embedded.strict:
        return
    for name in wanted.split(","):
        if name not in embedded.partitions:
            yield SpecError(
                f"no partition '{name}'",
                found=f"partitions of cluster {resolved.cluster.name}: {', '.join(embedded.partitions)}",
                remedy=f"partition = '{embedded.partitions[0]}', or leave it out",
            )


def _node_count(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The embedded Slurm has fewer nodes.

    As a real Slurm, it would let the job wait for ever.

    Mend: fewer nodes, or more of them in the cluster file under [embedded].
    Documented: docs/embedded-slurm.md.
    """
    cluster = resolved.cluster
    if cluster.slurm != "embedded":
        return
    from hpc_kit.slurm import nodelist

    there = len(nodelist.expand(cluster.embedded.nodes))
    if resolved.nodes > there:
        yield SpecError(
            f"the job asks for more nodes than cluster {cluster.name} has",
            found=f"{resolved.nodes} nodes; there are {there}: {cluster.embedded.nodes}",
            remedy=f"nodes = {there} at most; or --set cluster.embedded.nodes='127.0.0.[1-{resolved.nodes}]'",
        )


def _memory(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The model does not fit this machine, which is all nodes of the embedded Slurm.

    Parameters, gradients and the optimizer's moments alone, without activations. Another machine may have more:
    `submit` alone refuses the job.

    Mend: fewer ranks, a smaller model, or `zero = 3`; a cluster file with `mem` under [node] says another size.
    Documented: docs/jobs-and-clusters.md.
    """
    if small := machine_too_small(resolved.job, resolved.cluster, resolved.world_size):
        yield small


CHECKS = (
    Check("KIT601", program_file),
    Check("KIT602", _chdir),
    Check("KIT603", _log_folder),
    Check("KIT604", _partition),
    Check("KIT605", _node_count),
    Check("KIT606", libraries),
    Check("KIT607", _memory, "warning"),
)
