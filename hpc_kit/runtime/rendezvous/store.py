"""The key-value store in which the ranks of a launch meet: rank 0 or the launcher opens it, the other ranks find it."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from hpc_kit.errors import RendezvousError
from hpc_kit.runtime.rendezvous import network, store_discovery
from hpc_kit.runtime.rendezvous.master_host import expected_hosts, master_address, needs_ipv6
from hpc_kit.runtime.variables import WAIT_LONGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch._C._distributed_c10d import TCPStore

    from hpc_kit.runtime.rendezvous.master_host import HostResolver
    from hpc_kit.runtime.world import World


_MAX_PAUSE = 0.25
_ALL_NODES_AFTER = 5.0
"""Seconds until the search includes the other nodes of the launch."""
_CONNECTION_INTERVAL, _MAX_SPREAD = 0.0008, 0.4
"""Seconds between the connections of two ranks, and between those of the first and the last rank."""
_ALL_PORTS_EVERY = 4
"""While no process answers at the first port, only every fourth round also tries the other ports."""


class OpenStore(NamedTuple):
    """A store and its address."""

    store: TCPStore
    host: str
    port: int
    address: str = ""
    """Address at which this process found the store."""
    notification: socket.socket | None = None
    """Connection that ends when all ranks have met."""
    notify: Callable[[str], None] | None = None
    """Sends a line to all ranks that wait for the notification."""
    reserved_port: int | None = None
    """Descriptor that reserves the port where no store listens."""
    is_server: bool = False
    """True if the store lives in this process."""


SECRET = "HPC_KIT_SECRET"  # noqa: S105 - the name of a variable
"""Environment variable that a job's script sets to random digits, so that no other user can derive the token."""


def launch_token(world: World, meeting_number: int = 0, environ: Mapping[str, str] | None = None) -> str:
    """Return the token that identifies rank 0 of this meeting among launches, users and earlier meetings."""
    secret = (environ or {}).get(SECRET, "")
    text = f"{world.launcher}, {world.key}, {world.world_size} ranks, user {os.getuid()}, {meeting_number}, {secret}"
    return f"hpc_kit/{blake2s(text.encode(), digest_size=16).hexdigest()}"


@contextmanager
def serve_store(world: World, token: str, timeout: float, environ: Mapping[str, str]) -> Iterator[OpenStore]:
    """Open rank 0's store and announce it to the other ranks inside the `with` block.

    Raises:
        RendezvousError: All ports that this launch may use are taken.
    """
    if world.world_size == 1:
        yield _store_of_one_rank(timeout)
        return
    store_ports, ipv6 = candidate_ports(world.key, world.master_port), needs_ipv6(world, environ)
    address = master_address(world, environ)
    with (
        # The port is bound before any rank learns of it, so no other program can take it.
        _listen_on_first_free(world, store_ports, address, ipv6=ipv6) as listener,
        _listen_on_first_free(world, discovery_ports(world.key), address, ipv6=True) as queries,
        store_discovery.announce(queries, token, port := listener.getsockname()[1], world.world_size) as notify,
    ):
        on_one_node = world.nnodes == 1 and not environ.get("MASTER_ADDR")
        name = expected_hosts(world, environ)[0] if address else socket.gethostname()
        host = network.LOOPBACK if on_one_node else world.master_addr or name
        yield OpenStore(_serve(listener, timeout), host, port, notify=notify, is_server=True)


def _listen_on_first_free(world: World, ports: Sequence[int], address: str, *, ipv6: bool) -> socket.socket:
    for port in ports:
        if (listener := network.listen(port, address, ipv6=ipv6)) is not None:
            return listener
    raise RendezvousError(
        f"all {len(ports)} ports that {world.name} may use are taken on this node",
        found=", ".join(map(str, ports)),
        remedy="free one of them; or export MASTER_PORT=PORT, one that is free on the node of rank 0",
    )


