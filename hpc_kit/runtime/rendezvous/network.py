"""Host names, addresses, ports and network interfaces of the machines of a launch."""

from __future__ import annotations

import errno
import fcntl
import re
import shutil
import socket
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.runtime.variables import SSH_HOSTS, SSH_NODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGENT_HOST = "HPC_KIT_AGENT_HOST"
"""Environment variable of the workers of torchrun: the name of this node for their agent."""

_SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ""
"""The address of a server that listens on all interfaces."""
_IPV6 = Path("/proc/net/if_inet6")


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means the machine itself."""
    return host in {"localhost", "::1"} or host.startswith(("127.", "localhost."))


def this_node_name(environ: Mapping[str, str]) -> str:
    """Return the name of this node: Slurm's if it is plausible, or the name by which ssh reached the node."""
    hosts, number = environ.get(SSH_HOSTS, "").split(","), environ.get(SSH_NODE, "")
    if number.isdigit() and int(number) < len(hosts):
        return hosts[int(number)]
    # mpiexec of MPICH 4 and of Intel MPI passes the first node's variables to the ranks of all nodes.
    name = "" if environ.get("MPI_LOCALRANKID") else environ.get("SLURMD_NODENAME")
    return name or environ.get(AGENT_HOST) or socket.gethostname()


def lookup(host: str) -> list[str]:
    """Return the addresses of a host name, IPv4 before IPv6. A host on two networks has several.

    Raises:
        OSError: The name does not resolve (socket.gaierror).
    """
    # The name is passed as bytes. A str would import the IDNA codec, which costs more than the rest of a meeting.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda item: item[0] != socket.AF_INET)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


@cache
def slurm_address(host: str) -> str | None:
    """Return Slurm's address of a node (NodeAddr), or None without a usable scontrol, as in containers."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return None
    import subprocess

    try:
        # Not as text: an administrator's reason or comment may be in any encoding.
        answer = subprocess.run(
            [scontrol, "--oneliner", "show", "node", host], check=False, capture_output=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"\bNodeAddr=(\S+)", answer.stdout)
    return address if found and (address := found[1].decode(errors="replace")) != host else None


def hosts_line(host: str, file: Path = Path("/etc/hosts")) -> str | None:
    """Return the line of /etc/hosts that resolves this name, or None."""
    with suppress(OSError):
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if host in line.partition("#")[0].split()[1:]:
                return f"{file} line {number}: {line.strip()}"
    return None


def name_servers(file: Path = Path("/etc/resolv.conf")) -> list[str]:
    """Return the addresses of the DNS servers."""
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return []
    return [words[1] for words in lines if words[:1] == ["nameserver"] and len(words) > 1]


def own_addresses() -> tuple[str, ...]:
    """Return the IPv4 addresses by which other machines may reach this one."""
    found = (_ipv4_of(name) for _, name in socket.if_nameindex())
    return tuple(address for address in found if address is not None and not is_loopback(address))


def free_port(*, everywhere: bool = False) -> int:
    """Return a port without a listener, on the loopback interface or on all interfaces."""
    free = listen(0, ALL_ADDRESSES if everywhere else LOOPBACK)
    assert free is not None  # noqa: S101 (port 0 is any that is free)
    with free:
        return int(free.getsockname()[1])


def listen(port: int, address: str, *, ipv6: bool = True) -> socket.socket | None:
    """Return a listening socket, or None if the port is in use.

    Args:
        port: The port to bind; 0 for any free port.
        address: The only address to bind, or ALL_ADDRESSES.
        ipv6: Listen on IPv6, too, with ALL_ADDRESSES.
    """
    try:
        if address != ALL_ADDRESSES:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family, backlog=2048)
        if ipv6 and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)
        return socket.create_server(("", port), backlog=2048)
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            return None
        raise


def address_to_bind(names: Sequence[str]) -> str:
    """Return the address of this machine to which all names resolve.

    If one has no or another address, it is ALL_ADDRESSES. So it is if the name of this machine means the loopback
    interface here, as Debian writes it, because other machines see another address.
    """
    try:
        found = {address for name in names for address in lookup(name)}
    except OSError:
        return ALL_ADDRESSES
    if all(map(is_loopback, names)):
        return min(found)  # 127.0.0.1 before ::1
    address = min(found)
    is_usable = len(found) == 1 and not is_loopback(address) and interface_with(address) is not None
    return address if is_usable else ALL_ADDRESSES


def is_reachable(host: str, port: int, timeout: float = 2.0) -> bool:
    """Return whether a process listens at this address."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def source_address(address: str) -> str | None:
    """Return this machine's own address on the route to another address. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def nccl_interface() -> str | None:
    """Return the interface that NCCL chooses by default, in the order of its ncclFindInterfaces (IPv4 only here).

    Names that start with ib come first. docker's, libvirt's and the loopback interface are the last choice.
    """
    late = ("docker", "lo", "virbr")
    names = [name for _, name in socket.if_nameindex() if _ipv4_of(name)]
    return min(names, key=lambda name: (not name.startswith("ib"), name.startswith(late)), default=None)


def interface_with(address: str) -> str | None:
    """Return the network interface that has this address, or None if it cannot be determined."""
    if is_loopback(address):
        return "lo"
    for _, name in socket.if_nameindex():
        if _ipv4_of(name) == address:
            return name
    return _interface_with_ipv6(address) if ":" in address else None


def _interface_with_ipv6(address: str) -> str | None:
    """Return the interface of an IPv6 address from /proc/net/if_inet6."""
    digits = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    with suppress(OSError):
        lines = [line.split() for line in _IPV6.read_text().splitlines()]
        return next((words[5] for words in lines if words[0] == digits), None)
    return None


def _ipv4_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            answer = fcntl.ioctl(handle, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
