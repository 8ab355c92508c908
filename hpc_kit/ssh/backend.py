"""The backend of launches over ssh: the run folder shows whether the launcher lives, and how it ended."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import LaunchError
from hpc_kit.runtime.proc_stat import START_TIME, STATE, read_stat
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.client import SlurmClient

NAME = "ssh"
"""Value of the record's field `slurm` for a launch."""

LAUNCHER_FILE = "launcher"
"""Contains `pid start host` of the launching process, which locks the file for as long as it lives."""


class Launcher(NamedTuple):
    """The process that launched a run."""

    pid: int
    start: str
    """Start time in clock ticks since boot. With the pid it identifies a process on one machine."""

    host: str

    @property
    def is_on_this_host(self) -> bool:
        """True if it was started on this machine."""
        return self.host == os.uname().nodename


class SshBackend:
    """Launches over ssh."""

    uses_slurm = False
    has_batch_script = False
    records_outcome = True

    def query(self, runs: Iterable[Run], client: SlurmClient) -> dict[str, JobStatus]:  # noqa: ARG002 - the interface
        """Return those whose launcher lives."""
        return {run.job_id: status for run in runs if (status := _status_of(run)) is not None}

    def cancel(self, jobs: Mapping[str, Run | None], client: SlurmClient) -> None:  # noqa: ARG002 - the interface
        """Ask the launchers to end, as Ctrl-C does. They end their ranks on all hosts.

        Raises:
            LaunchError: A launcher is not a process of this machine, or another user's.
        """
        for run in filter(None, jobs.values()):
            _stop(run)

    def state_from_files(self, run: Run) -> JobState:
        """Read the end marker; UNKNOWN if only another machine can tell whether the launcher lives."""
        marker = run.end_marker()
        if marker is not None:
            return JobState.FAILED if marker.exit_code else JobState.COMPLETED
        launcher = read_launcher(run)
        return JobState.FAILED if launcher is None or launcher.is_on_this_host else JobState.UNKNOWN

    def describe_end(self, run: Run, state: JobState, *, from_files: bool = False) -> str:  # noqa: ARG002 - the interface
        """Return the problem that the launcher recorded, or what its files show."""
        problem = run.record.end.problem if run.record and run.record.end else None
        if problem or state is JobState.COMPLETED:
            return problem or "All its ranks ended well."
        launcher = read_launcher(run)
        if state is JobState.UNKNOWN and launcher is not None:
            return f"It was launched on {launcher.host}. Only that host can show whether it still runs."
        if run.end_marker():
            return "It ended with another status than 0."
        return "Its launcher ended without recording an outcome."


SSH = SshBackend()


def lock_run(folder: Path) -> None:
    """Write this process into the run folder as its launcher. The lock lasts until the process ends.

    Raises:
        OSError: The file cannot be written.
    """
    descriptor = os.open(folder / LAUNCHER_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):  # Without locks on this file system, `_is_alive` looks for the process alone.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, f"{os.getpid()} {_start_time(os.getpid())} {os.uname().nodename}\n".encode())


def read_launcher(run: Run) -> Launcher | None:
    """Return the launcher of a run; None if the run folder does not name one."""
    try:
        pid, start, host = (run.folder / LAUNCHER_FILE).read_text().split()
        return Launcher(int(pid), start, host)
    except (OSError, ValueError):
        return None


def _status_of(run: Run) -> JobStatus | None:
    launcher = read_launcher(run)
    if run.record is None or run.record.end is not None or launcher is None or not _is_alive(run, launcher):
        return None
    began = run.record.submit_time
    return JobStatus(
        job_id=run.job_id,
        name=run.name,
        state=JobState.RUNNING,
        raw_state=str(JobState.RUNNING),
        nodelist=",".join(run.record.hosts),
        elapsed=None if began is None else max(0, int(time.time() - began)),
        user=run.record.user,
        raw_id=run.job_id,
    )


def _stop(run: Run) -> None:
    launcher = read_launcher(run)
    if launcher is None or _start_time(launcher.pid) != launcher.start or not launcher.is_on_this_host:
        host, pid = (launcher.host, launcher.pid) if launcher else ("the host that launched it", "PID")
        raise LaunchError(
            f"launch {run.job_id} cannot be cancelled from here",
            found=f"it was launched on {host}",
            remedy=f"press Ctrl-C where it was typed, or run there: kill -TERM {pid}",
        )
    try:
        # SIGTERM: behind nohup, and in the background of a script, SIGINT is ignored.
        os.kill(launcher.pid, signal.SIGTERM)
    except PermissionError as error:
        raise LaunchError(
            f"launch {run.job_id} belongs to another user", found=str(error), remedy="ask that user to end it"
        ) from error


def _is_alive(run: Run, launcher: Launcher) -> bool:
    if launcher.is_on_this_host and _start_time(launcher.pid) == launcher.start:
        return True
    # Another machine that shares the folder, or another container on this one, has its own /proc. The lock reaches it.
    try:
        with (run.folder / LAUNCHER_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; an empty string if it does not live."""
    with suppress(OSError):
        fields = read_stat(Path(f"/proc/{pid}"))
        return fields[START_TIME] if fields[STATE] not in "ZX" else ""
    return ""
