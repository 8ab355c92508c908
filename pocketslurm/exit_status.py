"""Formats wait statuses as Slurm prints them: `3:0` for an exit code, `0:15` for a signal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pocketslurm.queue.records import Job

_SHELL_SIGNAL = 128


def format_exit_code(status: int) -> str:
    """Format a wait status for scontrol."""
    signal = status & 0x7F
    return f"{0 if signal else status >> 8}:{signal}"


def format_accounted_exit_code(status: int) -> str:
    """Format a wait status for sacct: it prints the 137 of a shell as 9."""
    code = status >> 8 & 0xFF
    signal = status & 0x7F
    return f"{code - _SHELL_SIGNAL if code > _SHELL_SIGNAL else 0 if signal else code}:{signal}"


def exit_status(job: Job) -> int:
    """Return the exit status of `sbatch --wait`."""
    return os.waitstatus_to_exitcode(job.exit_code) if os.WIFEXITED(job.exit_code) else 1
