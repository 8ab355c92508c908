"""Ends a rank: after a good training without aborting, and after a failure without hanging.

Two habits of the interpreter stand in the way, and this module is the one place that works around them:

- After a failure, `sys.exit` first waits for all threads and then destroys the process group. NCCL's threads may wait
  forever for a peer that is gone. So `exit_rank` runs the exit handlers itself, with a time limit, writes out the open
  files, and leaves by `os._exit` or MPI_Abort. `atexit` has no public function that runs its handlers.
- A rank that handles the failure of an MPI group and ends with status 0 must still end the other ranks, after its last
  exit handler. An object in `sys` is destroyed at that moment.

tests/runtime/test_shutdown.py and test_first_failure.py fail where a Python release changes either.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpc_kit.errors import HpcKitError
from hpc_kit.runtime.first_failure import exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_EXIT_TIMEOUT = 5.0
"""Seconds that exit handlers may take in a rank that has failed."""

_THREAD = "pt_gloo_runloop"
_TASKS = Path("/proc/self/task")
_PAUSE = 0.005


def destroy_process_group() -> None:
    """Destroy the default process group, if there is one, and wait until nothing of it runs any more."""
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        wait_for_gloo_threads()


def wait_for_gloo_threads(seconds: float = 1.0) -> None:
    """Wait until gloo's threads sleep.

    While a model still refers to its group, destroying it ends no thread. One that is about to free the tensors of the
    last collective wants the GIL; if the interpreter is being taken down by then, the process aborts (SIGABRT,
    "terminate called without an active exception") after a training that went well.

    Args:
        seconds: The longest wait.
    """
    deadline, quiet = time.monotonic() + seconds, 0
    while quiet < 2 and time.monotonic() < deadline:
        states = _thread_states()
        if not states:
            return
        quiet = quiet + 1 if states <= {"S"} else 0
        time.sleep(_PAUSE)  # gives up the GIL


def _thread_states() -> set[str]:
    """Scheduling states of gloo's threads; empty where there are none, or no /proc."""
    found = set()
    for task in _TASKS.glob("*"):
        try:
            if (task / "comm").read_text().strip() == _THREAD:
                found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return found


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """What is raised inside, and nobody catches, ends the process at once; so does sys.exit.

    Taking down the group of a rank that has failed may wait for ever, or abort the process with another exit code.
    """
    previous, stderr = sys.excepthook, sys.stderr

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        # The hook that torch puts before this one collects what is written, to print it afterwards: there is no after.
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
        if code := exit_code(stop):
            atexit.register(_exit_with, code)
        raise
    sys.excepthook = previous


def _exit_with(code: int) -> None:
    atexit.unregister(_exit_with)
    exit_rank(code)


def exit_rank(code: int) -> NoReturn:
    """End this process without waiting for threads or for a process group; exit handlers get a few seconds."""
    threading.Thread(target=_exit_after_timeout, args=[threading.Event(), code], daemon=True).start()
    with suppress(BaseException):
        # Not sys.exit: the interpreter would first wait for all threads, then take the group down.
        atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _flush_open_files()
    _terminate(code)


def _exit_after_timeout(done: threading.Event, code: int) -> None:
    if not done.wait(_EXIT_TIMEOUT):
        # What ends the process may itself wait: for a lock that the main thread holds.
        threading.Thread(target=_terminate, args=[code], daemon=True).start()
        time.sleep(_EXIT_TIMEOUT)
        os._exit(code)


class _Abort:
    """What ends this process where it fails, or at its end as well. `sys` holds it: that goes late."""

    call: Callable[[int], object] | None = None
    at_exit = False

    def __del__(self) -> None:
        if self.at_exit and self.call is not None:
            self.call(1)


_abort = vars(sys).setdefault("_hpc_kit_ends", _Abort())
_at_exit, _written_out = threading.Event(), threading.Event()


def set_abort_function(call: Callable[[int], object], *, at_exit: bool = False) -> None:
    """Have `call(exit code)` end this process where it fails.

    Args:
        call: Ends it.
        at_exit: Also where it ends well: after all exit handlers have run.
    """
    _abort.call = call
    if at_exit and not _abort.at_exit:
        _abort.at_exit = True
        # Begun here: no thread can be started any more at the interpreter's end.
        threading.Thread(target=_watch_exit, name="hpc_kit_end", daemon=True).start()


def _terminate(code: int) -> NoReturn:
    if _abort.call is not None:
        with suppress(Exception):
            _abort.call(code)
    os._exit(code)


def _watch_exit() -> None:
    _at_exit.wait()
    _exit_after_timeout(_written_out, 1)


@atexit.register
def _flush_at_exit() -> None:
    """Registered before the program's own exit handlers, so it comes after them, and threads still run."""
    if _abort.at_exit:
        _at_exit.set()
        _flush_open_files()
        _written_out.set()


def _flush_open_files() -> None:
    """Write out the files that nobody has closed: the interpreter does not come to it."""
    for each in gc.get_objects():
        if issubclass(type(each), io.IOBase):
            with suppress(BaseException):
                each.flush()
