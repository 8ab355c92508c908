"""The two Slurms on which faults are injected: the embedded one, and the real one of four hosts."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pocketslurm.commands.pocketslurm import install
from pocketslurm.settings import Settings
from tests.cluster import Cluster


class Queue(Protocol):
    """One Slurm with a folder for jobs."""

    folder: Path
    kit_cluster: str
    """The cluster file for `render`."""
    minute: float
    """Seconds of a minute of this Slurm."""

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm in the folder."""

    def kill(self, pid: int, number: int) -> None:
        """Signal a process of a job."""

    def state(self, job_id: str) -> str:
        """Return the state of a job; empty if Slurm has forgotten it."""


class _Commands:
    folder: Path

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        raise NotImplementedError

    def kill(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def state(self, job_id: str) -> str:
        found = self.call("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T").stdout.split()
        return found[0] if found else ""


class EmbeddedQueue(_Commands):
    """The embedded Slurm. Its minutes last two seconds."""

    kit_cluster, minute = "local", 2.0

    def __init__(self, root: Path) -> None:
        self.folder = root / "work"
        self.folder.mkdir()
        settings = Settings(nodes="127.0.0.[1-4]", cpus=64, memory=16000, minute=self.minute, kill_wait=1.0)
        self.environ = install(settings, root / "state", os.environ)

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    def close(self) -> None:
        """End all jobs. The controller ends with the last one."""
        self.call("scancel", "--me")
        deadline = time.monotonic() + 30
        while self.call("squeue", "--noheader").stdout and time.monotonic() < deadline:
            time.sleep(0.1)


class RealQueue(_Commands):
    """The real Slurm of four hosts."""

    kit_cluster, minute = "slurm", 60.0

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(argv, cwd=self.folder)

    def close(self) -> None:
        """End all jobs."""
        self.call("scancel", "--me")
