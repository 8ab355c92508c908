"""Ranks sign in at the store and wait for each other. Missing ranks are named."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, RendezvousError
from hpc_kit.run_files import format_ranks
from hpc_kit.runtime.rendezvous import node_comparison

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

    from hpc_kit.runtime.rendezvous.node_comparison import Facts
    from hpc_kit.runtime.rendezvous.store import OpenStore
    from hpc_kit.runtime.world import World

_COMPLETE, _REFUSED, _ANSWERED = "complete", "refused", "answered"
HAS_READ, IS_DONE = "in", "out"
"""Stages of a departure: the rank has read everything about the meeting, and it no longer needs the store."""
_MAX_PAUSE = 0.1
_STORE_POLL_SECONDS = 2.0
"""Seconds. The end of a connection may be lost on the network, so waiting ranks also ask the store."""
_LONGEST = 65_536
_AT_ONCE = 64
"""Number of ranks that rank 0 reads from the store in one request."""
_MOST_NAMED = 16
_READ_WITHIN = 5.0
"""Seconds for all ranks to read the differences before rank 0 reports them."""


@dataclass(frozen=True)
class RankEntry:
    """The entry of one rank in the store."""

    host: str
    pid: int
    mark: str = field(default_factory=lambda: os.urandom(6).hex())
    """Random mark, because two processes in containers may have the same host name and pid."""
    facts: Facts = field(default_factory=dict)
    """Versions and program hash, which must be equal on all nodes."""

    def to_bytes(self) -> str:
        """Return the entry as it is stored."""
        return json.dumps([self.host, self.pid, self.mark, self.facts])

    @classmethod
    def from_bytes(cls, data: bytes) -> RankEntry:
        """Read a stored entry."""
        return cls(*json.loads(data))


def sign_in(store: Store, world: World, entry: RankEntry) -> None:
    """Sign in as this rank.

    Raises:
        ContradictoryEnvironment: Another process has signed in as this rank.
    """
    mine = entry.to_bytes()
    there = store.compare_set(_key(world.rank), "", mine)
    if there != mine.encode():
        first = RankEntry.from_bytes(there)
        raise ContradictoryEnvironment(
            f"two processes claim to be rank {world.rank} of {world.name}",
            found=f"{first.host}, process {first.pid}\n{entry.host}, process {entry.pid}",
            remedy="start the ranks with one srun or torchrun; unset RANK and WORLD_SIZE that an outer one has left",
        )


def wait_for_all(
    store: Store, world: World, until: float, timeout: float, opened: OpenStore, check_ended_ranks: Callable[[], None]
) -> None:
    """Wait until every rank has signed in.

    Args:
        store: Store of the entries.
        world: This process.
        until: End of the wait, as time.monotonic().
        timeout: Length of the wait in seconds, for the error message.
        opened: The store with the connection on which rank 0 notifies this rank when all ranks have come.
        check_ended_ranks: Raises an error if a rank can no longer come.

    Raises:
        RendezvousError: Some ranks did not come in time, or rank 0 is gone. The message names ranks and hosts.
        ContradictoryEnvironment: The nodes do not run the same code. Only rank 0 reports the details.
    """
    try:
        answer = (
            _wait_for_answer(store, world, until, opened, check_ended_ranks)
            if world.is_main
            else _wait_for_notification(store, world, until, opened.notification, check_ended_ranks)
        )
        if answer is not None:
            _check_nodes_equal(json.loads(answer), store, world)
            return
    except RuntimeError as error:
        raise RendezvousError(
            "rank 0 went away while the ranks were meeting",
            found=f"{world} had found its store",
            remedy="read the log of rank 0, which shows the reason",
        ) from error
    raise _missing_ranks_error(store, world, timeout)


def _wait_for_answer(
    store: Store, world: World, until: float, opened: OpenStore, check_ended_ranks: Callable[[], None]
) -> str | None:
    """Collect all entries on rank 0 and return the list of differences for all ranks; None after a time-out."""
    waiting = [_key(rank) for rank in range(world.world_size)]

    def have_come() -> bool:
        while waiting and store.check(waiting[:_AT_ONCE]):
            del waiting[:_AT_ONCE]
        return not waiting

    if not wait_until(have_come, until, 1, check_ended_ranks):
        return None
    differences = json.dumps(
        node_comparison.find_differences((each.host, each.facts) for each in read_entries(store, world))
    )
    store.set(_COMPLETE, differences)
    if opened.notify is not None:
        opened.notify(differences)
    return differences


def _wait_for_notification(
    store: Store,
    world: World,
    until: float,
    notification: socket.socket | None,
    check_ended_ranks: Callable[[], None],
) -> str | None:
    """Wait on the other ranks for rank 0's answer on the connection, which keeps the store idle, or in the store."""
    data = b""
    while notification is not None:
        left = until - time.monotonic()
        notification.settimeout(max(0.01, min(_STORE_POLL_SECONDS, left)))
        try:
            received = notification.recv(_LONGEST)
        except TimeoutError:
            if left > 0 and not store.check([_COMPLETE]):
                continue
            break
        except OSError:
            break
        data += received
        if data.endswith(b"\n"):
            return data.decode()
        if not received:
            break

    come = wait_until(lambda: store.check([_COMPLETE]), until, world.world_size, check_ended_ranks)
    return store.get(_COMPLETE).decode() if come else None


def count_departures(store: Store) -> None:
    """Start counting departures. Rank 0 is not counted."""
    for stage in (HAS_READ, IS_DONE):
        store.append(stage, "")  # type: ignore[attr-defined]


