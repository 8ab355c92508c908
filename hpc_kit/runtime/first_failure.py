"""Records the rank that failed first.

Ranks that fail because they lost another rank wait a moment before they record themselves. If no other rank has failed
by then, they report their loss to each other. A rank that reports none is stopped, late or hangs: it is the cause.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError, LauncherError, RendezvousError
from hpc_kit.run_files import (
    RUN_VARIABLE,
    UNKNOWN_HOST,
    claim_first_failure,
    format_ranks,
    read_first_failure,
)
from hpc_kit.runtime.launchers import guess_rank, resolve
from hpc_kit.runtime.proc_stat import STATE, read_stat
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.runtime.rendezvous.meeting import Meeting, RankEntry
    from hpc_kit.runtime.world import World

_PEER_LOSS_DELAY = 1.0
_REPORT_SECONDS = 3.0
"""Ranks that lost a peer wait for reports of other ranks until none has come for this time."""

_ANSWER_SECONDS = 15.0
"""A store that has not answered for this time counts as stopped. On a busy machine an answer takes seconds."""

_REMARK_SECONDS = 0.5
"""A rank on the node of the missing rank, which sees its process, records it before ranks of other nodes."""

_INTERRUPTED = 130

STOP_CODE = "HPC_KIT_STOP_CODE"
"""Environment variable, set by the script: the exit code of a program that the stop signal ends."""

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
"""Messages of gloo, NCCL and the store on ranks that lost another rank, in lower case."""

_PEER_LOST_ERRORS = (errno.ECONNRESET, errno.EPIPE)
"""Errors of the system. Their messages are in the user's language if the program has called setlocale()."""

_CONNECTS_TO = re.compile(r"trying to connect to \(?\[?(?P<host>[^],\s]+)\]?, ?\d+")
_PEER_LOST_TYPES = {"DistNetworkError", "DistStoreError"}

_COMMUNICATES = ("gloo", "nccl", "horovod")
"""Parts of the messages of these libraries, in lower case."""

_COMMUNICATING_FOLDERS = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", "/hpc_kit/runtime/")
"""Folders of the functions in which a rank communicates with other ranks."""


