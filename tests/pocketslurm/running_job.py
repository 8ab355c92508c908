"""A running job in which tests call srun as its batch script would, with the environment of the script."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pocketslurm.conftest import Slurm, wait_for
from tests.preloaded import Preloaded


class StepOutput(NamedTuple):
    """Exit status and output of an srun. The lines are sorted, because tasks end in any order."""

    status: int
    out: list[str]
    err: list[str]


def exits_of_tasks(lines: list[str]) -> dict[str, str]:
    """Return the end of each task by `node task`. srun reports tasks that end together in one line."""
    found: dict[str, str] = {}
    for line in lines:
        if match := re.fullmatch(r"srun: error: (\S+): tasks? (\S+): (.*)", line):
            for item in match[2].split(","):
                first, _, last = item.partition("-")
                found |= {f"{match[1]} {task}": match[3] for task in range(int(first), int(last or first) + 1)}
    return found


class RunningJob:
    """A job that sleeps until the test ends it."""

    def __init__(self, slurm: Slurm, *options: str) -> None:
        self.slurm = slurm
        self.folder = slurm.folder / f"inside{len(list(slurm.folder.iterdir()))}"
        self.folder.mkdir()
        dump = self.folder / "environ"
        body = f"env -0 > {dump}.part; mv {dump}.part {dump}; exec sleep 1000"
        self.job_id = slurm.submit(body, "--output=/dev/null", *options)
        wait_for(dump.exists)
        pairs = (pair.partition("=") for pair in dump.read_text().split("\0") if pair)
        self.environ = {name: value for name, _, value in pairs}
        # Python's own, where the tests' interpreter runs with coverage and the like.
        self.environ["PATH"] = self.slurm.environ["PATH"]

    def start(self, *argv: str, env: dict[str, str] | None = None, stdin: str = "") -> Preloaded:
        """Start an srun in its own session, so that signals of a test reach nothing else."""
        return self.slurm.start("srun", *argv, stdin=stdin, env={**self.environ, **(env or {})}, folder=self.folder)

    def end(self, process: Preloaded) -> StepOutput:
        """Wait for an srun, at most 20 s."""
        try:
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.output()
            pytest.fail(f"srun did not end; its output:\n{out}\n{err}")
        return StepOutput(process.wait(), sorted(out.splitlines()), sorted(err.splitlines()))

    def srun(self, *argv: str, env: dict[str, str] | None = None, stdin: str = "") -> StepOutput:
        """Run an srun and wait for it."""
        return self.end(self.start(*argv, env=env, stdin=stdin))

    def text(self, name: str) -> str:
        """Return the text of a file in the folder of the job."""
        return (self.folder / name).read_text()


def start_job(tmp_path_factory: pytest.TempPathFactory, *options: str, **settings: object) -> Iterator[RunningJob]:
    """Yield a running job in a new embedded Slurm, for a fixture."""
    slurm = Slurm(Path(tmp_path_factory.mktemp("inside")), **settings)
    try:
        yield RunningJob(slurm, *options)
    finally:
        slurm.clear()