def depart(store: Store, stage: str) -> None:
    """Count this rank at HAS_READ or IS_DONE."""
    with suppress(RuntimeError):
        # Unlike add(), this does not wait for an answer of the store.
        store.append(stage, ".")  # type: ignore[attr-defined]


def wait_for_departures(store: Store, stage: str, world: World, *, timeout: float) -> None:
    """Wait until all ranks but rank 0 have departed, for at most `timeout` seconds."""
    wait_until(lambda: len(store.get(stage)) >= world.world_size - 1, time.monotonic() + timeout, world.world_size)


def wait_until(is_done: Callable[[], bool], until: float, ranks: int, check: Callable[[], None] | None = None) -> bool:
    """Poll `is_done` and return whether it became true in time. A store's own wait would log an error at its time-out.

    Args:
        is_done: The condition.
        until: End of the wait, as time.monotonic().
        ranks: Number of ranks that poll at the same time. With many ranks, the pauses are longer.
        check: Called after each poll. Its errors end the wait.
    """
    start = time.monotonic()
    while not is_done():
        if check is not None:
            check()
        now = time.monotonic()
        if now >= until:
            return False
        # At first the last rank may come at any moment. Later, a longer pause is a small part of the wait and spares
        # the store.
        time.sleep(min(_MAX_PAUSE, until - now, max(0.0005, (now - start) / 100, ranks / 20_000)))
    return True


def fill_world(store: Store, world: World) -> World:
    """Return `world` with the values that its launcher did not set. Nodes are numbered by their lowest rank."""
    if None not in {world.local_rank, world.local_world_size, world.node_rank, world.nnodes}:
        return world
    hosts = [entry.host for entry in read_entries(store, world)]
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


def read_entries(store: Store, world: World) -> list[RankEntry]:
    """Return the entries of all ranks. All must have signed in."""
    return [RankEntry.from_bytes(data) for data in store.multi_get([_key(rank) for rank in range(world.world_size)])]


def _check_nodes_equal(differences: list[str], store: Store, world: World) -> None:
    if not differences:
        return
    # Rank 0 reports after all ranks have read the differences. Otherwise they would report that its store is gone.
    if not world.is_main:
        store.add(_REFUSED, 1)
        with suppress(RuntimeError):
            _pause(lambda: store.check([_ANSWERED]), world)
        raise ContradictoryEnvironment(f"the nodes do not run the same: {'; '.join(differences)}")
    _pause(lambda: store.add(_REFUSED, 0) >= world.world_size - 1, world)
    store.set(_ANSWERED, "")
    raise ContradictoryEnvironment(
        "the nodes do not run the same",
        found="\n".join(differences),
        remedy="the same environment and the same files on all nodes;\n"
        f"where it is meant to differ: export {node_comparison.COMPARE_VARIABLE}=0",
    )


def _pause(is_done: Callable[[], bool], world: World) -> None:
    wait_until(is_done, time.monotonic() + _READ_WITHIN, world.world_size)


def _missing_ranks_error(store: Store, world: World, timeout: float) -> RendezvousError:
    """Return the error about missing ranks, with all details only on the first rank that is present."""
    here = [rank for rank in range(world.world_size) if store.check([_key(rank)])]
    entries = [RankEntry.from_bytes(store.get(_key(rank))) for rank in here]
    absent = sorted(set(range(world.world_size)) - set(here))
    late = _hosts_without(world, Counter(entry.host for entry in entries))
    # The nodes of ranks depend on --distribution, so only a single node with missing ranks is certain.
    host = late[0].rpartition(":")[0] if len(late) == 1 else None
    what = f"{len(absent)} of {world.world_size} ranks did not come within {timeout:g} s"
    if here and world.rank != here[0]:
        hosts = ", ".join(line.partition(":")[0] for line in late) or format_ranks(absent)
        short = f"{what}: {hosts}; rank {here[0]} shows more"
        return RendezvousError(short, missing=tuple(absent), host=host, waited=timeout)
    return RendezvousError(
        what,
        found="\n".join([f"not there: {format_ranks(absent)}", *late]),
        remedy="look at their logs: a rank that fails early never comes;\n"
        "HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer" + _interactive_hint(here, world),
        missing=tuple(absent),
        host=host,
        waited=timeout,
    )


def _interactive_hint(here: list[int], world: World) -> str:
    """Return the hint for the shell of `srun --pty`, which is a task of the step and waits for other shells."""
    if here != [0] or world.launcher != "slurm" or not os.environ.get("SLURM_PTY_PORT"):
        return ""
    return ";\nin the shell of srun --pty: HPC_KIT_LAUNCHER=single for one process, srun --overlap -nN for several"


def _hosts_without(world: World, signed: Counter[str]) -> list[str]:
    """Return one line for each host of the launch that lacks ranks."""
    expected: Counter[str] = Counter()
    for host, tasks in zip(world.hosts, world.tasks_per_node, strict=False):
        expected[host] += tasks  # components of a heterogeneous job may share a host
    lines = [f"{host}: {signed[host]} of {tasks} came" for host, tasks in expected.items() if signed[host] < tasks]
    if not world.tasks_per_node:
        lines = [f"{host}: no rank came" for host in world.hosts if not signed[host]]
    more = len(lines) - _MOST_NAMED
    return lines[:_MOST_NAMED] + ([f"and {more} hosts more"] if more > 0 else [])


def _key(rank: int) -> str:
    return f"rank/{rank}"
