"""A freezer cgroup for each host, for proctrack/cgroup as on production clusters. Needs cgroup v1."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import Settings

MOUNT = Path("/sys/fs/cgroup/freezer")


def available() -> bool:
    """Return whether this machine allows a cgroup per host. Without cgroups, Slurm tracks processes by linuxproc."""
    return (MOUNT / "cgroup.procs").exists() and os.access(MOUNT, os.W_OK)


def top(settings: Settings) -> Path:
    """Return the parent of the cluster's cgroups, seen from the machine; its name is the path of the cluster."""
    return MOUNT / "-".join(settings.root.parts[1:])


def join_commands(settings: Settings, host: str) -> list[str]:
    """Return shell commands that move a host's first process into the host's cgroup."""
    own = shlex.quote(str(top(settings) / host))
    return [f"mkdir -p {own}", f"echo $$ > {own}/cgroup.procs"] if available() else []


def mount_commands(settings: Settings, host: str) -> list[str]:
    """Return shell commands that show the host only its own cgroup: steps have the same names on all hosts."""
    return [f"mount --bind {shlex.quote(str(top(settings) / host))} {MOUNT}"] if available() else []


def clear(settings: Settings, patience: float = 20.0) -> None:
    """Remove the cluster's cgroups after their last process has ended."""
    deadline = time.monotonic() + patience
    while top(settings).exists():
        folders = [Path(place) for place, _, _ in os.walk(top(settings), topdown=False)]
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{top(settings)} cannot be removed after {patience:.0f} s: processes are left in it")
        time.sleep(0.02)
