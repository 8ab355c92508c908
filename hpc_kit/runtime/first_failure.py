"""How a rank fails: it leaves its name if it is the first, and then ends at once.

Ranks that fall because another has gone wait a moment before they claim to be first.
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
