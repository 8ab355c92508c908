"""Shared by the training programs: joining the ranks, steps and their timing, checkpoints, log lines and a summary.

This is the only module here that imports hpc_kit. Without hpc_kit, every program runs alone or under torchrun, and
rank 0 saves the parameters in one file.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from data import (
    Prefetcher,
    Text,
    choose_evaluation_windows,
    choose_windows,
    count_windows,
    cut_windows,
    read_text_once_per_node,
    take_share,
)
from model import GPT, IGNORED, initialize
from options import Options

__all__ = ["SpecError", "distributed", "gather", "record_failure_of", "summarize_training"]

if TYPE_CHECKING or find_spec("hpc_kit"):
    from hpc_kit import Checkpointer, distributed, progress
    from hpc_kit.errors import JobFailed, SpecError
    from hpc_kit.runtime import Group as World
    from hpc_kit.runtime.crash_watcher import record_crash_of as record_failure_of
    from hpc_kit.runtime.restart.all_ranks import explain_timeouts, gather, require_equal
    from hpc_kit.runtime.restart.stop_signal import TrainingStopped
    from hpc_kit.runtime.step_timer import StepTimer
    from hpc_kit.runtime.training_report import report_training, summarize_training
else:  # torch alone: no measurements, no restart, and rank 0 saves the parameters in one file

    class SpecError(SystemExit):
        def __init__(self, what, *, found="", remedy=""):
            super().__init__(f"{what}\n  found  {found}\n  do     {remedy}")

    @contextmanager
    def distributed(timeout=None):
        local, is_cuda = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.is_available()
        device = torch.device("cuda", local) if is_cuda else torch.device("cpu")
        torch.cuda.set_device(device if is_cuda else -1)  # NCCL sends objects from the current GPU; -1 does nothing
        backend = os.environ.get("HPC_KIT_BACKEND") or ("nccl" if is_cuda else "gloo")
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        limit = timedelta(seconds=timeout or float(os.environ.get("HPC_KIT_TIMEOUT", "1800")))
        dist.init_process_group(backend, timeout=limit, device_id=device if backend == "nccl" else None, **alone)
        rank, ranks, node = dist.get_rank(), dist.get_world_size(), int(os.environ.get("GROUP_RANK", "0"))

        def mesh(pp=1, dp_shard=0, cp=1, tp=1):
            replicas = ranks // (pp * cp * tp * (dp_shard or 1))
            axes, degrees = (("dp_replicate", "dp_shard"), (replicas, dp_shard)) if dp_shard else (("dp",), (replicas,))
            return dist.init_device_mesh(device.type, (pp, *degrees, cp, tp), mesh_dim_names=("pp", *axes, "cp", "tp"))

        yield SimpleNamespace(
            rank=rank, world_size=ranks, local_rank=local, node_rank=node, is_main=rank == 0, mesh=mesh,
            timeout=timeout, device=device, device_ids=[local] if is_cuda else None, barrier=dist.barrier)  # fmt: skip
        dist.destroy_process_group()
        time.sleep(0.1)  # gloo's threads may still free tensors, and abort if the interpreter ends

    def gather(value):
        dist.all_gather_object(values := [None] * dist.get_world_size(), value)
        return values

    class Checkpointer(nullcontext):
        def __init__(self, folder, **_):
            self.folder, self.enter_result, self.step = folder, None, lambda *_: False

        def restore(self, *, model, **_):
            self.modules = model if isinstance(model, list) else [model]
            return 0

        def save(self, _):
            pairs = [pair for module in self.modules for pair in module.named_parameters()] if self.folder else []
            parts = gather({name: getattr(each, "full_tensor", each.clone)().detach().cpu() for name, each in pairs})
            if self.folder and dist.get_rank() == 0:
                torch.save({name: part[name] for part in parts for name in part}, f"{self.folder}.pt")

    class StepTimer:
        __init__ = begin_step = end_loading = end_backward = end_step = collect = lambda *_, **__: None

    JobFailed, explain_timeouts, record_failure_of = SpecError, nullcontext, nullcontext
    require_equal = report_training = summarize_training = progress = lambda *_, **__: ""


@contextmanager
def join_ranks(options: Options) -> Iterator[tuple[World, Text]]:
    """Join the ranks, check that all run the same code and options, and yield the world and the text."""
    with distributed(timeout=options.timeout) as world, explain_timeouts(options.timeout or world.timeout):
        text = read_text_once_per_node(options.data, local_rank=world.local_rank, node_rank=world.node_rank)
        versions = {"Python": platform.python_version(), "torch": torch.__version__}
        remedy = f"the same files on every node, in {options.data}" if options.data else "the same Python on every node"
        require_equal({**versions, "text": str(text), "options": repr(options)}, {"text": remedy})
        yield world, text


def build_model(options: Options, device: torch.device, layers: range | None = None) -> GPT:
    """Return the model, or some of its layers, with its first parameters on the device."""
    model = GPT(options.model, layers).to(device)
    initialize(model, options.seed)
    return apply_options(model, options)


def apply_options(model: GPT, options: Options) -> GPT:
    """Set up activation checkpointing and torch.compile, layer by layer. Parameters keep their names."""
    model.recompute = options.recompute
    if options.compile:
        for layer in model.layers.values():
            layer.compile(backend=options.compile)
    return model


def autocast(options: Options, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass: bfloat16 with --bf16; the loss stays in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.bf16)


def adamw(
    model: nn.Module, options: Options, optimizer_class: Callable[..., Optimizer] = AdamW, **more: object
) -> Optimizer:
    """Return AdamW with weight decay for matrices, and without for the scales of norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    scales = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return optimizer_class(groups, lr=options.lr, betas=(0.9, 0.95), fused=True, **more)


