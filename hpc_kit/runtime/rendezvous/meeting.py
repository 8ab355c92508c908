"""Brings all ranks of a launch together: rank 0 opens a store, the ranks sign in there, and rank 0 leaves last."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, RendezvousError
from hpc_kit.run_files import format_ranks
from hpc_kit.runtime.rendezvous import network, node_comparison, store
from hpc_kit.runtime.rendezvous.ended_without_torch import EndsWithoutTorch
from hpc_kit.runtime.rendezvous.master_host import HostResolver
from hpc_kit.runtime.variables import WAIT_LONGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch._C._distributed_c10d import Store, TCPStore

    from hpc_kit.runtime.rendezvous.node_comparison import Facts
    from hpc_kit.runtime.rendezvous.store import OpenStore
    from hpc_kit.runtime.world import World

DEFAULT_TIMEOUT = 300.0
"""Seconds. The nodes of a large job may start minutes apart."""

_LEAVE_TIMEOUT = 60.0
"""Seconds that a rank waits at its end for ranks that still need its store or a connection to it."""

LAUNCHERS_WITH_STORE = {"torchrun", "env"}
"""Launchers whose MASTER_ADDR and MASTER_PORT name an existing store."""

_meeting_numbers = itertools.count()

_COMPLETE, _HAVE_READ_DIFFERENCES, _ALL_HAVE_READ = "complete", "refused", "answered"
"""Keys: the differences between nodes, the number of ranks that have read them, and rank 0's mark that all have."""
HAS_READ, HAS_GROUP, IS_DONE = "in", "group", "out"
"""Stages of a rank: it has read all about the meeting, has created a process group, or no longer needs the store."""
_MAX_PAUSE = 0.1
"""Longest pause in seconds between two polls of the store."""
_STORE_POLL_SECONDS = 2.0
"""Seconds. The network may lose the message that a connection was closed, so waiting ranks also ask the store."""
_LONGEST_MESSAGE = 65_536
_RANKS_PER_REQUEST = 64
"""Number of ranks that rank 0 reads from the store in one request."""
_MAX_HOSTS_NAMED = 16
_READ_SECONDS = 5.0
"""Seconds for all ranks to read the differences before rank 0 reports them."""


@dataclass(frozen=True)
class RankEntry:
    """The entry of one rank in the store."""

    host: str
    pid: int
    mark: str = field(default_factory=lambda: os.urandom(6).hex())
    """Random mark, because two processes in containers may have the same host name and pid."""
    facts: Facts = field(default_factory=dict)
    """Versions and program hash, which must be equal on all nodes."""

    def to_json(self) -> str:
        """Return the entry as it is stored."""
        return json.dumps([self.host, self.pid, self.mark, self.facts])

    @classmethod
    def from_json(cls, data: bytes) -> RankEntry:
        """Read a stored entry."""
        return cls(*json.loads(data))


