"""How a rank fails: it leaves its name if it is the first, and then ends at once.

Ranks that fall because another has gone wait a moment before they claim to be first.
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

from hpc_kit.errors import HpcKitError, LauncherError, RendezvousError
from hpc_kit.run_files import FIRST_FAILURE, RUN_VARIABLE, claim_first_failure, read_first_failure
from hpc_kit.runtime.launchers import guess_rank, resolve
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from hpc_kit.runtime.world import World

_PEER_LOSS_DELAY = 1.0
_EXIT_TIMEOUT = 5.0
"""Seconds that exit handlers may take in a rank that has failed."""

_INTERRUPTED = 130

_PEER_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket timeout",
    "remote process exited",
    "ncclremoteerror",
    "ncclsystemerror",
    "timed out waiting",
    "wait timeout after",
    "recvvalue failed",
    "failed to recv",
    "socketstartconnect",
)
"""What gloo, NCCL and the store say on the ranks that a failing one leaves behind."""

_PEER_LOST_TYPES = {"DistNetworkError", "DistStoreError"}


def exit_code(error: BaseException) -> int:
    """The exit code with which the interpreter ends when nobody catches `error`."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    if isinstance(error, HpcKitError):
        return error.exit_status
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def is_peer_loss(error: BaseException | None) -> bool:
    """Whether this rank fell because it lost another one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).lower()
        if any(sign in text for sign in _PEER_LOST) or type(error).__name__ in _PEER_LOST_TYPES:
            return True
        error = error.__cause__ or error.__context__
    return False


def record_failure(error: BaseException, rank: int) -> None:
    """Leave this rank's name in the run folder as the first that failed, unless another was earlier."""
    folder, code = os.environ.get(RUN_VARIABLE), exit_code(error)
    if not folder or code == 0:
        return
    run = Path(folder)
    if is_peer_loss(error) or (isinstance(error, RendezvousError) and rank):
        deadline = time.monotonic() + _PEER_LOSS_DELAY
        while time.monotonic() < deadline and not (run / FIRST_FAILURE).exists():
            time.sleep(0.02)
    claim_first_failure(run, rank, node_name(), code)


def resolve_or_record(environ: Mapping[str, str]) -> World:
    """Who this process is; where its variables deny it, one rank tells all of it, and the others a line each.

    That rank is the first to leave its name in the run's folder; without one it is rank 0, where all fail alike.

    Raises:
        LauncherError: As `resolve`.
    """
    try:
        return resolve(environ)
    except LauncherError as error:
        rank = guess_rank(environ)
        if rank is None:
            raise
        record_failure(error, rank)
        raise _shorten_unless_reporter(error, rank) from None


def shorten_repeated(error: BaseException, rank: int) -> BaseException:
    """`error`, after `claim`: in a line where it is certainly every rank's, and another one tells all of it."""
    return _shorten_unless_reporter(error, rank) if isinstance(error, LauncherError) and error.everywhere else error


def _shorten_unless_reporter(error: LauncherError, rank: int) -> LauncherError:
    folder = os.environ.get(RUN_VARIABLE)
    first = read_first_failure(Path(folder)) if folder else None
    teller = first.rank if first else 0 if error.everywhere else rank
    return error if teller == rank else error.shortened(teller)


def node_name() -> str:
    """This node's name, Slurm's where it is known."""
    return network.this_node_name(os.environ)


@contextmanager
def recording_failures(rank: int) -> Iterator[None]:
    """Claim for whatever is raised inside, before anything is taken down."""
    try:
        yield
    except BaseException as error:
        record_failure(error, rank)
        told = shorten_repeated(error, rank)
        if told is error:
            raise
        raise told from None


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