def learning_rate(options: Options, step: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then half a cosine."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.lr * (1 + math.cos(math.pi * done)) / 2


def new_group_of_all(options: Options, world: World, backend: str | None = None) -> dist.ProcessGroup:
    """Return another group of all ranks with the time-out of the default group instead of torch's own."""
    seconds = options.timeout or world.timeout
    timeout = None if seconds is None else timedelta(seconds=seconds)
    return cast("dist.ProcessGroup", dist.new_group(backend=backend, timeout=timeout))


def check_batch(options: Options, text: Text, ranks: int) -> None:
    """Check the batch and the text before the first step. All ranks come to the same result.

    Raises:
        SpecError: The batch cannot be divided among the ranks, or the text is too short.
    """
    parts = ranks * options.passes
    if options.global_batch % parts:
        lower = options.global_batch // parts * parts
        name = "--accumulate" if options.passes == options.accumulate else "--micro-batches"
        raise SpecError(
            "the global batch cannot be divided among the ranks",
            found=f"--global-batch {options.global_batch} / ({ranks} ranks * {name} {options.passes})",
            remedy=" or ".join(f"--global-batch {size}" for size in (lower, lower + parts) if size),
        )
    windows = count_windows(text.training, options.sequence)
    if windows < options.global_batch:
        raise SpecError(
            "the text is shorter than one batch",
            found=f"{text}: {windows} windows of --sequence {options.sequence}\n--global-batch {options.global_batch}",
            remedy="a smaller --global-batch or --sequence, or --data with more text",
        )
    if not count_windows(text.held_back, options.sequence):
        raise SpecError(
            "no text is held back for the evaluation",
            found=f"{text}, {text.held_back.numel()} of them held back; --sequence {options.sequence}",
            remedy="a smaller --sequence, or --data with more files",
        )


class MicroBatch(NamedTuple):
    """The windows of one pass."""

    inputs: Tensor
    targets: Tensor
    is_last: bool
    """True in the last pass of a step, in which the ranks exchange gradients."""


@dataclass
class Step:
    """One step: this rank's share of the global batch, and its loss."""

    windows: Tensor
    passes: int
    loss: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        return self.windows[:, :-1]

    @property
    def targets(self) -> Tensor:
        return self.windows[:, 1:]

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Yield the parts of the windows, one per pass."""
        parts = zip(self.inputs.chunk(self.passes), self.targets.chunk(self.passes), strict=True)
        for number, (inputs, targets) in enumerate(parts, 1):
            yield MicroBatch(inputs, targets, number == self.passes)

    def add_loss(self, loss: Tensor | None) -> None:
        """Add a part of the mean loss; None on a rank without the last layers."""
        if loss is not None:
            self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()


@dataclass(frozen=True)
class Result:
    """Validation loss before and after the training, the loss of each step, the timer and the memory of this rank."""

    before: float
    after: float
    losses: Sequence[float]
    timer: StepTimer
    kept_bytes: Mapping[str, int]


class Training:
    """All parts of a training but the forward pass, the backward pass and the update, which stand in the program.

    A context manager that restores the checkpoint, yields the steps, prints lines, evaluates and saves.

    Args:
        options: Options of the program.
        world: The ranks.
        text: The text to train on.
        model: This rank's part of the model. Parameters have the names that they have in the whole model.
        optimizer: The optimizer of `model`.
        compute_loss: Returns the mean loss of inputs and targets, or None on a rank that does not compute it.
        share: This rank's share of each batch, and the number of shares.
        stages: Number of groups of ranks with different layers (pipeline stages).
        replica: The DistributedDataParallel around the model, if there is one.
        facts: More values for the summary.
    """

    def __init__(
        self,
        options: Options,
        world: World,
        text: Text,
        model: nn.Module,
        optimizer: Optimizer,
        compute_loss: Callable[[Tensor, Tensor], Tensor | None],
        *,
        share: tuple[int, int] = (0, 1),
        stages: int = 1,
        replica: DistributedDataParallel | None = None,
        facts: Mapping[str, str | float] | None = None,
    ) -> None:
        check_batch(options, text, share[1])
        self.options, self.world, self.text, self.share, self.stages = options, world, text, share, stages
        self.model, self.optimizer, self.compute_loss, self.facts = model, optimizer, compute_loss, {**(facts or {})}
        self.replica = replica
        self.timer = StepTimer(world, None if options.unwatched else replica, is_measured=not options.unwatched)
        self.prefetcher = Prefetcher(self._windows_of_step, world.device)
        self.kept_bytes: dict[str, int] = {}
        self.losses: list[float] = []
        self.new_losses: list[Tensor | None] = []  # of the steps since the last line
        self.first = self.number = 0  # the first step and the current one
        names = ("steps", "global_batch", "seed", "data", "lr", "warmup", "weight_decay", "clip", "bf16")
        self.checkpointer = Checkpointer(
            options.checkpoint,
            every=options.checkpoint_every,
            resume=options.resume,
            is_required=options.requests_checkpoint,
            options={**asdict(options.model), **{name: getattr(options, name) for name in names}},
            report=self.report,
        )
        self.result: Result | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.checkpointer)
            self.first = self._restore()
            self._exit = stack.pop_all()
        return self

    def _restore(self) -> int:
        """Load the checkpoint, if there is one, and return the first step."""
        decay = [group["weight_decay"] for group in self.optimizer.param_groups]
        modules = list(self.model) if isinstance(self.model, nn.ModuleList) else self.model
        first, steps = self.checkpointer.restore(model=modules, optimizer=self.optimizer), self.options.steps
        for group, value in zip(self.optimizer.param_groups, decay, strict=True):
            group["weight_decay"] = value  # a change on the command line applies to the resumed training
        if first >= steps and self.options.resume:
            raise SpecError(
                "the checkpoint leaves nothing to train",
                found=f"--resume {self.options.resume} is at step {first}; --steps {steps}",
                remedy=f"--steps {2 * first}: it counts from the first start",
            )
        if first >= steps:
            self.report(f"note    step {first} of {steps}: nothing is left to train")
        return first

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._exit:
            if kind is None and self.result:
                self.checkpointer.save(self.options.steps - 1)
                self._report_end(self.result)

    def steps(self) -> Iterator[Step]:
        """Yield the steps from the first one, or the one after the checkpoint, to the last one."""
        options, world = self.options, self.world
        if self.first >= options.steps:
            return  # the training was complete before this restart
        if self.first and self.replica:
            self._rebuild_buckets()
        before = after = self.evaluate()
        parameters = f"{options.model.parameters:,}".replace(",", " ")
        self.report(f"start   ranks {world.world_size}, parameters {parameters}, text {self.text}")
        with profile_steps(options.profile) as end_profiled_step:
            for number in range(self.first, options.steps):
                self.timer.begin_step()
                step = Step(self.prefetcher.take(number), options.passes)
                self.timer.end_loading()
                for group in self.optimizer.param_groups:
                    group["lr"] = learning_rate(options, number)
                self.number = number
                yield step
                self.timer.end_step()
                self.new_losses.append(step.loss)
                end_profiled_step()
                done = number + 1
                progress(number, total=options.steps)
                if number == self.first:
                    self._count_kept_bytes()
                if done % options.log_every == 0 or done == options.steps:
                    self._print_step(done)
                if done == options.steps:
                    after = self._require_finite(self.evaluate(), "validation loss after", done)
                    break
                if options.eval_every and done % options.eval_every == 0:
                    self.report(f"step {done}/{options.steps}   validation loss {self.evaluate():.2f}")
                # Check the norm before a save: the losses show only in the next step that parameters are not finite.
                if self.checkpointer.step(
                    number, partial(self._require_finite, self.norm, "norm of the gradients in", done)
                ):
                    raise TrainingStopped.at_step(done, options.steps, self.checkpointer.latest)
        self.result = Result(before, after, self.losses, self.timer, self.kept_bytes)

    def _rebuild_buckets(self) -> None:
        """Make DistributedDataParallel rebuild its buckets before the first step of a resumed training.

        It rebuilds them after the first backward pass, and the last bit of a sum over more than two ranks depends on
        them. So run a backward pass, and discard its gradients: the losses are then those of an unbroken training.
        """
        zeros = torch.zeros(1, self.options.sequence, dtype=torch.long, device=self.world.device)
        loss = self.compute_loss(zeros, zeros)
        if loss is not None:
            loss.backward()
        self.optimizer.zero_grad()

    def _windows_of_step(self, step: int) -> Tensor:
        windows = count_windows(self.text.training, self.options.sequence)
        numbers = choose_windows(windows, self.options.global_batch, seed=self.options.seed, step=step)
        return cut_windows(self.text.training, self.options.sequence, take_share(numbers, *self.share))

    def clip_gradients(self) -> None:
        """Clip the gradients by their norm over all ranks, between the backward pass and the update."""
        self.timer.end_backward()
        self.prefetcher.fetch(self.number + 1)
        self.norm = clip_gradients(
            self.model.parameters(), self.options.clip, stages=self.stages, device=self.world.device
        )
        if self.number == self.first:
            gradients = (parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)
            self.kept_bytes["gradients"] = count_local_bytes(gradients)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss on the text that is held back.

        The ranks may have different numbers of windows, or none. All make the same number of equally large passes,
        because a sharded model needs all ranks in each pass. The targets of windows that a rank lacks are ignored.
        """
        options, device, held_back = self.options, self.world.device, self.text.held_back
        windows = count_windows(held_back, options.sequence)
        _, ranks = self.share
        size = options.global_batch // ranks
        numbers = choose_evaluation_windows(windows, options.eval_windows, *self.share)
        rounds = -(-min(options.eval_windows, windows) // (ranks * size))
        total = torch.zeros(2, dtype=torch.float64, device=device)
        self.model.eval()
        for first in range(0, rounds * size, size):
            mine = numbers[first : first + size]
            batch = cut_windows(held_back, options.sequence, torch.cat([mine, mine.new_zeros(size - len(mine))]))
            batch, targets = batch.to(device), batch[:, 1:].clone().to(device)
            targets[len(mine) :] = IGNORED
            loss = self.compute_loss(batch[:, :-1], targets)
            if loss is not None and len(mine):
                total += torch.stack([loss.double() * len(mine), total.new_tensor(len(mine))])
        for module in self.model.modules():
            if reshard := getattr(module, "reshard", None):
                reshard()  # fully_shard keeps what forward has gathered for a backward pass, and none follows here
        self.model.train()
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def report(self, line: str) -> None:
        """Print a line on rank 0."""
        if self.world.is_main:
            print(line, flush=True)

    def _count_kept_bytes(self) -> None:
        optimizer = getattr(self.optimizer, "optim", self.optimizer)  # ZeroRedundancyOptimizer has one inside
        moments = [value for state in optimizer.state.values() for value in state.values()]
        self.kept_bytes = {"parameters": count_local_bytes(self.model.parameters()), **self.kept_bytes}
        self.kept_bytes["optimizer"] = count_local_bytes(moments)

    def _require_finite(self, value: float | Tensor, what: str, step: int) -> float:
        """Return a loss or norm. All ranks have the same losses, so all stop together.

        Raises:
            JobFailed: It is infinite or not a number.
        """
        if math.isfinite(value):
            return float(value)
        raise JobFailed(
            "the training diverged",
            found=f"{what} step {step} of {self.options.steps} is {float(value)};"
            f" --lr {self.options.lr} --warmup {self.options.warmup}",
            remedy="a smaller --lr or a longer --warmup",
        )

    def _print_step(self, done: int) -> None:
        """Print the loss of the last step, and the speed of the steps since the line before."""
        # The loss of a step is the mean over the ranks that computed one.
        total = torch.zeros(len(self.new_losses), 2, dtype=torch.float64, device=self.world.device)
        for row, loss in zip(total, self.new_losses, strict=True):
            if loss is not None:
                row[0], row[1] = loss, 1
        self.new_losses.clear()
        dist.all_reduce(total)
        losses = (total[:, 0] / total[:, 1]).tolist()
        for number, loss in enumerate(losses, len(self.losses) + 1):
            self._require_finite(loss, "loss in", self.first + number)
        self.losses += losses
        progress(done - 1, total=self.options.steps, loss=losses[-1])
        speed = self.timer.collect(self.options.global_batch * self.options.sequence)
        self.report(f"step {done}/{self.options.steps}   loss {losses[-1]:.2f}{speed or ''}")

    def _report_end(self, result: Result) -> None:
        """Print a summary, and write summary.json and steps.json. All ranks take part."""
        options, world = self.options, self.world
        speed = report_training(
            world,
            self.timer,
            self.report,
            losses=result.losses,
            kept=result.kept_bytes,
            tokens=options.global_batch * options.sequence,
            flops=flops_over_peak(options, world.device, float(self.facts.get("devices", world.world_size))),
            loss_first=result.before,
            loss_last=result.after,
            **self.facts,
        )
        self.report(f"done    validation loss {result.before:.2f} -> {result.after:.2f}{speed}")


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor], largest: float, *, stages: int = 1, device: torch.device | None = None
) -> Tensor:
    """Scale the gradients down to a norm of `largest`, and return the norm that they had.

    Every rank sums the squares of its gradients, and all ranks add up these sums. A gradient that is on n ranks would
    count n times, so its square is divided by n.

    Args:
        parameters: The parameters of this rank, with gradients.
        largest: The largest norm.
        stages: Number of groups of ranks with different layers.
        device: Device on which ranks exchange the norm, if gradients are offloaded. Default: that of the gradients.
    """
    ranks = dist.get_world_size() // stages
    by_parts, by_mesh = defaultdict[int, list[Tensor]](list), defaultdict[object, list[Tensor]](list)
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is None:
            continue
        parts = 1
        if hasattr(gradient, "placements"):  # a DTensor
            if any(placement.is_partial() for placement in gradient.placements):
                # With --sequence-parallel, the gradient of a norm on each rank is the sum over its part of the text.
                gradient = gradient.redistribute(placements=cast("Any", parameter).placements)
                parameter.grad = gradient
            for placement, size in zip(gradient.placements, gradient.device_mesh.shape, strict=True):
                parts *= 1 if placement.is_replicate() else size
        by_mesh[getattr(gradient, "device_mesh", None)].append(parameter)
        by_parts[parts].append(gradient.to_local() if hasattr(gradient, "placements") else gradient)
    squares = [(get_total_norm(held) ** 2 * parts / ranks).to(device) for parts, held in by_parts.items()]
    square = torch.stack(squares).sum()
    if stages == 1 and set(by_parts) == {1}:
        square *= ranks  # every rank has every gradient, so the sum over the ranks is known
    else:
        dist.all_reduce(square)
    norm = square.sqrt()
    for same_mesh in by_mesh.values():  # torch cannot scale tensors of two meshes in one call
        clip_grads_with_norm_(same_mesh, largest, norm)
    return norm