@dataclass(frozen=True)
class Meeting:
    """The ranks of a launch after they have met."""

    world: World
    """The complete World; no number is None."""
    host: str
    """Host of the store, as other libraries can use it."""
    port: int
    server: TCPStore
    """The store, or a connection to it."""
    prefix: str
    """Prefix of all keys of this meeting."""
    is_owner: bool
    """True if the store lives in this process."""
    interface: str | None
    """The network interface that leads to the other nodes."""
    initial_keys: int
    """Number of keys in the owner's store when all ranks had met. More keys show that the program uses the store."""
    reserved_port: int | None = None
    """File descriptor that reserves the port if this process runs alone."""
    groups: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers of the process groups that the ranks create one after another."""

    def substore(self, name: str) -> Store:
        """Return the part of the store whose keys start with `name`."""
        return _prefix_store(self.server, f"{self.prefix}/{name}")

    def entries(self) -> list[RankEntry]:
        """Return the entries of all ranks, in rank order."""
        return read_entries(self.substore("roster"), self.world)

    def next_group_store(self) -> tuple[int, Store]:
        """Return the number of the next process group, from 1, and its part of the store.

        If two groups used the same part, the second one would connect to the addresses of the first.
        """
        number = next(self.groups)
        return number, self.substore(f"group/{number}")

    @contextmanager
    def until_all_have_created(self, number: int) -> Iterator[None]:
        """Run the block, which uses a new process group, and then wait until all ranks have created the group.

        gloo connects the ranks one by one, and a rank that destroys its group early would break the connection of a
        late rank. The wait ends after 60 s, because a rank may have failed. It is left out after an exception.

        Args:
            number: Number of the group, from `next_group_store`.
        """
        counts = self.substore("departures")
        _count_rank(counts, HAS_GROUP)
        yield
        with suppress(RuntimeError):  # the store has ended with rank 0
            self._wait_for_count(counts, HAS_GROUP, number * self.world.world_size)

    def leave(self) -> None:
        """Leave the meeting. The owner of the store waits until no other rank needs it."""
        if self.reserved_port is not None:
            os.close(self.reserved_port)
        departures = self.substore("departures")
        if self.is_owner:
            others = self.world.world_size - 1
            self._wait_for_count(departures, HAS_READ, others)
            if self.server.num_keys() > self.initial_keys:
                self._wait_for_count(departures, IS_DONE, others)
        # Rank 0 may have left long ago if the program did not use the store.
        elif network.is_reachable(self.host, self.port):
            _count_rank(departures, IS_DONE)

    def _wait_for_count(self, counts: Store, stage: str, count: int) -> None:
        ranks = self.world.world_size
        wait_until(lambda: len(counts.get(stage)) >= count, time.monotonic() + _LEAVE_TIMEOUT, ranks)


def meet(
    world: World,
    *,
    timeout: float | None = None,
    environ: Mapping[str, str] | None = None,
    meeting_number: int | None = None,
    program: Path | None = None,
) -> Meeting:
    """Meet all ranks of `world`.

    Args:
        world: This process.
        timeout: Seconds to wait for the other ranks; 300 by default.
        environ: Environment with the node's name and torchrun's variables; `os.environ` by default.
        meeting_number: Number of this meeting among those of these processes; counted by default.
        program: The program of this process; the running program by default.

    Raises:
        RendezvousError: Not all ranks came in time, or a rank has ended without importing torch. The message names the
            missing ranks.
        ContradictoryEnvironment: Two processes have the same rank, or the nodes do not run the same code.
    """
    environ = os.environ if environ is None else environ
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    deadline = time.monotonic() + timeout
    meeting_number = next(_meeting_numbers) if meeting_number is None else meeting_number
    node = network.this_node_name(environ)
    resolver = HostResolver(world, node, timeout, environ)
    check_ended_ranks = EndsWithoutTorch(world, environ).check
    with ExitStack() as until_all_have_come:
        token = store.launch_token(world, meeting_number, environ)
        if world.launcher in LAUNCHERS_WITH_STORE:
            open_store = store.launcher_store(resolver)
        elif world.rank == 0:
            open_store = until_all_have_come.enter_context(store.serve_store(world, token, timeout, environ))
        else:
            open_store = store.StoreSearch(resolver, token, check_ended_ranks).find()
        if open_store.notification is not None:
            until_all_have_come.enter_context(open_store.notification)
        # Agents of torchrun and their workers meet in one store, and so do restarted workers.
        prefix = f"hpc_kit/{world.launcher}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{meeting_number}"
        roster = _prefix_store(open_store.store, f"{prefix}/roster")
        _publish_address(roster, world, open_store, node)
        # Hash the program after the store is open, because the other ranks look for the store.
        facts = node_comparison.node_facts(world, program, environ)
        sign_in = SignIn(roster, world, open_store, timeout, deadline, check_ended_ranks)
        sign_in.sign(RankEntry(node, os.getpid(), facts=facts))
        sign_in.wait_for_all()
    world = fill_world(roster, world)
    address = _read_address(roster, world, open_store)
    departures = _prefix_store(open_store.store, f"{prefix}/departures")
    if open_store.is_server:
        for stage in (HAS_READ, HAS_GROUP, IS_DONE):
            departures.append(stage, "")  # type: ignore[attr-defined]
    meeting = Meeting(
        world=world,
        host=_host_for_libraries(open_store, address),
        port=open_store.port,
        server=open_store.store,
        prefix=prefix,
        is_owner=open_store.is_server,
        interface=_route_interface(world, address),
        initial_keys=open_store.store.num_keys() if open_store.is_server else 0,
        reserved_port=open_store.reserved_port,
    )
    if not open_store.is_server:
        _count_rank(departures, HAS_READ)
    return meeting


def _prefix_store(server: TCPStore, prefix: str) -> Store:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    part: Store = PrefixStore(prefix, server)
    return part


_ADDRESS_KEY = "address of rank 0"


def _publish_address(roster: Store, world: World, open_store: OpenStore, here: str) -> None:
    """Publish the address at which this node reaches rank 0, for the ranks on rank 0's node."""
    if (
        open_store.host != here
        and not world.local_rank
        and (address := open_store.address or _first_address(open_store.host))
    ):
        roster.set(_ADDRESS_KEY, address)


