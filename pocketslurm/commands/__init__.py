"""One module per command, and the names of all commands."""

from __future__ import annotations

COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sbatch", "sbcast", "scancel", "scontrol", "sinfo", "squeue", "srun", "sshare",
    "sstat",
)  # fmt: skip
"""Slurm's commands that work here."""

UNSUPPORTED = {
    "sattach": "a step's output is where its srun writes it: see StdOut of scontrol show job",
    "scrontab": "there are no cron jobs: use crontab with sbatch",
    "sdiag": "no figures of the scheduler are kept: see its log, SlurmctldLogFile of scontrol show config",
    "sprio": "priorities are the order of submission: squeue -O prioritylong shows them",
    "sreport": "there is no accounting database: accounts and qos are taken as jobs name them, and sacct shows them",
    "strigger": "there are no triggers: let a job follow by sbatch --dependency",
}
"""Slurm's commands that print why they have nothing to do here, and exit with status 1."""

OWN_COMMANDS = ("path", "info", "run", "reference")
"""Commands of `pocketslurm` itself."""
