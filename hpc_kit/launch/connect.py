"""A connection to a host by the fabric library, as the user's own ssh makes it; what stands in its way, in words."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_kit.errors import HpcKitError, LaunchError

if TYPE_CHECKING:
    from fabric import Connection

PATIENCE = 15.0
"""Seconds for each step of a connection: the network's answer, the greeting, the keys."""

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


def connect(name: str, patience: float = PATIENCE) -> Connection:
    """Connect by the user's ~/.ssh/config, keys, agent and known hosts; never by a password, never to an unknown host.

    Args:
        name: The host as the user names it, with `user@` where that is another.
        patience: Seconds for each step.

    Raises:
        LaunchError: The host does not answer, is not known, or takes none of the keys.
    """
    from fabric import Config, Connection
    from paramiko import SSHException

    steps = ("timeout", "banner_timeout", "auth_timeout", "channel_timeout")
    try:
        connection = Connection(name, config=Config(), connect_kwargs=dict.fromkeys(steps, patience))
        _trust_known_hosts(connection)
        connection.open()
    except (OSError, EOFError, ValueError, SSHException) as error:
        raise _refused(name, error, patience) from error
    return connection


def _trust_known_hosts(connection: Connection) -> None:
    """Fabric trusts whoever answers; here it is the files that ssh itself looks into."""
    from paramiko import AutoAddPolicy, RejectPolicy

    said: dict[str, Any] = connection.ssh_config
    strict = str(said.get("stricthostkeychecking", "yes")).lower()
    taken_as_it_comes = strict in {"no", "off", "accept-new"}
    connection.client.set_missing_host_key_policy(AutoAddPolicy() if taken_as_it_comes else RejectPolicy())
    own = said.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
    shared = said.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
    for file in shlex.split(f"{own} {shared}"):
        with suppress(OSError):
            connection.client.load_system_host_keys(str(Path(file).expanduser()))


def _refused(name: str, error: Exception, patience: float) -> LaunchError:
    """What the user has to do."""
    from paramiko import AuthenticationException, BadHostKeyException, PasswordRequiredException

    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, BadHostKeyException):
        return LaunchError(
            f"{name} shows another host key than the one that is known",
            found=text,
            remedy=f"where the host was installed anew: ssh-keygen -R {name}; then ssh {name}, and compare its key",
        )
    if isinstance(error, PasswordRequiredException):
        return LaunchError(f"the key for {name} is locked", found=text, remedy="eval $(ssh-agent) && ssh-add")
    if isinstance(error, AuthenticationException) or "authentication methods" in text:
        return _no_key(name, text)
    if "known_hosts" in text:
        return LaunchError(
            f"the host key of {name} is not known here",
            found=text,
            remedy=f"ssh {name}   (once: it shows the key, and asks); or ssh-keyscan -H {name} >>~/.ssh/known_hosts",
        )
    if isinstance(error, TimeoutError) or "timed out" in text or "timeout" in text.lower():
        text = f"nothing came within {patience:g} s"
    return LaunchError(
        f"{name} does not answer", found=text, remedy=f"ssh {name} true   (its name, port and user: ~/.ssh/config)"
    )


def _no_key(name: str, text: str) -> LaunchError:
    keys = [path for path in Path("~/.ssh").expanduser().glob("id_*") if path.suffix != ".pub"]
    make = f"ssh-copy-id {name}" if keys or os.environ.get("SSH_AUTH_SOCK") else None
    return LaunchError(
        f"{name} takes none of your keys" if make else "there is no ssh key here",
        found=f"{name}: {text}",
        remedy=make or f"ssh-keygen -t ed25519 && ssh-copy-id {name}",
    )
