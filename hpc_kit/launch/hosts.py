"""The hosts of a launch, from a command line or a host file as mpirun's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import HostlistError, SpecError
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FORMS = "a,b,c; n[1-4]; a:4 for four ranks there; user@a.   A port, or another name, stands in ~/.ssh/config"
_HOST = re.compile(r"(?P<names>[^\s:=]+)(?::(?P<slots>\d+))?")


class Host(NamedTuple):
    """A host as the user names it."""

    name: str
    slots: int | None = None
    """Ranks there; None: as many as the job says."""


def read_hosts(words: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """The hosts that `--hosts` or `--hostfile` names, in that order.

    Args:
        words: `a,b:4,n[1-3]`.
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
        lines = file.read_text(encoding="utf-8").splitlines()
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
    match = _HOST.fullmatch(word)
    if match is None or word.startswith("-") or match["slots"] in {"0", "00"}:
        raise SpecError(f"{word!r} names no host", found=place, remedy=_FORMS)
    try:
        names = nodelist.expand(match["names"])
    except HostlistError as error:
        raise SpecError(f"{word!r} names no host", found=f"{place}\n{error.found}", remedy=_FORMS) from error
    return [Host(name, int(match["slots"]) if match["slots"] else None) for name in names]


def _check(hosts: tuple[Host, ...]) -> None:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(
            f"host {twice} is named twice",
            found=", ".join(names),
            remedy=f"each host runs one agent, which starts its ranks: {twice}:{names.count(twice)} for "
            f"{names.count(twice)} ranks there",
        )
    without = [host.name for host in hosts if host.slots is None]
    if without and len(without) < len(hosts):
        raise SpecError(
            "some hosts say how many ranks they take, and others do not",
            found=f"no slots for {', '.join(without)}",
            remedy="slots for all of them, or for none: then the job says how many",
        )
