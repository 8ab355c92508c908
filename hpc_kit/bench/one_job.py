"""One job: submitted, waited for, gone when what it was for is over."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpc_kit.errors import JobFailed
from hpc_kit.slurm.inherited import clean_environ

_PAUSE = 0.05
QUEUE_PAUSE = 2.0
"""Seconds between two questions to Slurm."""


@contextmanager
def submitted(argv: list[str], environ: Mapping[str, str]) -> Iterator[str]:
    """The job's id; at the end the job has left the queue."""
    done = subprocess.run(argv, env=clean_environ(environ), capture_output=True, text=True, check=False)
    match = re.search(r"^(?:job\s+)?(\d+)", done.stdout, re.MULTILINE)
    if done.returncode or match is None:
        said = (done.stderr or done.stdout).strip()
        raise JobFailed("the job was not taken", found=said, remedy="fewer --ranks or more --nodes")
    ended = False
    try:
        yield match[1]
        ended = True
    finally:
        if not ended:
            ask(["scancel", match[1]], environ)
        _wait(lambda: not state(match[1], environ), time.time() + 60)


def result(job: str, folder: Path, environ: Mapping[str, str], deadline: float) -> dict[str, float]:
    """What rank 0 has left, as soon as it is there."""
    found, looked = folder / "found.json", time.time()
    while not found.exists():
        if time.time() - looked > QUEUE_PAUSE:
            looked, known = time.time(), state(job, environ)
            if not known and not found.exists():
                log = folder / "log"
                said = log.read_text(errors="replace")[-1500:] if log.exists() else f"hpc-kit logs {job} --all"
                raise JobFailed(f"job {job} ended without a first step", found=said, remedy="its log")
        if time.time() > deadline:
            raise JobFailed(f"job {job} had no first step in time", found=state(job, environ), remedy="--timeout")
        time.sleep(_PAUSE)
    told: dict[str, float] = json.loads(found.read_text())
    return told


def state(job: str, environ: Mapping[str, str]) -> str:
    """As squeue says; nothing where the job has left the queue. A squeue that has no answer tells nothing of that."""
    done = ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T"], environ)
    if done.returncode and "Invalid job id" not in done.stderr:
        return "UNKNOWN"
    return done.stdout.strip()


def ask(argv: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing of the job around it."""
    return subprocess.run(argv, env=clean_environ(environ), capture_output=True, text=True, check=False)


def _wait(over: Callable[[], bool], deadline: float) -> None:
    while not over() and time.time() < deadline:
        time.sleep(QUEUE_PAUSE)
