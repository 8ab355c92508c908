"""Who has come: every rank signs in a store, waits for the others, and learns what no variable told it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, RendezvousError
from hpc_kit.runtime.rendezvous import node_comparison

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

    from hpc_kit.runtime.rendezvous.node_comparison import Facts
    from hpc_kit.runtime.rendezvous.store import OpenStore
    from hpc_kit.runtime.world import World

_COMPLETE, _REFUSED, _TOLD = "complete", "refused", "told"
IN, OUT = "in", "out"
_MAX_PAUSE = 0.1
_WITH_BELL = 2.0
"""Seconds; the end of a connection may be lost on its way."""
_LONGEST = 65_536
_AT_ONCE = 64
"""So many ranks rank 0 asks for in one question to its store."""
_MOST_NAMED = 16
_READ_WITHIN = 5.0
"""Seconds for all to read that the nodes differ, and for rank 0 to tell it."""


@dataclass(frozen=True)
class RankEntry:
    """What a rank says of itself."""

    host: str
    pid: int
    mark: str = field(default_factory=lambda: os.urandom(6).hex())
    """Containers may give two processes the same name and number."""
    facts: Facts = field(default_factory=dict)
    """What it runs: the same on all nodes."""

    def to_bytes(self) -> str:
        """As it stands in the store."""
        return json.dumps([self.host, self.pid, self.mark, self.facts])

    @classmethod
    def from_bytes(cls, data: bytes) -> RankEntry:
        """Read it back."""
        return cls(*json.loads(data))


def sign_in(store: Store, world: World, entry: RankEntry) -> None:
    """Say that this rank is here.

    Raises:
        ContradictoryEnvironment: Another process says that it is this rank.
    """
    mine = entry.to_bytes()
    there = store.compare_set(_key(world.rank), "", mine)
    if there != mine.encode():
        first = RankEntry.from_bytes(there)
        raise ContradictoryEnvironment(
            f"two processes say that they are rank {world.rank} of {world.name}",
            found=f"{first.host}, process {first.pid}\n{entry.host}, process {entry.pid}",
            remedy="start the ranks with one srun or torchrun; unset RANK and WORLD_SIZE that an outer one has left",
        )


def wait_for_all(store: Store, world: World, until: float, timeout: float, opened: OpenStore) -> None:
    """Wait until every rank has signed.

    Args:
        store: Where they sign.
        world: Who waits.
        until: How long, by time.monotonic().
        timeout: The same in seconds from the beginning, for the error.
        opened: With the bell that rank 0 rings when all have come.

    Raises:
        RendezvousError: Some did not come in time, or rank 0 has gone; names ranks and hosts.
        ContradictoryEnvironment: The nodes do not run the same; told in full by rank 0, in short by the others.
    """
    try:
        told = (
            _wait_for_answer(store, world, until, opened)
            if world.is_main
            else _wait_for_bell(store, world, until, opened.bell)
        )
        if told is not None:
            _check_nodes_equal(json.loads(told), store, world)
            return
    except RuntimeError as error:
        raise RendezvousError(
            "rank 0 went away while the ranks were meeting",
            found=f"{world} had found its store",
            remedy="look at the log of rank 0, which tells why",
        ) from error
    raise _missing_ranks_error(store, world, timeout)


def _wait_for_answer(store: Store, world: World, until: float, opened: OpenStore) -> str | None:
    """What rank 0 says to all when they have come, a list of differences; None where the time is up."""
    waiting = [_key(rank) for rank in range(world.world_size)]

    def have_come() -> bool:
        while waiting and store.check(waiting[:_AT_ONCE]):
            del waiting[:_AT_ONCE]
        return not waiting

    if not wait_until(have_come, until, 1):
        return None
    told = json.dumps(node_comparison.find_differences((each.host, each.facts) for each in _entries(store, world)))
    store.set(_COMPLETE, told)
    if opened.ring is not None:
        opened.ring(told)
    return told


def _wait_for_bell(store: Store, world: World, until: float, bell: socket.socket | None) -> str | None:
    """The same for the others: by the bell, so that they do not keep the store busy, and from the store without one."""
    heard = b""
    while bell is not None:
        left = until - time.monotonic()
        bell.settimeout(max(0.01, min(_WITH_BELL, left)))
        try:
            said = bell.recv(_LONGEST)
        except TimeoutError:
            if left > 0 and not store.check([_COMPLETE]):
                continue
            break
        except OSError:
            break
        heard += said
        if heard.endswith(b"\n"):
            return heard.decode()
        if not said:
            break
    come = wait_until(lambda: store.check([_COMPLETE]), until, world.world_size)
    return store.get(_COMPLETE).decode() if come else None


def open_exits(store: Store) -> None:
    """Begin to count who passes; rank 0 does not."""
    for door in (IN, OUT):
        store.append(door, "")  # type: ignore[attr-defined]


def depart(store: Store, door: str) -> None:
    """Be counted: behind IN a rank has read all about the meeting, behind OUT it needs the store no more."""
    with suppress(RuntimeError):
        # Unlike add() without a question and an answer.
        store.append(door, ".")  # type: ignore[attr-defined]


def wait_for_departures(store: Store, door: str, world: World, *, patience: float) -> None:
    """Wait until all but rank 0 have passed, or for `patience` seconds."""
    wait_until(lambda: len(store.get(door)) >= world.world_size - 1, time.monotonic() + patience, world.world_size)


def wait_until(is_done: Callable[[], bool], until: float, ranks: int) -> bool:
    """Whether it is done in time. Asked again and again: a store's own wait writes to the log when it times out."""
    start = time.monotonic()
    while not is_done():
        now = time.monotonic()
        if now >= until:
            return False
        # Early the last rank may come at any moment; later a longer pause is a small part of the wait. Rank 0's store
        # answers all of them.
        time.sleep(min(_MAX_PAUSE, until - now, max(0.0005, (now - start) / 100, ranks / 20_000)))
    return True


