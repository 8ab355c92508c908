"""One rank of `hpc-kit bench pipeline`: a network split over two devices, and torch's pipeline schedules.

All layers of the scheduled model cost the same, so no stage waits for a slower one, and all micro-batches have the same
size. The reference is the same work without a pipeline on all ranks at the same time, because cores that share caches,
memory and power then run as slowly as in the pipeline.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleZBVZeroBubble, get_schedule_class
from torch.nn import functional as F  # noqa: N812  torch's own habit

from hpc_kit.bench import option_checks, rank_timing, resnet_halves
from hpc_kit.bench.pipeline import SCHEDULES, SPLITS, PipelineOptions, batch_bytes
from hpc_kit.bench.recorder import Recorder, recorder_of_rank
from hpc_kit.bench.results import Plot
from hpc_kit.errors import SpecError
from hpc_kit.runtime import Group
from hpc_kit.runtime.process_group import distributed
from hpc_kit.spec.job import idle_share

ONE_DEVICE, TWO_HALVES, PIPELINED = "one device", "model parallel", "pipelined"
ONE_DEVICE_AGAIN, ONE_DEVICE_IN_SPLITS = f"{ONE_DEVICE}, again", f"{ONE_DEVICE}, in splits"
TUTORIAL_GAINS = {(TWO_HALVES, 120): -7.0, (PIPELINED, 20): 49.0, (PIPELINED, 12): 54.0}
"""Gain of two GPUs over one in the tutorial, in percent: whole batch, splits of 20, and the best split."""
MAX_DRIFT = 0.05
"""Maximum change of the time of one device during an experiment; a larger one makes the gains unreliable."""
MAX_ATTEMPTS = 2


def main(arguments: Mapping[str, Any], recorder: Recorder) -> None:
    """Run both parts; rank 0 fills in the recorder."""
    options = PipelineOptions(**arguments)
    # One rank is one core, so that two ranks have twice the power of one.
    torch.set_num_threads(1)
    with distributed() as world:
        if SPLITS in options.sweeps:
            option_checks.check_gpu_memory(batch_bytes(options), "the batch", "a smaller --image or --batch", world)
        barrier = rank_timing.barrier_function(world)
        recorder, _ = recorder_of_rank(recorder, world)
        if SCHEDULES in options.sweeps:
            recorder.expect_rows((len(options.schedules) + 1) * len(options.micro_batches))
        if SPLITS in options.sweeps:
            SplitExperiment(options, recorder, world, barrier).measure()
        if SCHEDULES in options.sweeps:
            _measure_schedules(options, recorder, world, barrier)


@dataclass(frozen=True)
class SplitExperiment:
    """The tutorial's experiment: one device, two halves with the whole batch, and two halves with splits."""

    options: PipelineOptions
    recorder: Recorder
    world: Group
    barrier: Callable[[], None]
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """Seconds of each repeat, by variant and split size."""

    def median(self, way: str, split: int) -> float:
        """Return the median seconds."""
        return statistics.median(self.seconds[way, split])

    def measure(self) -> None:
        """Measure all rows and add the conclusion; ranks without work in a row wait.

        If one device has become faster or slower in between, everything is measured once more.
        """
        batch, whole = resnet_halves.Batch(self.options.batch, self.options.image), self.options.batch
        one_device = resnet_halves.OneDevice(batch, self.world.device) if self.world.is_main else None
        halves = _two_halves(batch, self.world)
        splits = {(PIPELINED, split): halves for split in self.options.splits}
        best, drift = 0, 0.0
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self.seconds.clear()
            self.recorder.expect_rows((len(splits) + 4) * self.options.repeats)
            self.measure_rows({(ONE_DEVICE, whole): one_device, (TWO_HALVES, whole): halves, **splits})
            # A second attempt keeps the best split, so that it replaces the same rows.
            if not best:
                fastest = min(self.options.splits, key=lambda split: self.median(PIPELINED, split))
                best = rank_timing.broadcast_value(fastest, self.world)
            # Splits may be faster by themselves. Measure them on one device, too, to separate that gain.
            self.measure_rows({(ONE_DEVICE_AGAIN, whole): one_device, (ONE_DEVICE_IN_SPLITS, best): one_device})
            drift = self.median(ONE_DEVICE_AGAIN, whole) / self.median(ONE_DEVICE, whole) - 1
            drift = rank_timing.broadcast_value(drift, self.world)
            if abs(drift) <= MAX_DRIFT:
                break
            self.report_drift(drift, attempt)
        self.add_conclusion(best, drift)

    def report_drift(self, drift: float, attempt: int) -> None:
        """Report that the speed of the machine has changed during an attempt."""
        change = f"one device took {drift:+.1%} when it was measured again at the end"
        if attempt < MAX_ATTEMPTS:
            self.recorder.report_progress(f"{change}: all is measured again")
        else:
            remedy = "The gains are not reliable: measure on an idle machine."
            self.recorder.note_missing("a steady machine", f"{change}, also in attempt {attempt}. {remedy}")

    def measure_rows(self, networks: Mapping[tuple[str, int], resnet_halves.Variant | None]) -> None:
        """Measure one row for each variant and split size, interleaved by repeat; None: this rank only waits."""
        for number in range(rank_timing.WARMUP_ROUNDS + self.options.repeats):
            for (way, split), network in networks.items():
                self.recorder.report_progress(f"{way}, split size {split}, {number or 'warm-up'}")
                seconds = rank_timing.time_once(partial(self.run_batches, network, split), self.barrier)
                if number >= rank_timing.WARMUP_ROUNDS:
                    self.seconds.setdefault((way, split), []).append(seconds)
                    self.put_row(way, split)

    def run_batches(self, network: resnet_halves.Variant | None, split: int) -> None:
        """Run the batches of one repeat."""
        for _ in range(self.options.batches):
            if network is not None:
                network.step(split)

    def put_row(self, way: str, split: int) -> None:
        """Put the row of a variant: its seconds and its gain over one device in the same round."""
        seconds = self.seconds[way, split]
        values: dict[str, Any] = {"seconds": seconds}
        if way != ONE_DEVICE:
            base = self.seconds[ONE_DEVICE_AGAIN if way == ONE_DEVICE_IN_SPLITS else ONE_DEVICE, self.options.batch]
            # For the device measured again, the base has all its repeats before the first one here.
            values["gain"] = [100 * (alone / each - 1) for alone, each in zip(base, seconds, strict=False)]
        if (way, split) in TUTORIAL_GAINS:
            values["tutorial"] = TUTORIAL_GAINS[way, split]
        self.recorder.add_row({"way": way, "split_size": split}, warmup=rank_timing.WARMUP_ROUNDS, **values)

    def add_conclusion(self, best: int, drift: float) -> None:
        """Note the best split, the gain of splits alone and the drift; plot the curve and the tutorial's bar charts."""
        options, base = self.options, self.median(ONE_DEVICE, self.options.batch)
        gain = base / self.median(PIPELINED, best) - 1
        than = f"{abs(gain):.0%} {'quicker' if gain > 0 else 'slower'} than one device"
        alone = self.median(ONE_DEVICE_IN_SPLITS, best)
        own = alone / self.median(PIPELINED, best) - 1
        self.recorder.add_note(
            f"Best split size: {best}, {than} (the tutorial's: 12, 54 % quicker)."
            f" One device, measured again at the end, took {drift:+.1%}."
        )
        self.recorder.add_note(
            f"One device takes {alone / base - 1:+.0%} in splits of {best}."
            f" Compared with that, the pipeline is {own:+.0%} quicker; two devices gain at most 100 %."
        )
        size = f"{options.batches} x {options.batch} images of {options.image} x {options.image}"
        self.recorder.add_plot(
            Plot(
                name="splits",
                title=f"ResNet-50 in two halves: {size}",
                x="split_size",
                y=("seconds",),
                where={"way": PIPELINED},
                marks={way: self.median(way, options.batch) for way in (ONE_DEVICE, TWO_HALVES)},
                x_title="images in a split",
            )
        )
        for name, ways in (
            ("model-parallel", (ONE_DEVICE, TWO_HALVES)),
            ("pipelined", (ONE_DEVICE, TWO_HALVES, PIPELINED)),
        ):
            self.recorder.add_plot(
                Plot(
                    name=name,
                    title=f"ResNet-50, {size}" + (f"; pipelined in splits of {best}" if PIPELINED in ways else ""),
                    kind="bars",
                    x="way",
                    y=("seconds",),
                    where={"way": ways, "split_size": (options.batch, best)},
                )
            )


