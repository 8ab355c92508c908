"""What rank 0 says: a line now and then, and how it all ended."""

from __future__ import annotations

import math
import resource
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hpc_kit.errors import JobFailed
from hpc_kit.runtime import write_summary
from meter import Steps
from options import Options
from ranks import gather

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


@dataclass(frozen=True)
class Result:
    """Validation loss before and after, and what each step was like."""

    before: float
    after: float
    steps: Steps


def step_line(options: Options, world: Group, done: int, steps: Steps) -> None:
    """One line; its loss is that of the last step, its speed that of the steps since the line before.

    Raises:
        JobFailed: the loss is no number any more. All ranks have the same losses here, so all stop.
    """
    for number, loss in enumerate(steps.losses, done - len(steps.losses) + 1):
        if not math.isfinite(loss):
            found = f"loss {loss} in step {number} of {options.steps}; --lr {options.lr} --warmup {options.warmup}"
            raise JobFailed("the training diverged", found=found, remedy="a smaller --lr or a longer --warmup")
    say(
        world,
        f"step {done}/{options.steps}   loss {steps.losses[-1]:.2f}   "
        f"{spaced(speed(options, steps))} tokens/s   {steps.communication * 100:.0f} % communication",
    )


def conclude(options: Options, world: Group, result: Result) -> None:
    """The run in one line for people, and in the run's summary.json for programs."""
    steps, tokens = result.steps, speed(options, result.steps)
    peak = max(gather(peak_memory(world)))
    if world.is_main:
        write_summary(
            loss_first=result.before,
            loss_last=result.after,
            tokens_per_second=tokens,
            peak_memory_mib=peak,
            communication_share=steps.communication,
            waiting_share=steps.imbalance,
            steps=len(steps.seconds),
            step_time_median=statistics.median(steps.seconds),
        )
    losses = f"{result.before:.2f} -> {result.after:.2f}"
    say(world, f"done    validation loss {losses}, {spaced(tokens)} tokens/s, peak {peak:.0f} MiB a rank")


def speed(options: Options, steps: Steps) -> float:
    """Tokens a second over all ranks; evaluations are not in it."""
    return options.global_batch * options.sequence * len(steps.seconds) / sum(steps.seconds)


def peak_memory(world: Group) -> float:
    """This rank's in MiB: what torch held of the GPU, or else the whole process."""
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def spaced(number: float) -> str:
    """21384.2 -> "21 400"."""
    return f"{float(f'{number:.3g}'):,.0f}".replace(",", " ")


def say(world: Group, line: str) -> None:
    if world.is_main:
        print(line, flush=True)
