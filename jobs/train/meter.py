"""What a step costs: its time, and the part of it in which a rank waits for gradients.

Communication that hides behind the backward pass costs nothing and is not counted. Counted is the time from the moment
when a rank has its own last gradient until backward returns with the mean over all ranks. That is two things in one:
the transfer, and the wait for slower ranks. The rank that is ready last waits for the transfer alone. So the shortest
wait of each step, over the ranks, is booked as communication; what the mean rank waits beyond it, as waiting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

Mark = float | torch.cuda.Event


def seconds(start: Mark, end: Mark) -> float:
    if isinstance(start, float) or isinstance(end, float):
        return float(end) - float(start)  # type: ignore[arg-type]
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


@dataclass
class Steps:
    """Steps as seen over all ranks, an entry each."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    transfer: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)

    @property
    def communication(self) -> float:
        """The share of the time that went into transfer."""
        return sum(self.transfer) / (sum(self.seconds) or 1.0)

    @property
    def imbalance(self) -> float:
        """The share of its time that the mean rank waited for slower ones."""
        return sum(self.waiting) / (sum(self.seconds) or 1.0)


class Meter:
    """Marks the steps of this rank; `collect` reads the marks of all ranks, so a GPU is stopped at log lines only."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.all = Steps()
        self.fresh: list[tuple[Tensor, Mark, Mark, Mark, Mark]] = []

    def mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        self.begun = self.ready = self.arrived = self.mark()

    def gradients_ready(self) -> None:
        self.ready = self.mark()

    def gradients_arrived(self) -> None:
        self.arrived = self.mark()

    def end(self, loss: Tensor) -> None:
        self.fresh.append((loss, self.begun, self.ready, self.arrived, self.mark()))

    def collect(self) -> Steps:
        """The steps since the last call, over all ranks; a collective: every rank must call it."""
        rows = [
            (loss.item(), seconds(begun, end), seconds(ready, arrived))
            for loss, begun, ready, arrived, end in self.fresh
        ]
        self.fresh.clear()
        mine = torch.tensor(rows, dtype=torch.float64, device=self.device)
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
        losses, whole, waits = torch.stack(ranks).cpu().unbind(-1)
        shortest = waits.amin(0)
        steps = Steps(
            losses.mean(0).tolist(), whole.amax(0).tolist(), shortest.tolist(), (waits.mean(0) - shortest).tolist()
        )
        for name, values in vars(self.all).items():
            values.extend(getattr(steps, name))
        return steps


def watch(replica: DistributedDataParallel, meter: Meter) -> None:
    """Let DDP tell the meter when it hands over a bucket of gradients; the last one of a step counts."""

    def average(bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        meter.gradients_ready()
        return allreduce_hook(replica.process_group, bucket)

    # A lambda between: torch refuses a hook whose annotations are strings, as they are in this file.
    replica.register_comm_hook(None, lambda _, bucket: average(bucket))