def _two_halves(batch: resnet_halves.Batch, world: Group) -> resnet_halves.Variant | None:
    """Build the two halves.

    They run on two GPUs of rank 0 if it has two, while the other rank waits (None); otherwise one half runs on each
    rank.
    """
    if world.device.type == "cuda" and rank_timing.broadcast_value(torch.cuda.device_count(), world) >= 2:
        return resnet_halves.TwoGpus(batch) if world.is_main else None
    return resnet_halves.TwoRanks(batch, world)


def _measure_schedules(options: PipelineOptions, recorder: Recorder, world: Group, barrier: Callable[[], None]) -> None:
    """Measure the efficiency of schedules.

    It is the time of the same work without a pipeline, on all ranks in parallel, divided by ranks x the pipeline's
    time.
    """
    recorder.add_plot(
        Plot(
            name="schedules",
            title=f"Schedules over {world.world_size} ranks, and the ideal m / (m + p - 1)",
            x="micro_batches",
            y=("efficiency",),
            series=("schedule",),
            x_title="micro-batches m",
        )
    )
    for micro_batches in options.micro_batches:
        recorder.report_progress(f"schedules, {micro_batches} micro-batches")
        works = {"unsplit": unsplit_work(world, micro_batches)}
        works |= {name: pipelined_work(world, name, micro_batches) for name in options.schedules}
        times = rank_timing.time_interleaved(works, barrier, options.repeats)
        _add_schedule_rows(recorder, micro_batches, world.world_size, times.pop("unsplit"), times)


