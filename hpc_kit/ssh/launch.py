"""Runs a job on hosts over ssh: all hosts start and end together. Writes the record and the logs of the run."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import Any, BinaryIO, NamedTuple

from msgspec import structs

from hpc_kit.errors import HostlistError, LaunchError
from hpc_kit.run_files import (
    END,
    RECORD,
    RUN_VARIABLE,
    SUMMARY,
    FirstFailure,
    claim_first_failure,
    rank_log,
    write_whole,
)
from hpc_kit.runs.first_failure import find_failure
from hpc_kit.runs.record import RecordedFailure, RecordedOutcome, add_outcomes, encode_record
from hpc_kit.runs.run_folders import open_run
from hpc_kit.runtime.rendezvous.store import SECRET
from hpc_kit.runtime.rendezvous.store_discovery import raise_file_limit
from hpc_kit.runtime.variables import SSH_HOSTS, SSH_LAUNCH, SSH_MASTER, SSH_NODE
from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.states import JobState
from hpc_kit.spec.resolve import Resolved
from hpc_kit.ssh import agent
from hpc_kit.ssh.backend import NAME, lock_run
from hpc_kit.ssh.host_connection import (
    HostConnection,
    HostMessage,
    RankOutput,
    explain_host_failure,
    first_host_address,
    host_warnings,
)
from hpc_kit.ssh.hosts import LaunchHost
from hpc_kit.ssh.ssh_command import make_socket_folder
from hpc_kit.submission.provenance import GitQuery, add_git_state, new_record
from hpc_kit.submission.staging import LATEST, replace_symlink, unwritable_folder_error

HOST_SCRIPT = "agent.sh"
"""File in the folder of the run: the script of the first host."""

GRACE_SECONDS = 30.0
"""Seconds between SIGTERM and SIGKILL for the ranks of a host; the same as Slurm's KillWait."""

_PEER_FAILURE_SECONDS = 3.0
"""After a rank failed, the remaining ranks have this time to fail by themselves: their logs then show the lost peer."""

_POLL_SECONDS = 0.2
_OUTPUT_QUEUE_LENGTH = 256
"""Pieces of output, at most 64 KiB each, that wait for the terminal before the ranks have to wait."""

_LONGEST_LINE = 1 << 16
"""Characters. A longer line is shown in parts."""

_OPEN_FILES = 1 << 16
"""Open files of a launch, if the system allows as many: a log for each rank, and two pipes for each host."""

_THIS_SIDE = -1
"""Node of messages that come from the launcher itself."""

_HOST_FAILED = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LaunchPlan(NamedTuple):
    """The work of the hosts."""

    key: str
    """Identifies the launch; no other launch has the same key."""

    folder: Path
    """The project, at the same path on all hosts."""

    run: Path
    scripts: tuple[str, ...]
    """Shell script of each host."""

    environ: Mapping[str, str]
    """Exported variables, which are in no script."""

    ranks: tuple[int, ...]
    """Number of ranks of each host."""


class LaunchResult(NamedTuple):
    """The end of a launch."""

    state: JobState = JobState.COMPLETED
    status: int = 0
    """Exit code of the rank that failed first; 128 plus the number of the signal that ended it; 1 for a lost host."""

    failure: FirstFailure | None = None
    problem: str | None = None
    """The reason, if no rank failed first."""

    summary: str | None = None
    """The summary that the training wrote."""


