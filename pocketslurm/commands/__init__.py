"""One module per command, and the names of all commands."""

from __future__ import annotations

COMMANDS = ("sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
"""Slurm's commands that work here."""

UNSUPPORTED = {
    "sacctmgr": "there is no accounting database: accounts and qos are taken as jobs name them, and sacct shows them",
    "sattach": "a step's output is where its srun writes it: see StdOut of scontrol show job",
    "sbcast": "all nodes share this machine's files: copy the file with cp",
    "scrontab": "there are no cron jobs: use crontab with sbatch",
    "sdiag": "no figures of the scheduler are kept: see its log, SlurmctldLogFile of scontrol show config",
    "sprio": "priorities are the order of submission: squeue -O prioritylong shows them",
    "sreport": "there is no accounting database: sacct shows the jobs of the queue",
    "sshare": "there are no shares: all jobs are of one user",
    "sstat": "running steps are not measured: sacct -o JobID,MaxRSS,TotalCPU shows what ended steps have used",
    "strigger": "there are no triggers: let a job follow by sbatch --dependency",
}
"""Slurm's commands that print why they have nothing to do here, and exit with status 1.

`sacctmgr show`, `sacctmgr list` and `sshare` print nothing and exit with status 0, as without any account.
"""

OWN_COMMANDS = ("path", "info", "run")
"""Commands of `pocketslurm` itself."""
