"""What rank 0 says: a line now and then, and how it all ended."""

from __future__ import annotations

import math
import resource
import socket
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.runtime import write_steps, write_summary
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
    held: Mapping[str, int]
    """Bytes of parameters, gradients and optimizer state on this rank."""


def step_line(options: Options, world: Group, done: int, steps: Steps) -> None:
    """One line; its loss is that of the last step, its speed that of the steps since the line before.

    Raises:
        JobFailed: the loss is no number any more. All ranks have the same losses here, so all stop.
    """
    for number, loss in enumerate(steps.losses, done - len(steps.losses) + 1):
        finite(loss, "loss in", number, options)
    line = (
        f"step {done}/{options.steps}   loss {steps.losses[-1]:.2f}   {spaced(speed(options, steps.seconds))} tokens/s"
    )
    say(world, line if options.unwatched else f"{line}   {steps.communication * 100:.0f} % communication")


def finite(loss: float, what: str, step: int, options: Options) -> float:
    """The loss, if it is one.

    Raises:
        JobFailed: it is no number any more.
    """
    if math.isfinite(loss):
        return loss
    raise JobFailed(
        "the training diverged",
        found=f"{what} step {step} of {options.steps} is {loss}; --lr {options.lr} --warmup {options.warmup}",
        remedy="a smaller --lr or a longer --warmup",
    )


def conclude(options: Options, world: Group, result: Result, facts: Mapping[str, str | float]) -> None:
    """The run in a few lines for people, and in the run's summary.json for programs; a collective."""
    steps = result.steps
    hosts, memory, held = zip(*gather((host_of(world), peak_memory(world), result.held)), strict=True)
    most = {name: max(each[name] for each in held) / 2**20 for name in result.held}
    # The first step compiles, and makes what later ones reuse.
    tokens = speed(options, steps.seconds[1:] or steps.seconds)
    used = utilisation(options, world, tokens, float(facts.get("devices", world.world_size)))
    if world.is_main:
        write_summary(
            loss_first=result.before,
            loss_last=result.after,
            tokens_per_second=tokens,
            **durations(steps),
            peak_memory_mib=max(memory),
            memory_mib_per_rank=" ".join(f"{each:.0f}" for each in memory),
            **{f"{name}_mib": size for name, size in most.items()},
            data_share=steps.data_share,
            **({} if options.unwatched else waits(steps, hosts)),
            **({} if used is None else {"mfu": used}),
            **facts,
        )
        write_steps(
            loss=steps.losses,
            seconds=steps.seconds,
            tokens=options.global_batch * options.sequence,
            busy=[quartiles(times) for times in zip(*steps.busy, strict=True)],
        )
    say(world, time_line(options, steps, hosts))
    if used is not None:
        say(world, f"GPUs    {used:.1%} of their 16-bit peak (MFU)")
    sizes = ", ".join(f"{name} {size:.2f}" for name, size in most.items())
    say(world, f"memory  most on a rank, MiB: {sizes}")
    losses = f"{result.before:.2f} -> {result.after:.2f}"
    say(world, f"done    validation loss {losses}, {spaced(tokens)} tokens/s, peak {max(memory):.0f} MiB a rank")


def durations(steps: Steps) -> dict[str, float]:
    return {
        "step_time_median": statistics.median(steps.seconds),
        "step_time_p95": quantile(steps.seconds, 0.95),
        "steps": len(steps.seconds),
    }


def waits(steps: Steps, hosts: Sequence[str]) -> dict[str, str | float]:
    """What the ranks have waited for."""
    rank, later = steps.slowest()
    return {
        "communication_share": steps.communication,
        "waiting_share": steps.imbalance,
        "slowest_rank": rank,
        "slowest_host": hosts[rank],
        "slowest_by": later,
    }


def time_line(options: Options, steps: Steps, hosts: Sequence[str]) -> str:
    median, late = statistics.median(steps.seconds), quantile(steps.seconds, 0.95)
    line = f"time    step {median * 1000:.0f} ms, 95 % within {late * 1000:.0f} ms"
    if options.unwatched:
        return f"{line}; waiting for data {steps.data_share:.1%}"
    rank, later = steps.slowest()
    return (
        f"{line}; communication {steps.communication:.0%}, waiting for ranks {steps.imbalance:.0%},"
        f" for data {steps.data_share:.1%}; slowest: rank {rank} on {hosts[rank]}, {later:+.0%}"
    )


def utilisation(options: Options, world: Group, tokens: float, gpus: float) -> float | None:
    """Model FLOPs over what the GPUs could do at their 16-bit peak; None without GPUs, or where theirs is not known."""
    if world.device.type != "cuda":
        return None
    from hpc_kit.planner import hardware

    try:
        peak = hardware.gpu(torch.cuda.get_device_name(world.device)).flops
    except SpecError:
        return None
    return tokens * options.model.flops_per_token / (peak * gpus)


def host_of(world: Group) -> str:
    """This rank's node, as Slurm calls it; else as it calls itself."""
    return world.hosts[world.node_rank] if world.hosts else socket.gethostname()


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    return quantile(values, 0.25), statistics.median(values), quantile(values, 0.75)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below this share of them."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def speed(options: Options, seconds: Sequence[float]) -> float:
    """Tokens a second over all ranks; evaluations are not in it."""
    return options.global_batch * options.sequence * len(seconds) / sum(seconds)


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
