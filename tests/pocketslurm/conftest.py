"""The fixtures `slurm` and `make_slurm`: an embedded Slurm for one test, which must leave no process behind."""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import pocketslurm
from pocketslurm.commands.pocketslurm import install
from pocketslurm.pytest_plugin import find_processes
from pocketslurm.queue.records import Job
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import Settings
from tests.preloaded import Preloaded

T = TypeVar("T")
PATIENCE = 30.0


MODULES = tuple(
    name
    for _, name, _ in pkgutil.walk_packages(pocketslurm.__path__, "pocketslurm.")
    if name not in {"pocketslurm.__main__", "pocketslurm.pytest_plugin"}
)


def wait_for(condition: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """Call a function until its result is true, and return that result."""
    began = called = time.monotonic()
    while not (found := condition()):
        took = time.monotonic() - called
        if time.monotonic() > began + seconds:
            pytest.fail(f"no result within {seconds} s; the last one was {found!r}")
        time.sleep(max(0.02, took))  # leaves half of the machine to the processes that the test waits for
        called = time.monotonic()
    return found


class Slurm:
    """The commands of one embedded Slurm, called from a folder of its own."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.commands = 0
        self.first = ""  # code that each command runs first, also for the daemons that it starts
        self.folder = root / "work"
        self.folder.mkdir(parents=True)
        self.directory = root / "state"
        chosen = {"nodes": "n[1-4]", "memory": 16000, "gpus": 2, "kill_wait": 1.0, "strict": True, **settings}
        self.settings = Settings(**chosen)  # type: ignore[arg-type]
        self.environ = install(self.settings, self.directory, os.environ)

    def start(
        self, *argv: str, stdin: str = "", env: dict[str, str] | None = None, folder: Path | None = None
    ) -> Preloaded:
        """Start a command, by default in the work folder. Scripts of tests start commands as new interpreters."""
        self.commands += 1
        environ = {**self.environ, **(env or {})}
        output = self.folder.parent / f"command{self.commands}"
        words = ["-c", f"{self.first}\nfrom pocketslurm.__main__ import main\nmain()", *argv]
        return Preloaded(words, environ, folder or self.folder, output, stdin=stdin, modules=MODULES)

    def run(self, *argv: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*argv, stdin=stdin, env=env)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(argv, process.wait(), out, err)

    def check_output(self, *argv: str, stdin: str = "", env: dict[str, str] | None = None) -> str:
        """Return the output of a command, which must succeed and print nothing on stderr."""
        done = self.run(*argv, stdin=stdin, env=env)
        assert (done.returncode, done.stderr) == (0, ""), f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, *argv: str, stdin: str = "") -> tuple[int, str]:
        """Return the exit status and the error message of a command that must fail and print nothing on stdout."""
        done = self.run(*argv, stdin=stdin)
        assert done.stdout == ""
        assert done.returncode != 0, f"{argv} succeeded"
        return done.returncode, done.stderr

    def submit(self, body: str, *options: str, arguments: tuple[str, ...] = (), shell: str = "/bin/bash") -> int:
        """Submit a script with this body and return the job id."""
        script = self.folder / "job.sh"
        script.write_text(f"#!{shell}\n{body}\n")
        answer = self.check_output("sbatch", "--parsable", *options, str(script), *arguments)
        return int(answer.partition(";")[0])

    def state(self) -> StateDirectory:
        """Open the state directory."""
        return StateDirectory.open(self.environ)

    def job(self, job_id: int) -> Job:
        """Return the record of a job."""
        state = self.state()
        job = state.job(job_id)
        state.close()
        assert job is not None
        return job

    def jobs(self) -> list[Job]:
        """Return the records of all jobs."""
        state = self.state()
        jobs = state.jobs()
        state.close()
        return jobs

    def until(self, job_id: int, *states: str, seconds: float = PATIENCE) -> Job:
        """Wait until a job is in one of these states and, if the state is final, has no process left."""

        def reached() -> Job | None:
            job = self.job(job_id)
            return job if job.state in states and not job.completing else None

        return wait_for(reached, seconds=seconds)

    def ended(self, job_id: int) -> Job:
        """Wait for the end of a job."""
        return wait_for(lambda: job if not (job := self.job(job_id)).active else None)

    def log(self, name: str) -> str:
        """Return the text of a log file in the work folder, or an empty text if the file does not exist."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[int]:
        """Return the ids of all processes of this Slurm: its daemons, and processes with its variables."""
        return sorted(set(find_processes(self.directory)) - {os.getppid()})

    def clear(self) -> None:
        """Cancel the remaining jobs and wait for the last process to end."""
        if (self.directory / "slurm.db").exists() and self.processes():
            self.run("scancel", "--me")
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == [], "processes were left behind"


@pytest.fixture
def make_slurm(tmp_path: Path) -> Iterator[Callable[..., Slurm]]:
    """Return a function that creates an embedded Slurm with given settings. All of them end with the test."""
    made: list[Slurm] = []

    def make(**settings: object) -> Slurm:
        made.append(Slurm(tmp_path / f"slurm{len(made)}", **settings))
        return made[-1]

    yield make
    for each in made:
        each.clear()


@pytest.fixture(scope="module")
def unused_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """An embedded Slurm like `slurm` for the tests of a module that submit no job that starts."""
    found = Slurm(tmp_path_factory.mktemp("unused"))
    yield found
    found.clear()


@pytest.fixture
def slurm(make_slurm: Callable[..., Slurm]) -> Slurm:
    """An embedded Slurm of four nodes n1-n4 with 8 CPUs and 2 GPUs each."""
    return make_slurm()
