"""One rank of `hpc-kit bench pipeline`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hpc_kit.bench import halves, schedules, turns
from hpc_kit.bench.document import Plot
from hpc_kit.bench.hosts import hosts_of
from hpc_kit.bench.pipeline import SCHEDULES, SPLITS, Question
from hpc_kit.runtime.process_group import distributed

if TYPE_CHECKING:
    from hpc_kit.bench.sheet import Sheet
    from hpc_kit.runtime import Group

ONE, HALVES, PIPELINED = "one device", "model parallel", "pipelined"
TUTORIAL = {(HALVES, 120): -7.0, (PIPELINED, 20): 49.0, (PIPELINED, 12): 54.0}
"""Per cent by which two GPUs were quicker than one there: the whole batch at once, in splits of 20, the best split."""


def main(asked: Mapping[str, Any], sheet: Sheet) -> None:
    """Measure both sweeps; rank 0 fills in the sheet."""
    question = Question(**asked)
    torch.set_num_threads(1)
    with distributed() as world:
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
    splits = (SPLITS in asked.sweeps) * (len(asked.splits) + 4)
    return splits + (SCHEDULES in asked.sweeps) * (len(asked.schedules) + 1) * len(asked.micro_batches)


@dataclass(frozen=True)
class Splits:
    """The tutorial's experiment: one device, then both with the whole batch, then in splits."""

    asked: Question
    sheet: Sheet
    world: Group
    meet: Callable[[], None]
    medians: dict[tuple[str, int], float] = field(default_factory=dict)
    """Seconds by way and split size."""

    def measure(self) -> None:
        """All rows, the picture and what they say; the rank that has no part in a row waits."""
        batch, whole = halves.Batch(self.asked.batch, self.asked.image), self.asked.batch
        one = halves.OneDevice(batch, self.world.device) if self.world.is_main else None
        two = _two(batch, self.world)
        self.take(one, ONE, whole)
        self.take(two, HALVES, whole)
        for split in self.asked.splits:
            self.take(two, PIPELINED, split)
        best = turns.told(min(self.asked.splits, key=lambda split: self.medians[PIPELINED, split]), self.world)
        # What smaller pieces save by lying in the caches is no gain of the second device.
        self.take(one, f"{ONE}, in splits", best)
        self.take(one, f"{ONE}, again", whole)
        if self.world.is_main:
            self.conclude(best)

    def take(self, network: halves.Way | None, way: str, split: int) -> None:
        """One row: the seconds of the batches, and by how much one device takes longer."""
        if self.world.is_main:
            self.sheet.doing(f"{way}, split size {split}")

        def work() -> None:
            for _ in range(self.asked.batches):
                if network is not None:
                    network.step(split)

        seconds = turns.taken({way: work}, self.meet, self.asked.repeats)[way]
        self.medians[way, split] = statistics.median(seconds)
        if not self.world.is_main:
            return
        base = self.medians[ONE, self.asked.batch]
        values: dict[str, Any] = {"seconds": seconds}
        if way != ONE:
            values["gain"] = [100 * (base / each - 1) for each in seconds]
        if (way, split) in TUTORIAL:
            values["tutorial"] = TUTORIAL[way, split]
        self.sheet.add({"way": way, "split_size": split}, warmup=turns.WARMUP, **values)

    def conclude(self, best: int) -> None:
        """The best split named, the drift told, the curve drawn."""
        asked, base = self.asked, self.medians[ONE, self.asked.batch]
        gain, drift = base / self.medians[PIPELINED, best] - 1, self.medians[f"{ONE}, again", asked.batch] / base - 1
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
                marks={way: self.medians[way, asked.batch] for way in (ONE, HALVES)},
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
