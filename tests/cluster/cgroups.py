"""A part of the machine's freezer for each host: proctrack/cgroup, as clusters have it, where there is cgroup v1."""

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
    """Whether hosts can have cgroups of their own here. A container without them tracks processes by linuxproc."""
    return (MOUNT / "cgroup.procs").exists() and os.access(MOUNT, os.W_OK)


def top(settings: Settings) -> Path:
    """What holds the cgroups of one cluster, as seen from the machine: its directory's path, as one name."""
    return MOUNT / "-".join(settings.root.parts[1:])


def join_commands(settings: Settings, host: str) -> list[str]:
    """Lines of shell by which a host's first process moves into the host's part."""
    own = shlex.quote(str(top(settings) / host))
    return [f"mkdir -p {own}", f"echo $$ > {own}/cgroup.procs"] if available() else []


def mount_commands(settings: Settings, host: str) -> list[str]:
    """Lines of shell that show the host its own part only: steps of all hosts have the same names."""
    return [f"mount --bind {shlex.quote(str(top(settings) / host))} {MOUNT}"] if available() else []


def clear(settings: Settings, patience: float = 20.0) -> None:
    """Remove the cluster's cgroups, when the last of their processes have gone."""
    deadline = time.monotonic() + patience
    while top(settings).exists():
        folders = [Path(place) for place, _, _ in os.walk(top(settings), topdown=False)]
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{top(settings)} cannot be removed after {patience:.0f} s: processes are left in it")
        time.sleep(0.02)
