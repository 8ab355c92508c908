"""The files of one run, `runs/<job_name>/<job_id>/`: their names, and the two that are read back.

The script writes them in shell, the runtime in the job, the monitor reads them on the login node; so names and
formats stand once, on the lowest floor.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

RUN_VARIABLE = "HPC_KIT_RUN"
"""Environment variable, set by the script: the folder of this run, as seen from the job."""

LOGS_VARIABLE = "HPC_KIT_LOGS"
"""Environment variable: the folder of the ranks' logs, where they go elsewhere than to the run's."""

FIRST_FAILURE = "first-failure"
"""`rank host exit_code unix_time` of the rank that failed first; whoever creates the file is it."""

END = "end"
"""`exit_code unix_time`, written by the batch script as its last act."""

SUMMARY = "summary.json"
"""What the training says of itself at its end: a flat JSON object, written by rank 0."""

STEPS = "steps.json"
"""The steps of a training, written by rank 0 at its end: a list each of `loss` and `seconds`, `tokens` of one step, and
for each rank the quartiles of what it worked in a step, `busy`."""

RECORD = "record.json"
SCRIPT = "script.sbatch"
PATCH = "git.patch"


def write_whole(path: Path, data: bytes, mode: int = 0o600, *, lasting: bool = True) -> None:
    """Write a file whole or not at all, by default readable by its owner alone.

    Args:
        path: The file.
        data: What goes into it.
        mode: Its permissions.
        lasting: Be sure that it is on the disk, which takes milliseconds: not for what is written again in a moment.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # a file system that has become read-only says so here again
            draft.unlink()
        raise


def rank_log(rank: int | str) -> str:
    """The log's name of one rank; `%t` gives Slurm's own pattern."""
    return f"rank-{rank}.log"


class FirstFailure(NamedTuple):
    """The rank that failed first, and how."""

    rank: int
    host: str
    exit_code: int
    time: float

    @classmethod
    def parse(cls, text: str) -> FirstFailure | None:
        """Read the marker; None where it is empty or half-written."""
        fields = text.split()
        if len(fields) != len(cls._fields):
            return None
        try:
            return cls(int(fields[0]), fields[1], int(fields[2]), float(fields[3]))
        except ValueError:
            return None


def read_first_failure(run: Path) -> FirstFailure | None:
    """The first failure of a run, or None where no rank has failed."""
    try:
        return FirstFailure.parse((run / FIRST_FAILURE).read_text())
    except OSError:
        return None


def claim_first_failure(run: Path, rank: int, host: str, exit_code: int) -> bool:
    """Leave this rank's name as the first that failed; False where another was earlier or the disk is full.

    The content is written beside it and linked: nobody ever reads half a line, also over NFS.
    """
    marker = run / FIRST_FAILURE
    draft = run / f".{FIRST_FAILURE}.{rank}.{os.getpid()}"
    try:
        draft.write_text(f"{rank} {host} {exit_code} {time.time():.3f}\n")
        marker.hardlink_to(draft)
    except OSError:
        return False
    finally:
        with suppress(OSError):  # whatever the file system says: what the rank itself has failed of is told
            draft.unlink()
    return True
