"""A connection to a host by the fabric library, as the user's own ssh makes it; what stands in its way, in words."""

from __future__ import annotations

import logging
import os
import sys
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_kit.errors import HpcKitError, LaunchError
from hpc_kit.ssh.hosts import Address, Host
from hpc_kit.ssh.ssh_config import ssh_config

if TYPE_CHECKING:
    from fabric import Connection

PATIENCE = 15.0
"""Seconds for each step of a connection: the network's answer, the greeting, the keys."""

_SSH_PORT = 22
_TIMED_OUT = ("timed out", "timeout", "no existing session")
"""What paramiko says of a host that stopped answering; the last where it did while keys were exchanged."""

_INSTALL = f"{sys.executable} -m pip install fabric"


def need_fabric() -> None:
    """Refuse to go on without fabric.

    Raises:
        HpcKitError: It is not installed.
    """
    try:
        import fabric
    except ImportError as error:
        raise HpcKitError(
            "hpc-kit launch needs the library fabric", found=f"{type(error).__name__}: {error}", remedy=_INSTALL
        ) from error
    # What goes wrong is told in words of ours: with the trace of each of its threads nobody would find them.
    logging.getLogger(fabric.__name__).addHandler(logging.NullHandler())
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").propagate = False


def connect(
    name: str, patience: float = PATIENCE, *, jump: Connection | None = None, path: tuple[str, ...] = ()
) -> Connection:
    """Connect by the user's ~/.ssh/config, keys, agent and known hosts; never by a password, never to an unknown host.

    Args:
        name: The host as the user names it, with `user@` and `:port` where those are others.
        patience: Seconds for each step.
        jump: What it is reached through; none: what ~/.ssh/config says.
        path: Hosts that are reached through this one.

    Raises:
        LaunchError: The host does not answer, is not known, or takes none of the keys; or a jump host on the way to it.
    """
    from fabric import Config, Connection

    from hpc_kit.ssh import known_hosts

    steps, connection = ("banner_timeout", "auth_timeout", "channel_timeout"), None
    try:
        user, host, port = Address.of(name)
        connection = Connection(
            host,
            user,
            port,
            config=Config(ssh_config=ssh_config(host)),
            gateway=False,  # fabric's own trusts whoever answers
            connect_timeout=ceil(patience),  # in whole seconds; not named here, it is what ~/.ssh/config says
            connect_kwargs=dict.fromkeys(steps, patience),
        )
        connection.gateway = jump or _way(connection, patience, path)
        known_hosts.trust(connection)
        connection.open()
    except BaseException as error:
        disconnect(connection)
        if isinstance(error, LaunchError) or not isinstance(error, Exception):
            raise
        place = None if connection is None else (connection.host, connection.port)
        raise _refused(Host(name), error, patience, place) from error
    return connection


def disconnect(connection: Connection | str | None) -> None:
    """Cut a connection, and those to the jump hosts that it goes through."""
    from fabric import Connection

    while isinstance(connection, Connection):
        connection.client.close()
        connection = connection.gateway


def _way(connection: Connection, patience: float, path: tuple[str, ...]) -> Connection | str | None:
    """What stands before a host: a command, or the last of its jump hosts, connected through those before it."""
    said: dict[str, Any] = connection.ssh_config
    # Of the two, that counts which is said first.
    if next((key for key in said if key in {"proxyjump", "proxycommand"}), None) != "proxyjump":
        return said.get("proxycommand")
    hops = [hop.strip() for hop in said["proxyjump"].split(",")]
    path = (*path, connection.original_host, connection.host)
    if hops == ["none"] or any(Address.of(hop).host in path for hop in hops):
        return None  # a jump host whose own `Host *` names it
    jump = None
    for hop in hops:
        jump = connect(hop, patience, jump=jump, path=path)
    return jump


def _refused(named: Host, error: Exception, patience: float, place: tuple[str, int] | None = None) -> LaunchError:
    """What the user has to do; `place` is the host's own name or address, and its port."""
    from paramiko import (
        AuthenticationException,
        BadHostKeyException,
        ConfigParseError,
        PasswordRequiredException,
        SSHException,
    )
    from paramiko.ssh_exception import NoValidConnectionsError

    name, spelt = named.name, named.for_ssh
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, NoValidConnectionsError):  # one for each address of the host
        text = "; ".join(f"{place[0]} port {place[1]}: {why.strerror or why}" for place, why in error.errors.items())
    if isinstance(error, ConfigParseError) or not isinstance(error, (OSError, EOFError, SSHException)):
        return LaunchError(
            f"no connection to {name} can be made",
            found=f"{type(error).__name__}: {text}",
            remedy=f"ssh -G {spelt}   (what ~/.ssh/config says of it)",
        )
    host, port = place or (name, _SSH_PORT)
    if isinstance(error, BadHostKeyException):
        known = host if port == _SSH_PORT else f"'[{host}]:{port}'"
        return LaunchError(
            f"{name} shows another host key than the one that is known",
            found=text,
            remedy=f"where the host was installed anew: ssh-keygen -R {known}; then ssh {spelt}, and compare its key",
        )
    if "known_hosts" in text:
        return LaunchError(
            f"the host key of {name} is not known here",
            found=text,
            remedy=f"ssh {spelt}   (once: it shows the key, and asks);"
            f" or ssh-keyscan -H {'' if port == _SSH_PORT else f'-p {port} '}{host} >>~/.ssh/known_hosts",
        )
    if isinstance(error, TimeoutError) or any(word in text.lower() for word in _TIMED_OUT):
        return _silent(named, f"nothing came within {patience:g} s")
    if isinstance(error, PasswordRequiredException):
        return LaunchError(f"the key for {name} is locked", found=text, remedy="eval $(ssh-agent) && ssh-add")
    if isinstance(error, AuthenticationException) or "authentication methods" in text:
        return _no_key(named, text)
    return _silent(named, text)


def _silent(named: Host, text: str) -> LaunchError:
    remedy = f"ssh {named.for_ssh} true   (its name, port and user: ~/.ssh/config)"
    return LaunchError(f"{named.name} does not answer", found=text, remedy=remedy)


def _no_key(named: Host, text: str) -> LaunchError:
    keys = [path for path in Path("~/.ssh").expanduser().glob("id_*") if path.suffix != ".pub"]
    copy = f"ssh-copy-id {named.for_copy_id}"
    make = copy if keys or os.environ.get("SSH_AUTH_SOCK") else None
    return LaunchError(
        f"{named.name} takes none of your keys" if make else "there is no ssh key here",
        found=f"{named.name}: {text}",
        remedy=make or f"ssh-keygen -t ed25519 && {copy}",
    )
