"""Measures names, clocks, connections and bandwidth between the nodes of a job, for `preflight_rank`."""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.bench.collectives import BUS_FACTORS
from hpc_kit.bench.preflight import MOST_PEERS, NodeMeasurement, find_culprits
from hpc_kit.runtime.rendezvous import network, store
from hpc_kit.runtime.rendezvous.master_host import HostResolver
from hpc_kit.runtime.rendezvous.meeting import wait_until

if TYPE_CHECKING:
    from hpc_kit.bench.collectives_rank import BackendUnderTest, RankPair
    from hpc_kit.runtime.world import World

SIGN_IN_SECONDS = 30.0
"""Time after the import of torch at which nodes that have not signed in count as missing."""

CONNECT_SECONDS, NAME_SECONDS, GROUP_SECONDS = 3.0, 5.0, 15.0
"""Time limits of one connection, of looking up all names, and of one collective."""
PAIR_SECONDS = 8.0
"""Time for the rounds of all pairs."""

SMALLEST_MESSAGE, LARGEST_MESSAGE = 1 << 10, 16 << 20
"""Bytes of the messages between two nodes."""
MOST_MESSAGES = 8
"""Maximum number of timed messages between two nodes."""
FAST_MESSAGE_SECONDS, SLOW_MESSAGE_SECONDS = 0.05, 0.2
"""After a faster message, the next one is larger; a slower one is the last.

On busy processors, even a small message may take tens of milliseconds. If the messages stayed small, this delay would
determine the rate, and not the network.
"""
GOLDEN_RATIO = (5**0.5 - 1) / 2

ALL_REDUCE_SECONDS = 0.05
"""Intended time of one all-reduce."""


def choose_peers(node: str, hosts: Sequence[str]) -> list[str]:
    """Return the other nodes that a node tries: all, or `MOST_PEERS` of them at even distances in the list."""
    place = hosts.index(node) if node in hosts else 0
    others = [*hosts[place + 1 :], *hosts[:place]]
    step = max(1.0, len(others) / MOST_PEERS)
    return [others[int(number * step)] for number in range(min(len(others), MOST_PEERS))]


def check_host_names(node: NodeMeasurement, hosts: Sequence[str]) -> None:
    """Report names of nodes that do not resolve here, and addresses that have the name of another host."""
    peers = [peer for peer in choose_peers(node.report.node, hosts) if not _is_address(peer)]
    answers = _ask_all(_look_up, peers, NAME_SECONDS)
    node.add(
        unresolved=tuple(peer for peer in peers if answers.get(peer) is None),
        misnamed={
            peer: names[0]
            for peer in peers
            if (names := answers.get(peer)) and _short_name(peer) not in map(_short_name, names)
        },
    )


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit() or ":" in name


def _short_name(name: str) -> str:
    """Return a host's name without its domain, in lower case, because DNS ignores the case."""
    return name.partition(".")[0].lower()


def _look_up(name: str) -> tuple[str, ...] | None:
    """Return the names of a host's address; empty if the address has no name, which is common; None without address."""
    try:
        address = network.lookup(name)[0]
    except OSError:
        return None
    with suppress(OSError):
        # In /etc/hosts, the node's own name may be an alias of the name of an interface: 10.0.0.1 node1-ib node1.
        first, aliases, _ = socket.gethostbyaddr(address)
        return (first, *aliases)
    return ()