def _read_address(roster: Store, world: World, open_store: OpenStore) -> str:
    """Return the address of rank 0. On its own node, this is the address that another node has published."""
    if world.nnodes != 1 and world.node_rank == 0 and roster.check([_ADDRESS_KEY]):
        return roster.get(_ADDRESS_KEY).decode()
    return open_store.address or _first_address(open_store.host)


def _route_interface(world: World, address: str) -> str | None:
    """Return the network interface that leads to rank 0; None if it is unknown, and gloo must choose one."""
    if world.nnodes == 1:
        return network.interface_with("127.0.0.1")
    source = network.source_address(address) if address else None
    return network.interface_with(source) if source else None


def _host_for_libraries(open_store: OpenStore, address: str) -> str:
    """Return the host of rank 0 for other libraries: its name, or its address if the name does not resolve."""
    is_usable = open_store.notification is not None or _first_address(open_store.host)
    return open_store.host if is_usable else address or "127.0.0.1"


def _first_address(host: str) -> str:
    try:
        return network.lookup(host)[0]
    except OSError:
        return ""


@dataclass
class SignIn:
    """Signs one rank in, and waits until every rank has signed in."""

    roster: Store
    """Store of the entries."""
    world: World
    open_store: OpenStore
    """The store, with the connection on which rank 0 notifies this rank."""
    timeout: float
    """Seconds that the whole meeting may take, for messages."""
    deadline: float
    """End of the wait, as time.monotonic()."""
    check_ended_ranks: Callable[[], None]
    """Raises an error if a rank can no longer come."""

    def sign(self, entry: RankEntry) -> None:
        """Sign in as this rank.

        Raises:
            ContradictoryEnvironment: Another process has signed in as this rank.
        """
        mine = entry.to_json()
        stored = self.roster.compare_set(_key(self.world.rank), "", mine)
        if stored != mine.encode():
            first = RankEntry.from_json(stored)
            raise ContradictoryEnvironment(
                f"two processes claim to be rank {self.world.rank} of {self.world.name}",
                found=f"{first.host}, process {first.pid}\n{entry.host}, process {entry.pid}",
                remedy="start the ranks with one srun or torchrun; unset RANK and WORLD_SIZE of an outer one",
            )

    def wait_for_all(self) -> None:
        """Wait until every rank has signed in.

        Raises:
            RendezvousError: Some ranks did not come in time, or rank 0 is gone. The message names ranks and hosts.
            ContradictoryEnvironment: The nodes do not run the same code. Only rank 0 reports the details.
        """
        try:
            answer = self._collect_entries() if self.world.is_main else self._await_notification()
            if answer is not None:
                self._check_nodes_equal(json.loads(answer))
                return
        except RuntimeError as error:
            raise RendezvousError(
                "rank 0 went away while the ranks were meeting",
                found=f"{self.world} had found its store",
                remedy="read the log of rank 0, which shows the reason",
            ) from error
        raise self._missing_ranks_error()

    def _collect_entries(self) -> str | None:
        """Wait for all entries, publish the differences between nodes and return them; None after a time-out."""
        waiting = [_key(rank) for rank in range(self.world.world_size)]

        def have_come() -> bool:
            while waiting and self.roster.check(waiting[:_RANKS_PER_REQUEST]):
                del waiting[:_RANKS_PER_REQUEST]
            return not waiting

        if not wait_until(have_come, self.deadline, 1, self.check_ended_ranks):
            return None
        entries = read_entries(self.roster, self.world)
        differences = json.dumps(node_comparison.find_differences((each.host, each.facts) for each in entries))
        self.roster.set(_COMPLETE, differences)
        if self.open_store.notify is not None:
            self.open_store.notify(differences)
        return differences

    def _await_notification(self) -> str | None:
        """Return the differences that rank 0 sends over the connection or publishes; None after a time-out.

        Waiting on the connection costs rank 0 nothing, unlike polls of the store.
        """
        data, notification = b"", self.open_store.notification
        while notification is not None:
            left = self.deadline - time.monotonic()
            notification.settimeout(max(0.01, min(_STORE_POLL_SECONDS, left)))
            try:
                received = notification.recv(_LONGEST_MESSAGE)
            except TimeoutError:
                if left > 0 and not self.roster.check([_COMPLETE]):
                    continue
                break
            except OSError:
                break
            data += received
            if data.endswith(b"\n"):
                return data.decode()
            if not received:
                break

        come = wait_until(
            lambda: self.roster.check([_COMPLETE]), self.deadline, self.world.world_size, self.check_ended_ranks
        )
        return self.roster.get(_COMPLETE).decode() if come else None

    def _check_nodes_equal(self, differences: list[str]) -> None:
        if not differences:
            return
        # Rank 0 raises after all ranks have read the differences. Otherwise they would report that its store is gone.
        if not self.world.is_main:
            self.roster.add(_HAVE_READ_DIFFERENCES, 1)
            with suppress(RuntimeError):
                self._wait_briefly(lambda: self.roster.check([_ALL_HAVE_READ]))
            raise ContradictoryEnvironment(f"the nodes do not run the same: {'; '.join(differences)}")
        self._wait_briefly(lambda: self.roster.add(_HAVE_READ_DIFFERENCES, 0) >= self.world.world_size - 1)
        self.roster.set(_ALL_HAVE_READ, "")
        raise ContradictoryEnvironment(
            "the nodes do not run the same",
            found="\n".join(differences),
            remedy="use the same environment and the same files on all nodes;\n"
            f"if they are meant to differ: export {node_comparison.COMPARE_VARIABLE}=0",
        )

    def _wait_briefly(self, is_done: Callable[[], bool]) -> None:
        wait_until(is_done, time.monotonic() + _READ_SECONDS, self.world.world_size)

    def _missing_ranks_error(self) -> RendezvousError:
        """Return the error about missing ranks, with all details only on the first rank that is present."""
        world = self.world
        present = [rank for rank in range(world.world_size) if self.roster.check([_key(rank)])]
        entries = [RankEntry.from_json(self.roster.get(_key(rank))) for rank in present]
        absent = sorted(set(range(world.world_size)) - set(present))
        late = _hosts_without(world, Counter(entry.host for entry in entries))
        # --distribution decides the nodes of ranks. Only if a single node lacks ranks, it is certainly theirs.
        host = late[0].rpartition(":")[0] if len(late) == 1 else None
        what = f"{len(absent)} of {world.world_size} ranks did not come within {self.timeout:g} s"
        if present and world.rank != present[0]:
            hosts = ", ".join(line.partition(":")[0] for line in late) or format_ranks(absent)
            short = f"{what}: {hosts}; rank {present[0]} shows more"
            return RendezvousError(short, missing=tuple(absent), host=host, waited=self.timeout)
        return RendezvousError(
            what,
            found="\n".join([f"not there: {format_ranks(absent)}", *late]),
            remedy="look at their logs: a rank that fails early never comes;\n"
            f"{WAIT_LONGER}{_interactive_hint(present, world)}",
            missing=tuple(absent),
            host=host,
            waited=self.timeout,
        )


