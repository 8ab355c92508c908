"""How the ranks meet: rank 0 opens a store, all others find it, every rank signs, and rank 0 leaves last."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_kit.runtime.rendezvous import network, node_comparison, sign_in, store
from hpc_kit.runtime.rendezvous.store_search import StoreSearch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch._C._distributed_c10d import Store, TCPStore

    from hpc_kit.runtime.world import World

DEFAULT_TIMEOUT = 300.0
"""Seconds: nodes of a big job start within minutes of one another."""

_LEAVE_TIMEOUT = 60.0
"""Seconds that rank 0 waits at its end, so that no other rank loses the store before it has finished."""

LAUNCHERS_WITH_STORE = {"torchrun", "env"}
"""Those that have said by MASTER_ADDR and MASTER_PORT where the store is."""

_occasions = itertools.count()


@dataclass(frozen=True)
class Meeting:
    """The ranks of a launch, met."""

    world: World
    """Complete: no number is None."""
    host: str
    port: int
    server: TCPStore
    prefix: str
    """Before all keys of this meeting."""
    is_owner: bool
    """Whether the store lives in this process."""
    interface: str | None
    """The network interface that leads to the other nodes."""
    keys: int
    """How many keys the owner's store held when all had met."""
    held: int | None = None
    """A descriptor that keeps the port for a program that is alone in its world."""

    def substore(self, name: str) -> Store:
        """A part of the store, for one purpose."""
        return _prefix_store(self.server, f"{self.prefix}/{name}")

    def leave(self) -> None:
        """Say goodbye; rank 0, in whose process the store lives, waits for the others as long as they need it."""
        if self.held is not None:
            os.close(self.held)
        doors = self.substore("doors")
        if self.is_owner:
            sign_in.wait_for_departures(doors, sign_in.IN, self.world, patience=_LEAVE_TIMEOUT)
            if self.server.num_keys() > self.keys:
                sign_in.wait_for_departures(doors, sign_in.OUT, self.world, patience=_LEAVE_TIMEOUT)
        # Rank 0 may have gone long ago, where the program had no use for the store.
        elif network.is_reachable(self.host, self.port):
            sign_in.depart(doors, sign_in.OUT)


def meet(
    world: World,
    *,
    timeout: float | None = None,
    environ: Mapping[str, str] | None = None,
    occasion: int | None = None,
    program: Path | None = None,
) -> Meeting:
    """Meet all ranks of `world`.

    Args:
        world: Who this process is.
        timeout: Seconds to wait for the others; 300 by default.
        environ: Where this node's name and torchrun's variables stand; `os.environ` by default.
        occasion: Which meeting of these processes this is; counted by default.
        program: What this process is about to run; what it runs by default.

    Raises:
        RendezvousError: Not all came in time; it names those that did not.
        ContradictoryEnvironment: Two processes say that they are the same rank, or the nodes do not run the same.
    """
    environ = os.environ if environ is None else environ
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    until = time.monotonic() + timeout
    occasion = next(_occasions) if occasion is None else occasion
    here = network.this_node_name(environ)
    is_owner = world.rank == 0 and world.launcher not in LAUNCHERS_WITH_STORE
    with ExitStack() as until_all_have_come:
        if world.launcher in LAUNCHERS_WITH_STORE:
            opened = store.launcher_store(world, environ, timeout)
        elif is_owner:
            opened = until_all_have_come.enter_context(
                store.serve_store(world, store.launch_token(world, occasion), timeout)
            )
        else:
            opened = StoreSearch(world, store.launch_token(world, occasion), timeout, here, environ).find()
        if opened.bell is not None:
            until_all_have_come.enter_context(opened.bell)
        # Agents of torchrun and their workers meet in one store, and so do workers that were started again.
        prefix = f"hpc_kit/{world.launcher}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{occasion}"
        notes = _prefix_store(opened.store, f"{prefix}/roster")
        network.publish_address(notes, world, opened, here)
        # Only now: rank 0's store is open for the others while it reads its program.
        facts = node_comparison.node_facts(world, program, environ)
        sign_in.sign_in(notes, world, sign_in.RankEntry(here, os.getpid(), facts=facts))
        sign_in.wait_for_all(notes, world, until, timeout, opened)
    whole = sign_in.fill_world(notes, world)
    address = network.read_address(notes, whole, opened)
    doors = _prefix_store(opened.store, f"{prefix}/doors")
    if is_owner:
        sign_in.open_exits(doors)
    meeting = Meeting(
        world=whole,
        host=network.name_for(opened, address),
        port=opened.port,
        server=opened.store,
        prefix=prefix,
        is_owner=is_owner,
        interface=network.route_interface(whole, address),
        keys=opened.store.num_keys() if is_owner else 0,
        held=opened.held,
    )
    if not is_owner:
        sign_in.depart(doors, sign_in.IN)
    return meeting


def _prefix_store(server: TCPStore, prefix: str) -> Store:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    part: Store = PrefixStore(prefix, server)
    return part