def fill_world(store: Store, world: World) -> World:
    """`world` with what its launcher did not tell: nodes are numbered by their lowest rank."""
    if None not in {world.local_rank, world.local_world_size, world.node_rank, world.nnodes}:
        return world
    hosts = [entry.host for entry in _entries(store, world)]
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


def _entries(store: Store, world: World) -> list[RankEntry]:
    return [RankEntry.from_bytes(data) for data in store.multi_get([_key(rank) for rank in range(world.world_size)])]


def _check_nodes_equal(differences: list[str], store: Store, world: World) -> None:
    if not differences:
        return
    # Rank 0 tells it first, in full; and not before all have read it: they would blame that its store is gone.
    if not world.is_main:
        store.add(_REFUSED, 1)
        with suppress(RuntimeError):
            _pause(lambda: store.check([_TOLD]), world)
        raise ContradictoryEnvironment(f"the nodes do not run the same: {'; '.join(differences)}")
    _pause(lambda: store.add(_REFUSED, 0) >= world.world_size - 1, world)
    store.set(_TOLD, "")
    raise ContradictoryEnvironment(
        "the nodes do not run the same",
        found="\n".join(differences),
        remedy="the same environment and the same files on all nodes;\n"
        f"where it is meant to differ: export {node_comparison.COMPARE_VARIABLE}=0",
    )


def _pause(is_done: Callable[[], bool], world: World) -> None:
    wait_until(is_done, time.monotonic() + _READ_WITHIN, world.world_size)


def _missing_ranks_error(store: Store, world: World, timeout: float) -> RendezvousError:
    """Who did not come: told in full by the first rank that is there, in short by the others."""
    here = [rank for rank in range(world.world_size) if store.check([_key(rank)])]
    entries = [RankEntry.from_bytes(store.get(_key(rank))) for rank in here]
    absent = sorted(set(range(world.world_size)) - set(here))
    late = _hosts_without(world, Counter(entry.host for entry in entries))
    what = f"{len(absent)} of {world.world_size} ranks did not come within {timeout:g} s"
    if here and world.rank != here[0]:
        hosts = ", ".join(line.partition(":")[0] for line in late) or _numbers(absent)
        return RendezvousError(f"{what}: {hosts}; rank {here[0]} tells more")
    return RendezvousError(
        what,
        found="\n".join([f"not there: {_numbers(absent)}", *late]),
        remedy="look at their logs: a rank that fails early never comes;\n"
        "HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer" + _interactive_hint(here, world),
    )


def _interactive_hint(here: list[int], world: World) -> str:
    """What to do where this is the shell of `srun --pty`: as a task of the step, it waits for shells."""
    if here != [0] or world.launcher != "slurm" or not os.environ.get("SLURM_PTY_PORT"):
        return ""
    return ";\nin the shell of srun --pty: HPC_KIT_LAUNCHER=single for one process, srun --overlap -nN for several"


def _hosts_without(world: World, signed: Counter[str]) -> list[str]:
    """A line for each host of the launch from which ranks are missing."""
    expected: Counter[str] = Counter()
    for host, tasks in zip(world.hosts, world.tasks_per_node, strict=False):
        expected[host] += tasks  # components of a heterogeneous job may share a host
    lines = [f"{host}: {signed[host]} of {tasks} came" for host, tasks in expected.items() if signed[host] < tasks]
    if not world.tasks_per_node:
        lines = [f"{host}: nobody came" for host in world.hosts if not signed[host]]
    more = len(lines) - _MOST_NAMED
    return lines[:_MOST_NAMED] + ([f"and {more} hosts more"] if more > 0 else [])


def _numbers(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {node_comparison.list_some(ranks, _MOST_NAMED)}"


def _key(rank: int) -> str:
    return f"rank/{rank}"
