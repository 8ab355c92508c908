"""A time-out for MPI_Init, which waits for all ranks without one.

MPI_Init holds Python's lock while it waits, so no thread and no signal handler of the rank can run. A process beside
each rank reports which ranks came, host by host, and ends the rank. It ends as soon as MPI_Init returns.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError
from hpc_kit.run_files import format_ranks
from hpc_kit.runtime.rendezvous import network
from hpc_kit.runtime.rendezvous.store import discovery_ports, launch_token
from hpc_kit.runtime.variables import WAIT_LONGER
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpc_kit.runtime.world import World

_ROOT = Path(__file__).parents[3]
_PROGRAM = f"import sys; sys.path[:1] = []; sys.path.append({str(_ROOT)!r}); from {__name__} import main; main()"

_REPORT_SECONDS = 3.0
"""Seconds of the time-out reserved for asking other hosts."""
_ANSWER_SECONDS = 1.0
_COUNT_VALID_SECONDS = 0.2
"""Seconds for which a host's count of ranks is reused, because all ranks of all hosts ask at the same moment."""
_REPORTER_SECONDS = 2.0
"""Seconds that the reporting rank has before the remaining ranks print a line each."""
_MOST_PORTS = 3
_QUERY_THREADS = 64


@dataclass(frozen=True)
class InitWatchdog:
    """State of the watching process of one rank."""

    token: str
    """Token of the launch. Ranks of other launches are not counted."""
    ports: list[int]
    """Ports on which the first process of a host answers questions about its ranks."""
    rank: int
    size: int
    local_size: int | None
    here: str
    hosts: str
    """Node list of the hosts on which ranks may be; "" if no variable names them."""
    timeout: float
    pid: int
    """Process id of the rank."""

    @contextmanager
    def present(self) -> Iterator[None]:
        """Announce this rank by an abstract socket of the host, which leaves nothing on disk."""
        with ExitStack() as held:
            for name in (str(self.rank), "answerer"):
                mine = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                try:
                    mine.bind(self._name(name))
                except OSError:
                    continue
                if name == "answerer":
                    self._listen(held)
            yield

    def _listen(self, held: ExitStack) -> None:
        listener = next(filter(None, (network.listen(port, network.ALL_ADDRESSES) for port in self.ports)), None)
        if listener is not None:
            held.enter_context(listener)
            held.callback(listener.shutdown, socket.SHUT_RDWR)  # wakes the thread
            with suppress(RuntimeError):  # this user may start no more threads: other hosts get no answer
                Thread(target=self._answer, args=(listener,), daemon=True).start()

    def absent_ranks(self) -> tuple[RendezvousError, bool]:
        """Return the absent ranks, and whether this rank is the first of the present ones."""
        came = {self.here: (self.local_size, self._local_ranks())} | self._ranks_on_other_hosts()
        there = sorted({self.rank, *(rank for _, ranks in came.values() for rank in ranks)})
        absent = sorted(set(range(self.size)) - set(there))
        lines = [line for host, (size, ranks) in came.items() if (line := _missing_ranks_line(host, size, ranks))]
        if not absent:
            what = f"MPI_Init did not end within {self.timeout:g} s, although all {self.size} ranks have come to it"
        elif self.hosts or self.local_size == self.size:
            what = f"{len(absent)} of {self.size} ranks did not come to MPI_Init within {self.timeout:g} s"
            lines.insert(0, f"not there: {format_ranks(absent)}")
        else:
            what = f"not all of {self.size} ranks came to MPI_Init within {self.timeout:g} s"
            lines = [f"{self.here}: {format_ranks(there)} came; the other hosts are not known here"]
        missing = tuple(absent) if self.hosts or self.local_size == self.size else ()
        if self.rank != there[0]:
            short = f"{what}: {lines[0]}" if absent else what
            return RendezvousError(short, missing=missing, waited=self.timeout), False
        details = "\n".join(lines) or None
        return RendezvousError(
            what, found=details, remedy=_remedy_for(absent), missing=missing, waited=self.timeout
        ), True

    def _name(self, what: str) -> str:
        return f"\0{self.token}/{what}"

    def _local_ranks(self) -> list[int]:
        return [rank for rank in range(self.size) if _is_bound(self._name(str(rank)))]

    def _answer(self, listener: socket.socket) -> None:
        answer, until = b"", 0.0
        while True:
            try:
                call, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), call:
                if time.monotonic() >= until:
                    answer = f"{self.token}\n{json.dumps([self.local_size, self._local_ranks()])}\n".encode()
                    until = time.monotonic() + _COUNT_VALID_SECONDS
                call.sendall(answer)

    def _ranks_on_other_hosts(self) -> dict[str, tuple[int | None, list[int]]]:
        from concurrent.futures import ThreadPoolExecutor

        others = [host for host in nodelist.expand(self.hosts) if host != self.here]
        mine = self._local_ranks()
        with ThreadPoolExecutor(_QUERY_THREADS) as pool:
            found = dict(zip(others, pool.map(self._query_host, others), strict=True))
        # Slurm's name of this node may differ from its host name.
        return {host: answer for host, answer in found.items() if not answer[1] or answer[1] != mine}

    def _query_host(self, host: str) -> tuple[int | None, list[int]]:
        for port in self.ports:
            with (
                suppress(OSError, ValueError),
                socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as call,
                call.makefile() as answer,
            ):
                if answer.readline().strip() == self.token:
                    size, ranks = json.loads(answer.readline())
                    return size, ranks
        return None, []


