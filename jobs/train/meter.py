"""What a step costs: its time, and the parts of it in which a rank waits for gradients, activations or data.

Communication that hides behind the computation costs nothing and is not counted. Counted is the time that a rank spends
in `wait()`, for whatever travels; DDP waits in C++ instead, where its hook tells when this rank had its own gradients.
On a GPU it is the stream that computes which waits, and
events on it that tell how long; FSDP lets it wait for events of the streams that gather and scatter.
Such a wait is two things in one: the transfer, and the wait for slower ranks. The rank that is ready last waits for the
transfer alone. So the shortest wait of each step, over the ranks, is booked as communication; what the mean rank waits
beyond it, as waiting: the bubble of a pipeline, and the time that a slow rank costs the others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

Mark = float | torch.cuda.Event
LATEST = 1000


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
    data: list[float] = field(default_factory=list)
    busy: list[list[float]] = field(default_factory=list)
    """What each rank did not wait, in the latest steps: with many ranks these are many numbers."""

    @property
    def communication(self) -> float:
        """The share of the time that went into transfer."""
        return sum(self.transfer) / (sum(self.seconds) or 1.0)

    @property
    def imbalance(self) -> float:
        """The share of its time that the mean rank waited for slower ones."""
        return sum(self.waiting) / (sum(self.seconds) or 1.0)

    @property
    def data_share(self) -> float:
        """The share of its time in which the mean rank had no data."""
        return sum(self.data) / (sum(self.seconds) or 1.0)

    def slowest(self) -> tuple[int, float]:
        """The rank that the others wait for, and by what share it works longer than the median rank."""
        each = [statistics.median(times) for times in zip(*self.busy, strict=True)]
        most = max(each)
        return each.index(most), most / statistics.median(each) - 1


class Meter:
    """Marks the steps of this rank; `collect` reads the marks of all ranks, so a GPU is stopped at log lines only."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.all = Steps()
        self.fresh: list[tuple[Tensor | None, list[Mark], list[tuple[Mark, Mark]]]] = []
        self.marks: list[Mark] = []
        self.waits: list[tuple[Mark, Mark]] = []
        self.ready: Mark | None = None
        self.stream: object = None
        """Of a GPU the one that computes."""

    def mark(self) -> Mark:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        self.ready, self.waits = None, []
        if self.device.type == "cuda":
            self.stream = torch.cuda.current_stream(self.device)
        self.marks = [self.mark()]

    def data_arrived(self) -> None:
        self.marks.append(self.mark())

    def gradients_ready(self) -> None:
        self.ready = self.mark()

    def gradients_arrived(self) -> None:
        if self.ready is not None:
            self.waits.append((self.ready, self.mark()))

    def end(self, loss: Tensor | None) -> None:
        """The step is done; `loss` is None on a rank that does not see it: of a pipeline, all but the last stage."""
        self.fresh.append((loss, [*self.marks, self.mark()], self.waits))
        self.marks = []

    @contextmanager
    def watching(self, replica: DistributedDataParallel | None = None) -> Iterator[None]:
        """Mark every wait for a collective or a message that torch's Python code makes in a step, and DDP's."""
        if replica is not None:
            self.ask(replica)
        places = [(dist.Work, "wait"), (functional, "wait_tensor")]
        places += [(torch.cuda.Stream, "wait_event")] * (self.device.type == "cuda")
        waits = [(place, name, getattr(place, name)) for place, name in places]
        for place, name, wait in waits:
            setattr(place, name, self.marked(wait))
        try:
            yield
        finally:
            for place, name, wait in waits:
                setattr(place, name, wait)

    def ask(self, replica: DistributedDataParallel) -> None:
        """Let DDP tell when it hands over a bucket of gradients; the last one of a step counts."""

        def average(bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
            self.gradients_ready()
            return allreduce_hook(replica.process_group, bucket)

        # A lambda between: torch refuses a hook whose annotations are strings, as they are in this file.
        replica.register_comm_hook(None, lambda _, bucket: average(bucket))

    def marked(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def marked_wait(*arguments: Any, **named: Any) -> Any:
            # Streams that only carry messages wait for one another, too: that costs nothing.
            aside = any(isinstance(each, torch.cuda.Stream) and each != self.stream for each in arguments[:1])
            begun = self.mark() if self.marks and not aside else None
            result = wait(*arguments, **named)
            if begun is not None:
                self.waits.append((begun, self.mark()))
            return result

        return marked_wait

    def collect(self) -> Steps:
        """The steps since the last call, over all ranks; a collective: every rank must call it."""
        rows = [
            (
                0.0 if loss is None else loss.item(),
                float(loss is not None),
                seconds(marks[0], marks[-1]),
                sum(seconds(*wait) for wait in waits),
                seconds(marks[0], marks[1]),
            )
            for loss, marks, waits in self.fresh
        ]
        self.fresh.clear()
        mine = torch.tensor(rows, dtype=torch.float64, device=self.device)
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
        steps = over_ranks(torch.stack(ranks).cpu())
        for name, values in vars(self.all).items():
            values.extend(getattr(steps, name))
        del self.all.busy[:-LATEST]
        return steps


def over_ranks(rows: Tensor) -> Steps:
    """The steps of all ranks taken together: (ranks, steps, 5) of loss, whether it was seen, and three times."""
    losses, seen, whole, waits, data = rows.unbind(-1)
    shortest = waits.amin(0)
    return Steps(
        losses=(losses.sum(0) / seen.sum(0)).tolist(),
        seconds=whole.amax(0).tolist(),
        transfer=shortest.tolist(),
        waiting=(waits.mean(0) - shortest).tolist(),
        data=data.mean(0).tolist(),
        busy=(whole - waits).T.tolist(),
    )