def exit_code(error: BaseException) -> int:
    """Return the exit code of the interpreter if `error` is not caught."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    if isinstance(error, HpcKitError):
        return error.exit_status
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def is_stop(code: int) -> bool:
    """Return whether a program with this exit code was ended by the stop signal, which is no failure."""
    return str(code) == os.environ.get(STOP_CODE)


def is_peer_loss(error: BaseException | None) -> bool:
    """Return whether this rank failed because it lost another one.

    A connection that is lost elsewhere, such as that of a data loader to its server, has the same message.
    """
    signs = (*_PEER_LOST, *(os.strerror(number).lower() for number in _PEER_LOST_ERRORS))
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).lower()
        lost = any(sign in text for sign in signs) and _comes_from_communication(error, text)
        if (match := _CONNECTS_TO.search(text)) and not _has_address(match["host"]):
            return False  # the name is wrong, and the other ranks may wait for this one
        if lost or (type(error).__name__ in _PEER_LOST_TYPES and "eaddrinuse" not in text):
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_address(host: str) -> bool:
    try:
        return bool(network.lookup(host))
    except OSError:
        return False


def _comes_from_communication(error: BaseException, text: str) -> bool:
    if any(name in text for name in _COMMUNICATES):
        return True
    innermost = traceback.extract_tb(error.__traceback__)[-1:]
    return any(part in frame.filename for frame in innermost for part in _COMMUNICATING_FOLDERS)


_meeting: Meeting | None = None


def set_meeting(meeting: Meeting) -> None:
    """Set the meeting whose store the ranks use, after a loss, to find out which rank is missing."""
    global _meeting  # noqa: PLW0603 - the last meeting of this process, also after its end
    _meeting = meeting


def store_port() -> int | None:
    """Return the port of the store of the last meeting of several ranks, or None."""
    return _meeting.port if _meeting is not None and _meeting.world.world_size > 1 else None


def record_failure(error: BaseException, rank: int) -> None:
    """Record this rank as the first that failed, unless another one failed earlier or is missing."""
    folder, code = os.environ.get(RUN_VARIABLE), exit_code(error)
    # This reads the file: Path.exists() raises an error where the file system of the run folder is lost.
    if not folder or code == 0 or is_stop(code) or read_first_failure(run := Path(folder)):
        return
    if isinstance(error, RendezvousError) and error.missing:
        record_late_rank(run, code, error)
    elif _meeting is not None and _meeting.world.world_size > 1 and is_peer_loss(error):
        _record_missing_rank(run, code, _meeting)
    elif is_peer_loss(error) or (isinstance(error, RendezvousError) and rank):
        deadline = time.monotonic() + _PEER_LOSS_DELAY
        while time.monotonic() < deadline and not read_first_failure(run):
            time.sleep(0.02)
    claim_first_failure(run, rank, network.this_node_name(os.environ), code)


def record_late_rank(run: Path, code: int, error: RendezvousError, ranks_per_process: int = 1) -> None:
    """Record the first rank that did not come to the meeting, instead of a rank that waited for it."""
    first, *others = (each * ranks_per_process for each in error.missing)
    more = f" and {format_ranks(others)}" if others else ""
    reason = f"it{more} did not come to the meeting of the ranks within {error.waited:g} s"
    claim_first_failure(run, first, error.host or UNKNOWN_HOST, code, reason)


def _record_missing_rank(run: Path, code: int, meeting: Meeting) -> None:
    """Record the rank that the other ranks waited for: it has not reported a loss. Do nothing if a rank has failed."""
    world = meeting.world
    reported = _exchange_reports(meeting, run)
    if read_first_failure(run) or len(reported) == world.world_size:
        return
    if reported:
        missing = sorted(set(range(world.world_size)) - reported)
        try:
            signed_in = meeting.entries()
        except RuntimeError:  # rank 0 has ended meanwhile, and with it the store
            return
        remarks = {rank: _describe_process(signed_in[rank]) for rank in missing}
        first = min(missing, key=lambda rank: (not remarks[rank], rank))
        others = [rank for rank in missing if rank != first]
        waiting = format_ranks(sorted(reported))
        if not remarks[first]:
            time.sleep(_REMARK_SECONDS)
        host = signed_in[first].host
        if remarks[first] or not others:
            more = f" and for {format_ranks(others)}" if others else ""
            reason = (
                f"{waiting} waited for it{more} in vain: {remarks[first] or 'it is stopped, late, hangs or has ended'}"
            )
        else:
            # Some of the missing ranks may also wait, with a time-out that began later, such as stages of a pipeline.
            reason = f"{waiting} waited in vain for one of {format_ranks(missing)}; their logs show which"
            host = UNKNOWN_HOST
    # A stopped process still accepts connections. torchrun's agent has the store of its workers.
    elif world.launcher != "torchrun" and not world.is_main and network.is_reachable(meeting.host, meeting.port):
        first, host = 0, world.hosts[0] if world.hosts else meeting.host
        reason = f"rank {world.rank} waited for it in vain: its store does not answer"
    else:
        return
    if claim_first_failure(run, first, host, code, reason):
        sys.stderr.write(f"hpc-kit: rank {first} on {host}: {reason}\n")


def _exchange_reports(meeting: Meeting, run: Path) -> set[int]:
    """Report the loss to the other ranks. Return the ranks that have lost a peer; none if the store does not answer."""
    reported: set[int] = set()
    # The store answers requests one by one. With this pause it gets about 1000 a second in a large world.
    pause = max(0.05, meeting.world.world_size / 1000)

    def exchange() -> None:
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        limit = timedelta(seconds=_ANSWER_SECONDS)
        with suppress(RuntimeError):  # the store has gone
            server = TCPStore(meeting.host, meeting.port, is_master=False, timeout=limit, wait_for_workers=False)
            reports = PrefixStore(f"hpc_kit/lost/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)
            reports.append("ranks", f"{meeting.world.rank} ")  # type: ignore[attr-defined]
            while True:
                reported.update(map(int, reports.get("ranks").split()))
                time.sleep(pause)

    # A thread, because the store of a stopped process never answers.
    threading.Thread(target=exchange, daemon=True).start()
    deadline, count = time.monotonic() + _ANSWER_SECONDS, 0
    while time.monotonic() < deadline and len(reported) < meeting.world.world_size and not read_first_failure(run):
        if len(reported) > count:
            count, deadline = len(reported), time.monotonic() + _REPORT_SECONDS
        time.sleep(0.05)
    return reported


def _describe_process(entry: RankEntry) -> str:
    """Return a remark on a process of this node that cannot run; empty for a process that can, or of another node."""
    states = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a disk or another device"}
    states |= dict.fromkeys("ZX", "has ended")
    if entry.pid and entry.host == network.this_node_name(os.environ):
        try:
            state = read_stat(Path(f"/proc/{entry.pid}"))[STATE]
        except OSError:
            state = "X"
        return f"its process {entry.pid} {states[state]}" if state in states else ""
    return ""


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
