"""The inside of a job: srun called as its batch script would, with the script's own environment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pocketslurm import forked
from tests.pocketslurm.conftest import Slurm, wait_for


class Said(NamedTuple):
    """What a finished srun has left: its status and its words, sorted, since tasks end in any order."""

    status: int
    out: list[str]
    err: list[str]


def ends(lines: list[str]) -> dict[str, str]:
    """How tasks ended, by `node task`: srun joins tasks in a line only if they ended at about the same time."""
    found: dict[str, str] = {}
    for line in lines:
        if match := re.fullmatch(r"srun: error: (\S+): tasks? (\S+): (.*)", line):
            for item in match[2].split(","):
                first, _, last = item.partition("-")
                found |= {f"{match[1]} {task}": match[3] for task in range(int(first), int(last or first) + 1)}
    return found


class Inside:
    """A running job that does nothing but wait."""

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

    def start(
        self, *argv: str, env: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """An srun that runs; in a session of its own, so that a test's signals reach it alone."""
        return forked.start(["srun", *argv], {**self.environ, **(env or {})}, self.folder, stdin=stdin)

    def end(self, process: subprocess.Popen[str], stdin: str | None = None) -> Said:
        """Wait for it; it must not take long."""
        try:
            out, err = process.communicate(stdin, timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"srun did not end; it said:\n{out}\n{err}")
        return Said(process.returncode, sorted(out.splitlines()), sorted(err.splitlines()))

    def srun(self, *argv: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Said:
        """Run an srun to its end."""
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        return self.end(self.start(*argv, env=env, stdin=source), stdin)

    def text(self, name: str) -> str:
        """A file in the folder."""
        return (self.folder / name).read_text()


def enter(tmp_path_factory: pytest.TempPathFactory, *options: str, **settings: object) -> Iterator[Inside]:
    """A job in an embedded Slurm of its own, for as long as a fixture lives."""
    slurm = Slurm(Path(tmp_path_factory.mktemp("inside")), **settings)
    try:
        yield Inside(slurm, *options)
    finally:
        slurm.clear()