def _ask_all(ask: Callable[[str], Any], peers: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the answers about all peers that come in time."""
    # Each unreachable peer takes a whole time limit, so several are asked at the same time.
    pool = ThreadPoolExecutor(max_workers=16)
    futures = {peer: pool.submit(ask, peer) for peer in peers}
    until, answers = time.monotonic() + seconds, {}
    for peer, future in futures.items():
        with suppress(TimeoutError):
            answers[peer] = future.result(timeout=max(0.0, until - time.monotonic()))
    pool.shutdown(wait=False, cancel_futures=True)
    return answers


@contextmanager
def clock_server() -> Iterator[int]:
    """Send the time of this node to every caller; yields the port."""
    server = network.listen(0, network.ALL_ADDRESSES)
    assert server is not None  # noqa: S101 (port 0 is any that is free)

    def answer() -> None:
        while True:
            with server.accept()[0] as caller, suppress(OSError):
                caller.sendall(f"{time.time()}\n".encode())

    threading.Thread(target=answer, daemon=True).start()
    yield server.getsockname()[1]


def ask_clock(address: str, port: int) -> float | None:
    """Return the seconds by which the clock at an address is ahead of this one; None without a connection."""
    try:
        before = time.time()
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as connection:
            answer = float(connection.makefile().readline())
            # As in NTP, the answer belongs to the middle of the round trip.
            return answer - (before + time.time()) / 2
    except (OSError, ValueError):
        return None


class Peer(NamedTuple):
    """A node's data for the other nodes, exchanged through the store."""

    node: str
    port: int
    gpus: int
    addresses: tuple[str, ...]


def measure_network(node: NodeMeasurement, world: World) -> None:
    """Connect with the other nodes, and measure pairs of nodes and the all-reduce among those that are connected.

    Nodes that do not come in time are left out, so that they disturb no other measurement.

    Raises:
        RendezvousError: The store of rank 0 was not found.
    """
    if world.world_size == 1:
        return
    if not node.time_left(SIGN_IN_SECONDS):
        node.add(late=True)
        return
    from torch import distributed as dist

    token, timeout = store.launch_token(world, 0, os.environ), node.time_left(SIGN_IN_SECONDS) + 1
    with ExitStack() as stack:
        if world.rank == 0:
            opened = stack.enter_context(store.serve_store(world, token, timeout, os.environ))
        else:
            resolver = HostResolver(world, node.report.node, timeout, os.environ)
            opened = store.StoreSearch(resolver, token, lambda: None).find()
        board = dist.PrefixStore("preflight", opened.store)  # type: ignore[attr-defined]
        port = stack.enter_context(clock_server())
        # The address on the route to rank 0 comes first.
        addresses = (network.source_address(opened.address) if opened.address else None, *network.own_addresses())
        me = Peer(node.report.node, port, node.report.gpus, tuple(dict.fromkeys(filter(None, addresses))))
        board.set(f"peer/{world.rank}", json.dumps(me))
        peers = _collect_peers(node, world, board)
        if world.rank not in peers:
            node.add(late=True)
            return
        _check_connections(node, {peer.node: peer for peer in peers.values()})
        members = _agree_on_members(node, world, board, peers)
        if len(members) > 1 and world.rank in members:
            if interface := _find_interface(peers, world.rank):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            group_store = dist.PrefixStore("group", opened.store)  # type: ignore[attr-defined]
            _measure_group(node, group_store, members, peers, world.rank)
        board.set(f"end/{world.rank}", "")
        if world.rank == 0:
            # The store ends with rank 0, which the other ranks may still need.
            ends = [f"end/{rank}" for rank in peers]
            wait_until(lambda: board.check(ends), time.monotonic() + CONNECT_SECONDS, len(ends))


def _find_interface(peers: dict[int, Peer], own: int) -> str | None:
    """Return the interface that leads to another node; None on one machine."""
    other = next((peer for rank, peer in peers.items() if rank != own and peer.addresses), None)
    source = network.source_address(other.addresses[0]) if other else None
    return network.interface_with(source) if source else None


def _collect_peers(node: NodeMeasurement, world: World, board: Any) -> dict[int, Peer]:
    """Return the nodes that came in time, by rank. Rank 0 decides for all nodes."""
    if world.rank == 0:
        keys = {rank: f"peer/{rank}" for rank in range(world.world_size)}
        until = time.monotonic() + node.time_left(SIGN_IN_SECONDS)
        wait_until(lambda: board.check(list(keys.values())), until, world.world_size)
        board.set(
            "peers", json.dumps({rank: json.loads(board.get(key)) for rank, key in keys.items() if board.check([key])})
        )
    board.wait(["peers"], timedelta(seconds=node.time_left(SIGN_IN_SECONDS) + CONNECT_SECONDS))
    found = json.loads(board.get("peers"))
    return {int(rank): Peer(name, port, gpus, tuple(own)) for rank, (name, port, gpus, own) in found.items()}


def _check_connections(node: NodeMeasurement, peers: dict[str, Peer]) -> None:
    """Report the nodes without a connection, and the difference of the clock to that of the others."""
    others = choose_peers(node.report.node, list(peers))

    def ask(name: str) -> float | None:
        peer = peers[name]
        answers = (ask_clock(address, peer.port) for address in peer.addresses or (network.LOOPBACK,))
        return next((answer for answer in answers if answer is not None), None)

    answers = _ask_all(ask, others, 2 * CONNECT_SECONDS)
    clocks = [answer for answer in answers.values() if answer is not None]
    node.add(
        unreachable=tuple(name for name in others if answers.get(name) is None),
        clock=statistics.median(clocks) if clocks else 0.0,
    )


def _agree_on_members(node: NodeMeasurement, world: World, board: Any, peers: dict[int, Peer]) -> list[int]:
    """Return the ranks that can all connect with each other. Rank 0 decides for all nodes."""
    board.set(f"unreachable/{world.rank}", json.dumps(node.report.unreachable))
    keys = {rank: f"unreachable/{rank}" for rank in peers}
    if world.rank == 0:
        wait_until(lambda: board.check(list(keys.values())), time.monotonic() + 3 * CONNECT_SECONDS, len(keys))
        edges = {peers[rank].node: json.loads(board.get(key)) for rank, key in keys.items() if board.check([key])}
        lost = find_culprits(edges).keys() | {peers[rank].node for rank in peers if peers[rank].node not in edges}
        board.set("members", json.dumps([rank for rank, peer in peers.items() if peer.node not in lost]))
    board.wait(["members"], timedelta(seconds=4 * CONNECT_SECONDS))
    members: list[int] = json.loads(board.get("members"))
    return members


def _measure_group(
    node: NodeMeasurement, group_store: Any, members: list[int], peers: dict[int, Peer], rank: int
) -> None:
    """Measure all pairs in rounds, then the all-reduce; with NCCL if all nodes have GPUs, else with gloo."""
    import torch
    from torch import distributed as dist

    from hpc_kit.bench import collectives_rank, rank_timing

    timeout = timedelta(seconds=GROUP_SECONDS)
    own = members.index(rank)
    dist.init_process_group("gloo", store=group_store, rank=own, world_size=len(members), timeout=timeout)
    on_gpus = all(peers[member].gpus for member in members) and dist.is_nccl_available()
    device = torch.device("cuda", 0) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl", timeout=timeout) if on_gpus else dist.group.WORLD
    length = LARGEST_MESSAGE // 4 + len(members)
    tensors = torch.zeros(length, device=device), torch.zeros(length, device=device)
    link = collectives_rank.BackendUnderTest("nccl" if on_gpus else "gloo", group, *tensors)
    names = [peers[member].node for member in members]
    measured = _measure_pairs(link, own, names, lambda other: node.add(stage=f"pairs of nodes, first with {other}"))
    node.add(pairs={names[other]: rate for other, rate in measured.items()}, stage="all-reduce")
    # The slowest pair limits the ring, so its rate gives the size; the rates are in bits per second.
    slowest = torch.tensor(min(measured.values(), default=math.inf), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MIN)
    size = int(min(LARGEST_MESSAGE, max(SMALLEST_MESSAGE, slowest.item() / 8 * ALL_REDUCE_SECONDS)))
    seconds = rank_timing.time_calls({"": link.collective_call("all_reduce", size)}, seconds=ALL_REDUCE_SECONDS)[""]
    node.add(all_reduce=8 * size / statistics.median(seconds) * BUS_FACTORS["all_reduce"](len(members)))


def pair_rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of ranks in rounds: in each round, every rank has at most one partner (the circle method)."""
    # With an odd number, a dummy rank is added; its partner of the round has no pair.
    circle: list[int] = list(range(count + count % 2))
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < count])
        # The first rank stays, and all others move on by one place.
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def _measure_pairs(
    link: BackendUnderTest, own: int, names: Sequence[str], on_first: Callable[[str], None]
) -> dict[int, float]:
    """Return the bits per second with each partner. The rounds end for all ranks when the time is used up.

    `on_first` is called with the first partner, because a transport that does not work hangs there.
    """
    import torch
    from torch import distributed as dist

    from hpc_kit.bench.collectives_rank import ACROSS_NODES, RankPair

    rounds = pair_rounds(len(names))
    found: dict[int, float] = {}
    # The time may not suffice for all rounds. Ordered by multiples of the golden ratio modulo 1, any number of first
    # rounds is spread over the whole list.
    order = sorted(range(len(rounds)), key=lambda number: (number * GOLDEN_RATIO) % 1.0)
    until = time.monotonic() + PAIR_SECONDS
    for number in order:
        # All ranks must end with the same round, or the others would wait for a partner.
        has_time = torch.tensor([int(time.monotonic() < until)])
        dist.all_reduce(has_time, op=dist.ReduceOp.MIN)
        if not has_time:
            break
        for first, second in rounds[number]:
            if own in {first, second}:
                pair = RankPair(first, second, ACROSS_NODES, "")
                if not found:
                    on_first(names[first + second - own])
                found[first + second - own] = _time_pair(link, pair, is_first=own == first)
    return found


def _time_pair(link: BackendUnderTest, pair: RankPair, *, is_first: bool) -> float:
    """Return the bits per second between two ranks, each way. The first rank chooses sizes that take little time."""
    import torch
    from torch import distributed as dist

    link.ping_pong_call(pair, SMALLEST_MESSAGE)()  # connects the pair
    size = SMALLEST_MESSAGE
    rates: dict[int, float] = {}
    for _ in range(MOST_MESSAGES):
        begun = time.perf_counter()
        link.ping_pong_call(pair, size)()
        seconds = time.perf_counter() - begun
        # Only the first rank times the whole round trip, in which 8 x size bits travel twice.
        choice = torch.tensor([next_size(size, seconds), 2 * 8 * size / seconds], dtype=torch.float64)
        if is_first:
            dist.send(choice, dst=pair.second)
        else:
            dist.recv(choice, src=pair.first)
        rates[size] = max(rates.get(size, 0.0), float(choice[1]))
        if not choice[0]:
            break
        size = int(choice[0])
    # The latency counts least in the largest message.
    return rates[max(rates)]


def next_size(size: int, seconds: float) -> int:
    """Return the size of the next message: larger after a fast one, the same otherwise; 0 after a very slow one."""
    if seconds > SLOW_MESSAGE_SECONDS:
        return 0
    return min(8 * size, LARGEST_MESSAGE) if seconds < FAST_MESSAGE_SECONDS else size
