"""Who has come: every rank signs in a store, waits for the others, and learns what no variable told it."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, RendezvousError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

    from hpc_kit.runtime.world import World

_ARRIVED, _COMPLETE = "arrived", "complete"
IN, OUT = "in", "out"
_MAX_PAUSE = 0.1
_MOST_NAMED = 16


@dataclass(frozen=True)
class Entry:
    """What a rank says of itself."""

    host: str
    pid: int

    def to_bytes(self) -> str:
        """As it stands in the store."""
        return json.dumps([self.host, self.pid])

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        """Read it back."""
        return cls(*json.loads(data))


def sign(store: Store, world: World, entry: Entry) -> None:
    """Say that this rank is here.

    Raises:
        ContradictoryEnvironment: Another process says that it is this rank.
    """
    if store.add(f"claim/{world.rank}", 1) > 1:
        first = Entry.from_bytes(store.get(_key(world.rank)))
        raise ContradictoryEnvironment(
            f"two processes say that they are rank {world.rank} of {world.name}",
            found=f"{first.host}, process {first.pid}\n{entry.host}, process {entry.pid}",
            remedy="start the ranks with one srun or torchrun; unset RANK and WORLD_SIZE that an outer one has left",
        )
    store.set(_key(world.rank), entry.to_bytes())
    if store.add(_ARRIVED, 1) == world.world_size:
        store.set(_COMPLETE, "1")


def wait_for_all(store: Store, world: World, until: float, timeout: float) -> None:
    """Wait until every rank has signed.

    Args:
        store: Where they sign.
        world: Who waits.
        until: How long, by time.monotonic().
        timeout: The same in seconds from the beginning, for the error.

    Raises:
        RendezvousError: Some did not come in time, or rank 0 has gone; names ranks and hosts.
    """
    try:
        if _wait(lambda: store.check([_COMPLETE]), until):
            return
    except RuntimeError as error:
        raise RendezvousError(
            "rank 0 went away while the ranks were meeting",
            found=f"{world} had found its store",
            remedy="look at the log of rank 0, which tells why",
        ) from error
    raise _incomplete(store, world, timeout)


def open_doors(store: Store) -> None:
    """Begin to count who passes; nothing is counted yet."""
    for door in (IN, OUT):
        store.add(door, 0)


def pass_door(store: Store, door: str) -> None:
    """Be counted: behind IN a rank has read all about the meeting, behind OUT it needs the store no more."""
    with suppress(RuntimeError):
        store.add(door, 1)


def wait_for(store: Store, door: str, world: World, *, patience: float) -> None:
    """Wait until all but rank 0 have passed, or for `patience` seconds."""
    _wait(lambda: store.add(door, 0) >= world.world_size - 1, time.monotonic() + patience)


def _wait(is_done: Callable[[], bool], until: float) -> bool:
    """Whether it is done in time. Asked again and again: a store's own wait writes to the log when it times out."""
    pause = 0.002
    while not is_done():
        left = until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(pause * 1.3, _MAX_PAUSE)
    return True


def completed(store: Store, world: World) -> World:
    """`world` with what its launcher did not tell: nodes are numbered by their lowest rank."""
    if None not in {world.local_rank, world.local_world_size, world.node_rank, world.nnodes}:
        return world
    hosts = [Entry.from_bytes(data).host for data in store.multi_get([_key(rank) for rank in range(world.world_size)])]
    nodes, here = list(dict.fromkeys(hosts)), hosts[world.rank]
    found = {
        "local_rank": hosts[: world.rank].count(here),
        "local_world_size": hosts.count(here),
        "node_rank": nodes.index(here),
        "nnodes": len(nodes),
    }
    missing = {name: value for name, value in found.items() if getattr(world, name) is None}
    sources = dict(world.sources) | dict.fromkeys(missing, "the ranks' hosts, when they met")
    return replace(world, **missing, sources=sources)  # type: ignore[arg-type]


def _incomplete(store: Store, world: World, timeout: float) -> RendezvousError:
    here = [rank for rank in range(world.world_size) if store.check([_key(rank)])]
    entries = [Entry.from_bytes(store.get(_key(rank))) for rank in here]
    absent = sorted(set(range(world.world_size)) - set(here))
    lines = [f"not there: {_numbers(absent)}"]
    lines += _hosts_without(world, Counter(entry.host for entry in entries))
    return RendezvousError(
        f"{len(absent)} of {world.world_size} ranks did not come within {timeout:g} s",
        found="\n".join(lines),
        remedy="look at their logs: a rank that fails early never comes;\n"
        "HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer",
    )


def _hosts_without(world: World, signed: Counter[str]) -> list[str]:
    """A line for each host of the launch from which ranks are missing."""
    expected = dict(zip(world.hosts, world.tasks_per_node, strict=False))
    late = [host for host, tasks in expected.items() if signed[host] < tasks]
    lines = [f"{host}: {signed[host]} of {expected[host]} came" for host in late[:_MOST_NAMED]]
    return lines + ([f"and {len(late) - _MOST_NAMED} hosts more"] if len(late) > _MOST_NAMED else [])


def _numbers(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {named}" + (f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else "")


def _key(rank: int) -> str:
    return f"rank/{rank}"
