"""A plug-in of pytest: the fixture `pocketslurm` gives a test a Slurm of its own, with its commands on PATH."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE_VARIABLE = "HPC_KIT_SLURM_STATE"

_OF_A_JOB = (
    "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "PMI_", "HPC_KIT_SLURM_"
)  # fmt: skip
_ACTIVE = {"PENDING", "RUNNING", "COMPLETING"}
_DEFAULTS: dict[str, object] = {"kill_wait": 2, "min_job_age": 86400}  # squeue shows each job until the test ends
_POLL_SECONDS = 0.1


class Job:
    """A submitted job.

    Attributes:
        id: Its id.
    """

    def __init__(self, job_id: int) -> None:
        self.id = job_id

    @property
    def state(self) -> str:
        """The state of the job as sacct prints it, such as `COMPLETED`; of an array, the first state that differs."""
        states = _call("sacct", "-nPX", f"-j{self.id}", "-oState").split("\n")
        names = [state.split()[0] for state in states if state]
        return next((name for name in names if name != "COMPLETED"), names[0] if names else "")

    @property
    def exit_code(self) -> int:
        """The exit code of the batch script, 128 and the number for a signal; of an array, the highest."""
        codes = [os.waitstatus_to_exitcode(record["exit_code"]) for record in self._records()]
        return max(code if code >= 0 else 128 - code for code in codes)

    @property
    def output(self) -> str:
        """The text that the job has written to its standard output so far; of an array, all of them in order."""
        return self._logs("standard_output")

    @property
    def error(self) -> str:
        """The text of its standard error; the same as `output`, unless `--error` names another file."""
        return self._logs("standard_error")

    def wait(self, timeout: float = 60) -> Job:
        """Wait until the job has ended, and return it.

        Args:
            timeout: Seconds; after them the test fails.
        """
        deadline = time.monotonic() + timeout
        while left := [record for record in self._records() if record["job_state"] in _ACTIVE]:
            if time.monotonic() > deadline:
                where = f"job {self.id} is {self.state} ({left[0]['state_reason']}) after {timeout:g} s"
                pytest.fail(f"{where}; its output:\n{self.output}")
            time.sleep(_POLL_SECONDS)
        return self

    def _records(self) -> list[dict[str, Any]]:
        """Return what squeue prints of the job, or of each task of an array in order."""
        jobs = json.loads(_call("squeue", "--json", "--states=all", f"--jobs={self.id}"))["jobs"]
        return sorted(jobs, key=lambda job: job["array_task_id"] or 0)

    def _logs(self, stream: str) -> str:
        paths = dict.fromkeys(Path(record[stream]) for record in self._records())
        return "".join(path.read_text(errors="replace") for path in paths if path.is_file())


class PocketSlurm:
    """A queue of one test.

    Attributes:
        folder: The state directory of the queue.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = dict(_DEFAULTS)

    def __call__(self, *, nodes: int | str | None = None, **settings: object) -> PocketSlurm:
        """Change the queue before its first job: `pocketslurm(nodes=2, gpus=1)`.

        Args:
            nodes: The number of nodes, or a node list such as `n[1-4]`.
            settings: Other settings: `cpus`, `memory` (MiB) and `gpus` of each node, `partitions`, `strict`, ...

        Returns:
            The queue itself.
        """
        if isinstance(nodes, int):
            # Addresses that programs can connect to.
            nodes = f"127.0.0.[1-{nodes}]"
        self._settings |= settings if nodes is None else {**settings, "nodes": nodes}
        _set_up(self.folder, self._settings)
        return self

    def submit(self, *words: str | os.PathLike[str]) -> Job:
        """Submit a job with the words of an sbatch command: `submit("--nodes=2", "train.sh", "--epochs=1")`."""
        answer = _call("sbatch", "--parsable", *(os.fspath(word) for word in words))
        return Job(int(answer.partition(";")[0]))

    def run(self, *words: str | os.PathLike[str], timeout: float = 60) -> Job:
        """Submit a job like `submit`, wait for its end, and return it."""
        return self.submit(*words).wait(timeout)

    def end(self) -> None:
        """Kill all jobs and the controller, and delete all files of the queue."""
        for _ in range(100):
            pids = find_processes(self.folder)
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        shutil.rmtree(self.folder, ignore_errors=True)


def find_processes(folder: Path) -> list[int]:
    """Return the pids of a queue: controller, supervisors, jobs, and whatever these have started.

    Jobs have the state directory in their environment. The controller and the supervisors write to its log.
    """
    mark = f"{STATE_VARIABLE}={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            variables = (path / "environ").read_bytes().split(b"\0")
            if mark in variables or (path / "fd" / "2").readlink().is_relative_to(folder):
                found.append(int(path.name))
    return sorted(set(found) - {os.getpid()})


def _set_up(folder: Path, settings: dict[str, object]) -> str:
    argv = [sys.executable, "-P", "-m", "pocketslurm", "path", "--state", str(folder), "--settings", "-"]
    done = subprocess.run(argv, input=json.dumps(settings), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr)
    return done.stdout.removesuffix("\n")


def _call(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(argv)}: {done.stderr or done.stdout}")
    return done.stdout


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "pocketslurm(nodes, cpus, memory, gpus, ...): settings of the queue of the fixture `pocketslurm`, such as "
        "nodes=2, gpus=1",
    )


@pytest.fixture
def pocketslurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PocketSlurm]:
    """Give a test its own Slurm with the commands on PATH, and end it with all jobs after the test.

    Choose its size by the marker `@pytest.mark.pocketslurm(nodes=2, gpus=1)` or by a call, `pocketslurm(nodes=2)`.
    """
    for name in list(os.environ):
        if name.startswith(_OF_A_JOB):
            monkeypatch.delenv(name)
    queue = PocketSlurm(tmp_path_factory.mktemp("pocketslurm") / "state")
    try:
        chosen: dict[str, object] = {}
        for mark in reversed(list(request.node.iter_markers("pocketslurm"))):  # the test's own after its class's
            chosen |= mark.kwargs
        queue(**chosen)  # type: ignore[arg-type]
        monkeypatch.setenv("PATH", str(queue.folder / "bin"), prepend=os.pathsep)
        monkeypatch.setenv(STATE_VARIABLE, str(queue.folder))
        yield queue
    finally:
        queue.end()
