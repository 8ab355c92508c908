"""The key-value store in which the ranks of a launch meet. Rank 0 opens it, unless the launcher has."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from hpc_kit.errors import RendezvousError
from hpc_kit.runtime.rendezvous import network, store_discovery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch._C._distributed_c10d import TCPStore

    from hpc_kit.runtime.world import World


class OpenStore(NamedTuple):
    """A store and its address."""

    store: TCPStore
    host: str
    port: int
    address: str = ""
    """Address at which this process found the store."""
    bell: socket.socket | None = None
    """Connection that ends when all ranks have met."""
    ring: Callable[[str], None] | None = None
    """Sends a line to all ranks that wait for the bell."""
    held: int | None = None
    """Descriptor that reserves the port where no store listens."""


def launch_token(world: World, occasion: int = 0) -> str:
    """Return the token that identifies rank 0 of this meeting among launches, users and earlier meetings."""
    text = f"{world.launcher}, {world.key}, {world.world_size} ranks, user {os.getuid()}, {occasion}"
    return f"hpc_kit/{blake2s(text.encode(), digest_size=16).hexdigest()}"


@contextmanager
def serve_store(world: World, token: str, timeout: float) -> Iterator[OpenStore]:
    """Open rank 0's store and announce it to the other ranks inside the `with` block.

    Raises:
        RendezvousError: All ports that this launch may use are taken.
    """
    store_discovery.allow_files(world.world_size)
    with _bind(world) as listener, _start_announcing(world, token, listener.getsockname()[1]) as ring:
        yield _create_server(world, listener, timeout)._replace(ring=ring)


def _bind(world: World) -> socket.socket:
    """Bind the first free candidate port before it is announced."""
    alone = world.world_size == 1
    candidates = [0] if alone else candidate_ports(world.key, world.master_port)
    for candidate in candidates:
        listener = network.listen(candidate, everywhere=not alone)
        if listener is not None:
            return listener
    raise _no_free_port_error(world, candidates)


@contextmanager
def _start_announcing(world: World, token: str, port: int) -> Iterator[Callable[[str], None] | None]:
    if world.world_size == 1:
        yield None
        return
    candidates = discovery_ports(world.key)
    listener = store_discovery.listen_for_queries(candidates)
    if listener is None:
        raise _no_free_port_error(world, candidates)
    with store_discovery.announce(listener, token, port, world.world_size) as ring:
        yield ring


def _create_server(world: World, listener: socket.socket, timeout: float) -> OpenStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1",
        port,
        None,
        True,  # noqa: FBT003 (is_master)
        timedelta(seconds=timeout),
        wait_for_workers=False,
        # A program's own env:// asks for the same port in this process and gets this store.
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )
    if world.world_size == 1:
        held = _held_port()
        return OpenStore(store, "127.0.0.1", held.getsockname()[1], held=held.detach())
    return OpenStore(store, world.master_addr or socket.gethostname(), port)


def _held_port() -> socket.socket:
    """Reserve a port for the processes that a program starts itself, as MASTER_PORT.

    These processes open a store of their own there. A store of this process would be in their way, because only this
    process could share it. A socket that is bound but does not listen keeps the kernel from giving the port away, and a
    process that asks for exactly this port gets it (SO_REUSEADDR on both sides).
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def launcher_store(world: World, environ: Mapping[str, str], timeout: float) -> OpenStore:
    """Connect to the store of torchrun's agent, or of the launcher that set MASTER_ADDR and MASTER_PORT.

    Raises:
        RendezvousError: It cannot be reached, or its port is taken.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if world.master_addr is None or world.master_port is None:
        return _create_server(world, _bind(world), timeout)
    launcher_has_opened_it = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            world.master_addr,
            world.master_port,
            world.world_size,
            world.rank == 0 and not launcher_has_opened_it,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise RendezvousError(
            f"no store at {world.master_addr}:{world.master_port} (MASTER_ADDR, MASTER_PORT) in {timeout:g} s",
            found=str(error).splitlines()[0],
            remedy="read the launcher's log; if the port is in use, set another MASTER_PORT",
        ) from error
    return OpenStore(store, world.master_addr, world.master_port)


def connect_store(address: str, host: str, answer: store_discovery.StoreAnswer, timeout: float) -> OpenStore:
    """Connect to the store of an owner that has answered at this address.

    Raises:
        RendezvousError: Its owner has gone.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(
            address,
            answer.port,
            None,
            False,  # noqa: FBT003 (is_master)
            timedelta(seconds=timeout),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise RendezvousError(
            f"rank 0 on {host} went away while the ranks were meeting",
            found=f"its store was at {address}:{answer.port}",
            remedy="read the log of rank 0, which shows the reason",
        ) from error
    return OpenStore(store, host, answer.port, address, answer.bell)


def _no_free_port_error(world: World, candidates: Sequence[int]) -> RendezvousError:
    return RendezvousError(
        f"all {len(candidates)} ports that {world.name} may use are taken on this node",
        found=", ".join(map(str, candidates)),
        remedy="free one of them; or export MASTER_PORT=PORT, one that is free on the node of rank 0",
    )


FIRST, LAST = 10_000, 32_767
"""Ports above those of common services and below 32768, where Linux starts its ephemeral range."""

CANDIDATES = 12

_STRIDE = 1_621


def candidate_ports(key: str, first: int | None = None) -> list[int]:
    """Return ports for the store of a launch, in the order to try; `first` is a requested one.

    Every rank computes the same ports from the key of its launch.
    """
    ports = _spaced_ports(crc32(key.encode()))
    return ports if first is None else [first, *(port for port in ports if port != first)]


def discovery_ports(key: str) -> list[int]:
    """Return the ports on which rank 0 announces the port of its store."""
    return _spaced_ports(crc32(f"beacon of {key}".encode()))


def _spaced_ports(start: int) -> list[int]:
    span = LAST - FIRST + 1
    return [FIRST + (start + step * _STRIDE) % span for step in range(CANDIDATES)]
