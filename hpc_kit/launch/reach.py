"""All hosts of a launch are reached before anything runs on any."""

from __future__ import annotations

import time
from queue import Empty
from typing import TYPE_CHECKING

from hpc_kit.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from queue import SimpleQueue

    from hpc_kit.launch.host import Frame, HostLink

_TURN = 0.2


def reach(links: Sequence[HostLink], frames: SimpleQueue[Frame]) -> dict[int, Frame]:
    """Connect to all hosts; how each one greets.

    Args:
        links: The hosts.
        frames: What they say.

    Raises:
        LaunchError: At least one cannot be used, or is another one of them.
    """
    for link in links:
        link.start()
    greetings: dict[int, Frame] = {}
    refused: dict[int, LaunchError] = {}
    while waiting := [link for link in links if link.node not in greetings.keys() | refused.keys()]:
        try:
            frame = frames.get(timeout=_TURN)
        except Empty:
            pass
        else:
            if frame.kind == "hello":
                greetings[frame.node] = frame
            elif frame.kind in {"refused", "lost"}:
                refused[frame.node] = error_of(links[frame.node].name, frame)
        refused |= {link.node: _silent(link) for link in waiting if time.monotonic() > link.due}
    if refused:
        raise _together([refused[node] for node in sorted(refused)], len(links))
    _check_apart(links, greetings)
    return greetings


def _check_apart(links: Sequence[HostLink], greetings: Mapping[int, Frame]) -> None:
    """Refuse one host under two names: the ranks of both would take the same devices."""
    seen: dict[tuple[str, str], str] = {}
    for link in links:
        told = greetings[link.node].values
        place = str(told["machine"]), str(told["address"])
        if all(place) and place in seen:
            raise LaunchError(
                f"{seen[place]} and {link.name} are the same host",
                found=f"{told['host']} at {told['address']}",
                remedy=f"name it once, with all its ranks: {seen[place]}:4",
            )
        seen[place] = link.name


def crowded(links: Sequence[HostLink], greetings: Mapping[int, Frame], ranks: Sequence[int]) -> list[str]:
    """A line on each host that gets more ranks than it has cores."""
    cores = [int(greetings[link.node].values["cores"]) for link in links]
    return [
        f"{link.name}: {wanted} ranks on {has} cores (a port stands in ~/.ssh/config)"
        for link, has, wanted in zip(links, cores, ranks, strict=True)
        if wanted > has
    ]


def error_of(name: str, frame: Frame) -> LaunchError:
    """Why a host cannot be used, or not any more."""
    given = frame.values.get("error")
    if isinstance(given, LaunchError):
        return given
    if frame.kind == "refused":
        return LaunchError(
            f"the project cannot be used on {name}",
            found=frame.values["why"],
            remedy="the project's folder at the same path on all hosts: a shared file system, or rsync -a",
        )
    return LaunchError(
        f"{name} is lost",
        found=frame.values["why"],
        remedy=f"see that it runs, and that `ssh {name} true` is silent",
    )


def master(greetings: Mapping[int, Frame]) -> str:
    """Where all hosts find the first one: at the address by which it was reached, or, from elsewhere, by its name."""
    addresses = {node: str(frame.values["address"]) for node, frame in greetings.items()}
    own = {node for node, address in addresses.items() if address == "::1" or address.startswith("127.")}
    here = addresses[0] and (0 not in own or len(own) == len(addresses))
    return addresses[0] if here else str(greetings[0].values["host"])


def _silent(link: HostLink) -> LaunchError:
    return LaunchError(
        f"{link.name} does not answer",
        found=f"{link.step}: nothing came in all the time for it",
        remedy=f"ssh {link.name} true   (with a longer --connect-timeout where it is only slow)",
    )


def _together(errors: list[LaunchError], hosts: int) -> LaunchError:
    if len(errors) == 1:
        return errors[0]
    return LaunchError(
        f"{len(errors)} of {hosts} hosts cannot be used",
        found="\n".join(f"{error.what}: {error.found}" for error in errors),
        remedy="\n".join(dict.fromkeys(error.remedy or "" for error in errors)),
    )
