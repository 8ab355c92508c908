"""Reports a finished training: speed, waits and memory over all ranks, as lines on rank 0 and in the run's files."""

from __future__ import annotations

import math
import os
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from hpc_kit.runtime.process_group import Group
from hpc_kit.runtime.rendezvous.network import this_node_name
from hpc_kit.runtime.restart.all_ranks import gather
from hpc_kit.runtime.step_timer import StepTimer, spaced
from hpc_kit.runtime.summary import write_steps, write_summary


def report_training(
    world: Group,
    timer: StepTimer,
    report: Callable[[str], object],
    *,
    losses: Sequence[float],
    kept: Mapping[str, int],
    tokens: int,
    flops: float | None = None,
    **facts: str | float,
) -> str:
    """Report the measurements, and write summary.json and steps.json; a collective.

    Args:
        world: The ranks.
        timer: The measured steps.
        report: Prints a line, on rank 0 only.
        losses: Loss of each step.
        kept: Bytes that this rank keeps, by kind.
        tokens: Tokens of a step over all ranks.
        flops: Floating-point operations of a token, over those that the devices could do in a second. None: not known.
        facts: More values for the summary.

    Returns:
        Speed and memory, for the last line of the log.
    """
    times = timer.times
    hosts, ranks = zip(*gather((this_node_name(os.environ), dict(kept))), strict=True)
    most = {kind: max(each[kind] for each in ranks) / 2**20 for kind in kept}
    median, late = statistics.median(times.seconds), quantile(times.seconds, 0.95)
    line = f"time    step {median * 1000:.0f} ms, 95 % within {late * 1000:.0f} ms; "
    if timer.is_measured:
        rank, later = times.slowest_rank()
        facts |= {
            "communication_share": times.communication,
            "waiting_share": times.imbalance,
            "slowest_rank": rank,
            "slowest_host": hosts[rank],
            "slowest_by": later,
        }
        line += f"communication {times.communication:.0%}, waiting for ranks {times.imbalance:.0%}, for data "
        line += f"{times.data_share:.1%}; slowest: rank {rank} on {hosts[rank]}, {later:+.0%}"
    else:
        line += f"waiting for data {times.data_share:.1%}"
    lines = [line]
    if flops is not None:
        facts["mfu"] = flops * speed_of(times.seconds, tokens)
        lines.append(f"GPUs    {facts['mfu']:.1%} of their 16-bit peak (MFU)")
    lines.append(f"memory  most on a rank, MiB: {', '.join(f'{kind} {size:.2f}' for kind, size in most.items())}")
    facts |= {f"{kind}_mib": size for kind, size in most.items()}
    memory = summarize_training(world, times.seconds, tokens, **facts, data_share=times.data_share)
    busy = [quartiles(rank) for rank in zip(*times.busy, strict=True)]
    write_steps(loss=losses, seconds=times.seconds, tokens=tokens, busy=busy)
    for line in lines:
        report(line)
    return f", {spaced(speed_of(times.seconds, tokens))} tokens/s, peak {memory:.0f} MiB a rank"


def summarize_training(world: Group, seconds: Sequence[float], tokens: int, **facts: str | float) -> float:
    """Write summary.json: speed, memory and other facts, from the seconds of each step; a collective.

    Returns:
        The peak memory of the rank that needed most, in MiB.
    """
    memory = gather(peak_memory_mib(world.device))
    write_summary(
        tokens_per_second=speed_of(seconds, tokens),
        step_time_median=statistics.median(seconds),
        step_time_p95=quantile(seconds, 0.95),
        steps=len(seconds),
        peak_memory_mib=max(memory),
        memory_mib_per_rank=" ".join(f"{each:.0f}" for each in memory),
        **facts,
    )
    return max(memory)


def speed_of(seconds: Sequence[float], tokens: int) -> float:
    """Return tokens per second. The first step compiles, and allocates what later steps reuse; it does not count."""
    counted = seconds[1:] or seconds
    return tokens * len(counted) / sum(counted)


def peak_memory_mib(device: torch.device) -> float:
    """Return the most memory that torch had on the GPU, or else the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the values at a quarter, at the middle and at three quarters."""
    return quantile(values, 0.25), statistics.median(values), quantile(values, 0.75)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below this share of the values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
