"""Records the rank that failed first.

Ranks that fail because they lost another rank wait a moment before they record themselves.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError, LauncherError, RendezvousError
from hpc_kit.run_files import FIRST_FAILURE, RUN_VARIABLE, claim_first_failure, read_first_failure
from hpc_kit.runtime.launchers import guess_rank, resolve
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.runtime.world import World

_PEER_LOSS_DELAY = 1.0
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
"""Messages of gloo, NCCL and the store on ranks that lost another rank."""

_PEER_LOST_TYPES = {"DistNetworkError", "DistStoreError"}


def exit_code(error: BaseException) -> int:
    """Return the exit code of the interpreter if `error` is not caught."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    if isinstance(error, HpcKitError):
        return error.exit_status
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def is_peer_loss(error: BaseException | None) -> bool:
    """Return whether this rank failed because it lost another one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).lower()
        if any(sign in text for sign in _PEER_LOST) or type(error).__name__ in _PEER_LOST_TYPES:
            return True
        error = error.__cause__ or error.__context__
    return False


def record_failure(error: BaseException, rank: int) -> None:
    """Record this rank in the run folder as the first that failed, unless another one was earlier."""
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
    """Resolve the World of this process. If that fails, one rank reports the error and the rest a single line.

    The reporting rank is the first one that is recorded in the run folder. Without a folder, it is rank 0 for errors
    that all ranks have.

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
    """Return `error`, shortened to one line if every rank has it and another rank reports it in full."""
    return _shorten_unless_reporter(error, rank) if isinstance(error, LauncherError) and error.everywhere else error


def _shorten_unless_reporter(error: LauncherError, rank: int) -> LauncherError:
    folder = os.environ.get(RUN_VARIABLE)
    first = read_first_failure(Path(folder)) if folder else None
    reporter = first.rank if first else 0 if error.everywhere else rank
    return error if reporter == rank else error.shortened(reporter)


def node_name() -> str:
    """Return the name of this node, Slurm's if it is known."""
    return network.this_node_name(os.environ)


@contextmanager
def recording_failures(rank: int) -> Iterator[None]:
    """Record an exception that leaves the `with` block, before the process group is destroyed."""
    try:
        yield
    except BaseException as error:
        record_failure(error, rank)
        shortened = shorten_repeated(error, rank)
        if shortened is error:
            raise
        raise shortened from None
