"""One rank of `hpc-kit bench comm`: every backend in the same processes, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed as dist

from hpc_kit.bench import comm_checks, links
from hpc_kit.bench.algorithms import ALGORITHMS, Counted, exchange
from hpc_kit.bench.collectives import BUS_FACTORS, Question, plots
from hpc_kit.bench.hosts import hosts_of
from hpc_kit.bench.quantity import plain, quantity
from hpc_kit.bench.rank_timing import WARMUP, timed
from hpc_kit.planner.calibration import LIBRARY
from hpc_kit.runtime import devices
from hpc_kit.runtime.process_group import distributed

if TYPE_CHECKING:
    from hpc_kit.bench.machine import Host
    from hpc_kit.bench.recorder import Sheet
    from hpc_kit.bench.results import Row, Value
    from hpc_kit.runtime.process_group import Group

_LINK_SECONDS, _PATIENCE = 0.03, 300.0


class Side(NamedTuple):
    """A backend with its group, and two tensors of the largest size where it wants them."""

    backend: str
    group: Any
    whole: torch.Tensor
    other: torch.Tensor

    def once(self, collective: str, size: int) -> Callable[[], None]:
        """A function that does the collective once."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        part = max(1, size // 4 // ranks)
        whole, other, share = self.whole[: part * ranks], self.other[: part * ranks], self.other[:part]
        group = self.group
        todo: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(whole, group=group),
            "broadcast": lambda: dist.broadcast(whole, group=group, group_src=0),
            "all_gather": lambda: _call("all_gather", whole, share, group),
            "reduce_scatter": lambda: _call("reduce_scatter", share, whole, group),
            "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
            "send_recv": lambda: exchange(whole, (rank + 1) % ranks, other, (rank - 1) % ranks, group),
        }
        return self.settled(todo[collective])

    def by_hand(self, algorithm: str, size: int, messages: Counted) -> Callable[[], None]:
        """A function that does an all-reduce of plain messages once."""
        length = max(1, size // 4 // messages.ranks) * messages.ranks
        return self.settled(lambda: ALGORITHMS[algorithm](self.whole[:length], self.other, messages))

    def to_and_fro(self, pair: links.Pair, size: int) -> Callable[[], None]:
        """A function that sends a message there and back, where this rank is one of the pair."""
        rank = dist.get_rank(self.group)
        tensor = self.whole[: max(1, size // 4)]

        def there_and_back() -> None:
            if rank == pair.first:
                dist.send(tensor, group=self.group, group_dst=pair.second)
                dist.recv(tensor, group=self.group, group_src=pair.second)
            elif rank == pair.second:
                dist.recv(tensor, group=self.group, group_src=pair.first)
                dist.send(tensor, group=self.group, group_dst=pair.first)

        return self.settled(there_and_back)

    def settled(self, do: Callable[[], object]) -> Callable[[], None]:
        """The same, and what a GPU has been told to do is done."""

        def once() -> None:
            do()
            if self.whole.is_cuda:
                torch.cuda.synchronize(self.whole.device)

        return once


def _call(collective: str, out: torch.Tensor, given: torch.Tensor, group: Any) -> None:
    """Call a collective of one tensor by the name that this torch has for it."""
    old = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[collective]
    (getattr(dist, f"{collective}_single", None) or getattr(dist, old))(out, given, group=group)


def main(words: Mapping[str, Any], sheet: Sheet) -> None:
    """Measure; rank 0 fills in the sheet."""
    asked = Question.of(words)
    # What the ranks tell one another lies in the host's memory, whatever is measured.
    first = "mpi" if "mpi" in asked.backends else "gloo"
    with distributed(backend=first, timeout=_PATIENCE) as world:
        # A launcher of the user's own may have started another number.
        asked = asked._replace(ranks=world.world_size)
        hosts, names = hosts_of(world)
        gpu = devices.select_device("nccl", world) if "nccl" in asked.backends else None
        comm_checks.refuse_size(asked, names, gpu)
        bench = _Bench(asked, sheet if world.is_main else None, world, _sides(asked, first, world))
        pairs = links.pairs(names) if asked.links else []
        if world.is_main:
            _announce(asked, hosts, len(pairs), sheet)
        bench.collectives()
        bench.traffic()
        bench.links(pairs)
        if world.is_main and pairs and (few := links.left_out(names, pairs)):
            sheet.note(few)


def _announce(asked: Question, hosts: list[Host], pairs: int, sheet: Sheet) -> None:
    sheet.hosts(hosts)
    if "nccl" in asked.backends:
        sheet.version("nccl", ".".join(map(str, torch.cuda.nccl.version())))
    sheet.expect(asked.rows(pairs))
    for plot in plots(asked):
        sheet.plot(plot)


def _sides(asked: Question, first: str, world: Group) -> list[Side]:
    rooms: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
    sides = []
    for backend in asked.backends:
        device = torch.device("cpu")
        if backend == "nccl":
            device = devices.select_device(backend, world)
        if device not in rooms:
            length = max(asked.sizes) // 4 + world.world_size
            rooms[device] = torch.zeros(length, device=device), torch.zeros(length, device=device)
        group = dist.group.WORLD if backend == first else dist.new_group(backend=backend)
        sides.append(Side(backend, group, *rooms[device]))
    return sides


class _Bench:
    """One rank's part; `sheet` is None where another one fills it in."""

    def __init__(self, asked: Question, sheet: Sheet | None, world: Group, sides: list[Side]) -> None:
        self.asked, self.sheet, self.world, self.sides = asked, sheet, world, sides

    def collectives(self) -> None:
        """Every collective and size, all backends and algorithms in turn."""
        for collective, size in product(self.asked.collectives, self.asked.sizes):
            if self.sheet:
                self.sheet.doing(f"{collective} of {quantity(size, 'B')}")
            todo = {(side.backend, LIBRARY): side.once(collective, size) for side in self.sides}
            if collective == "all_reduce":
                todo |= {
                    (side.backend, name): side.by_hand(name, size, Counted(side.group))
                    for side, name in product(self.sides, self.asked.algorithms)
                }
            for (backend, algorithm), seconds in timed(todo).items():
                self._put(backend, collective, algorithm, size, seconds)

    def _put(self, backend: str, collective: str, algorithm: str, size: int, seconds: list[float]) -> None:
        if self.sheet is None:
            return
        ranks = self.world.world_size
        by_hand = {"algorithm": algorithm} if self.asked.algorithms else {}
        labels: dict[str, Value] = {
            "backend": backend,
            "collective": collective,
            **by_hand,
            "ranks": ranks,
            "bytes": size,
        }
        bandwidth = size / statistics.median(seconds) / 1e9
        busbw = bandwidth * BUS_FACTORS[collective](ranks)
        self.sheet.add(labels, warmup=WARMUP, seconds=seconds, algbw=bandwidth, busbw=busbw)

    def traffic(self) -> None:
        """The bytes of each rank in one all-reduce of the largest size; the hottest rank named."""
        size, side = max(self.asked.sizes), self.sides[0]
        for name in self.asked.algorithms:
            messages = Counted(side.group)
            side.by_hand(name, size, messages)()
            counts = torch.zeros(self.world.world_size, 2, dtype=torch.int64)
            counts[self.world.rank] = torch.tensor([messages.sent, messages.received])
            dist.all_reduce(counts)
            if self.sheet:
                self._put_traffic(name, size, counts.tolist(), self.sheet)

    def _put_traffic(self, algorithm: str, size: int, counts: list[list[int]], sheet: Sheet) -> None:
        for rank, (sent, received) in enumerate(counts):
            labels: dict[str, Value] = {"algorithm": algorithm, "ranks": len(counts), "bytes": size, "rank": rank}
            sheet.add(labels, sent=sent, received=received, traffic=sent + received)
        sums = [sent + received for sent, received in counts]
        most, mean = max(sums), statistics.mean(sums)
        moved = f"{quantity(most, 'B')} sent and received"
        told = f"the hottest is rank {sums.index(most)}: {moved}, {plain(most / mean, 3)} times the mean rank's"
        if most == min(sums):
            told = f"all ranks alike: {moved}"
        sheet.note(f"{algorithm}, {quantity(size, 'B')} on {len(counts)} ranks: {told}.")

    def links(self, pairs: list[links.Pair]) -> None:
        """Messages between two ranks at a time, while the others wait; then the lines through their times."""
        rows: list[Row] = []
        for pair, size in product(pairs, self.asked.sizes):
            if self.sheet:
                self.sheet.doing(f"link {pair.link}, {quantity(size, 'B')}")
            todo = {side.backend: side.to_and_fro(pair, size) for side in self.sides}
            for backend, times in timed(todo, seconds=_LINK_SECONDS, ranks=(pair.first, pair.second)).items():
                if self.sheet:
                    labels = links.labels(backend, pair) | {"bytes": size}
                    rows.append(self.sheet.add(labels, warmup=WARMUP, seconds=[each / 2 for each in times]))
        if self.sheet and pairs:
            links.put_fits(rows, self.sheet)
