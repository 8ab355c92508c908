"""Finds rank 0's store: tries names, addresses and ports, and verifies the token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError, SpecError
from hpc_kit.runtime.rendezvous import network, store, store_discovery
from hpc_kit.runtime.rendezvous.store import OpenStore, connect_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runtime.world import World

PATTERN = "HPC_KIT_MASTER_HOST"
"""Environment variable with the pattern of host names on the training network: `{host}i` or `{host}-ib0`."""

_NAMES = 15.0
"""Seconds that a name service may need at the start of a large job."""
_ELSEWHERE = 5.0
"""Seconds until the search includes the other nodes of the launch."""
_MAX_PAUSE = 0.25
_EVERY = 4
"""Every fourth round asks all ports, while no process answers at the first one."""


@dataclass
class StoreSearch:
    """The search of one rank."""

    world: World
    token: str
    timeout: float
    """Seconds until the search fails."""
    here: str
    """Name of this node."""
    environ: Mapping[str, str]
    start: float = field(default_factory=time.monotonic)
    seen: dict[tuple[str, int], str] = field(default_factory=dict)
    """The last answer or problem of each host and port."""
    first: dict[str, str] = field(default_factory=dict)
    """The first address of each name."""

    def find(self) -> OpenStore:
        """Find the store that rank 0 opened. Only a process that sends the token is accepted.

        Raises:
            RendezvousError: The store was not found in time, or the name of rank 0's host does not resolve.
        """
        likely = self._likely_hosts()
        turn = 0
        while (left := self.start + self.timeout - time.monotonic()) > 0:
            waited = self.timeout - left
            places = {host: self._addresses(host) for host in [*likely, *self._other_hosts(likely, turn, waited)]}
            if not any(places[host] for host in likely):
                for host in likely:
                    self._addresses(host, required=True)
            for host, found in places.items():
                for address in found:
                    answer = self._query_host(host, address, turn)
                    if answer is not None:
                        # Libraries receive the name where it leads to the store.
                        name = host if self.first.get(host) == address else address
                        left = max(1.0, self.start + self.timeout - time.monotonic())
                        return connect_store(address, name, answer, left)
            # At first rank 0 may come at any moment. Later, a longer pause is a small part of the wait.
            time.sleep(min(_MAX_PAUSE, left, max(0.001, waited / 20, self.world.world_size / 5000)))
            turn += 1
        raise _not_found(self.world, likely, self.timeout, self.seen)

    def _query_host(self, host: str, address: str, turn: int) -> store_discovery.StoreAnswer | None:
        first, *others = store.discovery_ports(self.world.key)
        for called in ([first], others):
            left = self.start + self.timeout - time.monotonic()
            if left <= 0 or (called is others and turn % _EVERY and self.seen[host, first] == "Connection refused"):
                return None
            answer = store_discovery.query(address, called, self.token, left)
            if isinstance(answer, store_discovery.StoreAnswer):
                return answer
            self.seen |= {(host, port): problem for port, problem in answer.items()}
        return None

    def _likely_hosts(self) -> list[str]:
        """Return the expected hosts of rank 0: first the address set by the job script, then the launcher's own."""
        world = self.world
        if world.master_addr is None:
            hosts = list(world.reach or world.hosts)
        else:
            hosts = list(dict.fromkeys([world.master_addr, *(world.reach or world.hosts[:1])]))
        if not hosts and world.nnodes == 1:
            hosts = ["127.0.0.1"]
        if not hosts:
            raise RendezvousError(
                "no variable names the host of rank 0",
                found=f"{world}; MASTER_ADDR is not set",
                remedy="export MASTER_ADDR=HOST, the host of rank 0, for all ranks",
            )
        pattern = self.environ.get(PATTERN, "")
        if pattern and "{host}" not in pattern:
            raise SpecError(f"{PATTERN} names no host", found=f"{PATTERN} = {pattern}", remedy="{host}i, or {host}-ib0")
        # Their plain names are tried later, with all other nodes.
        return [pattern.replace("{host}", host) if pattern and host in world.hosts else host for host in hosts]

    def _other_hosts(self, likely: list[str], turn: int, waited: float) -> list[str]:
        """Return one other node per round after a while. Some steps do not state the order of their nodes."""
        others = [] if self.world.reach else [host for host in self.world.hosts if host not in likely]
        return [others[turn % len(others)]] if others and waited > _ELSEWHERE else []

    def _addresses(self, host: str, *, required: bool = False) -> list[str]:
        """Return a host's addresses as seen from this node, or () while the name service may still need time.

        Raises:
            RendezvousError: The address is `required`, and the name does not resolve.
        """
        try:
            found = network.lookup(host)
        except OSError as error:
            return self._without_names(host, error, required=required)
        self.first[host] = found[0]
        # On the node itself its name may mean the loopback address, as Debian writes it, but never on another node.
        others = [address for address in found if not network.is_loopback(address)]
        if others or host in {*found, self.here} or self.world.nnodes == 1:
            return others or found
        if not required:
            return []
        raise RendezvousError(
            f"the name {host} of rank 0's host means {self.here} itself there",
            found=f"{host} resolves to {found[0]} on {self.here}"
            + (f"\n{line}" if (line := network.hosts_line(host)) else ""),
            remedy=f"replace the line of {host} in /etc/hosts on {self.here}:  ADDRESS {host}   "
            "(its address on the network of the nodes);\nor export MASTER_ADDR=ADDRESS before srun",
        )

    def _without_names(self, host: str, error: OSError, *, required: bool) -> list[str]:
        """Return addresses from Slurm for a name that does not resolve. The token proves which one is right."""
        # The step was started from this address, which often belongs to rank 0's node.
        candidates = {network.slurm_address(host), self.environ.get("SLURM_LAUNCH_NODE_IPADDR")}
        found = [address for address in candidates if address and not network.is_loopback(address)]
        patient = time.monotonic() - self.start < min(_NAMES, self.timeout)
        if found or patient or not required:
            return found
        raise RendezvousError(
            f"the name {host} of rank 0's host does not resolve on {self.here}",
            found=f"{error.strerror} (gai error {error.errno})",
            remedy=f"add a line to /etc/hosts on {self.here}:  ADDRESS {host}   "
            "(its address on the network of the nodes);\nor export MASTER_ADDR=ADDRESS before srun",
        ) from error


def _not_found(world: World, hosts: list[str], timeout: float, seen: Mapping[tuple[str, int], str]) -> RendezvousError:
    heard: dict[tuple[str, str], list[str]] = {}
    for (host, port), problem in seen.items():
        heard.setdefault((host, problem), []).append(str(port))
    found = [f"{host}: {problem} at {', '.join(called)}" for (host, problem), called in heard.items()]
    likely = {problem for (host, _), problem in seen.items() if host in hosts}
    if likely == {"no answer"}:
        found.append(
            "the name leads somewhere, and nothing comes back: a firewall drops what is sent, or the node is off"
        )
    return RendezvousError(
        f"rank {world.rank} did not find rank 0 on {' or '.join(hosts)} within {timeout:g} s",
        found="\n".join(found) or f"{' and '.join(hosts)} do not resolve",
        remedy="the log of rank 0 shows why it did not open its store; where it runs, a firewall may be between;\n"
        "HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer",
    )
