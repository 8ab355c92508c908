"""All hosts of a launch are reached before anything runs on any."""

from __future__ import annotations

import time
from queue import Empty
from typing import TYPE_CHECKING

from hpc_kit.errors import LaunchError
from hpc_kit.ssh.hosts import Host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from queue import SimpleQueue

    from hpc_kit.ssh.host_connection import Frame, HostLink

_TURN = 0.2


def reach(links: Sequence[HostLink], frames: SimpleQueue[Frame]) -> dict[int, Frame]:
    """Connect to all hosts; how each one greets.

    Args:
        links: The hosts.
        frames: What they say.

    Raises:
        LaunchError: At least one cannot be used.
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
    return greetings


def laid(
    links: Sequence[HostLink], greetings: Mapping[int, Frame], ranks: Sequence[int], backend: str
) -> Iterator[str]:
    """A line on each machine that has several names, or gets more ranks than it has cores.

    Args:
        links: The hosts.
        greetings: What each says of itself.
        ranks: On each.
        backend: torch's; under gloo, ranks are on CPUs.

    Raises:
        LaunchError: A machine with GPUs has several names: the ranks of each would take the same ones.
    """
    machines: dict[str, list[int]] = {}
    for place, link in enumerate(links):
        machines.setdefault(str(greetings[link.node].values["machine"]), []).append(place)
    for places in machines.values():
        told = greetings[links[places[0]].node].values
        names, wanted = [links[place].name for place in places], sum(ranks[place] for place in places)
        if len(places) > 1 and told["gpus"] and backend != "gloo":
            raise LaunchError(
                f"{' and '.join(names)} are the same host, and the ranks of each would take its first GPUs",
                found=told["host"],
                remedy=f"name it once, with all its ranks: {Host(names[0], wanted).written}; "
                "or, for ranks on CPUs: --set launch.backend=gloo",
            )
        if len(places) > 1:
            yield f"{' and '.join(names)} are the same host ({told['host']}): {wanted} ranks on {told['cores']} cores"
        elif wanted > told["cores"]:
            yield f"{names[0]}: {wanted} ranks on {told['cores']} cores (a port is written ssh://HOST:PORT)"


def error_of(name: str, frame: Frame) -> LaunchError:
    """Why a host cannot be used, or not any more."""
    spelt = Host(name).for_ssh
    given = frame.values.get("error")
    if isinstance(given, LaunchError):
        return given
    if frame.kind == "refused" and not frame.values["file"]:
        return LaunchError(
            f"nothing can be started on {name}",
            found=frame.values["why"],
            remedy=f"ssh {spelt} 'ulimit -u; df ${{TMPDIR:-/tmp}}'   (the most processes of a user; a full disk)",
        )
    if frame.kind == "refused":
        return LaunchError(
            f"the project cannot be used on {name}",
            found=frame.values["why"],
            remedy="the project's folder at the same path on all hosts: a shared file system, or rsync -a",
        )
    return LaunchError(
        f"{name} is lost",
        found=frame.values["why"],
        remedy=f"see that it runs, and that `ssh {spelt} true` is silent",
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
        remedy=f"ssh {Host(link.name).for_ssh} true   (with a longer --connect-timeout where it is only slow)",
    )


def _together(errors: list[LaunchError], hosts: int) -> LaunchError:
    if len(errors) == 1:
        return errors[0]
    return LaunchError(
        f"{len(errors)} of {hosts} hosts cannot be used",
        found="\n".join(f"{error.what}: {error.found}" for error in errors),
        remedy="\n".join(dict.fromkeys(error.remedy or "" for error in errors)),
    )
