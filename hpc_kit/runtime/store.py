"""The key-value store in which the ranks of a launch meet: rank 0 opens it, the others find it and make sure of it."""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from datetime import timedelta
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import RendezvousError
from hpc_kit.runtime import addresses, beacon, ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch._C._distributed_c10d import TCPStore

    from hpc_kit.runtime.world import World

_NAMES = 15.0
"""Seconds that a name service may need at the start of a big job."""
_MAX_PAUSE = 0.25


class Opened(NamedTuple):
    """A store, and where it is."""

    store: TCPStore
    host: str
    port: int


def token(world: World, occasion: int = 0) -> str:
    """What rank 0 of this meeting says, and nobody of another launch, user or earlier meeting."""
    text = f"{world.launcher}, {world.key}, {world.world_size} ranks, user {os.getuid()}, {occasion}"
    return f"hpc_kit/{blake2s(text.encode(), digest_size=16).hexdigest()}"


@contextmanager
def opened(world: World, token: str, timeout: float) -> Iterator[Opened]:
    """Rank 0's store; inside, all ranks that ask are told of it.

    Raises:
        RendezvousError: All ports that this launch may use are taken.
    """
    with _bound(world) as listener, _announced(world, token, listener.getsockname()[1]):
        yield _served(world, listener, timeout)


def _bound(world: World) -> socket.socket:
    """The first candidate port that is free, taken before anybody is told of it."""
    alone = world.world_size == 1
    candidates = [0] if alone else ports.candidates(world.key, world.master_port)
    for candidate in candidates:
        listener = addresses.listen(candidate, everywhere=not alone)
        if listener is not None:
            return listener
    raise _all_taken(world, candidates)


@contextmanager
def _announced(world: World, token: str, port: int) -> Iterator[None]:
    if world.world_size == 1:
        yield
        return
    candidates = ports.beacons(world.key)
    listener = beacon.light(candidates)
    if listener is None:
        raise _all_taken(world, candidates)
    with beacon.shining(listener, token, port):
        yield


def _served(world: World, listener: socket.socket, timeout: float) -> Opened:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1",
        port,
        None,
        True,  # noqa: FBT003 (is_master)
        timedelta(seconds=timeout),
        wait_for_workers=False,
        # A program's own env:// asks for the same port in this process: it gets this very store.
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )
    host = "127.0.0.1" if world.world_size == 1 else world.master_addr or socket.gethostname()
    return Opened(store, host, port)


def find(world: World, token: str, timeout: float, here: str) -> Opened:
    """Find the store that rank 0 has opened: every candidate is asked, and only one that says the token believed.

    Args:
        world: Who looks for it.
        token: What rank 0 says.
        timeout: Seconds to look for it.
        here: This node's name.

    Raises:
        RendezvousError: It was not found in time, or the name of rank 0's host does not serve.
    """
    hosts = _hosts_to_ask(world)
    start, pause = time.monotonic(), 0.01
    seen: dict[tuple[str, int], str] = {}
    while (left := start + timeout - time.monotonic()) > 0:
        for host in hosts:
            address = _address(host, world, here, patient=time.monotonic() - start < min(_NAMES, timeout))
            for port in ports.beacons(world.key) if address else ():
                answer = beacon.ask(address, port, token, left)
                if isinstance(answer, int):
                    return _connected(address, host, answer, timeout)
                seen[host, port] = answer
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _MAX_PAUSE)
    raise _not_found(world, hosts, timeout, seen)


def of_launcher(world: World, environ: Mapping[str, str], timeout: float) -> Opened:
    """The store of torchrun's agent, or of whatever launcher has set MASTER_ADDR and MASTER_PORT.

    Raises:
        RendezvousError: It cannot be reached, or its port is taken.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if world.master_addr is None or world.master_port is None:
        return _served(world, _bound(world), timeout)
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
            remedy="the launcher's log tells why its store is not there; a port that is taken: another MASTER_PORT",
        ) from error
    return Opened(store, world.master_addr, world.master_port)


def _hosts_to_ask(world: World) -> list[str]:
    """Where rank 0 may be; an address set by the job script first, then the launcher's own."""
    if world.master_addr is None:
        hosts = list(world.hosts)
    else:
        hosts = [world.master_addr, *(host for host in world.hosts[:1] if host != world.master_addr)]
    if not hosts:
        raise RendezvousError(
            "no variable tells on which host rank 0 is",
            found=f"{world}; MASTER_ADDR is not set",
            remedy="export MASTER_ADDR=HOST, the host of rank 0, for all ranks",
        )
    return hosts


def _address(host: str, world: World, here: str, *, patient: bool) -> str:
    """The address of a host as this node sees it; empty while the name service may still need a moment."""
    try:
        address = addresses.lookup(host)
    except OSError as error:
        if patient:
            return ""
        raise RendezvousError(
            f"the name {host} of rank 0's host does not resolve on {here}",
            found=f"{error.strerror} (gai error {error.errno})",
            remedy=f"add a line to /etc/hosts on {here}:  ADDRESS {host}   (its address on the network of the nodes);\n"
            "or export MASTER_ADDR=ADDRESS before srun",
        ) from error
    # The own name may mean the loopback on a node itself, as Debian writes it, but never on another node.
    if addresses.is_loopback(address) and host not in {address, here} and world.nnodes != 1:
        raise RendezvousError(
            f"the name {host} of rank 0's host means {here} itself there",
            found=f"{host} resolves to {address} on {here}",
            remedy=f"replace the line of {host} in /etc/hosts on {here}:  ADDRESS {host}   "
            "(its address on the network of the nodes);\nor export MASTER_ADDR=ADDRESS before srun",
        )
    return address


def _connected(address: str, host: str, port: int, timeout: float) -> Opened:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(
            address,
            port,
            None,
            False,  # noqa: FBT003 (is_master)
            timedelta(seconds=timeout),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise RendezvousError(
            f"rank 0 on {host} went away while the ranks were meeting",
            found=f"its store was at {address}:{port}",
            remedy="look at the log of rank 0, which tells why",
        ) from error
    return Opened(store, host, port)


def _all_taken(world: World, candidates: Sequence[int]) -> RendezvousError:
    return RendezvousError(
        f"all {len(candidates)} ports that {world.name} may use are taken on this node",
        found=", ".join(map(str, candidates)),
        remedy="free one of them; or export MASTER_PORT=PORT, one that is free on the node of rank 0",
    )


def _not_found(world: World, hosts: list[str], timeout: float, seen: Mapping[tuple[str, int], str]) -> RendezvousError:
    answers = [f"{host}:{port} {problem}" for (host, port), problem in seen.items()]
    return RendezvousError(
        f"rank {world.rank} did not find rank 0 on {' or '.join(hosts)} within {timeout:g} s",
        found="\n".join(answers) or f"{' and '.join(hosts)} do not resolve",
        remedy="the log of rank 0 tells why it did not open its store; where it runs, a firewall may be between;\n"
        "HPC_KIT_TIMEOUT=SECONDS, or distributed(timeout=SECONDS), waits longer",
    )