class SshLaunch:
    """The hosts of one launch, in the order of their ranks. `timeout` limits each step of a connection, in seconds."""

    def __init__(self, hosts: Sequence[LaunchHost], python: str, timeout: float) -> None:
        raise_file_limit(_OPEN_FILES)
        self._messages: SimpleQueue[HostMessage] = SimpleQueue()
        self._outputs: Queue[RankOutput] = Queue(maxsize=_OUTPUT_QUEUE_LENGTH)
        self._sockets = make_socket_folder()
        self.connections = [
            HostConnection(
                node, host, python, self._messages, self._outputs, socket=self._sockets / str(node), timeout=timeout
            )
            for node, host in enumerate(hosts)
        ]
        self.ending = threading.Event()
        """Set as soon as the launch ends: from then on, it does not wait for a terminal that reads nothing."""
        self._greetings: dict[int, HostMessage] = {}
        self._running: set[int] = set()
        self._ended: set[int] = set()  # Their agents sent `end`; they count as running until the connection closes.
        self._result = LaunchResult()
        self._end_at: float | None = None
        self._give_up_at: float | None = None

    def connect(self) -> None:
        """Connect to all hosts.

        Raises:
            LaunchError: At least one host cannot be used. No rank was started on any host.
        """
        for connection in self.connections:
            connection.start()
        refused: dict[int, LaunchError] = {}
        while len(self._greetings.keys() | refused.keys()) < len(self.connections):
            message = self._messages.get()
            if message.kind == "hello":
                self._greetings[message.node] = message
            elif message.kind in {"refused", "lost"}:
                refused[message.node] = explain_host_failure(self.connections[message.node].host, message)
        errors = [refused[node] for node in sorted(refused)]
        if len(errors) > 1:
            raise LaunchError(
                f"{len(errors)} of {len(self.connections)} hosts cannot be used",
                found="\n".join(f"{error.what}: {error.found}" for error in errors),
                remedy="\n".join(dict.fromkeys(error.remedy or "" for error in errors)),
            )
        for error in errors:
            raise error

    def placement_warnings(self, ranks: Sequence[int], backend: str) -> list[str]:
        """Return warnings about these ranks on the connected hosts.

        Raises:
            LaunchError: Ranks would use the GPUs of other ranks.
        """
        return list(host_warnings(self.connections, self._greetings, ranks, backend))

    def run(self, plan: LaunchPlan, write: Callable[[str, int | None, str], None]) -> LaunchResult:
        """Start the ranks on all hosts, and wait until all have ended.

        Args:
            plan: The work of the hosts.
            write: Receives the output: the name of the host, the rank (None: torchrun), and the text. While it blocks,
                nothing more is read from the hosts.
        """
        with _signals_as_messages(self._messages), _signs_of_life(self.connections):
            self._start(plan)
            threading.Thread(target=self._pass_output, args=(write,), name="output", daemon=True).start()
            while self._goes_on():
                with suppress(Empty):
                    self._handle(self._messages.get(timeout=_POLL_SECONDS))
                if self._end_at is not None and time.monotonic() >= self._end_at and self._give_up_at is None:
                    self._order("end")
        self.close()
        return self._result

    def close(self) -> None:
        """Cut all connections, and remove their sockets."""
        closing = [threading.Thread(target=connection.close) for connection in self.connections]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _start(self, plan: LaunchPlan) -> None:
        names = ",".join(connection.name for connection in self.connections)
        common = {SSH_LAUNCH: plan.key, SSH_HOSTS: names, RUN_VARIABLE: str(plan.run)}
        common[SECRET] = secrets.token_hex(16)
        common[SSH_MASTER] = first_host_address(self._greetings)
        for connection, ranks in zip(self.connections, plan.ranks, strict=True):
            self._running.add(connection.node)
            connection.send(
                "start",
                folder=str(plan.folder),
                run=str(plan.run),
                script=plan.scripts[connection.node],
                environ={**plan.environ, **common, SSH_NODE: str(connection.node)},
                first=sum(plan.ranks[: connection.node]),
                ranks=ranks,
                grace=GRACE_SECONDS,
            )

    def _pass_output(self, write: Callable[[str, int | None, str], None]) -> None:
        """Pass the output of the hosts to `write`, as fast as it accepts it."""
        writable = True
        while True:
            output = self._outputs.get()
            try:
                if writable:
                    write(*output)
            except Exception as error:  # noqa: BLE001 - any: without a reader, the ranks would stop forever
                writable = False
                self._messages.put(HostMessage(_THIS_SIDE, "unwritable", {"reason": str(error)}))
            finally:
                self._outputs.task_done()

    def _goes_on(self) -> bool:
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            return False
        return bool(self._running or self._outputs.unfinished_tasks or not self._messages.empty())

    def _handle(self, message: HostMessage) -> None:
        values = message.values
        match message.kind:
            case "failed":
                failure = FirstFailure(*(values[name] for name in ("rank", "host", "code", "time", "reason")))
                self._fail(state=JobState.FAILED, status=failure.exit_code, failure=failure)
                self._end_at = self._end_at or time.monotonic() + _PEER_FAILURE_SECONDS
            case "end":
                self._result = self._result._replace(summary=self._result.summary or values["summary"])
                if values["code"]:
                    self._end_now(f"torchrun on {self.connections[message.node].name} failed", values["code"])
                self._ended.add(message.node)
            case "lost" if message.node in self._ended:
                self._running.discard(message.node)
            case "refused" | "lost":
                self._running.discard(message.node)
                error = explain_host_failure(self.connections[message.node].host, message)
                self._end_now(str(error), _HOST_FAILED)
            case "unwritable":
                self._end_now(f"the output of the ranks cannot be written: {values['reason']}", _HOST_FAILED)
            case "signal":
                self._stop(values["number"])

    def _end_now(self, problem: str, status: int) -> None:
        self._fail(state=JobState.FAILED, status=status, problem=problem)
        self._end_at = time.monotonic()

    def _fail(self, **result: Any) -> None:
        """Store a failure. Only the first one counts."""
        self.ending.set()
        if not self._result.status:
            self._result = self._result._replace(**result)

    def _stop(self, number: int) -> None:
        """End the launch after a signal. The first signal asks the ranks to end, the second one kills them."""
        if not self._running:  # Only the rest of the output is still missing.
            self.ending.set()
            self._give_up_at = time.monotonic() + _PEER_FAILURE_SECONDS
            return
        kind = "kill" if self._give_up_at else "end"
        problem = f"ended by {signal.Signals(number).name}"
        self._fail(state=JobState.CANCELLED, status=128 + number, problem=problem)
        self._order(kind)

    def _order(self, kind: str) -> None:
        self._give_up_at = time.monotonic() + (GRACE_SECONDS if kind == "end" else 0) + agent.SILENCE
        for connection in self.connections:
            connection.send(kind)


