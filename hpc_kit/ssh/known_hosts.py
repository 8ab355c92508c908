"""Whose key a host must show: the files of known hosts that ssh itself looks into, read and added to as ssh does."""

from __future__ import annotations

import shlex
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paramiko import RejectPolicy
from paramiko.hostkeys import HostKeyEntry, HostKeys

from hpc_kit.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fabric import Connection
    from paramiko import PKey, SSHClient

_SSH_PORT = 22
_OWN, _SHARED = "~/.ssh/known_hosts ~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts"
_REVOKED, _AUTHORITY = "@revoked", "@cert-authority"


class _Line(NamedTuple):
    """A line that speaks of a host; `key` is None where this library cannot read it."""

    marker: str
    key: PKey | None


def trust(connection: Connection) -> None:
    """Fabric trusts whoever answers; make it trust whom ssh trusts, by the user's StrictHostKeyChecking."""
    said: Mapping[str, Any] = connection.ssh_config
    files = [
        Path(file).expanduser()
        for names in (said.get("userknownhostsfile", _OWN), said.get("globalknownhostsfile", _SHARED))
        for file in shlex.split(names)
    ]
    host = connection.host.lower()
    name = host if connection.port == _SSH_PORT else f"[{host}]:{connection.port}"
    # As ssh does: under its alias alone, or with its port before without.
    names = [said["hostkeyalias"]] if "hostkeyalias" in said else list(dict.fromkeys((name, host)))
    lines = [line for known in names for file in files for line in _lines(file, known)]
    revoked = [line.key for line in lines if line.marker == _REVOKED]
    # Under the name by which the library asks, as the user has written it.
    asked = connection.host if connection.port == _SSH_PORT else f"[{connection.host}]:{connection.port}"
    trusted = connection.client.get_host_keys()
    for line in lines:
        known = trusted.lookup(asked) or {}
        if line.key is None or line.marker or line.key in revoked or line.key.get_name() in known:
            continue  # of two keys of a kind the first one counts
        trusted.add(asked, line.key.get_name(), line.key)
    strict = str(said.get("stricthostkeychecking", "yes")).lower()
    new = RejectPolicy()
    if strict in {"no", "off", "accept-new"}:
        new = _Kept(names[0], files[0], hashed=str(said.get("hashknownhosts", "no")).lower() == "yes")
    elif any(line.marker == _AUTHORITY for line in lines):
        new = _ByCertificate()
    connection.client.set_missing_host_key_policy(_NotRevoked(revoked, new))


class _NotRevoked:
    """What asks another policy only where the key was not revoked."""

    def __init__(self, revoked: list[PKey | None], policy: Any) -> None:
        self.revoked, self.policy = revoked, policy

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Raise where this key must not be trusted."""
        if key in self.revoked:
            raise LaunchError(
                f"the host key of {hostname} was revoked",
                found=f"{key.get_name()} {key.get_base64()[:20]}..., in a line @revoked of known_hosts",
                remedy="ask who looks after that host for its new key",
            )
        self.policy.missing_host_key(client, hostname, key)


class _ByCertificate:
    """Nobody is trusted: what the files say of this host cannot be checked here."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002 (paramiko's)
        """Say why."""
        raise LaunchError(
            f"the host key of {hostname} is known by a certificate only, which this cannot check",
            found="a line @cert-authority of known_hosts",
            remedy="a line with the host's own key; ssh, which has checked the certificate, tells it:\n"
            f"ssh {hostname} cat '/etc/ssh/ssh_host_*_key.pub'",
        )


class _Kept:
    """A new host's key is taken, and written down as ssh writes it: the next time another one is refused."""

    def __init__(self, name: str, file: Path, *, hashed: bool) -> None:
        self.name, self.file, self.hashed = name, file, hashed

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Keep it."""
        client.get_host_keys().add(hostname, key.get_name(), key)
        name = HostKeys.hash_host(self.name) if self.hashed else self.name
        line = f"{name} {key.get_name()} {key.get_base64()}\n"
        if self.file.name == "none":  # ssh's word for no file
            return
        with suppress(OSError):  # as ssh: it connects all the same
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.file.open("ab") as known:
                begun = known.tell() and not self.file.read_bytes().endswith(b"\n")
                known.write(b"\n" * begun + line.encode())


def _lines(file: Path, name: str) -> Iterator[_Line]:
    """What a file says of a host. What paramiko cannot read, it would give the whole file up for."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        words = line.split()
        marker = words.pop(0) if line.startswith("@") else ""
        if not words or words[0].startswith("#") or not _names(words[0], name):
            continue
        entry = None
        with suppress(Exception):
            entry = HostKeyEntry.from_line(" ".join(words))
        if entry is not None or marker:
            yield _Line(marker, entry.key if entry else None)


def _names(known: str, name: str) -> bool:
    """Whether that is the host: hashed, or among names and patterns; one with `!` before it takes it out."""
    if known.startswith("|1|"):
        with suppress(Exception):
            return bool(HostKeys.hash_host(name, known) == known)
        return False
    words = known.lower().split(",")
    return any(_fits(name, word) for word in words) and not any(
        _fits(name, word[1:]) for word in words if word.startswith("!")
    )


def _fits(name: str, pattern: str) -> bool:
    """`*` and `?` mean what they do in a shell, and brackets stand for themselves."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))