@contextmanager
def mpi_init_deadline(world: World, timeout: float) -> Iterator[None]:
    """Limit MPI_Init inside the `with` block to `timeout` seconds. Then the rank ends and the absent ranks are named.

    If no process can be started, there is no limit.
    """
    if world.world_size == 1:
        yield
        return
    import subprocess

    watch = InitWatchdog(
        token=launch_token(world),
        ports=discovery_ports(f"MPI_Init of {world.key}")[:_MOST_PORTS],
        rank=world.rank,
        size=world.world_size,
        local_size=world.local_world_size,
        here=network.this_node_name(os.environ),
        hosts=nodelist.fold(world.hosts),  # one argument of a program has at most 128 KiB
        timeout=timeout,
        pid=os.getpid(),
    )
    # Started without `site` and with few imports: the rank does not wait for this process, but they share a core.
    command = [sys.executable, "-S", "-c", _PROGRAM, json.dumps(astuple(watch))]
    with ExitStack() as held:
        with suppress(OSError):
            process = held.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
            held.callback(process.kill)
        yield


def main() -> None:
    """Watch the rank that started this process until it closes the pipe or its time is up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the rank
    watch = InitWatchdog(*json.loads(sys.argv[1]))
    with watch.present():
        if _rank_continues_within(max(watch.timeout - _REPORT_SECONDS, 0.8 * watch.timeout)):
            return
        rank_continues = False
        try:
            rank_continues = _report(watch)
        finally:  # also if reporting failed
            if not rank_continues and os.getppid() == watch.pid:
                os.kill(watch.pid, signal.SIGKILL)
        if rank_continues:
            return
        # Ranks that look a moment later must still see this rank as present. mpirun waits for the end of stderr.
        os.close(2)
        time.sleep(_REPORT_SECONDS)


def _report(watch: InitWatchdog) -> bool:
    """Report absent ranks on stderr and in the run folder. Returns whether the rank has continued meanwhile."""
    from hpc_kit.runtime import first_failure

    error, is_first = watch.absent_ranks()
    if not is_first and _rank_continues_within(_REPORTER_SECONDS):
        return True
    os.write(2, f"hpc-kit: {error}\n".encode())
    first_failure.record_failure(error, watch.rank)
    return False


def _rank_continues_within(seconds: float) -> bool:
    """Return whether the rank continues or ends within this time."""
    return bool(select.select([0], [], [], seconds)[0])


def _is_bound(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(name) == 0


def _missing_ranks_line(host: str, size: int | None, ranks: list[int]) -> str:
    """Return a line for a host with missing ranks, or with possibly missing ones."""
    if not ranks:
        return f"{host}: no rank came"
    return "" if len(ranks) == size else f"{host}: {len(ranks)}{f' of {size}' if size else ''} came"


def _remedy_for(absent: list[int]) -> str:
    if absent:
        first = "look at their logs: a rank that fails or waits before it comes never calls MPI_Init"
    else:
        first = "MPI's own network does not serve: try it with another (mpirun --mca btl tcp,self; FI_PROVIDER=tcp)"
    return f"{first};\n{WAIT_LONGER}"
