"""Hosts of a launch, from the command line or from a host file in the format of mpirun."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpc_kit.errors import HostlistError, SpecError, explain_file_errors
from hpc_kit.slurm import nodelist

_FORMS = "write a,b,c; n[1-4]; a:4 for four ranks; user@a; fd00::1, [fd00::1]:4; ssh://a:2222 for a port"
SSH_SCHEME = "ssh://"
_LAST_PORT = 65535
_NAMES = re.compile(r"(?P<names>[^\s:=/]+)(?::(?P<slots>\d+))?")
_IPV6 = re.compile(r"(?P<user>[^\s:/@]+@)?(?P<open>\[)?(?P<host>[^\]\[\s/@]+)(?(open)\](?::(?P<slots>\d+))?)")
_URI = re.compile(
    r"ssh://(?P<user>[^\s:/@]+@)?(?P<open>\[)?(?P<host>(?(open)[^\]\[\s/@]+|[^\]\[\s/@:]+))(?(open)\])"
    r"(?::(?P<port>\d+)(?::(?P<slots>\d+))?)?/?"
)


class Address(NamedTuple):
    """User, host and port. ssh takes a value that is None from ~/.ssh/config."""

    user: str | None
    host: str
    port: int | None

    @classmethod
    def parse(cls, name: str) -> Address:
        """Parse `[ssh://][user@]host[:port]`. An IPv6 address with a port needs brackets.

        >>> Address.parse("me@[fd00::1]:2222")
        Address(user='me', host='fd00::1', port=2222)
        """
        user, _, place = name.removeprefix(SSH_SCHEME).rpartition("@")
        host, _, port = place.rpartition(":")
        if not host or place.endswith("]") or ("[" not in place and host.count(":")):
            host, port = place, ""
        return cls(user or None, host.strip("[]"), int(port) if port else None)


class LaunchHost(NamedTuple):
    """A host that the user named."""

    name: str
    """`[user@]host[:port]`. An IPv6 address with a port has brackets."""

    slots: int | None = None
    """Ranks on this host; None: the number comes from the job."""

    @property
    def ssh_argument(self) -> str:
        """The host on the command line of ssh."""
        return f"{SSH_SCHEME}{self.name}" if Address.parse(self.name).port else self.name

    @property
    def copy_id_arguments(self) -> str:
        """The host on the command line of ssh-copy-id, which accepts no URI."""
        user, host, port = Address.parse(self.name)
        if port is None:
            return self.name
        return f"-p {port} {user}@{host}" if user else f"-p {port} {host}"

    @property
    def hosts_argument(self) -> str:
        """The host in the list of `--hosts`."""
        if self.slots is None:
            return self.ssh_argument
        user, host, port = Address.parse(self.name)
        if port is None and ":" in host:
            return f"{user + '@' if user else ''}[{host}]:{self.slots}"
        return f"{self.ssh_argument}:{self.slots}"


def read_hosts(words: str | None, hostfile: Path | None) -> tuple[LaunchHost, ...]:
    """Return the hosts of `--hosts` or `--hostfile`, in their order.

    Args:
        words: `a,b:4,n[1-3]`; IPv6 addresses `fd00::1,[fd00::2]:4`; a port `ssh://me@a:2222`, with four ranks
            `ssh://me@a:2222:4`.
        hostfile: One host a line, `a slots=4` or `a:4`; `#` begins a comment.

    Raises:
        SpecError: The list is empty, names a host twice, or contains an invalid host.
    """
    if (words is None) == (hostfile is None):
        found = "both are given" if words is not None else "neither is given"
        raise SpecError("a launch needs --hosts or --hostfile", found=found, remedy="--hosts a,b,c")
    hosts = tuple(_read_hostfile(hostfile) if hostfile is not None else _parse_list(words or ""))
    if not hosts:
        raise SpecError("the list of hosts is empty", found=str(hostfile or "--hosts"), remedy=_FORMS)
    _check_consistency(hosts)
    return hosts


def _parse_list(words: str) -> Iterator[LaunchHost]:
    for word in re.split(r",(?![^\[]*\])", words):
        if word.strip():
            yield from _parse_hosts(word.strip(), "--hosts")


def _read_hostfile(file: Path) -> Iterator[LaunchHost]:
    what = f"cannot read the host file {file}"
    with explain_file_errors(SpecError, what, "correct its path", also=(UnicodeDecodeError,)):
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
        name, *options = line.partition("#")[0].split() or [""]
        place = f"{file}, line {number}"
        for host in _parse_hosts(name, place) if name else ():
            yield host._replace(slots=_parse_slots(options, place) or host.slots)


def _parse_slots(options: list[str], place: str) -> int | None:
    """Return the ranks of `slots=4`. mpirun's upper limit `max_slots` is ignored."""
    slots = None
    for option in options:
        name, _, value = option.partition("=")
        if name not in {"slots", "max_slots", "max-slots"} or not value.isdecimal() or not int(value):
            raise SpecError(f"{option!r} is not an option of a host", found=place, remedy="write HOST slots=4")
        slots = int(value) if name == "slots" else slots
    return slots


def _parse_hosts(word: str, place: str) -> Iterable[LaunchHost]:
    match = _match_form(word)
    slots = int(match["slots"]) if match and match["slots"] else None
    if match is None or word.startswith("-") or slots == 0:
        raise SpecError(f"{word!r} is not a host", found=place, remedy=_FORMS)
    if match.re is not _NAMES:
        port, host = match.groupdict().get("port"), match["host"]
        if port and not 0 < int(port) <= _LAST_PORT:
            raise SpecError(
                f"{word!r} is not a host", found=f"{place}: port {port}", remedy=f"use a port from 1 to {_LAST_PORT}"
            )
        if port:
            host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return [LaunchHost((match["user"] or "") + host, slots)]
    try:
        names = nodelist.expand(match["names"])
    except HostlistError as error:
        raise SpecError(f"{word!r} is not a host", found=f"{place}\n{error.found}", remedy=_FORMS) from error
    return [LaunchHost(name, slots) for name in names]


def _match_form(word: str) -> re.Match[str] | None:
    """Match a word with the form of a list of names, an address or a URI."""
    if not word.startswith(SSH_SCHEME) and word.count(":") < 2:
        return _NAMES.fullmatch(word)
    from ipaddress import IPv6Address

    match = (_URI if word.startswith(SSH_SCHEME) else _IPV6).fullmatch(word)
    if match and ":" in match["host"]:
        try:
            IPv6Address(match["host"])
        except ValueError:
            return None
    return match


def _check_consistency(hosts: tuple[LaunchHost, ...]) -> None:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(
            f"host {twice} is named twice",
            found=", ".join(names),
            remedy=f"name it once with all its ranks: {LaunchHost(twice, names.count(twice)).hosts_argument} for "
            f"{names.count(twice)} ranks",
        )
    without = [host.name for host in hosts if host.slots is None]
    if without and len(without) < len(hosts):
        raise SpecError(
            "only some hosts have a number of ranks",
            found=f"no number for {', '.join(without)}",
            remedy="give all hosts a number, or none: then the job decides",
        )