def _serve(listener: socket.socket, timeout: float) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    bound = str(listener.getsockname()[0])
    return TCPStore(
        network.LOOPBACK if bound in {"0.0.0.0", "::"} else bound,  # noqa: S104 - compared, not bound
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        # A program's own env:// asks for the same port in this process and gets this store.
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def _store_of_one_rank(timeout: float) -> OpenStore:
    """Open a store, and reserve another port for the processes that a program starts itself, as MASTER_PORT.

    These processes open their own store there, so the store of this process must not listen at that port. A socket that
    is bound but does not listen keeps the kernel from giving the port to other programs. A process that asks for
    exactly this port gets it (SO_REUSEADDR on both sides).
    """
    listener = network.listen(0, network.LOOPBACK)
    assert listener is not None  # noqa: S101 (port 0 is any that is free)
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((network.LOOPBACK, 0))
    port = reserved.getsockname()[1]
    store = _serve(listener, timeout)
    return OpenStore(store, network.LOOPBACK, port, reserved_port=reserved.detach(), is_server=True)


def launcher_store(resolver: HostResolver) -> OpenStore:
    """Return the store at MASTER_ADDR and MASTER_PORT: that of torchrun's agent, or one that rank 0 opens.

    Raises:
        RendezvousError: The name does not resolve, the store cannot be reached in time, or its port is taken.
    """
    world, environ, timeout = resolver.world, resolver.environ, resolver.timeout
    host, port = world.master_addr, world.master_port
    if host is None or port is None:
        return _store_of_one_rank(timeout)
    # Rank 0 also needs the addresses, because the program may use env:// itself.
    addresses = resolver.wait_for_addresses(host)
    if world.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        listener = network.listen(port, network.address_to_bind([host]), ipv6=needs_ipv6(world, environ))
        if listener is not None:
            return OpenStore(_serve(listener, timeout), host, port, addresses[0], is_server=True)
        try:  # an earlier store of this process may listen there
            store = _connect(addresses[0], port, timeout, is_master=True)
        except RuntimeError as error:
            raise RendezvousError(
                f"port {port} (MASTER_PORT) is taken on the host of rank 0",
                found=f"{error}".splitlines()[0],
                remedy="set another MASTER_PORT for all ranks",
            ) from error
        return OpenStore(store, host, port, addresses[0], is_server=True)
    address = _wait_for_listener(resolver, addresses, port)
    return connect_store(host, address, port, timeout)


def _wait_for_listener(resolver: HostResolver, addresses: Sequence[str], port: int) -> str:
    """Return the address at which a store listens. torch's own wait would log a long error at its time-out."""
    world, host = resolver.world, resolver.world.master_addr or ""
    while True:
        problems, refused = [], True
        for address in addresses:
            try:
                socket.create_connection((address, port), timeout=max(0.1, min(2.0, resolver.time_left()))).close()
            except OSError as error:
                problems.append(f"{address}:{port}: {error.strerror or error}")
                refused = refused and isinstance(error, ConnectionRefusedError)
            else:
                return address
        if resolver.time_left() <= 0:
            break
        time.sleep(min(_MAX_PAUSE, max(0.001, (resolver.timeout - resolver.time_left()) / 20)))
    if resolver.leads_back(host):
        raise resolver.loopback_error(host)
    owner = "the agent with the store" if world.launcher == "torchrun" else "rank 0"
    elsewhere = ""
    # The nodes of the embedded Slurm have loopback addresses, too.
    if world.nnodes != 1 and all(map(network.is_loopback, addresses)) and not network.is_loopback(resolver.node):
        problems += filter(None, [network.hosts_line(host)])
        elsewhere = f"if {owner} is not on {resolver.node}: MASTER_ADDR=ADDRESS, its address for other nodes;\n"
    raise RendezvousError(
        f"rank {world.rank} did not find {owner} on {host} (MASTER_ADDR) within {resolver.timeout:g} s",
        found="\n".join(problems),
        remedy=f"{elsewhere}the log of {owner} shows why it did not open its store;\n{WAIT_LONGER}",
        missing=(0,) if refused and world.launcher != "torchrun" else (),
        host=host,
        waited=resolver.timeout,
    )


@dataclass
class StoreSearch:
    """Searches for the store of rank 0, in one of the other ranks."""

    resolver: HostResolver
    token: str
    check_ended_ranks: Callable[[], None]
    """Raises an error if rank 0 can no longer come."""
    problems: dict[tuple[str, int], str] = field(default_factory=dict)
    """The last problem at each host and port."""

    def find(self) -> OpenStore:
        """Find the store that rank 0 opened. Only a process that sends the token is accepted.

        Raises:
            RendezvousError: The store was not found in time, the name of rank 0's host does not resolve, or
                a rank has ended without importing torch.
        """
        resolver, world = self.resolver, self.resolver.world
        expected = expected_hosts(world, resolver.environ)
        # Some steps do not state the order of their nodes.
        other_nodes = [] if world.reach else [host for host in world.hosts if host not in expected]
        turn = 0
        while (left := resolver.time_left()) > 0:
            self.check_ended_ranks()
            waited = resolver.timeout - left
            other = [other_nodes[turn % len(other_nodes)]] if other_nodes and waited > _ALL_NODES_AFTER else []
            addresses = {host: resolver.addresses(host) for host in [*expected, *other]}
            if not any(addresses[host] for host in expected):
                for host in expected:
                    resolver.addresses(host, required=True)
            for host, address in [(host, address) for host, found in addresses.items() for address in found]:
                answer = self._query_host(host, address, turn)
                if answer is not None:
                    # Libraries get the name, if it resolves to the address of the store.
                    if turn:
                        self._spread_connections()
                    name = host if resolver.resolved.get(host, [""])[0] == address else address
                    return connect_store(
                        name, address, answer.port, max(1.0, resolver.time_left()), answer.notification
                    )
            # At first rank 0 may come at any moment. Later, a longer pause is a small part of the wait.
            time.sleep(min(_MAX_PAUSE, left, max(0.001, waited / 20, world.world_size / 5000)))
            turn += 1
        # A name server that does not answer may need more than the time-out for one look-up.
        unresolved = next((host for host in expected if host in resolver.lookup_errors), None)
        raise (
            resolver.unresolved_error(unresolved)
            if unresolved and not self.problems
            else self._not_found_error(expected)
        )

    def _spread_connections(self) -> None:
        """Let ranks that have waited for rank 0 connect one after another.

        torch looks up a name for each connection. A name server drops some queries of a burst, and each of these takes
        5 s.
        """
        world = self.resolver.world
        time.sleep(world.rank * min(_CONNECTION_INTERVAL, _MAX_SPREAD / world.world_size))

    def _query_host(self, host: str, address: str, turn: int) -> store_discovery.StoreAnswer | None:
        first, *others = discovery_ports(self.resolver.world.key)
        for ports in ([first], others):
            left = self.resolver.time_left()
            is_refused = self.problems.get((host, first)) == os.strerror(errno.ECONNREFUSED)
            if left <= 0 or (ports is others and turn % _ALL_PORTS_EVERY and is_refused):
                return None
            answer = store_discovery.query(address, ports, self.token, left)
            if isinstance(answer, store_discovery.StoreAnswer):
                return answer
            self.problems |= {(host, port): problem for port, problem in answer.items()}
        return None

    def _not_found_error(self, expected: list[str]) -> RendezvousError:
        ports: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (host, port), problem in self.problems.items():
            ports[host, problem].append(str(port))
        lines = [f"{host}: {problem} at {', '.join(tried)}" for (host, problem), tried in ports.items()]
        silent = {problem for host, problem in ports if host in expected} == {"no answer"}
        if silent:
            lines.append("the name resolves, but nothing answers: a firewall drops the packets, or the node is off")
        return RendezvousError(
            f"rank {self.resolver.world.rank} did not find rank 0 on {' or '.join(expected)} "
            f"within {self.resolver.timeout:g} s",
            found="\n".join(lines),
            remedy=f"the log of rank 0 shows why it did not open its store;\n{WAIT_LONGER}",
            # Without an answer, rank 0 may be there, behind a firewall.
            missing=() if silent else (0,),
            host=expected[0],
            waited=self.resolver.timeout,
        )


def connect_store(
    host: str, address: str, port: int, timeout: float, notification: socket.socket | None = None
) -> OpenStore:
    """Connect to the store of an owner that has answered at this address.

    Raises:
        RendezvousError: Its owner has gone.
    """
    try:
        store = _connect(address, port, timeout)
    except RuntimeError as error:
        raise RendezvousError(
            f"rank 0 on {host} went away while the ranks were meeting",
            found=f"its store was at {address}:{port}",
            remedy="read the log of rank 0, which shows the reason",
        ) from error
    return OpenStore(store, host, port, address, notification)


def _connect(address: str, port: int, timeout: float, *, is_master: bool = False) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    wait = timedelta(seconds=timeout)
    return TCPStore(address, port, None, is_master, wait, wait_for_workers=False, multi_tenant=True)


FIRST, LAST = 10_000, 32_767
"""Ports above those of common services and below 32768, where Linux starts its ephemeral range."""

CANDIDATES = 12

_STRIDE = 1_621


def candidate_ports(key: str, first: int | None = None) -> list[int]:
    """Return ports for the store of a launch, in the order to try; `first` is a requested one.

    Every rank computes the same ports from the key of its launch.
    """
    ports = _spaced_ports(crc32(key.encode()))
    return ports if first is None else [first, *(port for port in ports if port != first)]


def unused_port() -> int:
    """Return a port of this machine without a listener, which the kernel gives to no other program."""
    ports = candidate_ports(os.urandom(8).hex())
    for port in ports:
        if (listener := network.listen(port, network.ALL_ADDRESSES)) is not None:
            listener.close()
            return port
    return ports[0]


def discovery_ports(key: str) -> list[int]:
    """Return the ports on which rank 0 announces the port of its store."""
    return _spaced_ports(crc32(f"beacon of {key}".encode()))


def _spaced_ports(start: int) -> list[int]:
    span = LAST - FIRST + 1
    return [FIRST + (start + step * _STRIDE) % span for step in range(CANDIDATES)]
