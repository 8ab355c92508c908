"""How a rank fails: it leaves its name if it is the first, and then ends at once.

Ranks that fall because another has gone wait a moment before they claim to be first.
"""

from __future__ import annotations

import _io
import atexit
import gc
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpc_kit.errors import HpcKitError, LauncherError, RendezvousError
from hpc_kit.run_files import FIRST_FAILURE, RUN_VARIABLE, claim_first_failure, read_first_failure
from hpc_kit.runtime import addresses
from hpc_kit.runtime.launchers import number_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from hpc_kit.runtime.world import World

_VICTIM_WAITS = 1.0
_LAST_WORDS = 5.0
"""Seconds that exit handlers may take in a rank that has failed."""

_LAST = "_hpc_kit_last"

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


def is_victim(error: BaseException | None) -> bool:
    """Whether this rank fell because it lost another one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).lower()
        if any(sign in text for sign in _PEER_LOST) or type(error).__name__ in _PEER_LOST_TYPES:
            return True
        error = error.__cause__ or error.__context__
    return False


def claim(error: BaseException, rank: int) -> None:
    """Leave this rank's name in the run folder as the first that failed, unless another was earlier."""
    folder, code = os.environ.get(RUN_VARIABLE), exit_code(error)
    if not folder or code == 0:
        return
    run = Path(folder)
    if is_victim(error) or (isinstance(error, RendezvousError) and rank):
        deadline = time.monotonic() + _VICTIM_WAITS
        while time.monotonic() < deadline and not (run / FIRST_FAILURE).exists():
            time.sleep(0.02)
    claim_first_failure(run, rank, host(), code)


def resolved(environ: Mapping[str, str]) -> World:
    """Who this process is; where its variables deny it, one rank tells all of it, and the others a line each.

    That rank is the first to leave its name in the run's folder; without one it is rank 0, where all fail alike.

    Raises:
        LauncherError: As `resolve`.
    """
    try:
        return resolve(environ)
    except LauncherError as error:
        rank = number_of(environ)
        if rank is None:
            raise
        claim(error, rank)
        raise _as_told(error, rank) from None


def as_told(error: BaseException, rank: int) -> BaseException:
    """`error`, after `claim`: in a line where it is certainly every rank's, and another one tells all of it."""
    return _as_told(error, rank) if isinstance(error, LauncherError) and error.everywhere else error


def _as_told(error: LauncherError, rank: int) -> LauncherError:
    folder = os.environ.get(RUN_VARIABLE)
    first = read_first_failure(Path(folder)) if folder else None
    teller = first.rank if first else 0 if error.everywhere else rank
    return error if teller == rank else error.shortened(teller)


def host() -> str:
    """This node's name, Slurm's where it is known."""
    return addresses.of_this_node(os.environ)


@contextmanager
def claimed(rank: int) -> Iterator[None]:
    """Claim for whatever is raised inside, before anything is taken down."""
    try:
        yield
    except BaseException as error:
        claim(error, rank)
        told = as_told(error, rank)
        if told is error:
            raise
        raise told from None


@contextmanager
def fast_exit() -> Iterator[None]:
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
        exit_now(exit_code(error))

    sys.excepthook = hook
    try:
        yield
    except SystemExit as stop:
        if code := exit_code(stop):
            atexit.register(_exit_at_once, code)
        raise
    sys.excepthook = previous


def _exit_at_once(code: int) -> None:
    atexit.unregister(_exit_at_once)
    exit_now(code)


def exit_now(code: int) -> NoReturn:
    """End this process without waiting for threads or for a process group; exit handlers get a few seconds."""

    def give_up() -> None:
        time.sleep(_LAST_WORDS)
        os._exit(code)

    threading.Thread(target=give_up, daemon=True).start()
    with suppress(BaseException):
        # Not sys.exit: the interpreter would first wait for all threads, then take the group down.
        atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _write_out()
    last = vars(sys).get(_LAST)
    for call in [last.call] if last is not None else _ENDS:
        with suppress(Exception):
            call(code)
    os._exit(code)


_ENDS: list[Callable[[int], object]] = []


def ends_by(call: Callable[[int], object]) -> None:
    """Have `call(exit code)` end this process where it fails."""
    _ENDS[:] = [call]


def _write_out(objects: Callable[[], list[Any]] = gc.get_objects, kind: type = _io._IOBase) -> None:  # noqa: SLF001
    """Write out the files that nobody has closed: the interpreter does not come to it.

    At the interpreter's end no global name is left, and io.IOBase, an abstract class, cannot be asked any more.
    """
    for each in objects():
        if issubclass(type(each), kind):
            try:  # noqa: SIM105 (`suppress` is a global name)
                each.flush()
            except BaseException:  # noqa: BLE001, S110
                pass


class _Last:
    """What goes with the interpreter itself; a file that a cycle or a running thread holds outlives even that."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self.call, self._write_out = call, _write_out

    def __del__(self) -> None:
        try:
            self._write_out()
        finally:
            self.call(1)


def last_of_all(call: Callable[[int], object]) -> None:
    """Have `call(exit code)` end this process after all exit handlers have run.

    An exit handler would come before those that were registered earlier, logging's among them; what `sys` holds goes
    late.
    """
    if _LAST not in vars(sys):  # another one in its place would let the first go, and end the process here
        vars(sys)[_LAST] = _Last(call)