def count_local_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes that tensors take on this rank."""
    parts = [tensor.to_local() if hasattr(tensor, "placements") else tensor for tensor in tensors]
    return sum(part.numel() * part.element_size() for part in parts)


@contextmanager
def profile_steps(count: int) -> Iterator[Callable[[], None]]:
    """Record steps with torch.profiler: a trace per rank in the run's folder, and a table on rank 0.

    Yields a function to call at the end of each step. The first two steps are not recorded.
    """
    if not count:
        yield lambda: None
        return

    def write(profiler: torch.profiler.profile) -> None:
        folder = Path(os.environ.get("HPC_KIT_RUN", ""))
        profiler.export_chrome_trace(str(folder / f"trace-rank-{dist.get_rank()}.json"))
        if dist.get_rank() == 0:
            print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15), flush=True)

    plan = torch.profiler.schedule(skip_first=1, wait=0, warmup=1, active=count, repeat=1)
    with torch.profiler.profile(schedule=plan, on_trace_ready=write) as profiler:
        yield profiler.step


def flops_over_peak(options: Options, device: torch.device, devices: float) -> float | None:
    """Return the operations of a token over the 16-bit peak of all GPUs in a second; None if the peak is not known."""
    if device.type != "cuda" or not find_spec("hpc_kit"):
        return None
    from hpc_kit.planner import hardware

    try:
        peak = hardware.find_gpu(torch.cuda.get_device_name(device)).flops
    except SpecError:
        return None
    return options.model.flops_per_token / (peak * devices)


@dataclass
class Curve:
    """Losses and times of the updates of a parameter server, or of steps with one update for each worker."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    staleness: float = 0.0
    """Mean number of updates that a gradient was late: those after its parameters were read."""

    def smooth(self, count: int) -> dict[int, float]:
        """Return the mean of the last `count` losses by step."""
        first = min(count, len(self.losses))
        return {end: statistics.fmean(self.losses[end - first : end]) for end in range(first, len(self.losses) + 1)}

    def per_step(self, updates: int) -> Curve:
        """Return the curve of steps that have so many updates each."""
        losses = [sum(part) / updates for part in zip(*[iter(self.losses)] * updates, strict=True)]
        return Curve(losses, self.seconds[updates - 1 :: updates], self.staleness)


def compare_curves(curves: dict[str, Curve], count: int) -> tuple[list[str], dict[str, float]]:
    """Return the steps and seconds that each curve needs to the lowest loss that all reach, as lines and as values."""
    target = max(min(curve.smooth(count).values()) for curve in curves.values())
    lines, facts = [], {"loss_reached": target}
    for name, curve in curves.items():
        step = next(step for step, loss in curve.smooth(count).items() if loss <= target)
        seconds, late = curve.seconds[step - 1], curve.staleness
        reached = f"loss {target:.2f} after {step} steps, {seconds:.1f} s"
        lines.append(f"{name:<14} {reached}; a gradient {late:.1f} updates late")
        facts |= {f"{name}_steps": step, f"{name}_seconds": seconds, f"{name}_staleness": late}
    return lines, facts
