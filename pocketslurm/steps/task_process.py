"""Starts a task in a new session with its streams, folder and variables."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pocketslurm import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1


class TaskSpec(NamedTuple):
    """A task before it runs.

    Attributes:
        number: Its number in the step.
        node: Index of its node in the step.
        local: Index of the task on that node.
        argv: The program as the user wrote it, and its arguments.
        environ: All variables except SLURM_TASK_PID, which is known after the fork.
        extra_fd: An open file that the task inherits from srun, such as the PMI socket; -1 for none.
    """

    number: int
    node: int
    local: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    extra_fd: int = -1


class TaskStreams(NamedTuple):
    """The open files that become a task's standard streams; a terminal also becomes its controlling terminal."""

    stdin: int
    stdout: int
    stderr: int
    is_terminal: bool = False


def start_task(task: TaskSpec, streams: TaskStreams, folder: str, umask: int) -> int:
    """Start a task and return its pid. An error after the fork goes to the task's stderr and exit code."""
    import ctypes

    kernel, srun = ctypes.CDLL(None), os.getpid()
    pid = os.fork()
    if pid == 0:
        # The kernel kills the task if srun dies, even by SIGKILL.
        kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # srun may have died before the call above, which then has no effect.
        if os.getppid() != srun:
            os._exit(1)
        _run_task(task, streams, folder, umask)
    return pid


def _run_task(task: TaskSpec, streams: TaskStreams, folder: str, umask: int) -> NoReturn:
    try:
        os.setsid()
        # The fourth field is `is_terminal`.
        for number, stream in enumerate(streams[:3]):
            os.dup2(stream, number)
        if streams.is_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if task.extra_fd >= 0:
            os.set_inheritable(task.extra_fd, True)  # noqa: FBT003
        processes.reset_signals()
        os.umask(umask)
        environ = {**task.environ, "SLURM_TASK_PID": str(os.getpid())}
        processes.enter_folder(folder)
        processes.execute(find_on_path(task.argv[0], environ.get("PATH", "")), [*task.argv], environ)
    except BaseException as error:  # noqa: BLE001 - the forked process must not continue as srun
        processes.write_slurmstepd_error(str(error))
    finally:
        os._exit(1)


def find_on_path(name: str, path: str) -> str:
    """Return the file of a program: a name that begins with a dot is in the folder, others are on PATH."""
    if name.startswith("/"):
        return name
    if name.startswith("."):
        return f"{os.getcwd()}/{name}"  # noqa: PTH109
    for folder in filter(None, path.split(":")):
        found = f"{folder}/{name}"
        if os.path.exists(found) and not os.path.isdir(found):  # noqa: PTH110, PTH112
            return found
    return name
