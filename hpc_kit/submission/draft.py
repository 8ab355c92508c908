"""What is known of a run before it has an id."""

from __future__ import annotations

import datetime as dt
import os
import sys
from typing import TYPE_CHECKING

from hpc_kit import __version__
from hpc_kit.runs.logs import base_folder, logs_of
from hpc_kit.runs.record import Record, RecordLogs
from hpc_kit.script.context import pattern
from hpc_kit.slurm.user import user_name
from hpc_kit.spec.search_path import current_folder
from hpc_kit.submission.provenance import kept_environment, kept_words, packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_kit.runs.logs import Logs
    from hpc_kit.spec.resolve import Resolved


def draft(
    resolved: Resolved,
    root: Path,
    command_line: Sequence[str],
    environ: Mapping[str, str],
    *,
    slurm: str | None = None,
    version: str | None = None,
    recipient: str | None = None,
) -> Record:
    """What is known of a run before it has an id.

    Args:
        resolved: The job.
        root: The user's project.
        command_line: What the user typed.
        environ: The environment that it is started from.
        slurm: What runs it (default: the cluster's Slurm).
        version: The release of that Slurm.
        recipient: Slurm's own name for the cluster.
    """
    return Record(
        job_name=resolved.job.name,
        submitted=dt.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        cluster=resolved.cluster.name,
        slurm=slurm or resolved.cluster.slurm,
        slurm_version=version,
        slurm_cluster=recipient,
        host=os.uname().nodename,
        user=user_name(),
        cwd=str(current_folder()),
        root=str(root),
        command_line=kept_words(command_line),
        hpc_kit=__version__,
        python_version=sys.version.split()[0],
        logs=_relative(logs_of(resolved, root), base_folder(resolved, root) / resolved.log_folder),
        resolved=resolved,
        packages=packages(resolved.python, root),
        environment=kept_environment(environ),
    )


def _relative(logs: Logs, folder: Path) -> RecordLogs:
    """Names inside the folder of the runs without it: a project that is moved keeps its logs."""
    inside = pattern(str(folder)) + "/"
    names = {name: value and value.removeprefix(inside) for name, value in logs._asdict().items()}
    return RecordLogs(**names)
