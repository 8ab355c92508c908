"""Names, addresses and network interfaces of the machines of a launch."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_LOOPBACK = "lo"


def is_loopback(host: str) -> bool:
    """Whether a name or an address means the machine that says it."""
    return host in {"localhost", "::1"} or host.startswith(("127.", "localhost."))


def lookup(host: str) -> str:
    """The first address of a name, IPv4 before IPv6.

    Raises:
        OSError: The name does not resolve (socket.gaierror).
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda item: item[0] != socket.AF_INET)
    return str(found[0][4][0])


def listen(port: int, *, everywhere: bool) -> socket.socket | None:
    """A listening socket, or None where the port is taken; port 0 is any free one.

    Args:
        port: The port to bind.
        everywhere: On all interfaces, IPv6 and IPv4; else on the loopback.
    """
    try:
        if not everywhere:
            return socket.create_server(("127.0.0.1", port), backlog=2048)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)
        return socket.create_server(("", port), backlog=2048)
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            return None
        raise


def answers(host: str, port: int, patience: float = 2.0) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), timeout=patience).close()
    except OSError:
        return False
    return True


def source_towards(address: str) -> str | None:
    """This machine's own address on the way to another; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_with(address: str) -> str | None:
    """The network interface that has this address; None where that cannot be told."""
    if is_loopback(address):
        return _LOOPBACK
    for _, name in socket.if_nameindex():
        if _ipv4_of(name) == address:
            return name
    return None


def _ipv4_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            answer = fcntl.ioctl(handle, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
