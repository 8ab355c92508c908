"""One interface to both Slurms, which uses only their commands."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from tests.cluster import Cluster
from tests.cluster.settings import CONTROLLER
from tests.pocketslurm.conftest import Slurm

T = TypeVar("T")
Answer = subprocess.CompletedProcess[str]

FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE"}
PATIENCE = 25.0


class Ended(NamedTuple):
    """State and exit code of a job in the accounting."""

    state: str
    code: str
    """Slurm's `ExitCode`: exit code, colon, signal."""


class Engine:
    """A Slurm of four nodes n1..n4 with 8 CPUs, 16000 MiB and 2 GPUs each, and a shared folder."""

    name: str
    folder: Path

    def run(self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """Run a command on the login host, in the folder."""
        raise NotImplementedError

    def output_of(self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
        """Return the output of a command, which must succeed without errors."""
        done = self.run(*argv, stdin=stdin, env=env)
        assert (done.returncode, done.stderr) == (0, ""), f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, body: str, *options: str, arguments: tuple[str, ...] = ()) -> str:
        """Submit a script with this body, and return the job id."""
        descriptor, path = tempfile.mkstemp(suffix=".sh", dir=self.folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(body if body.startswith("#!") else f"#!/bin/bash\n{body}\n")
        return self.output_of("sbatch", "--parsable", *options, path, *arguments).strip()

    def show_job(self, job_id: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`."""
        return dict(re.findall(r"(\w[\w:/]*)=(\S*)", self.output_of("scontrol", "-o", "show", "job", job_id)))

    def await_end(self, job_id: str) -> Ended:
        """Wait until a job and its processes have ended, and return its state and exit code."""
        fields = self.wait_until(lambda: found if (found := self.show_job(job_id))["JobState"] in FINAL else None)
        return Ended(fields["JobState"], fields["ExitCode"])

    def await_file(self, job_id: str, file: str) -> None:
        """Wait until the job has written that file."""
        self.wait_until(lambda: (self.folder / file).exists() or None)

    def await_reason(self, job_id: str, reason: str) -> None:
        """Wait until a pending job has that reason."""
        self.wait_until(
            lambda: self.output_of("squeue", "-h", "-j", job_id, "-o", "%T %r").strip() == f"PENDING {reason}"
        )

    def wait_until(self, what: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
        """Call the function until its result is true, and return the result."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds} s in vain\n{self.run('squeue', '-t', 'all').stdout}")
            time.sleep(0.1)
        return found

    def read_text(self, name: str) -> str:
        """Return the text of a file of the folder."""
        return (self.folder / name).read_text()

    def run_job(self, body: str, *options: str) -> str:
        """Run a job, which must succeed, and return its output."""
        job_id = self.submit(body, *options, "--output=of-%j")
        ended = self.await_end(job_id)
        text = self.read_text(f"of-{job_id}")
        assert ended.state == "COMPLETED", text
        return text


class Embedded(Engine):
    """The embedded Slurm."""

    name = "embedded"

    def __init__(self, slurm: Slurm) -> None:
        self.folder = slurm.folder
        self._slurm = slurm

    def run(self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        return self._slurm.run(*argv, stdin=stdin, env=dict(env or {}))


class Real(Engine):
    """The real Slurm on four hosts."""

    name = "real"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.folder = Path(tempfile.mkdtemp(prefix="conformance-", dir=cluster.settings.work))

    def run(self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        return subprocess.run(
            self._cluster.argv(argv, host=CONTROLLER, cwd=self.folder),
            input=stdin,
            capture_output=True,
            text=True,
            env=self._cluster.environ({**os.environ, **(env or {})}),
            timeout=150,
            check=False,
        )
