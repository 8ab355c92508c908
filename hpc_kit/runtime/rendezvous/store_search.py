"""Finds rank 0's store: tries names, addresses and ports, and verifies the token."""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError
from hpc_kit.runtime.rendezvous import store, store_discovery
from hpc_kit.runtime.rendezvous.master_host import HostResolver, expected_hosts
from hpc_kit.runtime.rendezvous.store import OpenStore, connect_store

if TYPE_CHECKING:
    from collections.abc import Callable

_ALL_NODES_AFTER = 5.0
"""Seconds until the search includes the other nodes of the launch."""
_MAX_PAUSE = 0.25
_CONNECTION_INTERVAL, _MAX_SPREAD = 0.0008, 0.4
"""Seconds between the connections of two ranks, and between those of the first and the last rank."""
_ALL_PORTS_EVERY = 4
"""Every fourth round asks all ports, while no process answers at the first one."""


@dataclass
class StoreSearch:
    """The search of one rank."""

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
                    # Libraries receive the name where it leads to the store.
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
        """Let ranks that have waited for rank 0 connect one after the other.

        torch looks up a name for each connection. A name server drops some queries of a burst, and each costs 5 s.
        """
        world = self.resolver.world
        time.sleep(world.rank * min(_CONNECTION_INTERVAL, _MAX_SPREAD / world.world_size))

    def _query_host(self, host: str, address: str, turn: int) -> store_discovery.StoreAnswer | None:
        first, *others = store.discovery_ports(self.resolver.world.key)
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
            lines.append(
                "the name leads somewhere, and nothing comes back: a firewall drops what is sent, or the node is off"
            )
        return RendezvousError(
            f"rank {self.resolver.world.rank} did not find rank 0 on {' or '.join(expected)} "
            f"within {self.resolver.timeout:g} s",
            found="\n".join(lines),
            remedy="the log of rank 0 shows why it did not open its store;\n"
            "HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer",
            # Without an answer, rank 0 may be there, behind a firewall.
            missing=() if silent else (0,),
            host=expected[0],
            waited=self.resolver.timeout,
        )
