"""Launches over ssh among the runs: no Slurm knows them; their folders tell whether they run, and how they ended."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import LaunchError
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from hpc_kit.runs.run_folders import Run

LAUNCHER = "launcher"
"""`pid start host` of the process that launches, which holds a lock on it for as long as it lives."""

_START = 19
"""Of the fields behind a process's name in /proc, the time at which it began."""


class Launcher(NamedTuple):
    """The process behind a launch."""

    pid: int
    start: str
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is one of this machine."""
        return self.host == os.uname().nodename


def hold(folder: Path) -> None:
    """Say that this process launches; the lock is held until it ends, however it does.

    Raises:
        OSError: The file cannot be written.
    """
    descriptor = os.open(folder / LAUNCHER, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):  # a file system without locks: the process is looked for
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, f"{os.getpid()} {_start(os.getpid())} {os.uname().nodename}\n".encode())


def status_of(run: Run) -> JobStatus | None:
    """A launch that runs, in Slurm's words; None: it has ended, and its files tell how."""
    launcher = launcher_of(run)
    if run.record is None or run.record.end is not None or launcher is None or not _lives(run, launcher):
        return None
    return JobStatus(
        job_id=run.job_id,
        name=run.name,
        state=JobState.RUNNING,
        raw_state=str(JobState.RUNNING),
        reason=None,
        exit_code=None,
        signal=None,
        nodelist=",".join(run.record.hosts),
        submit=None,
        start=None,
        end=None,
        time_limit=None,
        elapsed=_elapsed(run.record.submitted),
        user=run.record.user,
        partition="",
        raw_id=run.job_id,
    )


def end_state(run: Run) -> JobState:
    """How a launch that does not run any more ended; UNKNOWN where only another machine can tell."""
    end = run.end_marker()
    if end is not None:
        return JobState.FAILED if end.exit_code else JobState.COMPLETED
    launcher = launcher_of(run)
    return JobState.FAILED if launcher is None or launcher.is_here else JobState.UNKNOWN


def sentence(run: Run, state: JobState) -> str:
    """The same in words."""
    told = run.record.end.problem if run.record and run.record.end else None
    if told or state is JobState.COMPLETED:
        return told or "All its ranks ended well."
    launcher = launcher_of(run)
    if state is JobState.UNKNOWN and launcher is not None:
        return f"It was launched on {launcher.host}: whether it still runs is seen there."
    return (
        "It ended with another status than 0."
        if run.end_marker()
        else "Its launcher is gone, and has left no word of its end."
    )


def stop(run: Run) -> None:
    """Ask a launch to end, as Ctrl-C does; its hosts end their ranks.

    Raises:
        LaunchError: It is none of this machine's processes, or another user's.
    """
    launcher = launcher_of(run)
    if launcher is None or _start(launcher.pid) != launcher.start or not launcher.is_here:
        host, pid = (launcher.host, launcher.pid) if launcher else ("the host that launched it", "PID")
        raise LaunchError(
            f"launch {run.job_id} is not ended from here",
            found=f"it was launched on {host}",
            remedy=f"Ctrl-C where it was typed; or there: kill -TERM {pid}",
        )
    try:
        # Behind nohup or in the background of a script Ctrl-C is not heard.
        os.kill(launcher.pid, signal.SIGTERM)
    except PermissionError as error:
        raise LaunchError(f"launch {run.job_id} is another user's", found=str(error), remedy="ask who it is") from error


def launcher_of(run: Run) -> Launcher | None:
    """Who launches; None where it has not said so."""
    try:
        pid, start, host = (run.folder / LAUNCHER).read_text().split()
        return Launcher(int(pid), start, host)
    except (OSError, ValueError):
        return None


def _lives(run: Run, launcher: Launcher) -> bool:
    if launcher.is_here and _start(launcher.pid) == launcher.start:
        return True
    # On another machine that shares the folder, or in another container of this one.
    try:
        with (run.folder / LAUNCHER).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _start(pid: int) -> str:
    """When a living process began, in ticks since the machine did; nothing where there is none."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[_START] if fields[0] not in "ZX" else ""
    return ""


def _elapsed(began: str) -> int | None:
    with suppress(ValueError):
        return max(0, int(time.time() - dt.datetime.fromisoformat(began).timestamp()))
    return None
