"""Meets all ranks of a launch: rank 0 opens a store, the other ranks find it, all sign in, and rank 0 leaves last."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_kit.runtime.rendezvous import network, node_comparison, sign_in, store
from hpc_kit.runtime.rendezvous.ended_without_torch import EndedRankCheck
from hpc_kit.runtime.rendezvous.master_host import HostResolver
from hpc_kit.runtime.rendezvous.store_search import StoreSearch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch._C._distributed_c10d import Store, TCPStore

    from hpc_kit.runtime.world import World

DEFAULT_TIMEOUT = 300.0
"""Seconds. The nodes of a large job may start minutes apart."""

_LEAVE_TIMEOUT = 60.0
"""Seconds that rank 0 waits at its end, so that no other rank loses the store too early."""

LAUNCHERS_WITH_STORE = {"torchrun", "env"}
"""Launchers whose MASTER_ADDR and MASTER_PORT name an existing store."""

_meeting_numbers = itertools.count()


@dataclass(frozen=True)
class Meeting:
    """The ranks of a launch after they have met."""

    world: World
    """The complete World; no number is None."""
    host: str
    port: int
    server: TCPStore
    prefix: str
    """Prefix of all keys of this meeting."""
    is_owner: bool
    """True if the store lives in this process."""
    interface: str | None
    """The network interface that leads to the other nodes."""
    keys: int
    """Number of keys in the owner's store when all ranks had met."""
    reserved_port: int | None = None
    """A descriptor that reserves the port for a program that runs alone."""

    def substore(self, name: str) -> Store:
        """Return a separate part of the store for one purpose."""
        return _prefix_store(self.server, f"{self.prefix}/{name}")

    def entries(self) -> list[sign_in.RankEntry]:
        """Return host and process of each rank."""
        return sign_in.read_entries(self.substore("roster"), self.world)

    def leave(self) -> None:
        """Leave the meeting. Rank 0 owns the store and waits until the other ranks no longer need it."""
        if self.reserved_port is not None:
            os.close(self.reserved_port)
        departures = self.substore("departures")
        if self.is_owner:
            sign_in.wait_for_departures(departures, sign_in.HAS_READ, self.world, timeout=_LEAVE_TIMEOUT)
            if self.server.num_keys() > self.keys:  # the program has used the store, and other ranks may still read it
                sign_in.wait_for_departures(departures, sign_in.IS_DONE, self.world, timeout=_LEAVE_TIMEOUT)
        # Rank 0 may have left long ago if the program did not use the store.
        elif network.is_reachable(self.host, self.port):
            sign_in.depart(departures, sign_in.IS_DONE)


def meet(
    world: World,
    *,
    timeout: float | None = None,
    environ: Mapping[str, str] | None = None,
    meeting_number: int | None = None,
    program: Path | None = None,
) -> Meeting:
    """Meet all ranks of `world`.

    Args:
        world: This process.
        timeout: Seconds to wait for the other ranks; 300 by default.
        environ: Environment with the node's name and torchrun's variables; `os.environ` by default.
        meeting_number: Number of this meeting among those of these processes; counted by default.
        program: The program of this process; the running program by default.

    Raises:
        RendezvousError: Not all ranks came in time, or a rank has ended without importing torch. The message names the
            missing ranks.
        ContradictoryEnvironment: Two processes have the same rank, or the nodes do not run the same code.
    """
    environ = os.environ if environ is None else environ
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    until = time.monotonic() + timeout
    meeting_number = next(_meeting_numbers) if meeting_number is None else meeting_number
    node = network.this_node_name(environ)
    resolver = HostResolver(world, node, timeout, environ)
    check_ended_ranks = EndedRankCheck(world, environ)
    with ExitStack() as until_all_have_come:
        token = store.launch_token(world, meeting_number, environ)
        if world.launcher in LAUNCHERS_WITH_STORE:
            opened = store.launcher_store(resolver)
        elif world.rank == 0:
            opened = until_all_have_come.enter_context(store.serve_store(world, token, timeout, environ))
        else:
            opened = StoreSearch(resolver, token, check_ended_ranks).find()
        if opened.notification is not None:
            until_all_have_come.enter_context(opened.notification)
        # Agents of torchrun and their workers meet in one store, and so do restarted workers.
        prefix = f"hpc_kit/{world.launcher}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{meeting_number}"
        notes = _prefix_store(opened.store, f"{prefix}/roster")
        _publish_address(notes, world, opened, node)
        # This comes late, so that rank 0's store is open for the other ranks while rank 0 reads its program.
        facts = node_comparison.node_facts(world, program, environ)
        sign_in.sign_in(notes, world, sign_in.RankEntry(node, os.getpid(), facts=facts))
        sign_in.wait_for_all(notes, world, until, timeout, opened, check_ended_ranks)
    whole = sign_in.fill_world(notes, world)
    address = _read_address(notes, whole, opened)
    departures = _prefix_store(opened.store, f"{prefix}/departures")
    if opened.is_server:
        sign_in.count_departures(departures)
    meeting = Meeting(
        world=whole,
        host=_host_for_libraries(opened, address),
        port=opened.port,
        server=opened.store,
        prefix=prefix,
        is_owner=opened.is_server,
        interface=_route_interface(whole, address),
        keys=opened.store.num_keys() if opened.is_server else 0,
        reserved_port=opened.reserved_port,
    )
    if not opened.is_server:
        sign_in.depart(departures, sign_in.HAS_READ)
    return meeting


def _prefix_store(server: TCPStore, prefix: str) -> Store:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    part: Store = PrefixStore(prefix, server)
    return part


_ADDRESS_KEY = "address of rank 0"


def _publish_address(notes: Store, world: World, opened: store.OpenStore, here: str) -> None:
    """Publish for rank 0's node the address by which this node reaches it."""
    if opened.host != here and not world.local_rank and (address := opened.address or _first_address(opened.host)):
        notes.set(_ADDRESS_KEY, address)


def _read_address(notes: Store, world: World, opened: store.OpenStore) -> str:
    """Return rank 0's address after all nodes have published one; on rank 0's node the one that the other nodes use."""
    if world.nnodes != 1 and world.node_rank == 0 and notes.check([_ADDRESS_KEY]):
        return notes.get(_ADDRESS_KEY).decode()
    return opened.address or _first_address(opened.host)


def _route_interface(world: World, address: str) -> str | None:
    """Return the interface that leads to rank 0, or None if it is unknown; gloo then chooses one."""
    if world.nnodes == 1:
        return network.interface_with("127.0.0.1")
    source = network.source_address(address) if address else None
    return network.interface_with(source) if source else None


def _host_for_libraries(opened: store.OpenStore, address: str) -> str:
    """Return the host for libraries of this process: the name, or the address where the name does not resolve."""
    leads_there = opened.notification is not None or _first_address(opened.host)
    return opened.host if leads_there else address or "127.0.0.1"


def _first_address(host: str) -> str:
    try:
        return network.lookup(host)[0]
    except OSError:
        return ""
