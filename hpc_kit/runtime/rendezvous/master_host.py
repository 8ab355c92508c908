"""Names and addresses of rank 0's host as this node sees them, and the errors of a name that leads nowhere."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_kit.errors import RendezvousError, SpecError
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runtime.world import World

PATTERN = "HPC_KIT_MASTER_HOST"
"""Environment variable with the pattern of host names on the training network: `{host}i` or `{host}-ib0`."""

_NAME_TIMEOUT = 15.0
"""Seconds that a name service may need at the start of a large job."""
_PAUSE = 0.25


def expected_hosts(world: World, environ: Mapping[str, str]) -> list[str]:
    """Return the names of rank 0's host: first the address set by the job script, then the launcher's own.

    Raises:
        RendezvousError: No variable names a host.
        SpecError: The pattern of host names does not contain `{host}`.
    """
    hosts = list(world.reach or (world.hosts if world.master_addr is None else world.hosts[:1]))
    if world.master_addr is not None:
        hosts = [world.master_addr, *(world.reach or hosts)]
    if world.nnodes == 1 and not environ.get("MASTER_ADDR"):
        hosts.insert(0, network.LOOPBACK)
    if not hosts:
        raise RendezvousError(
            "no variable names the host of rank 0",
            found=f"{world}; MASTER_ADDR is not set",
            remedy="export MASTER_ADDR=HOST, the host of rank 0, for all ranks",
        )
    pattern = environ.get(PATTERN, "")
    if pattern and "{host}" not in pattern:
        raise SpecError(f"{PATTERN} names no host", found=f"{PATTERN} = {pattern}", remedy="{host}i, or {host}-ib0")
    # Their plain names are tried later, with all other nodes.
    names = [pattern.replace("{host}", host) if pattern and host in world.hosts else host for host in hosts]
    return list(dict.fromkeys(names))


def needs_ipv6(world: World, environ: Mapping[str, str]) -> bool:
    """Return whether other nodes may reach rank 0 by IPv6 only.

    A store that also listens on IPv6 sees its IPv4 clients as ::ffff:10.0.0.2, and torch looks up the name of each
    client. /etc/hosts has no names for such addresses, so every client would cost a query to the name server.
    """
    if world.nnodes == 1:
        return False
    if not network.own_addresses():
        return True
    try:
        return any(":" in address for host in expected_hosts(world, environ) for address in network.lookup(host))
    except OSError:
        return True


def master_address(world: World, environ: Mapping[str, str]) -> str:
    """Return the address of this node, which has rank 0, at which all other ranks look for the store.

    Returns ALL_ADDRESSES if they may look elsewhere, because a name may resolve to another address on another node.
    """
    hosts = expected_hosts(world, environ)
    if world.nnodes == 1 and hosts[0] == network.LOOPBACK:
        return network.LOOPBACK
    if world.reach and world.nnodes != 1:
        # By MPI, only the ranks of this node look at the loopback interface. The remaining ranks use other addresses.
        return network.ALL_ADDRESSES
    from_slurm = environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    address = network.address_to_bind(hosts)
    # Nodes that cannot resolve the names try this one.
    is_other = from_slurm not in {"", address} and not network.is_loopback(from_slurm)
    return network.ALL_ADDRESSES if is_other and network.interface_with(from_slurm) else address


@dataclass
class HostResolver:
    """Looks up the names of rank 0's host. A name service may need time at the start of a large job."""

    world: World
    node: str
    """Name of this node."""
    timeout: float
    """Seconds until the meeting fails."""
    environ: Mapping[str, str]
    start: float = field(default_factory=time.monotonic)
    resolved: dict[str, list[str]] = field(default_factory=dict)
    """All addresses of each name that has resolved."""
    lookup_errors: dict[str, OSError] = field(default_factory=dict)
    """The last error of each name that has not resolved."""

    def time_left(self) -> float:
        """Return the seconds until the meeting fails; negative afterwards."""
        return self.start + self.timeout - time.monotonic()

    def wait_for_addresses(self, host: str) -> list[str]:
        """Return the host's addresses, after a wait for the name service if necessary.

        Raises:
            RendezvousError: The name does not resolve.
        """
        while not (addresses := self.addresses(host, required=True)):
            time.sleep(_PAUSE)
        return addresses

    def addresses(self, host: str, *, required: bool = False) -> list[str]:
        """Return a host's addresses, or [] while the name service may still need time.

        Raises:
            RendezvousError: The addresses are `required`, and the name does not resolve, or only to this node.
        """
        if host not in self.resolved:
            try:
                self.resolved[host] = network.lookup(host)
            except OSError as error:
                self.lookup_errors[host] = error
                return self._addresses_from_slurm(host, required=required)
        addresses = self.resolved[host]
        remote = [address for address in addresses if not network.is_loopback(address)]
        # RANK and WORLD_SIZE do not show on which nodes the ranks are.
        nodes_unknown = self.world.nnodes is None and not self.world.hosts
        if remote or nodes_unknown or not self.leads_back(host):
            return remote or addresses
        if not required:
            return []
        raise self.loopback_error(host)

    def leads_back(self, host: str) -> bool:
        """Return whether the name of another node resolves to this node only.

        On the node itself its name may mean the loopback address, as Debian writes it.
        """
        addresses = self.resolved[host]
        is_owner = self.world.nnodes == 1 or self.world.rank == 0 or self.world.node_rank == 0
        if is_owner or not all(map(network.is_loopback, addresses)):
            return False
        # torchrun's c10d rendezvous sets MASTER_ADDR to rank 0's getfqdn(), where Slurm has the short name.
        own_names = {*addresses, self.node, socket.gethostname(), socket.getfqdn(), "localhost"}
        return host not in own_names and host.partition(".")[0] not in own_names

    def _addresses_from_slurm(self, host: str, *, required: bool) -> list[str]:
        """Return Slurm's addresses for a name that does not resolve. The token proves which one is right."""
        # The step was started from this address, which often belongs to rank 0's node.
        candidates = {network.slurm_address(host), self.environ.get("SLURM_LAUNCH_NODE_IPADDR")}
        addresses = [address for address in candidates if address and not network.is_loopback(address)]
        may_still_resolve = time.monotonic() - self.start < min(_NAME_TIMEOUT, self.timeout)
        if addresses or may_still_resolve or not required:
            return addresses
        raise self.unresolved_error(host)

    def unresolved_error(self, host: str) -> RendezvousError:
        """Return the error for a name that does not resolve."""
        error, servers = self.lookup_errors[host], network.name_servers()
        dns = "does not answer" if error.errno == socket.EAI_AGAIN else "has no entry"
        return RendezvousError(
            f"the name {host} of rank 0's host does not resolve on {self.node}",
            found=f"{error.strerror} (gai error {error.errno}): no line of /etc/hosts contains {host}, and "
            + (f"the name server {' or '.join(servers)} {dns}" if servers else "there is no name server"),
            remedy=_name_remedy(f"add a line to /etc/hosts on {self.node}", host, self.world),
        )

    def loopback_error(self, host: str) -> RendezvousError:
        """Return the error for a name of another node that leads back to this one."""
        line = network.hosts_line(host)
        return RendezvousError(
            f"the name {host} of rank 0's host means {self.node} itself there",
            found=f"{host} resolves to {self.resolved[host][0]} on {self.node}" + (f"\n{line}" if line else ""),
            remedy=_name_remedy(f"replace the line of {host} in /etc/hosts on {self.node}", host, self.world),
        )


def _name_remedy(action: str, host: str, world: World) -> str:
    alternatives = {
        "slurm": "export MASTER_ADDR=ADDRESS before srun",
        "mpi": "export MASTER_ADDR=ADDRESS before mpirun",
        "torchrun": "torchrun --master-addr=ADDRESS, or with the c10d rendezvous --local-addr=ADDRESS",
    }
    return (
        f"{action}:  ADDRESS {host}   (its address on the network of the nodes);\n"
        f"or {alternatives.get(world.launcher, 'export MASTER_ADDR=ADDRESS for all ranks')}"
    )
