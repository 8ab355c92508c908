"""Formats wait statuses as Slurm prints them: `3:0` for an exit code, `0:15` for a signal."""

from __future__ import annotations

import os

from pocketslurm.resources import OUT_OF_MEMORY

_SHELL_SIGNAL = 128


def format_exit_code(status: int) -> str:
    """Format a wait status for scontrol."""
    signal = status & 0x7F
    return f"{0 if signal else status >> 8}:{signal}"


def format_accounted_exit_code(status: int) -> str:
    """Format a wait status for sacct: it prints the 137 of a shell as 9."""
    code, signal = status >> 8 & 0xFF, status & 0x7F
    if code > _SHELL_SIGNAL:
        return f"{code - _SHELL_SIGNAL}:{signal}"
    return f"{0 if signal else code}:{signal}"


def srun_exit_code(status: int) -> int:
    """Return the exit code of srun for the wait status of its step."""
    if status == OUT_OF_MEMORY:
        return 1
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def step_state(status: int) -> str:
    """Return the state of an ended step in sacct."""
    if status == OUT_OF_MEMORY:
        return "OUT_OF_MEMORY"
    if os.WIFSIGNALED(status):
        return "CANCELLED"
    return "FAILED" if status else "COMPLETED"
