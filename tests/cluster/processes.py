"""Finds the processes of a cluster by its directory, which is mounted only in their namespaces.

There are no pid files that could be outdated or name a recycled pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple


class Member(NamedTuple):
    """One process of the cluster."""

    pid: int
    host: str
    name: str


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # the process has ended


def host_of(pid: int, own: Path) -> str | None:
    """Return the host whose private directory the process sees at `own`."""
    mounted_at = str(own).replace(" ", "\\040")
    host = None
    # The last of several mounts on one path is visible.
    for line in _read(Path(f"/proc/{pid}/mountinfo")).splitlines():
        _, _, _, source, target, *_ = line.split(" ")
        if target == mounted_at:
            host = source.rpartition("/")[2]
    return host


def members(own: Path) -> list[Member]:
    """Return every running process of the cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        host = host_of(int(entry.name), own)
        if host is not None:
            found.append(Member(int(entry.name), host, _read(entry / "comm").strip()))
    return sorted(found)


def end_all(own: Path, *, patience: float = 20.0) -> None:
    """End every process of the cluster, including those that start in the meantime."""
    deadline = time.monotonic() + patience
    while left := members(own):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still running after {patience:.0f} s: {left}")
        for member in left:
            kill(member, own)
        time.sleep(0.02)


def kill(member: Member, own: Path) -> None:
    """Kill one process if it still runs and belongs to the cluster."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(member.pid)
        try:
            if host_of(member.pid, own) is not None:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
