"""The hosts of a launch, from a command line or a host file as mpirun's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import HostlistError, SpecError
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FORMS = "a,b,c; n[1-4]; a:4 for four ranks there; user@a; fd00::1, [fd00::1]:4; ssh://a:2222 for a port"
_SSH = "ssh://"
_LAST_PORT = 65535
_NAMES = re.compile(r"(?P<names>[^\s:=/]+)(?::(?P<slots>\d+))?")
_IPV6 = re.compile(r"(?P<user>[^\s:/@]+@)?(?P<open>\[)?(?P<host>[^\]\[\s/@]+)(?(open)\](?::(?P<slots>\d+))?)")
_URI = re.compile(
    r"ssh://(?P<user>[^\s:/@]+@)?(?P<open>\[)?(?P<host>(?(open)[^\]\[\s/@]+|[^\]\[\s/@:]+))(?(open)\])"
    r"(?::(?P<port>\d+)(?::(?P<slots>\d+))?)?/?"
)


class Address(NamedTuple):
    """Where ssh goes; what is None stands in ~/.ssh/config, or is its default."""

    user: str | None
    host: str
    port: int | None

    @classmethod
    def of(cls, name: str) -> Address:
        """`[ssh://][user@]host[:port]`, an IPv6 address in brackets where a port is behind it.

        >>> Address.of("me@[fd00::1]:2222")
        Address(user='me', host='fd00::1', port=2222)
        """
        user, _, place = name.removeprefix(_SSH).rpartition("@")
        host, _, port = place.rpartition(":")
        if not host or place.endswith("]") or ("[" not in place and host.count(":")):
            host, port = place, ""
        return cls(user or None, host.strip("[]"), int(port) if port else None)


class Host(NamedTuple):
    """A host as the user names it."""

    name: str
    """`user@` before it where somebody says so, and `:port` behind it: then an IPv6 address stands in brackets."""

    slots: int | None = None
    """Ranks there; None: as many as the job says."""

    @property
    def for_ssh(self) -> str:
        """As ssh takes it on its command line."""
        return f"{_SSH}{self.name}" if Address.of(self.name).port else self.name

    @property
    def for_copy_id(self) -> str:
        """As ssh-copy-id takes it, which knows no URI."""
        user, host, port = Address.of(self.name)
        return f"-p {port} {user + '@' if user else ''}{host}" if port else self.name

    @property
    def written(self) -> str:
        """As `--hosts` takes it."""
        if self.slots is None:
            return self.for_ssh
        user, host, port = Address.of(self.name)
        if port is None and ":" in host:
            return f"{user + '@' if user else ''}[{host}]:{self.slots}"
        return f"{self.for_ssh}:{self.slots}"


def read_hosts(words: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """The hosts that `--hosts` or `--hostfile` names, in that order.

    Args:
        words: `a,b:4,n[1-3]`; IPv6 addresses `fd00::1,[fd00::2]:4`; a port `ssh://me@a:2222`, with four ranks
            `ssh://me@a:2222:4`.
        hostfile: A host a line, `a slots=4` or `a:4`; `#` begins a comment.

    Raises:
        SpecError: There is none, one is named twice, or something is no host.
    """
    if (words is None) == (hostfile is None):
        found = "both are given" if words is not None else "neither is given"
        raise SpecError("a launch needs --hosts or --hostfile", found=found, remedy="--hosts a,b,c")
    hosts = tuple(_of_words(words) if words is not None else _of_file(hostfile) if hostfile else ())
    if not hosts:
        raise SpecError("no host is named", found=str(hostfile or "--hosts"), remedy=_FORMS)
    _check(hosts)
    return hosts


def _of_words(words: str) -> Iterator[Host]:
    for word in re.split(r",(?![^\[]*\])", words):
        if word.strip():
            yield from _hosts(word.strip(), "--hosts")


def _of_file(file: Path) -> Iterator[Host]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the host file {file}", found=str(error), remedy="its path") from error
    for number, line in enumerate(lines, 1):
        name, *options = line.partition("#")[0].split() or [""]
        place = f"{file}, line {number}"
        for host in _hosts(name, place) if name else ():
            yield host._replace(slots=_slots(options, place) or host.slots)


def _slots(options: list[str], place: str) -> int | None:
    """The ranks that the words behind a host's name allow; mpirun's upper limit says nothing here."""
    slots = None
    for option in options:
        name, _, value = option.partition("=")
        if name not in {"slots", "max_slots", "max-slots"} or not value.isdigit() or not int(value):
            raise SpecError(f"{option!r} says nothing of a host", found=place, remedy="HOST slots=4")
        slots = int(value) if name == "slots" else slots
    return slots


def _hosts(word: str, place: str) -> Iterable[Host]:
    match = _match(word)
    if match is None or word.startswith("-") or match["slots"] in {"0", "00"}:
        raise SpecError(f"{word!r} names no host", found=place, remedy=_FORMS)
    slots = int(match["slots"]) if match["slots"] else None
    if match.re is not _NAMES:
        port, host = match.groupdict().get("port"), match["host"]
        if port and not 0 < int(port) <= _LAST_PORT:
            raise SpecError(f"{word!r} names no host", found=f"{place}: no port is {port}", remedy=f"1 to {_LAST_PORT}")
        host = f"[{host}]:{port}" if port and ":" in host else f"{host}:{port}" if port else host
        return [Host((match["user"] or "") + host, slots)]
    try:
        names = nodelist.expand(match["names"])
    except HostlistError as error:
        raise SpecError(f"{word!r} names no host", found=f"{place}\n{error.found}", remedy=_FORMS) from error
    return [Host(name, slots) for name in names]


def _match(word: str) -> re.Match[str] | None:
    """A word as a list of names, as an address or as a URI."""
    if not word.startswith(_SSH) and word.count(":") < 2:
        return _NAMES.fullmatch(word)
    from ipaddress import IPv6Address

    match = (_URI if word.startswith(_SSH) else _IPV6).fullmatch(word)
    if match and ":" in match["host"]:
        try:
            IPv6Address(match["host"])
        except ValueError:
            return None
    return match


def _check(hosts: tuple[Host, ...]) -> None:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(
            f"host {twice} is named twice",
            found=", ".join(names),
            remedy=f"each host runs one agent, which starts its ranks: {Host(twice, names.count(twice)).written} for "
            f"{names.count(twice)} ranks there",
        )
    without = [host.name for host in hosts if host.slots is None]
    if without and len(without) < len(hosts):
        raise SpecError(
            "some hosts say how many ranks they take, and others do not",
            found=f"no slots for {', '.join(without)}",
            remedy="slots for all of them, or for none: then the job says how many",
        )