def _add_schedule_rows(
    recorder: Recorder, micro_batches: int, ranks: int, unsplit: list[float], times: Mapping[str, list[float]]
) -> None:
    """Add the rows of one number of micro-batches, the ideal first.

    `unsplit` has the seconds of each repeat of the work without a pipeline, `times` those of each schedule.
    """
    ideal = ideal_efficiency(micro_batches, ranks)
    recorder.add_row({"schedule": "ideal", "micro_batches": micro_batches}, efficiency=ideal)
    for name, seconds in times.items():
        recorder.add_row(
            {"schedule": name, "micro_batches": micro_batches},
            warmup=rank_timing.WARMUP_ROUNDS,
            seconds=seconds,
            efficiency=[alone / ranks / piped for alone, piped in zip(unsplit, seconds, strict=True)],
            ideal=ideal,
            ideal_of_stages=ideal_efficiency(micro_batches, ranks, stages_per_rank(name)),
        )


STAGES_PER_RANK = 2
"""Stages of a rank in schedules with several stages."""
_LAYERS_PER_STAGE = 3
WIDTH, ROWS = 512, 96
"""Width of the layers, rows of a micro-batch."""


def ideal_efficiency(micro_batches: int, ranks: int, stages_per_rank: int = 1) -> float:
    """Return the busy share v m / (v m + p - 1), for equal stages and messages without cost."""
    return 1 - idle_share(ranks, micro_batches, stages_per_rank)


def stages_per_rank(name: str) -> int:
    """Return the number of stages that the schedule gives each rank.

    Raises:
        SpecError: This torch has no such schedule.
    """
    return STAGES_PER_RANK if issubclass(_schedule_class(name), PipelineScheduleMulti) else 1


def unsplit_work(world: Group, micro_batches: int) -> Callable[[], None]:
    """Return the work without a pipeline: the whole stack on this rank, micro-batch by micro-batch."""
    stack = _layers(_LAYERS_PER_STAGE * STAGES_PER_RANK * world.world_size).to(world.device)
    inputs, targets = _random_data(world, micro_batches)

    def work() -> None:
        for part, wanted in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            _loss(stack(part), wanted).backward()
        stack.zero_grad()

    return work


def pipelined_work(world: Group, name: str, micro_batches: int) -> Callable[[], None]:
    """Return the same work in stages over all ranks.

    Raises:
        SpecError: The schedule cannot be laid out over these ranks and micro-batches.
    """
    schedule_class, per_rank = _schedule_class(name), stages_per_rank(name)
    indices = _stage_indices(schedule_class, world.rank, world.world_size, per_rank)
    total = per_rank * world.world_size
    # With one stage for each rank, the stage has twice the layers, so that all schedules do the same work.
    parts = nn.ModuleList(_layers(_LAYERS_PER_STAGE * STAGES_PER_RANK // per_rank) for _ in indices).to(world.device)
    stages = [PipelineStage(part, index, total, world.device) for part, index in zip(parts, indices, strict=True)]
    try:
        # The unsplit work does not divide its gradients by the micro-batches either.
        schedule = schedule_class(
            stages if per_rank > 1 else stages[0], micro_batches, loss_fn=_loss, scale_grads=False
        )
    except ValueError as error:
        raise SpecError(
            f"{name} cannot be laid out",
            found=f"{world.world_size} ranks, {micro_batches} micro-batches: {error}",
            remedy=f"--micro-batches {2 * total}, or other --schedules",
        ) from error
    inputs, targets = _random_data(world, micro_batches)
    has_first, has_last = 0 in indices, total - 1 in indices

    def work() -> None:
        losses: list[Tensor] = []
        targets_and_losses = {"target": targets, "losses": losses} if has_last else {}
        schedule.step(*([inputs] if has_first else []), **targets_and_losses)
        parts.zero_grad()

    return work


def _schedule_class(name: str) -> Any:
    try:
        return get_schedule_class(name)
    except ValueError as error:
        raise SpecError(
            f"torch has no schedule {name!r} here", found=f"torch {torch.__version__}: {error}", remedy="GPipe,1F1B"
        ) from error


def _stage_indices(schedule_class: type, rank: int, ranks: int, per_rank: int) -> list[int]:
    """Return the stages of a rank: round robin, or, for a V schedule, from both ends."""
    if schedule_class is ScheduleZBVZeroBubble:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * chunk for chunk in range(per_rank)]


def _layers(number: int) -> nn.Sequential:
    layer = partial(nn.Linear, WIDTH, WIDTH)
    return nn.Sequential(*(module for _ in range(number) for module in (layer(), nn.GELU())))


def _random_data(world: Group, micro_batches: int) -> tuple[Tensor, Tensor]:
    shape = (micro_batches * ROWS, WIDTH)
    return torch.randn(shape, device=world.device), torch.randn(shape, device=world.device)


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(scores, targets)