@contextmanager
def _signs_of_life(connections: Sequence[HostConnection]) -> Iterator[None]:
    """Send signs of life from a separate thread. A terminal that reads nothing must not end a training."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(agent.ALIVE):
            for connection in connections:
                connection.send("alive")

    threading.Thread(target=send, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _signals_as_messages(messages: SimpleQueue[HostMessage]) -> Iterator[None]:
    """Put signals into the queue of messages, so that they interrupt no other work."""

    def put(number: int, _: object) -> None:
        messages.put(HostMessage(_THIS_SIDE, "signal", {"number": number}))

    # Ignored signals stay ignored, for example SIGHUP after nohup, and SIGINT in the background of a script.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, put) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RankLogs:
    """Writes the output of each rank to its log, and shows whole lines with rank and host in front."""

    def __init__(self, run: Path, hosts: Sequence[str], ranks: int, show: Callable[[str], None]) -> None:
        self._run, self._show = run, show
        self._rank_width, self._host_width = len(str(ranks - 1)), max(map(len, hosts))
        self._incomplete: dict[tuple[str, int | None], str] = {}
        self._last_progress: dict[tuple[str, int | None], float] = {}
        self._logs: dict[str, BinaryIO] = {}
        self._open = ExitStack()
        for rank in range(ranks):
            self._log(rank_log(rank))  # Each rank has a log, also without any output.

    def write(self, host: str, rank: int | None, text: str) -> None:
        """Write a piece of output of a rank, or of torchrun (None)."""
        self._log(f"node-{host}.log" if rank is None else rank_log(rank)).write(text.encode("utf-8", "surrogateescape"))
        *lines, rest = (self._incomplete.get((host, rank), "") + text).split("\n")
        self._print(host, rank, *lines)
        self._incomplete[host, rank] = self._show_progress(host, rank, rest)

    def close(self) -> None:
        """Show incomplete lines, and close the logs."""
        for (host, rank), line in self._incomplete.items():
            if line:
                self._print(host, rank, line)
        self._open.close()

    def _show_progress(self, host: str, rank: int | None, rest: str) -> str:
        """Show a progress bar once a second, or a part of a very long line. Return what remains of the line."""
        last = rest.rstrip("\r").rpartition("\r")[2]
        if len(last) > _LONGEST_LINE:
            self._print(host, rank, last)
            return ""
        if "\r" in rest and last and time.monotonic() - self._last_progress.get((host, rank), -inf) >= 1:
            self._last_progress[host, rank] = time.monotonic()
            self._print(host, rank, last)
        return f"{last}\r" if rest.endswith("\r") else last

    def _print(self, host: str, rank: int | None, *lines: str) -> None:
        front = f"{'' if rank is None else rank:>{self._rank_width}} {host:<{self._host_width}} | "
        # After carriage returns, only the last state of a line is visible.
        shown = "\n".join(front + line.rstrip("\r").rpartition("\r")[2] for line in lines)
        if lines:
            self._show(shown.encode("utf-8", "surrogateescape").decode(errors="replace"))

    def _log(self, name: str) -> BinaryIO:
        if name not in self._logs:
            self._logs[name] = self._open.enter_context((self._run / name).open("ab", buffering=0))
        return self._logs[name]


def begin_record(
    resolved: Resolved, root: Path, hosts: Mapping[str, int], script: str, command_line: Sequence[str]
) -> Path:
    """Create the folder of the run, `runs/<job_name>/<time>`, with the record as far as it is known. Return the folder.

    Raises:
        RecordError: The record cannot be written. No rank was started.
    """
    folder = root.absolute() / resolved.log_folder
    git = GitQuery(root, resolved.cluster.runs)
    try:
        record = new_record(resolved, root, command_line, os.environ, slurm=NAME)
        run = _create_run_folder(folder)
        lock_run(run)
        record = structs.replace(add_git_state(record, git.state(), run), job_id=run.name, hosts=dict(hosts))
        write_whole(run / RECORD, encode_record(record))
        write_whole(run / HOST_SCRIPT, script.encode())
        replace_symlink(folder / LATEST, run.name)
    except OSError as error:
        git.stop()
        raise unwritable_folder_error(folder, error) from error
    return run


def end_record(run: Path, result: LaunchResult, began: float, hosts: Sequence[str]) -> None:
    """Add the result to the record. Write the files that hosts with another file system could not write here.

    Raises:
        RecordError: A file cannot be written, most often because of the full disk that also ended the job.
    """
    failure = result.failure
    if failure is not None:
        claim_first_failure(run, failure.rank, failure.host, failure.exit_code, failure.reason)
    try:
        if result.summary is not None and not (run / SUMMARY).exists():
            write_whole(run / SUMMARY, result.summary.encode())
        write_whole(run / END, f"{result.status} {time.time():.0f}\n".encode())
    except OSError as error:
        raise unwritable_folder_error(run, error) from error
    explained = find_failure(open_run(run), None) if failure else None
    first = failure and RecordedFailure(
        rank=failure.rank,
        host=failure.host,
        exit_code=failure.exit_code,
        headline=explained.headline if explained else "",
    )
    end = RecordedOutcome(
        state=str(result.state),
        exit_status=result.status,
        start=_format_local_time(began),
        end=_format_local_time(time.time()),
        nodes=_fold_names(hosts),
        first_failure=first,
        problem=result.problem,
    )
    add_outcomes(run, {None: end})


def _fold_names(hosts: Sequence[str]) -> str:
    """Fold names as Slurm does. A list with an address in brackets stays as it is."""
    try:
        return fold(hosts)
    except HostlistError:
        return ",".join(hosts)


def _create_run_folder(folder: Path) -> Path:
    """Create a folder named by the time. Wait if another launch began in the same second."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        run = folder / time.strftime("%Y%m%d%H%M%S")
        try:
            run.mkdir(0o700)
        except FileExistsError:
            time.sleep(0.2)
        else:
            return run


def _format_local_time(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment).astimezone().isoformat(timespec="seconds")
