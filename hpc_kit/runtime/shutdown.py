"""Ends a rank: after a good training without aborting, and after a failure without hanging.

After a failure, `sys.exit` first waits for all threads and then destroys the process group. NCCL's threads may wait
forever for a peer that is gone. So `exit_rank` runs the exit handlers itself, with a time limit, writes out the open
files, and leaves by `os._exit` or MPI_Abort. `atexit` has no public function that runs its handlers;
tests/runtime/test_shutdown.py fails where a Python release changes the private one.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpc_kit.errors import HpcKitError
from hpc_kit.runtime.first_failure import exit_code
from hpc_kit.runtime.proc_stat import STATE, read_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_EXIT_TIMEOUT = 5.0
"""Seconds that exit handlers may take in a rank that has failed."""

_THREAD = b"pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_PAUSE = 0.005


_before_destroy: list[Callable[[], object]] = []


def call_before_destroy(function: Callable[[], object]) -> None:
    """Call a function, which may need all ranks, before the default process group is destroyed at the end."""
    _before_destroy.append(function)


def destroy_process_group() -> None:
    """Destroy the default process group, if there is one, and wait until its threads are idle."""
    from torch import distributed as dist

    while _before_destroy:
        _before_destroy.pop()()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        wait_for_gloo_threads()


def wait_for_gloo_threads(seconds: float = 5.0) -> None:
    """Wait until gloo's threads sleep, for at most `seconds`.

    Destroying a group does not end its threads while a model refers to the group. A thread that is about to free the
    tensors of the last collective needs the GIL. If the interpreter is finalizing by then, the process aborts (SIGABRT,
    "terminate called without an active exception") after a successful training.
    """
    deadline, quiet = time.monotonic() + seconds, 0
    while quiet < 2 and time.monotonic() < deadline:
        states = _thread_states()
        if not states:
            return
        quiet = quiet + 1 if states <= {"S"} else 0
        time.sleep(_PAUSE)  # releases the GIL


def _thread_states() -> set[str]:
    """Return the scheduling states of gloo's threads; empty if there are none, or no /proc."""
    states = set()
    for task in _TASKS.glob("*"):
        try:
            if (task / "comm").read_bytes().strip() == _THREAD:
                states.add(read_stat(task)[STATE])
        except OSError:
            continue
    return states


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """End the process immediately when an exception or sys.exit leaves the `with` block and is not caught.

    Destroying the group of a failed rank may hang, or abort the process with another exit code. Python does not tell
    whether sys.exit was caught. In a group of several ranks, its code is that of the process in both cases.
    """
    previous, stderr = sys.excepthook, sys.stderr

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        # torch's own hook, installed before this one, buffers what is written and prints it afterwards. There is no
        # afterwards.
        sys.stderr = stderr
        if isinstance(error, HpcKitError):
            sys.stderr.write(f"hpc-kit: {error}\n")
        else:
            previous(kind, error, traceback)
        exit_rank(exit_code(error))

    sys.excepthook = hook
    try:
        yield
    except SystemExit as stop:
        if (code := exit_code(stop)) and _may_hang():
            _exit_at_end(code)
        raise
    sys.excepthook = previous


def _may_hang() -> bool:
    """Return whether the end of the interpreter may wait for other ranks."""
    dist = sys.modules.get("torch.distributed")
    with_others = dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return with_others or bool(_abort)


_codes_at_end: list[int] = []


def _exit_at_end(code: int) -> None:
    """Let `exit_rank` end this process after the end of the program. The code of the last call counts.

    In an exit handler, the process ends now, because the interpreter runs no handler that is registered so late.
    """
    if _exiting.is_set():
        return
    if not threading.main_thread().is_alive():
        traceback.print_exc()
        _flush_and_terminate(code)
    _codes_at_end.append(code)
    if len(_codes_at_end) == 1:
        _start_time_limits()  # now, because Python 3.12 starts no thread while the interpreter ends
        threading.Thread(target=_register_exit, name="hpc_kit_end").start()


def _register_exit() -> None:
    """Register `exit_rank` after the end of the program, as the last handler: it then runs first, and each other once.

    The interpreter waits for this thread before it runs exit handlers.
    """
    threading.main_thread().join()
    atexit.register(exit_rank, _codes_at_end[-1])


def exit_rank(code: int) -> NoReturn:
    """End this process without waiting for threads or for the process group. Exit handlers get a few seconds."""
    atexit.unregister(exit_rank)
    _ignore_signals()
    with suppress(RuntimeError):  # the interpreter ends already
        _start_time_limits()
    _codes.append(code)
    _exiting.set()
    with suppress(BaseException):
        # sys.exit would first wait for all threads and then destroy the group.
        atexit._run_exitfuncs()  # noqa: SLF001
    _flush_and_terminate(code)


def exit_forked(code: int) -> NoReturn:
    """End a process that a rank has forked like a rank that has failed, but do not end the other ranks."""
    _abort.clear()
    exit_rank(code)


def _flush_and_terminate(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    for each in gc.get_objects():  # os._exit flushes no file that was not closed
        if issubclass(type(each), io.IOBase):
            with suppress(BaseException):
                each.flush()
    _terminate(code)


def _ignore_signals() -> None:
    """Ignore requests to end from now on. torchrun's handler would print a traceback below the report of a failure."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


_exiting = threading.Event()
_codes: list[int] = []
"""The exit code, once this process ends."""


def _start_time_limits() -> None:
    """Limit the time of the exit, once it begins. The function that ends the process may block, too."""
    for seconds, end in ((_EXIT_TIMEOUT, _terminate), (2 * _EXIT_TIMEOUT, os._exit)):
        threading.Thread(target=_limit_exit, args=(seconds, end), name="hpc_kit_end", daemon=True).start()


def _limit_exit(seconds: float, end: Callable[[int], NoReturn]) -> None:
    _exiting.wait()
    time.sleep(seconds)
    end(_codes[0])


_abort: list[Callable[[int], object]] = []
_terminating = threading.Lock()


def set_abort_function(call: Callable[[int], object], *, at_exit: bool = False) -> None:
    """Let `call(exit code)` end this process when it fails.

    Args:
        call: Ends the process, such as MPI_Abort.
        at_exit: Call it after a normal end, too, with 1 and after all exit handlers. A rank that handles the failure of
            an MPI group must still end the other ranks.
    """
    _abort[:] = [call]
    if at_exit:
        _exit_at_end(1)


def _terminate(code: int) -> NoReturn:
    # Never released: two time limits may end at the same moment, and one abort is enough.
    _terminating.acquire()
    for call in _abort:
        with suppress(Exception):
            call(code)
    os._exit(code)
