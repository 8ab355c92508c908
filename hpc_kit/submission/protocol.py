"""What submitit's side in the job relies on: the names of the logs, the signal, the mark of who submitted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import structs
from submitit.core.utils import JobPaths
from submitit.slurm.slurm import SlurmJobEnvironment

from hpc_kit.script.quoting import sh
from hpc_kit.slurm.units import UNLIMITED, parse_time

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.spec.job import Job
    from hpc_kit.submission.parameters import Extras

SIGNAL_DELAY = 90
"""Seconds before the time limit at which submitit's signal comes, where the limit leaves room for them."""

ENDLESS_MINUTES = 10 * 365 * 24 * 60

_TAG = re.compile("%[jtAa]")


def with_protocol(job: Job, folder: Path, extras: Extras, array: str | None) -> Job:
    """A job whose script keeps submitit's protocol.

    Args:
        job: The job, fitted to its cluster.
        folder: The executor's folder.
        extras: What `update_parameters` has said of the protocol.
        array: Slurm's words for the indices, of an array.
    """
    output, error = (_pattern(path, array) for path in (JobPaths(folder).stdout, JobPaths(folder).stderr))
    separate = not extras.stderr_to_stdout
    own_folder = _make_folder(str(folder), array=array is not None)
    return structs.replace(
        job,
        env={**job.env, "SUBMITIT_EXECUTOR": "slurm"},
        setup=(*job.setup, *own_folder),
        launch=structs.replace(job.launch, output=output, error=error if separate else None),
        resources=structs.replace(
            job.resources,
            array=array,
            # A folder with the job's id is not there yet when Slurm opens the batch script's log.
            output=None if own_folder else output.replace("%t", "0"),
            error=error.replace("%t", "0") if separate and not own_folder else None,
            open_mode="append",
            signal=f"{SlurmJobEnvironment.USR_SIG}@{_signal_delay(job, extras)}",
        ),
    )


def _pattern(path: Path, array: str | None) -> str:
    """A name of submitit's with Slurm's patterns; any percent sign but those of its four is part of the name."""
    text = re.sub(r"%(?![jtAa])", "%%", str(path))
    return text if array is None else text.replace("%j", "%A_%a")


def _make_folder(folder: str, *, array: bool) -> tuple[str, ...]:
    """The line of shell that makes a folder whose name holds the job's id; none where it does not."""
    if not _TAG.search(folder):
        return ()
    ids = {"%j": "$SLURM_JOB_ID", "%A": "$SLURM_JOB_ID", "%t": "0"}
    if array:
        ids |= {"%A": "$SLURM_ARRAY_JOB_ID", "%a": "$SLURM_ARRAY_TASK_ID"}
        ids["%j"] = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    parts = re.split(f"({_TAG.pattern})", folder)
    return ("mkdir -p " + "".join(f'"{ids[part]}"' if part in ids else sh(part) for part in parts if part),)


def _signal_delay(job: Job, extras: Extras) -> int:
    """Seconds; a quarter of a short limit: Slurm may be a minute early, and would stop the job at its start."""
    if extras.signal_delay_s is not None:
        return extras.signal_delay_s
    limit = _seconds(job)
    return SIGNAL_DELAY if limit is None or limit == UNLIMITED else min(SIGNAL_DELAY, limit // 4)


def timeout_minutes(job: Job) -> int:
    """What the protocol takes for the time limit.

    Without a known limit 0: each signal then counts as one of the `max_num_timeout`, and no job requeues for ever.
    """
    limit = _seconds(job)
    return 0 if limit is None else ENDLESS_MINUTES if limit == UNLIMITED else limit // 60


def _seconds(job: Job) -> int | None:
    limit = job.resources.time
    return None if limit is None else parse_time(str(limit))
