"""One rank of `hpc-kit bench comm`; all backends run in the same processes, and their rounds alternate.

This module also contains the all-reduces made of plain messages. In a star, the root receives and sends n - 1 tensors
each. In a ring, each rank sends and receives 2 (n - 1) / n of one tensor, for any number of ranks.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from hpc_kit.bench import collectives
from hpc_kit.bench.collectives import BUS_FACTORS, ELEMENT_BYTES, CommOptions, collective_plots
from hpc_kit.bench.rank_timing import WARMUP_CALLS, time_calls
from hpc_kit.bench.recorder import Recorder, recorder_of_rank
from hpc_kit.bench.results import ResultRow, Value, format_number, format_quantity
from hpc_kit.planner.calibration import LIBRARY, fit_line
from hpc_kit.runtime import devices
from hpc_kit.runtime.process_group import Group, distributed

_TIMEOUT = 300.0
"""Seconds after which the process group ends a collective that hangs."""
_LINK_SECONDS = 0.03
"""Seconds of a round on a link; shorter than of a collective, because there are up to `MAX_PAIRS` links."""


class BackendUnderTest(NamedTuple):
    """A backend with its process group and two tensors of the largest size."""

    backend: str
    group: Any
    whole: torch.Tensor
    other: torch.Tensor

    def collective_call(self, collective: str, size: int) -> Callable[[], None]:
        """Return a function that runs the collective once."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        part = max(1, size // ELEMENT_BYTES // ranks)
        whole, other, share = self.whole[: part * ranks], self.other[: part * ranks], self.other[:part]
        group = self.group
        todo: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(whole, group=group),
            "broadcast": lambda: dist.broadcast(whole, group=group, group_src=0),
            "all_gather": lambda: _call_single_tensor("all_gather", whole, share, group),
            "reduce_scatter": lambda: _call_single_tensor("reduce_scatter", share, whole, group),
            "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
            "send_recv": lambda: exchange(whole, (rank + 1) % ranks, other, (rank - 1) % ranks, group),
        }
        return self.synchronized(todo[collective])

    def all_reduce_call(self, algorithm: str, size: int, messages: CountedMessages) -> Callable[[], None]:
        """Return a function that runs one all-reduce of plain messages."""
        # A ring needs equal parts for all ranks.
        length = max(1, size // ELEMENT_BYTES // messages.ranks) * messages.ranks
        return self.synchronized(lambda: ALL_REDUCES[algorithm](self.whole[:length], self.other, messages))

    def ping_pong_call(self, pair: RankPair, size: int) -> Callable[[], None]:
        """Return a function that sends a message to the second rank of the pair and back."""
        rank = dist.get_rank(self.group)
        tensor = self.whole[: max(1, size // ELEMENT_BYTES)]

        def send_and_return() -> None:
            if rank == pair.first:
                dist.send(tensor, group=self.group, group_dst=pair.second)
                dist.recv(tensor, group=self.group, group_src=pair.second)
            elif rank == pair.second:
                dist.recv(tensor, group=self.group, group_src=pair.first)
                dist.send(tensor, group=self.group, group_dst=pair.first)

        return self.synchronized(send_and_return)

    def synchronized(self, call: Callable[[], object]) -> Callable[[], None]:
        """Return a function that also waits until the GPU has finished."""

        def synchronized_call() -> None:
            call()
            if self.whole.is_cuda:
                torch.cuda.synchronize(self.whole.device)

        return synchronized_call


def _call_single_tensor(collective: str, out: torch.Tensor, given: torch.Tensor, group: Any) -> None:
    """Call a single-tensor collective by its name in this torch: `all_gather_single`, or the older name."""
    old = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[collective]
    (getattr(dist, f"{collective}_single", None) or getattr(dist, old))(out, given, group=group)


def main(arguments: Mapping[str, Any], recorder: Recorder) -> None:
    """Measure; rank 0 fills in the recorder."""
    options = CommOptions(**arguments)
    # Ranks exchange control data in host memory, so the world group never uses NCCL.
    world_backend = "mpi" if "mpi" in options.backends else "gloo"
    with distributed(backend=world_backend, timeout=_TIMEOUT) as world:
        # The user's own launcher may have started a different number of ranks.
        options = options._replace(ranks=world.world_size)
        recorder, names = recorder_of_rank(recorder, world)
        gpu = devices.select_device("nccl", world) if "nccl" in options.backends else None
        collectives.check_sizes(options, names, gpu)
        bench = _CollectivesBench(options, recorder, world, _prepare_backends(options, world_backend, world))
        pairs, note = choose_pairs(names) if options.links else ([], "")
        if "nccl" in options.backends:
            recorder.set_version("nccl", ".".join(map(str, torch.cuda.nccl.version())))
        recorder.expect_rows(options.row_count(len(pairs)))
        for plot in collective_plots(options):
            recorder.add_plot(plot)
        bench.measure_collectives()
        bench.measure_traffic()
        bench.measure_links(pairs)
        if note:
            recorder.add_note(note)


def _prepare_backends(options: CommOptions, world_backend: str, world: Group) -> list[BackendUnderTest]:
    tensors: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
    backends = []
    for backend in options.backends:
        device = devices.select_device(backend, world) if backend == "nccl" else torch.device("cpu")
        if device not in tensors:
            # A size of less than one element for each rank is rounded up.
            length = max(options.sizes) // ELEMENT_BYTES + world.world_size
            tensors[device] = torch.zeros(length, device=device), torch.zeros(length, device=device)
        group = dist.group.WORLD if backend == world_backend else dist.new_group(backend=backend)
        backends.append(BackendUnderTest(backend, group, *tensors[device]))
    return backends


class _CollectivesBench(NamedTuple):
    """The measurement in one rank."""

    options: CommOptions
    recorder: Recorder
    world: Group
    backends: list[BackendUnderTest]

    def measure_collectives(self) -> None:
        """Measure every collective and size; the rounds of all backends and algorithms alternate."""
        for collective, size in product(self.options.collectives, self.options.sizes):
            self.recorder.report_progress(f"{collective} of {format_quantity(size, 'B')}")
            calls = {(side.backend, LIBRARY): side.collective_call(collective, size) for side in self.backends}
            if collective == "all_reduce":
                calls |= {
                    (side.backend, name): side.all_reduce_call(name, size, CountedMessages(side.group))
                    for side, name in product(self.backends, self.options.algorithms)
                }
            for (backend, algorithm), seconds in time_calls(calls).items():
                self._put(backend, collective, algorithm, size, seconds)

    def _put(self, backend: str, collective: str, algorithm: str, size: int, seconds: list[float]) -> None:
        ranks = self.world.world_size
        labels: dict[str, Value] = {
            "backend": backend,
            "collective": collective,
            **({"algorithm": algorithm} if self.options.algorithms else {}),
            "ranks": ranks,
            "bytes": size,
        }
        bandwidth = size / statistics.median(seconds) / 1e9
        busbw = bandwidth * BUS_FACTORS[collective](ranks)
        self.recorder.add_row(labels, warmup=WARMUP_CALLS, seconds=seconds, algbw=bandwidth, busbw=busbw)

    def measure_traffic(self) -> None:
        """Count the bytes of each rank in one all-reduce of the largest size."""
        size, side = max(self.options.sizes), self.backends[0]
        for name in self.options.algorithms:
            messages = CountedMessages(side.group)
            side.all_reduce_call(name, size, messages)()
            counts = torch.zeros(self.world.world_size, 2, dtype=torch.int64)
            counts[self.world.rank] = torch.tensor([messages.sent, messages.received])
            dist.all_reduce(counts)
            self._put_traffic(name, size, counts.tolist())

    def _put_traffic(self, algorithm: str, size: int, counts: list[list[int]]) -> None:
        for rank, (sent, received) in enumerate(counts):
            labels: dict[str, Value] = {"algorithm": algorithm, "ranks": len(counts), "bytes": size, "rank": rank}
            self.recorder.add_row(labels, sent=sent, received=received, traffic=sent + received)
        traffic = [sent + received for sent, received in counts]
        most, mean = max(traffic), statistics.mean(traffic)
        moved = f"{format_quantity(most, 'B')} sent and received"
        sentence = (
            f"the hottest is rank {traffic.index(most)}: {moved}, {format_number(most / mean, 3)} times the mean rank's"
        )
        if most == min(traffic):
            sentence = f"all ranks alike: {moved}"
        self.recorder.add_note(f"{algorithm}, {format_quantity(size, 'B')} on {len(counts)} ranks: {sentence}.")

    def measure_links(self, pairs: list[RankPair]) -> None:
        """Send messages between one pair of ranks at a time while all other ranks wait, then fit lines."""
        rows: list[ResultRow] = []
        for pair, size in product(pairs, self.options.sizes):
            self.recorder.report_progress(f"link {pair.link}, {format_quantity(size, 'B')}")
            calls = {side.backend: side.ping_pong_call(pair, size) for side in self.backends}
            for backend, times in time_calls(calls, seconds=_LINK_SECONDS, ranks=(pair.first, pair.second)).items():
                labels = link_labels(backend, pair) | {"bytes": size}
                # A call sends the message there and back.
                rows.append(self.recorder.add_row(labels, warmup=WARMUP_CALLS, seconds=[each / 2 for each in times]))
        if pairs:
            add_link_fits(rows, self.recorder)


STAR_ROOT = 0
"""Rank that collects and sends all tensors in a star."""


class CountedMessages:
    """Point-to-point messages of one rank in a group; counts the bytes that it sends and receives."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.sent = self.received = 0

    def send(self, tensor: Tensor, to: int) -> None:
        """Send a tensor; it may be overwritten afterwards."""
        self.sent += tensor.nbytes
        dist.send(tensor, group=self.group, group_dst=to)

    def receive(self, tensor: Tensor, source: int) -> None:
        """Receive a tensor and wait until it has arrived."""
        self.received += tensor.nbytes
        dist.recv(tensor, group=self.group, group_src=source)

    def send_receive(self, sent: Tensor, to: int, received: Tensor, source: int) -> None:
        """Send and receive at the same time, so that neither side waits for the other to begin."""
        self.sent += sent.nbytes
        self.received += received.nbytes
        exchange(sent, to, received, source, self.group)


def exchange(sent: Tensor, to: int, received: Tensor, source: int, group: Any) -> None:
    """Send to one rank of a group while receiving from another one."""
    # NCCL runs send and receive of one batch together; one after the other, the ranks of a ring would deadlock.
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, group=group, group_peer=to),
            dist.P2POp(dist.irecv, received, group=group, group_peer=source),
        ]
    ):
        work.wait()


def ring_all_reduce(tensor: Tensor, spare: Tensor, messages: CountedMessages) -> None:
    """Sum over all ranks in place: one round reduces the parts, a second round distributes them.

    The tensor has one dimension, and a multiple of the ranks as elements; `spare` has one part of them or more.
    """
    rank, ranks = messages.rank, messages.ranks
    parts = tensor.chunk(ranks)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    buffer = spare[: parts[0].numel()]
    # Reduce-scatter: in the end, this rank has the sum of part rank + 1.
    for step in range(ranks - 1):
        messages.send_receive(parts[(rank - step) % ranks], right, buffer, left)
        parts[(rank - step - 1) % ranks].add_(buffer)
    # All-gather: each finished part goes once around the ring.
    for step in range(ranks - 1):
        messages.send_receive(parts[(rank + 1 - step) % ranks], right, parts[(rank - step) % ranks], left)


def star_all_reduce(tensor: Tensor, spare: Tensor, messages: CountedMessages) -> None:
    """Sum over all ranks in place: `STAR_ROOT` receives all tensors, adds them and sends the sum to each rank.

    The tensor has one dimension; `spare` has as many elements or more.
    """
    if messages.rank != STAR_ROOT:
        messages.send(tensor, STAR_ROOT)
        messages.receive(tensor, STAR_ROOT)
        return
    others = [rank for rank in range(messages.ranks) if rank != STAR_ROOT]
    buffer = spare[: tensor.numel()]
    for rank in others:
        messages.receive(buffer, rank)
        tensor.add_(buffer)
    for rank in others:
        messages.send(tensor, rank)


ALL_REDUCES: dict[str, Callable[[Tensor, Tensor, CountedMessages], None]] = {
    "ring": ring_all_reduce,
    "star": star_all_reduce,
}


INSIDE_NODE, ACROSS_NODES = "inside", "across"
"""Places of a link: between two ranks of a node, and between nodes."""

MAX_PAIRS = 28
"""Maximum number of measured pairs: all pairs of eight ranks.

With more ranks, one pair represents each node and one each pair of nodes. If these are too many, the measured pairs are
spread evenly.
"""


class RankPair(NamedTuple):
    """Two ranks and the link between them."""

    first: int
    second: int
    place: str
    link: str
    """Hosts and ranks: `n1 0-1`, `n1-n2 0-2`."""


def choose_pairs(hosts: Sequence[str]) -> tuple[list[RankPair], str]:
    """Choose the pairs to measure, by the host of each rank.

    Returns also a sentence on nodes and pairs of nodes without a measured link; empty if all are measured.
    """
    pairs, note = list(combinations(range(len(hosts)), 2)), ""
    if len(pairs) > MAX_PAIRS:
        inside, across = _pairs_by_hosts(hosts)
        # Links inside nodes get at least a quarter, and what the links between nodes leave.
        some_inside = _spread_evenly(inside, max(MAX_PAIRS // 4, MAX_PAIRS - len(across)))
        some_across = _spread_evenly(across, MAX_PAIRS - len(some_inside))
        pairs = some_inside + some_across
        if len(pairs) < len(inside) + len(across):
            note = (
                f"Links were measured inside {len(some_inside)} of {len(inside)} nodes and between"
                f" {len(some_across)} of {len(across)} pairs of nodes, spread evenly; the others may differ."
            )
    chosen = [
        RankPair(one, other, INSIDE_NODE, f"{hosts[one]} {one}-{other}")
        if hosts[one] == hosts[other]
        else RankPair(one, other, ACROSS_NODES, f"{hosts[one]}-{hosts[other]} {one}-{other}")
        for one, other in pairs
    ]
    return chosen, note


def _pairs_by_hosts(hosts: Sequence[str]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return one pair of ranks for each host with two ranks, and one for each two hosts."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for one, other in combinations(range(len(hosts)), 2):
        found.setdefault(tuple(sorted((hosts[one], hosts[other]))), (one, other))
    inside = [pair for (first, second), pair in found.items() if first == second]
    return inside, [pair for (first, second), pair in found.items() if first != second]


def _spread_evenly(pairs: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    number = len(pairs)
    return pairs if number <= most else [pairs[index * number // most] for index in range(most)]


def link_labels(backend: str, pair: RankPair) -> dict[str, Value]:
    """Return the labels of a link's rows."""
    return {"backend": backend, "link": pair.link, "place": pair.place}


def add_link_fits(rows: Iterable[ResultRow], recorder: Recorder) -> None:
    """Add alpha and beta of every link, and a sentence that compares links inside and across nodes.

    The rows have the times of one message each way, with the labels of a link and `bytes`.
    """
    points: dict[tuple[Value, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        key = tuple(row.labels[name] for name in ("backend", "link", "place"))
        points[key].append((float(row.labels["bytes"] or 0), row.values["seconds"]))
    links_without_line: dict[Value, list[str]] = defaultdict(list)
    lines: dict[Value, dict[Value, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for (backend, link, place), measured in points.items():
        line = fit_line(measured)
        if line is None:
            links_without_line[backend].append(str(link))
            continue
        # The slope is in s/B: beta in ns/B, and the bandwidth in GB/s.
        values = {"alpha": line.intercept, "beta": line.slope * 1e9, "bandwidth": 1e-9 / line.slope}
        if line.intercept_error is not None and line.slope_error is not None:
            values |= {"alpha_error": line.intercept_error, "beta_error": line.slope_error * 1e9}
        recorder.put_row(ResultRow(labels={"backend": backend, "link": link, "place": place}, values=values))
        lines[backend][place].append((line.intercept, 1e-9 / line.slope))
    for backend, names in links_without_line.items():
        recorder.add_note(
            f"{backend}: no line through the times of {', '.join(names)}: they do not grow with the size."
        )
    for backend, by_place in lines.items():
        _note_median_links(str(backend), by_place, recorder)


def _note_median_links(backend: str, lines: Mapping[Value, list[tuple[float, float]]], recorder: Recorder) -> None:
    """Note the median link inside a node and across nodes; `lines`: alpha in seconds and GB/s of each link."""
    parts, bandwidths = [], []
    for place in (INSIDE_NODE, ACROSS_NODES):
        if place in lines:
            alphas, rates = zip(*lines[place], strict=True)
            bandwidths.append(statistics.median(rates))
            alpha = format_quantity(statistics.median(alphas), "s", 3)
            parts.append(f"{place}: alpha {alpha}, {format_number(bandwidths[-1], 3)} GB/s")
    ratio = ""
    if len(bandwidths) == 2:
        ratio = f"; inside a node {format_number(bandwidths[0] / bandwidths[1], 3)} times the bandwidth"
    recorder.add_note(f"{backend}, the median link {'; '.join(parts)}{ratio}.")
