"""A user's project in the shared directory, in which tests run the Makefile and hpc-kit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")

SHARED = ("Makefile", "env", "jobs", "templates", "pyproject.toml")


class Project:
    """A folder like a clone of the repository, with an environment like that of `env/make_venv.sh`.

    Args:
        cluster: The cluster on which commands run; on the login host by default.
        name: Prefix of its folder in the cluster's shared directory.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.folder = folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cluster.settings.work))
        # The user is root. Open MPI refuses root unless two variables allow it.
        self.environ = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self._started: list[subprocess.Popen[str]] = []
        for name in SHARED:
            # Links instead of copies: the nodes read the files under test.
            (folder / name).symlink_to(ROOT / name)
        self._venv()

    def _venv(self) -> None:
        place = self.folder / ".venv"
        interpreter(place, [str(ROOT)])
        kit = place / "bin" / "hpc-kit"
        # pip writes this first line if the path has a space, at which the kernel would split it.
        start = f"#!/bin/sh\n'''exec' \"{place}/bin/python\" \"$0\" \"$@\"\n' '''\n"
        kit.write_text(f"{start}from hpc_kit.__main__ import main\n\nmain()\n")
        kit.chmod(0o755)
        for part, of in (("packages", "env/requirements.txt"), ("kit", "pyproject.toml")):
            with (ROOT / of).open() as stream:
                sums = subprocess.run(["cksum"], stdin=stream, capture_output=True, text=True, check=True).stdout
            (place / f".{part}").write_text((" " if part == "packages" else "") + sums)

    def run(
        self,
        argv: Sequence[str],
        *,
        host: str = CONTROLLER,
        timeout: float = 170,
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the project, on a host of the cluster, without this process's PYTHONPATH."""
        line = self.cluster.argv(self._own(argv), host=host, cwd=self.folder)
        return subprocess.run(
            line, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, env=self.env(environ or {})
        )

    def start(
        self, argv: Sequence[str], *, host: str = CONTROLLER, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Like `run`, but does not wait. Both streams are one."""
        process = subprocess.Popen(
            self.cluster.argv(self._own(argv), host=host, cwd=self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env(environ or {}),
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End started processes that still run."""
        for process in self._started:
            with process:
                process.kill()

    def _own(self, argv: Sequence[str]) -> list[str]:
        """Return the command line with the path of a program of .venv."""
        own = self.folder / ".venv" / "bin" / argv[0]
        return [str(own) if own.exists() else argv[0], *argv[1:]]

    def env(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a user on that host."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return self.cluster.environ({**own, **self.environ, **variables})

    def make(self, target: str, **values: str) -> subprocess.CompletedProcess[str]:
        """Run `make submit JOB=...`."""
        return self.run(["make", "--no-print-directory", target, *(f"{name}={text}" for name, text in values.items())])

    def kit(self, *words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `hpc-kit ...`."""
        return self.run(["hpc-kit", *words], environ=environ)

    def submit(self, *words: str, environ: Mapping[str, str] | None = None) -> str:
        """Run `hpc-kit submit ...`, which must succeed. Return the job id."""
        done = self.run(["hpc-kit", "submit", *words], environ=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return job_id(done.stdout)

    def status(self, *ids: str) -> list[dict[str, Any]]:
        """Return the output of `hpc-kit status --json`."""
        done = self.kit("status", *ids, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def await_state(self, job_id: str, *wanted: str, patience: float = 120) -> str:
        """Poll Slurm, more often than a user should, until the job is in one of these states. Return the state."""
        asked = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"]
        deadline = time.monotonic() + patience
        while True:
            answer = self.cluster.run(asked)
            states = answer.stdout.split() or self._remembered(job_id) or [answer.stderr.strip()]
            if all(state in wanted for state in states):
                return states[0]
            if time.monotonic() > deadline:
                shown = self.cluster.run(["scontrol", "show", "job", job_id]).stdout
                raise TimeoutError(f"job {job_id} is {states}, not {wanted} in {patience:.0f} s\n{shown}")
            time.sleep(0.2)

    def _remembered(self, job_id: str) -> list[str]:
        """Return the state of a job that squeue no longer lists, from the accounting."""
        asked = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={job_id}"]
        return [line.split()[0] for line in self.cluster.run(asked).stdout.splitlines() if line]

    def await_end(self, job_id: str, patience: float = 120) -> str:
        """Wait for the end of the job, and return its state."""
        return self.await_state(job_id, *ENDED, patience=patience)

    def program(self, name: str, text: str) -> None:
        """Write a program of the user."""
        (self.folder / name).write_text(text)


def job_id(account: str) -> str:
    """Return the job id from the output of `hpc-kit submit`."""
    words = [line.split() for line in account.splitlines() if line.startswith("job ")]
    assert words, account
    return words[0][1]


def interpreter(place: Path, more: Sequence[str] = ()) -> Path:
    """Create a separate Python that sees the packages of the running one, and the folders `more`.

    It does not see packages that are installed through a `.pth` file, such as hpc_kit during development.
    """
    venv.create(place, symlinks=True, with_pip=False)
    packages = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    seen = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *more]
    (packages / "given.pth").write_text("\n".join(dict.fromkeys(seen)) + "\n")
    return place / "bin" / "python"
