"""An embedded Slurm of a test's own: its commands, its folder, and the certainty that nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from pocketslurm.commands.pocketslurm import install
from pocketslurm.pytest_plugin import find_processes
from pocketslurm.queue.records import Job
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import Settings
from tests.pocketslurm import forked
from tests.pocketslurm.forked import PIPE

T = TypeVar("T")
PATIENCE = 30.0


def wait_for(what: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """What the function gives as soon as it is true, asked again and again."""
    began = asked = time.monotonic()
    while not (found := what()):
        took = time.monotonic() - asked
        if time.monotonic() > began + seconds:
            pytest.fail(f"waited {seconds} s in vain, last seen: {found!r}")
        time.sleep(max(0.02, took))  # whoever is waited for has half of the machine
        asked = time.monotonic()
    return found


class Slurm:
    """The commands of one embedded Slurm, called from a folder of its own."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.folder = root / "work"
        self.folder.mkdir(parents=True)
        self.directory = root / "state"
        chosen = {"nodes": "n[1-4]", "memory": 16000, "gpus": 2, "kill_wait": 1.0, "strict": True, **settings}
        self.settings = Settings(**chosen)  # type: ignore[arg-type]
        self.environ = install(self.settings, self.directory, os.environ)

    def start(self, *argv: str, env: dict[str, str] | None = None, folder: Path | None = None) -> subprocess.Popen[str]:
        """A command that runs, in the work folder unless told otherwise."""
        return forked.start(argv, {**self.environ, **(env or {})}, folder or self.folder, stdin=PIPE)

    def run(
        self, *argv: str, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*argv, env=env)
        out, err = process.communicate(stdin or "", timeout=60)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def said(self, *argv: str, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
        """What a command prints; it must succeed and complain of nothing."""
        done = self.run(*argv, stdin=stdin, env=env)
        assert (done.returncode, done.stderr) == (0, ""), f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, *argv: str, stdin: str | None = None) -> tuple[int, str]:
        """Exit status and complaint of a command that must print nothing else."""
        done = self.run(*argv, stdin=stdin)
        assert done.stdout == ""
        assert done.returncode != 0, f"{argv} succeeded"
        return done.returncode, done.stderr

    def submit(self, body: str, *options: str, arguments: tuple[str, ...] = (), shell: str = "/bin/bash") -> int:
        """Submit a script with this body; its id."""
        script = self.folder / "job.sh"
        script.write_text(f"#!{shell}\n{body}\n")
        told = self.said("sbatch", "--parsable", *options, str(script), *arguments)
        return int(told.partition(";")[0])

    def state(self) -> StateDirectory:
        """The state, to look into."""
        return StateDirectory.open(self.environ)

    def job(self, job_id: int) -> Job:
        """A job's record."""
        state = self.state()
        job = state.job(job_id)
        state.close()
        assert job is not None
        return job

    def until(self, job_id: int, *states: str, seconds: float = PATIENCE) -> Job:
        """A job as soon as it is in one of these states, its processes gone where that is a final one."""

        def reached() -> Job | None:
            job = self.job(job_id)
            return job if job.state in states and not job.completing else None

        return wait_for(reached, seconds=seconds)

    def ended(self, job_id: int) -> Job:
        """A job when it is over."""
        return wait_for(lambda: job if not (job := self.job(job_id)).active else None)

    def log(self, name: str) -> str:
        """The text of a log file in the work folder, empty while there is none."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[int]:
        """All that belongs to this Slurm: daemons, and what carries its mark."""
        return sorted(set(find_processes(self.directory)) - {os.getppid()})

    def clear(self) -> None:
        """Cancel what is left, and wait for the last process to go."""
        if (self.directory / "slurm.db").exists() and self.processes():
            self.run("scancel", "--me")
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == [], "processes were left behind"


@pytest.fixture(scope="session", autouse=True)
def _no_database_lives_through_a_fork() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        forked.let_go_before_forks(patch)
        yield


@pytest.fixture
def make_slurm(tmp_path: Path) -> Iterator[Callable[..., Slurm]]:
    """Makes an embedded Slurm with given settings; all are cleared away at the end."""
    made: list[Slurm] = []

    def make(**settings: object) -> Slurm:
        made.append(Slurm(tmp_path / f"slurm{len(made)}", **settings))
        return made[-1]

    yield make
    for each in made:
        each.clear()


@pytest.fixture
def slurm(make_slurm: Callable[..., Slurm]) -> Slurm:
    """An embedded Slurm of four nodes n1-n4 with 8 CPUs and 2 GPUs each."""
    return make_slurm()
