"""Measures the steps of a training: their time, and how long each rank waits for messages and for data."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from hpc_kit.runtime.process_group import Group

Mark = float | torch.cuda.Event
LATEST = 1000


@dataclass
class StepTimes:
    """Measurements of steps over all ranks, one entry per step."""

    seconds: list[float] = field(default_factory=list)
    """Seconds of the step on the rank that needed most."""
    transfer: list[float] = field(default_factory=list)
    """Seconds of communication: the shortest wait of a rank."""
    waiting: list[float] = field(default_factory=list)
    """Seconds that the mean rank waited beyond `transfer`."""
    data: list[float] = field(default_factory=list)
    """Seconds that the mean rank waited for data."""
    busy: list[list[float]] = field(default_factory=list)
    """Seconds that each rank did not wait, of the latest steps only: with many ranks these are many numbers."""

    @property
    def communication(self) -> float:
        """Share of the time that went into transfer."""
        return self._share(self.transfer)

    @property
    def imbalance(self) -> float:
        """Share of the time that the mean rank waited for slower ranks."""
        return self._share(self.waiting)

    @property
    def data_share(self) -> float:
        """Share of the time that the mean rank waited for data."""
        return self._share(self.data)

    def _share(self, seconds: list[float]) -> float:
        return sum(seconds) / (sum(self.seconds) or 1.0)

    def slowest_rank(self) -> tuple[int, float]:
        """Return the rank that works longest, and by what share longer than the median rank."""
        medians = [statistics.median(times) for times in zip(*self.busy, strict=True)]
        longest = max(medians)
        return medians.index(longest), longest / statistics.median(medians) - 1


class StepTimer:
    """Measures the steps of this rank.

    Communication that runs beside the computation costs nothing and is not counted. On a CPU, a rank waits while its
    main thread is blocked: the thread neither computes nor queues for a processor. On a GPU, DistributedDataParallel's
    communication hook marks when the last gradients are ready, and the wait ends with the backward pass; for other
    strategies use --profile.
    A wait has two parts: the transfer, and the wait for slower ranks. The rank that is ready last waits for the
    transfer alone. So the shortest wait of a step over the ranks counts as communication, and what the mean rank waits
    beyond it as waiting: a slow rank, or the bubble of a pipeline.
    """

    def __init__(self, world: Group, replica: DistributedDataParallel | None, *, is_measured: bool) -> None:
        self.device, self.is_cuda, self.times = world.device, world.device.type == "cuda", StepTimes()
        self.is_measured = is_measured and (not self.is_cuda or replica is not None)
        self.is_alone = world.world_size == 1
        self.marks: list[Mark] = []
        self.blocked = 0.0
        self.gradients_ready: Mark | None = None
        self.gpu_wait: tuple[Mark, Mark] | None = None
        self.finished: list[tuple[list[Mark], float | tuple[Mark, Mark] | None]] = []
        if self.is_cuda and replica is not None:
            group = replica.process_group

            def average(bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
                self.gradients_ready = self.mark()  # the last bucket of a step counts
                return allreduce_hook(group, bucket)

            # A lambda: torch refuses a hook whose annotations are strings, as they are in this file.
            replica.register_comm_hook(None, lambda _, bucket: average(bucket))

    def mark(self) -> Mark:
        """Return the time of the clock, or an event that the GPU records at this point of its work."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin_step(self) -> None:
        """Begin a step: the rank loads its data."""
        self.gradients_ready = self.gpu_wait = None
        self.marks = [self.mark()]

    def end_loading(self) -> None:
        """Record that the data have arrived and the rank computes."""
        self.marks.append(self.mark())
        self.blocked = -blocked_seconds()

    def end_backward(self) -> None:
        """Record that the gradients are averaged."""
        if self.gradients_ready is not None:
            self.gpu_wait = (self.gradients_ready, self.mark())

    def end_step(self) -> None:
        """Record that the parameters are updated, which ends the step."""
        blocked = 0.0 if self.is_alone else self.blocked + blocked_seconds()
        self.finished.append(([*self.marks, self.mark()], self.gpu_wait if self.is_cuda else blocked))

    def collect(self, tokens: int) -> str:
        """Add the steps since the last call to `times`, over all ranks; a collective.

        A GPU is synchronized only here.

        Args:
            tokens: Tokens of a step over all ranks.

        Returns:
            The speed of these steps, for a line of the log.
        """
        rows = [
            (
                seconds_between(marks[0], marks[-1]),
                seconds_between(*wait) if isinstance(wait, tuple) else max(0.0, wait or 0.0),
                seconds_between(marks[0], marks[1]),
            )
            for marks, wait in self.finished
        ]
        self.finished.clear()
        mine = torch.tensor(rows, dtype=torch.float64, device=self.device)
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
        steps = combine_ranks(torch.stack(ranks).cpu())
        for name, values in vars(self.times).items():
            values.extend(getattr(steps, name))
        del self.times.busy[:-LATEST]
        speed = f"   {spaced(tokens * len(rows) / sum(steps.seconds))} tokens/s"
        return f"{speed}   {steps.communication * 100:.0f} % communication" if self.is_measured else speed


def blocked_seconds() -> float:
    """Return a clock that runs while this thread is blocked, from the kernel's accounting (schedstat)."""
    queued = 0.0
    with suppress(OSError):
        # On a shared machine a thread that is ready waits for a processor. That is not communication.
        queued = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.perf_counter() - time.thread_time() - queued


def seconds_between(start: Mark, end: Mark) -> float:
    """Return the seconds between two marks; waits until a GPU has reached the second."""
    if isinstance(start, float) or isinstance(end, float):
        return float(end) - float(start)  # type: ignore[arg-type]
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def combine_ranks(rows: Tensor) -> StepTimes:
    """Combine the steps of all ranks: (ranks, steps, 3) of the seconds of a step, of its waits and of its loading."""
    seconds, waits, data = rows.unbind(-1)
    shortest = waits.amin(0)
    return StepTimes(
        seconds=seconds.amax(0).tolist(),
        transfer=shortest.tolist(),
        waiting=(waits.mean(0) - shortest).tolist(),
        data=data.mean(0).tolist(),
        busy=(seconds - waits).T.tolist(),
    )


def spaced(number: float) -> str:
    """Format a number with three digits and spaces: 21384.2 -> "21 400"."""
    return f"{float(f'{number:.3g}'):,.0f}".replace(",", " ")
