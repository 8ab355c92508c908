"""The stages of a pipeline: the layers of each, the rank of each, and the order of the micro-batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleZBVZeroBubble, get_schedule_class
from torch.nn import functional as F  # noqa: N812  torch's own habit

from model import GPT, IGNORED, Config
from options import Options, count, one_of, option
from training import SpecError, Training, autocast, build_model

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
"""torch's names. The last three give a rank several stages; a zero bubble computes weight gradients in the gaps."""


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(Options):
    """Options of a program with stages."""

    pp: int | None = option(None, count, "ranks in a row, each with a part of the layers; default: all ranks")
    micro_batches: int = option(4, count, "parts of a rank's windows that follow one another through the stages")
    schedule: str = option("1F1B", one_of(*SCHEDULES), f"their order: {', '.join(SCHEDULES)}")
    stages_per_rank: int = option(2, count, "stages of a rank, in a schedule with several")
    balance: str = option("parameters", one_of("parameters", "time"), "make stages equal in parameters or time")

    @property
    def passes(self) -> int:
        return self.micro_batches


class BubbleClock:
    """Measures how long this rank computes in each step. In the rest of the step, the bubble, it waits for others."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda, self.computed = device.type == "cuda", list[tuple[Any, Any]]()
        self.steps = deque[list[tuple[Any, Any]]](maxlen=50)
        """Beginnings and ends: first of the step, then of each pass in it."""

    def mark(self) -> Any:
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def measure_pass(self) -> Iterator[None]:
        begun = self.mark()
        yield
        self.computed.append((begun, self.mark()))

    @contextmanager
    def measure_step(self) -> Iterator[None]:
        begun = self.mark()
        self.computed = []
        yield
        self.steps.append([(begun, self.mark()), *self.computed])

    def idle_share(self) -> float:
        """Return the share of the latest steps in which the mean rank computed nothing; a collective."""
        if self.is_cuda:
            torch.cuda.synchronize()
        total = torch.zeros(2, dtype=torch.float64, device="cuda" if self.is_cuda else "cpu")
        for step in list(self.steps)[-max(1, len(self.steps) - 1) :]:  # the first step allocates memory
            seconds = [a.elapsed_time(b) / 1000 if self.is_cuda else b - a for a, b in step]
            total += torch.tensor([sum(seconds[1:]), seconds[0]], dtype=torch.float64, device=total.device)
        dist.all_reduce(total)
        return 1 - (total[0] / total[1]).item()


class TimedStage(PipelineStage):
    """A stage whose passes are measured."""

    def __init__(self, clock: BubbleClock, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.clock = clock

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.measure_pass():
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.measure_pass():
            return super().backward_one_chunk(*arguments, **named)

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.measure_pass():
            return super().backward_weight_one_chunk(*arguments, **named)

    def perform_reduce_grad(self, *arguments: Any) -> None:
        with self.clock.measure_pass():
            super().perform_reduce_grad(*arguments)


class Stages(nn.ModuleList):
    """The stages of one rank. Their parameters have the names that they have in the whole model."""

    def named_parameters(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for stage in self:
            yield from stage.named_parameters(*arguments, **named)


class Pipeline:
    """This rank's stages, and the schedule of the micro-batches.

    Args:
        options: Options of the program.
        mesh: The ranks in a row.
        device: Device of this rank.
        split_stage: Splits a stage further, over other axes of the mesh.
    """

    def __init__(
        self,
        options: PipelineOptions,
        mesh: DeviceMesh,
        device: torch.device,
        split_stage: Callable[[GPT], None] | None = None,
    ) -> None:
        kind: Any = get_schedule_class(options.schedule)
        has_several = issubclass(kind, PipelineScheduleMulti)
        per_rank = options.stages_per_rank if has_several else 1
        numbers = number_stages(kind, mesh.get_local_rank(), mesh.size(), per_rank)
        total = len(numbers) * mesh.size()
        check_stages(options, mesh.size(), total)
        self.options, self.device, self.scale = options, device, 1.0
        self.parts = split_layers(measure_layers(options, device), total)
        self.is_first, self.is_last = 0 in numbers, total - 1 in numbers
        self.model = Stages()
        for number in numbers:
            stage = build_model(options, device, self.parts[number])
            if split_stage:
                split_stage(stage)
            self.model.append(stage)
        self.clock = BubbleClock(device)
        stages = [
            TimedStage(self.clock, stage, number, total, device, group=mesh.get_group())
            for stage, number in zip(self.model, numbers, strict=True)
        ]
        try:
            self.schedule = kind(
                stages if has_several else stages[0], options.micro_batches, loss_fn=self._loss, scale_grads=False
            )
        except ValueError as error:
            raise SpecError(
                f"{options.schedule} cannot be laid out",
                found=f"{mesh.size()} ranks, {total} stages, --micro-batches {options.micro_batches}: {error}",
                remedy=f"--micro-batches {2 * total}, or another --schedule",
            ) from error

    def run_schedule(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Run forward and backward of all micro-batches; returns the mean loss on the rank with the last stage."""
        with self.clock.measure_step():
            # All targets count here. Counting them would make the host wait for the GPU.
            return self._run(self.schedule.step, inputs, targets, targets.numel())

    def compute_loss(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Run forward, and keep no gradients; returns the mean loss on the rank with the last stage."""
        counted = int((targets != IGNORED).sum())
        # torch 2.13 cannot run ZBVZeroBubble forward only ("can't steal_bwd_input"), and before 2.13 the buffers of a
        # stage have no gradients in any step if the first pass was forward only. Run it whole, drop the gradients.
        if not isinstance(self.schedule, ScheduleZBVZeroBubble) and self.clock.steps:
            return self._run(self.schedule.eval, inputs, targets, counted)
        with torch.enable_grad():
            loss = self._run(self.schedule.step, inputs, targets, counted)
        self.model.zero_grad()
        return loss

    def _run(self, schedule: Callable[..., object], inputs: Tensor, targets: Tensor, counted: int) -> Tensor | None:
        losses: list[Tensor] = []
        self.scale = 1 / max(1, counted)
        arguments = {"target": targets, "losses": losses} if self.is_last else {}
        with autocast(self.options, self.device):
            # torch 2.11 compares the strides of all micro-batches with those of its own buffers.
            schedule(*([inputs.contiguous()] if self.is_first else []), **arguments)
        return torch.stack(losses).sum().detach() if self.is_last else None

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return a micro-batch's part of the mean over all of them."""
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum") * self.scale

    @property
    def predicted_idle(self) -> float:
        per_rank = len(self.model)
        return idle_share(len(self.parts) // per_rank, self.options.micro_batches, per_rank)

    def report_bubble(self, training: Training) -> None:
        """Print the measured bubble beside the predicted one, for the summary too; a collective."""
        if not self.clock.steps:
            return  # a restart after the last step
        measured, predicted = self.clock.idle_share(), self.predicted_idle
        training.facts |= {"bubble_measured": measured, "bubble_predicted": predicted}
        zero = ", which a zero bubble fills in part" if "ZeroBubble" in self.options.schedule else ""
        training.report(
            f"bubble  measured {measured:.0%}, predicted {predicted:.0%} if all stages take equally long{zero}"
        )

    def __str__(self) -> str:
        layers = " | ".join(f"{part.start}-{part.stop - 1}" for part in self.parts)
        schedule, micro_batches = self.options.schedule, self.options.micro_batches
        return f"{schedule}, layers {layers}; {micro_batches} micro-batches, idle {self.predicted_idle:.0%}"


def idle_share(ranks: int, micro_batches: int, stages_per_rank: int = 1) -> float:
    """(p - 1) / (v m + p - 1): idle time of GPipe, 1F1B and Interleaved1F1B if all stages take equally long."""
    return (ranks - 1) / (stages_per_rank * micro_batches + ranks - 1)


def number_stages(kind: type, rank: int, ranks: int, per_rank: int) -> list[int]:
    """Return the numbers of a rank's stages: round after round, or in a V, which ends on the first rank."""
    if kind is ScheduleZBVZeroBubble:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * turn for turn in range(per_rank)]


def check_stages(options: PipelineOptions, ranks: int, stages: int) -> None:
    """Check what no schedule can run.

    Raises:
        SpecError: Fewer layers than stages, fewer micro-batches than ranks, or an option that stages do not support.
    """
    if options.layers < stages:
        raise SpecError(
            "there are fewer layers than stages",
            found=f"--layers {options.layers}; {ranks} ranks x {stages // ranks} = {stages} stages",
            remedy=f"--layers {stages}, or a smaller pp",
        )
    if options.micro_batches < ranks:
        raise SpecError(
            "there are fewer micro-batches than stages in a row",
            found=f"--micro-batches {options.micro_batches}, pp {ranks}:"
            f" {idle_share(ranks, options.micro_batches):.0%} of the time idle",
            remedy=f"--micro-batches {4 * ranks}: {idle_share(ranks, 4 * ranks):.0%}",
        )
    if options.accumulate > 1:
        raise SpecError(
            "a pipeline accumulates over its micro-batches",
            found=f"--accumulate {options.accumulate}, --micro-batches {options.micro_batches}",
            remedy=f"--micro-batches {options.accumulate * options.micro_batches} alone",
        )
    if options.compile and "ZeroBubble" in options.schedule:
        # Backward runs twice, for inputs and for weights. A compiled layer frees its buffers in the first run.
        raise SpecError(
            "a zero bubble cannot run compiled layers",
            found=f"--compile {options.compile}, --schedule {options.schedule}",
            remedy="leave --compile out, or use --schedule Interleaved1F1B",
        )


def split_layers(costs: Sequence[float], parts: int) -> list[range]:
    """Split the layers so that the most expensive part costs as little as possible; no part is empty.

    >>> split_layers([3, 1, 1, 1, 2], 3)
    [range(0, 1), range(1, 3), range(3, 5)]
    """
    layers = len(costs)
    # best[k][n]: the most expensive of k parts of the first n layers, and the start of the last part.
    best = [[(sum(costs[:end]), 0) for end in range(layers + 1)]]
    for number in range(2, parts + 1):
        row = [(float("inf"), 0)] * (layers + 1)
        for end in range(number, layers + 1):
            row[end] = min((max(best[-1][start][0], sum(costs[start:end])), start) for start in range(number - 1, end))
        best.append(row)
    ranges, end = list[range](), layers
    for row in reversed(best):
        ranges.append(range(row[end][1], end))
        end = row[end][1]
    return ranges[::-1]


def measure_layers(options: PipelineOptions, device: torch.device) -> list[float]:
    """Return the cost of each layer, with the embeddings and the head: parameters, or seconds on rank 0."""
    config, costs = options.model, list[float]()
    for number in range(config.layers):
        if 1 < number < config.layers - 1:
            costs.append(costs[1])  # all layers between the two ends are equal
            continue
        layer = GPT(config, range(number, number + 1)).to(device)
        if options.balance == "parameters":
            costs.append(sum(parameter.numel() for parameter in layer.parameters()))
        else:
            costs.append(time_layer(layer, config, device))
    dist.broadcast_object_list(costs, src=0)
    return costs


def time_layer(layer: GPT, config: Config, device: torch.device) -> float:
    """Return the seconds of forward and backward of a few windows, the best of three."""
    shape, best = (4, config.sequence), float("inf")
    tokens = torch.zeros(shape, dtype=torch.long, device=device)
    stream = torch.randn(*shape, config.width, device=device)
    for _ in range(3):
        begun = time.perf_counter()
        layer(tokens if layer.embed is not None else stream).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return best