def _count_rank(counts: Store, stage: str) -> None:
    """Count this rank as one that has reached a stage, such as HAS_READ."""
    with suppress(RuntimeError):
        # Unlike add(), this does not wait for an answer of the store.
        counts.append(stage, ".")  # type: ignore[attr-defined]


def wait_until(
    is_done: Callable[[], bool], deadline: float, ranks: int, check: Callable[[], None] | None = None
) -> bool:
    """Poll `is_done` and return whether it became true in time. A store's own wait would log an error at its time-out.

    Args:
        is_done: The condition.
        deadline: End of the wait, as time.monotonic().
        ranks: Number of ranks that poll at the same time. With many ranks, the pauses are longer.
        check: Called after each poll. Its errors end the wait.
    """
    start = time.monotonic()
    while not is_done():
        if check is not None:
            check()
        now = time.monotonic()
        if now >= deadline:
            return False
        # The pauses become longer, up to 1 % of the time waited, to spare the store.
        time.sleep(min(_MAX_PAUSE, deadline - now, max(0.0005, (now - start) / 100, ranks / 20_000)))
    return True


def fill_world(roster: Store, world: World) -> World:
    """Return `world` with the values that its launcher did not set. Nodes are numbered by their lowest rank."""
    if None not in {world.local_rank, world.local_world_size, world.node_rank, world.nnodes}:
        return world
    hosts = [entry.host for entry in read_entries(roster, world)]
    nodes, here = list(dict.fromkeys(hosts)), hosts[world.rank]
    found = {
        "local_rank": hosts[: world.rank].count(here),
        "local_world_size": hosts.count(here),
        "node_rank": nodes.index(here),
        "nnodes": len(nodes),
    }
    missing = {name: value for name, value in found.items() if getattr(world, name) is None}
    sources = dict(world.sources) | dict.fromkeys(missing, "the ranks' hosts, when they met")
    return replace(world, **missing, sources=sources)  # type: ignore[arg-type]


