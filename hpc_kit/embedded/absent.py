"""Commands of Slurm that have nothing to work on here: they say so, and what to do instead."""

from __future__ import annotations

import sys

_BOOKS = "there is no accounting database: accounts and qos are taken as jobs name them, and sacct shows them"

ABSENT = {
    "sacctmgr": _BOOKS,
    "sattach": "a step's output is where its srun writes it: see StdOut of scontrol show job",
    "scrontab": "there are no cron jobs: use crontab with sbatch",
    "sdiag": "no figures of the scheduler are kept: see its log, SlurmctldLogFile of scontrol show config",
    "sprio": "priorities are the order of submission: squeue -O prioritylong shows them",
    "sreport": _BOOKS,
    "sshare": _BOOKS,
    "strigger": "there are no triggers: let a job follow by sbatch --dependency",
}
"""Each command with its reason."""


def absent(command: str) -> int:
    """Say it; the exit status."""
    sys.stderr.write(f"{command}: error: not supported by the embedded Slurm: {ABSENT[command]}\n")
    return 1
