"""Starts a task in a new session with its streams, folder and variables."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1


class TaskSpec(NamedTuple):
    """A task before it runs.

    Attributes:
        number: Its number in the step.
        node: Index of its node in the step; `local` its own index on that node.
        argv: The program as it was written, and its arguments.
        environ: All but SLURM_TASK_PID, which is only known then.
        kept: One more open file of srun's that the task has, under the same number; -1 for none.
    """

    number: int
    node: int
    local: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    kept: int = -1


class TaskStreams(NamedTuple):
    """The open files that become a task's standard ones; a terminal becomes its controlling one."""

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False


def start_task(task: TaskSpec, streams: TaskStreams, folder: str, umask: int) -> int:
    """Start a task and return its pid. An error after the fork goes to the task's stderr and exit code."""
    import ctypes

    kernel, srun = ctypes.CDLL(None), os.getpid()
    pid = os.fork()
    if pid == 0:
        # With srun goes the step, however it goes.
        kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != srun:
            os._exit(1)
        _become(task, streams, folder, umask)
    return pid


def _become(task: TaskSpec, streams: TaskStreams, folder: str, umask: int) -> NoReturn:
    try:
        os.setsid()
        for number, stream in enumerate(streams[:3]):
            os.dup2(stream, number)
        if task.kept >= 0:
            os.set_inheritable(task.kept, True)  # noqa: FBT003
        if streams.terminal:
            _take_terminal()
        _forget_signals()
        os.umask(umask)
        environ = {**task.environ, "SLURM_TASK_PID": str(os.getpid())}
        _enter(folder)
        _execute(task.argv, environ)
    except BaseException as error:  # noqa: BLE001 - it must not get back into srun
        _say(str(error))
    finally:
        os._exit(1)


def _forget_signals() -> None:
    """Reset signals as slurmstepd does: those that srun catches, Python ignores, or the shell's `&` blocks."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL and number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        _say(f"couldn't chdir to `{folder}': {error.strerror}: going to /tmp instead")
        os.chdir("/tmp")  # noqa: S108 - where slurmstepd goes


def _execute(argv: tuple[str, ...], environ: dict[str, str]) -> NoReturn:
    program = find_program(argv[0], environ.get("PATH", ""))
    try:
        os.execve(program, argv, environ)  # noqa: S606
    except OSError as error:
        interpreter = _interpreter(program) if isinstance(error, FileNotFoundError) else ""
        what = f"bad interpreter({interpreter})" if interpreter else program
        _say(f"execve(): {what}: {error.strerror}")
        os._exit(error.errno or 1)


def find_program(name: str, path: str) -> str:
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


def _interpreter(program: str) -> str:
    """Return the interpreter in the first line of a script; empty for other programs."""
    try:
        with open(program, "rb") as file:  # noqa: PTH123
            line = file.readline(256)
    except OSError:
        return ""
    return line[2:].strip().decode(errors="replace") if line.startswith(b"#!") else ""


def _say(text: str) -> None:
    try:
        os.write(2, f"slurmstepd: error: {text}\n".encode(errors="surrogateescape"))
    except OSError:
        return