def read_entries(roster: Store, world: World) -> list[RankEntry]:
    """Return the entries of all ranks. All must have signed in."""
    return [RankEntry.from_json(data) for data in roster.multi_get([_key(rank) for rank in range(world.world_size)])]


def _interactive_hint(present: list[int], world: World) -> str:
    """Return a hint if only the shell of `srun --pty` came: it is task 0, and the other tasks are idle shells."""
    if present != [0] or world.launcher != "slurm" or not os.environ.get("SLURM_PTY_PORT"):
        return ""
    return ";\nin the shell of srun --pty: HPC_KIT_LAUNCHER=single for one process, srun --overlap -nN for several"


def _hosts_without(world: World, signed: Counter[str]) -> list[str]:
    """Return one line for each host of the launch that lacks ranks."""
    expected: Counter[str] = Counter()
    for host, tasks in zip(world.hosts, world.tasks_per_node, strict=False):
        expected[host] += tasks  # components of a heterogeneous job may share a host
    lines = [f"{host}: {signed[host]} of {tasks} came" for host, tasks in expected.items() if signed[host] < tasks]
    if not world.tasks_per_node:
        lines = [f"{host}: no rank came" for host in world.hosts if not signed[host]]
    more = len(lines) - _MAX_HOSTS_NAMED
    return lines[:_MAX_HOSTS_NAMED] + ([f"and {more} more hosts"] if more > 0 else [])


def _key(rank: int) -> str:
    return f"rank/{rank}"
