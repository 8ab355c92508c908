"""Identifies, finds, signals and reaps processes of this machine."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36


class Process(NamedTuple):
    """A line of the process table; `started` is in ticks since the machine's start."""

    pid: int
    parent: int
    started: int


def boot_id() -> str:
    """Return an id that differs for every boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - at the start of every command
            return file.read().strip()
    except OSError:
        return "unknown"


def read_process(pid: int) -> Process | None:
    """Return a process; None if it does not exist or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    # The name is in brackets and may contain any character, including brackets.
    state, parent, *fields = text[text.rindex(b")") + 2 :].split()
    return None if state in {b"Z", b"X"} else Process(pid, int(parent), int(fields[17]))


def identity(pid: int) -> str:
    """Return a name for a process that is unique also after a reboot; empty if the process has ended."""
    process = read_process(pid)
    return f"{pid}:{process.started}:{boot_id()}" if process else ""


def pid_of(name: str) -> int:
    """Return the pid in an identity; 0 for an empty one."""
    return int(name.partition(":")[0] or 0)


def is_alive(name: str) -> bool:
    """Return whether the process with this identity still runs."""
    if not name:
        return False
    pid, started, boot = name.split(":", 2)
    process = read_process(int(pid))
    return process is not None and str(process.started) == started and boot == boot_id()


def all_processes() -> dict[int, Process]:
    """Return all processes."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {process.pid: process for process in map(read_process, pids) if process}


def descendants(roots: Iterable[int], *, without: Collection[int] = (), inclusive: bool = False) -> list[Process]:
    """Return the descendants of some processes, without those in `without` and their descendants."""
    processes = all_processes()
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    waiting = [pid for pid in roots if pid not in without]
    found = [processes[pid] for pid in waiting if inclusive and pid in processes]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in without:
                found.append(child)
                waiting.append(child.pid)
    return found


def with_environment(variables: Collection[bytes], name: bytes = b"") -> list[int]:
    """Return the processes of this user that started with all of these `NAME=value` and with the variable `name`."""
    # The kernel shows the variables with which a process started, also if the program has changed them since.
    own = os.getpid()
    found = []
    for pid in os.listdir("/proc"):  # noqa: PTH208
        if pid.isdigit() and int(pid) != own:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                text = b"\0" + file.read()
                if set(variables) <= set(text.split(b"\0")) and (not name or b"\0" + name + b"=" in text):
                    found.append(int(pid))
    return found


def kill(pids: Iterable[int], number: int) -> None:
    """Signal some processes, and ignore those that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def terminate(pids: Iterable[int]) -> None:
    """Send SIGTERM to processes. A stopped process would not handle it, so SIGCONT comes first."""
    pids = list(pids)
    kill(pids, signal.SIGCONT)
    kill(pids, signal.SIGTERM)


def adopt_orphans(name: str = "") -> None:
    """Become the parent of orphaned descendants, so that no process of a job escapes.

    Args:
        name: New name of this process in `ps -o comm` and `top`, up to 15 letters.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # A process that its parent abandons becomes a child of the nearest subreaper instead of init.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if name:
        libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def reap() -> dict[int, int]:
    """Return the wait statuses of all children that have ended."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def write_slurmstepd_error(text: str, log: int = 2) -> None:
    """Write a line of slurmstepd to an open log, and ignore errors."""
    # One call for the whole line, because other processes append to the same log.
    with contextlib.suppress(OSError):
        os.write(log, f"slurmstepd: error: {text}\n".encode(errors="surrogateescape"))


def write_cancellation(what: str, why: str, log: int = 2) -> None:
    """Write that `JOB 12 ON n1` is cancelled, and why: `TIME LIMIT`, `JOB REQUEUE`, `NODE FAILURE`, or nothing."""
    cause = f" DUE TO {why}" if why else ""
    cause += ", SEE SLURMCTLD LOG FOR DETAILS" if why == "NODE FAILURE" else ""
    write_slurmstepd_error(f"*** {what} CANCELLED AT {time.strftime('%Y-%m-%dT%H:%M:%S')}{cause} ***", log)


def reset_signals() -> None:
    """Reset signals as slurmstepd does: those that a parent or Python ignores or catches, or that `&` blocks."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in {None, signal.SIG_DFL}:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def enter_folder(folder: str) -> bool:
    """Change the current folder as slurmstepd does. Return False if it is /tmp because the folder is missing."""
    try:
        os.chdir(folder)
    except OSError as error:
        write_slurmstepd_error(f"couldn't chdir to `{folder}': {error.strerror}: going to /tmp instead")
        os.chdir("/tmp")  # noqa: S108 - where slurmstepd goes
        return False
    return True


def current_umask() -> int:
    """Return the umask of this process."""
    # os.umask returns the old mask only when it sets a new one.
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def execute(program: str, argv: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Become a program. If that fails, print the message of slurmstepd and exit with the error's number."""
    try:
        os.execve(program, argv, environ)  # noqa: S606 - the user's own program
    except OSError as error:
        interpreter = _interpreter(program)
        missing = interpreter and not os.access(interpreter, os.X_OK)
        what = f"bad interpreter({interpreter})" if missing else program
        write_slurmstepd_error(f"execve(): {what}: {error.strerror}")
        os._exit(error.errno or 1)


def _interpreter(program: str) -> str:
    """Return the interpreter in the first line of a script; empty for other programs."""
    try:
        with open(program, "rb") as file:  # noqa: PTH123
            line = file.readline(256)
    except OSError:
        return ""
    words = line[2:].split() if line.startswith(b"#!") else []
    return words[0].decode(errors="replace") if words else ""


def detach(log: str) -> None:
    """Become a daemon: a new session without a terminal or inherited files."""
    os.setsid()
    os.chdir("/")  # so that the submitter's folder can be removed or unmounted
    null = os.open(os.devnull, os.O_RDWR)
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:  # A full disk must not prevent the start.
        out = null
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def close_files(keep: Collection[int] = ()) -> None:
    """Close every open file of a forked process but the three standard ones and those to keep.

    Python objects of the parent still own the closed files. Without `gc.freeze` they may be collected later, and would
    close files of ours that got the same numbers.
    """
    gc.freeze()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        number = int(name)
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
