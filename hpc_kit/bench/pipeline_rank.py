"""One rank of `hpc-kit bench pipeline`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hpc_kit.bench import halves, room, schedules, turns
from hpc_kit.bench.hosts import hosts_of
from hpc_kit.bench.pipeline import SCHEDULES, SPLITS, Question, batch_bytes
from hpc_kit.bench.results import Plot
from hpc_kit.runtime.process_group import distributed

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet
    from hpc_kit.runtime import Group

ONE, HALVES, PIPELINED = "one device", "model parallel", "pipelined"
AGAIN, IN_SPLITS = f"{ONE}, again", f"{ONE}, in splits"
TUTORIAL = {(HALVES, 120): -7.0, (PIPELINED, 20): 49.0, (PIPELINED, 12): 54.0}
"""Per cent by which two GPUs were quicker than one there: the whole batch at once, in splits of 20, the best split."""


def main(asked: Mapping[str, Any], sheet: Sheet) -> None:
    """Measure both sweeps; rank 0 fills in the sheet."""
    question = Question(**asked)
    torch.set_num_threads(1)
    with distributed() as world:
        if SPLITS in question.sweeps:
            room.refuse_beyond_gpus(batch_bytes(question), "the batch", "a smaller --image or --batch", world)
        meet = turns.meeting(world)
        hosts, _ = hosts_of(world)
        if world.is_main:
            sheet.hosts(hosts)
            sheet.expect(_rows(question))
        if SPLITS in question.sweeps:
            Splits(question, sheet, world, meet).measure()
        if SCHEDULES in question.sweeps:
            _schedules(question, sheet, world, meet)


def _rows(asked: Question) -> int:
    splits = (SPLITS in asked.sweeps) * (len(asked.splits) + 4) * asked.repeats
    return splits + (SCHEDULES in asked.sweeps) * (len(asked.schedules) + 1) * len(asked.micro_batches)


@dataclass(frozen=True)
class Splits:
    """The tutorial's experiment: one device, both with the whole batch, and in splits, in turns."""

    asked: Question
    sheet: Sheet
    world: Group
    meet: Callable[[], None]
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """Of each repeat, by way and split size."""

    def median(self, way: str, split: int) -> float:
        """Seconds."""
        return statistics.median(self.seconds[way, split])

    def measure(self) -> None:
        """All rows, the picture and what they say; the rank that has no part in a row waits."""
        batch, whole = halves.Batch(self.asked.batch, self.asked.image), self.asked.batch
        one = halves.OneDevice(batch, self.world.device) if self.world.is_main else None
        two = _two(batch, self.world)
        splits = {(PIPELINED, split): two for split in self.asked.splits}
        self.take({(ONE, whole): one, (HALVES, whole): two, **splits})
        best = turns.told(min(self.asked.splits, key=lambda split: self.median(PIPELINED, split)), self.world)
        # What smaller pieces save by lying in the caches is no gain of the second device.
        self.take({(AGAIN, whole): one, (IN_SPLITS, best): one})
        if self.world.is_main:
            self.conclude(best)

    def take(self, works: Mapping[tuple[str, int], halves.Way | None]) -> None:
        """A row each, of more repeats from turn to turn."""
        for turn in range(turns.WARMUP + self.asked.repeats):
            for (way, split), network in works.items():
                if self.world.is_main:
                    self.sheet.doing(f"{way}, split size {split}, {turn or 'warm-up'}")
                seconds = turns.once(partial(self.work, network, split), self.meet)
                if turn >= turns.WARMUP:
                    self.seconds.setdefault((way, split), []).append(seconds)
                    if self.world.is_main:
                        self.put(way, split)

    def work(self, network: halves.Way | None, split: int) -> None:
        """The batches of a repeat."""
        for _ in range(self.asked.batches):
            if network is not None:
                network.step(split)

    def put(self, way: str, split: int) -> None:
        """The row of a way: its seconds, and by how much one device took longer in the same turn."""
        seconds = self.seconds[way, split]
        values: dict[str, Any] = {"seconds": seconds}
        if way != ONE:
            base = self.seconds[AGAIN if way == IN_SPLITS else ONE, self.asked.batch]
            values["gain"] = [100 * (alone / each - 1) for alone, each in zip(base, seconds, strict=False)]
        if (way, split) in TUTORIAL:
            values["tutorial"] = TUTORIAL[way, split]
        self.sheet.add({"way": way, "split_size": split}, warmup=turns.WARMUP, **values)

    def conclude(self, best: int) -> None:
        """The best split named, the drift told, the curve drawn."""
        asked, base = self.asked, self.median(ONE, self.asked.batch)
        gain, drift = base / self.median(PIPELINED, best) - 1, self.median(AGAIN, asked.batch) / base - 1
        than = f"{abs(gain):.0%} {'quicker' if gain > 0 else 'slower'} than one device"
        self.sheet.note(
            f"Best split size: {best}, {than} (the tutorial's: 12, 54 % quicker)."
            f" One device, measured again at the end, took {drift:+.1%}."
        )
        size = f"{asked.batches} x {asked.batch} images of {asked.image} x {asked.image}"
        self.sheet.plot(
            Plot(
                name="splits",
                title=f"ResNet-50 in two halves: {size}",
                x="split_size",
                y=("seconds",),
                where={"way": PIPELINED},
                marks={way: self.median(way, asked.batch) for way in (ONE, HALVES)},
                x_title="images in a split",
            )
        )


def _two(batch: halves.Batch, world: Group) -> halves.Way | None:
    """The halves: on two GPUs of rank 0 where it sees two, while the other rank only waits; else one a rank."""
    if world.device.type == "cuda" and turns.told(torch.cuda.device_count(), world) >= 2:
        return halves.Streams(batch) if world.is_main else None
    return halves.Messages(batch, world)


def _schedules(asked: Question, sheet: Sheet, world: Group, meet: Callable[[], None]) -> None:
    """Efficiency: the time of the same work without a pipeline, on all ranks at once, over ranks x the pipeline's."""
    if world.is_main:
        sheet.plot(
            Plot(
                name="schedules",
                title=f"Schedules over {world.world_size} ranks, and the ideal m / (m + p - 1)",
                x="micro_batches",
                y=("efficiency",),
                series=("schedule",),
                x_title="micro-batches m",
            )
        )
    for number in asked.micro_batches:
        if world.is_main:
            sheet.doing(f"schedules, {number} micro-batches")
        works = {name: schedules.pipelined(world, name, number) for name in asked.schedules}
        found = turns.taken({"alone": schedules.alone(world, number), **works}, meet, asked.repeats)
        if world.is_main:
            _add_schedules(sheet, number, world.world_size, found)


def _add_schedules(sheet: Sheet, number: int, world_size: int, found: Mapping[str, list[float]]) -> None:
    """The rows of one number of micro-batches, the ideal first."""
    ideal = schedules.ideal(number, world_size)
    sheet.add({"schedule": "ideal", "micro_batches": number}, efficiency=ideal)
    for name, seconds in found.items():
        if name != "alone":
            pairs = zip(found["alone"], seconds, strict=True)
            sheet.add(
                {"schedule": name, "micro_batches": number},
                warmup=turns.WARMUP,
                seconds=seconds,
                efficiency=[alone / world_size / taken for alone, taken in pairs],
                ideal=ideal,
                ideal_of_stages=schedules.ideal(number, world_size, schedules.stages_per_rank(name)),
            )
