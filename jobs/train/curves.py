"""Two trainings held against one another: steps and seconds to a loss that both have reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from options import Options
from report import quantile, speed


@dataclass
class Curve:
    """What a parameter server saw of each update, or of each step: of as many gradients as there are workers."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stale: float = 0.0
    """Updates that the mean gradient came too late by."""

    def reached(self, loss: float, smooth: int) -> tuple[int, float]:
        """First step, and its time, at which the mean of the last few losses is not above `loss`."""
        for step in range(smooth, len(self.losses) + 1):
            if sum(self.losses[step - smooth : step]) / smooth <= loss:
                return step, self.seconds[step - 1]
        return len(self.losses), self.seconds[-1]

    def best(self, smooth: int) -> float:
        ends = range(min(smooth, len(self.losses)), len(self.losses) + 1)
        return min(sum(self.losses[max(0, end - smooth) : end]) / min(smooth, end) for end in ends)


def by_step(curve: Curve, updates: int, stale: float) -> Curve:
    """A loss for each step: the mean over its updates."""
    losses = [sum(part) / updates for part in zip(*[iter(curve.losses)] * updates, strict=True)]
    return Curve(losses, curve.seconds[updates - 1 :: updates], stale)


def compared(curves: Mapping[str, Curve], smooth: int) -> tuple[list[str], dict[str, float]]:
    """In words, and as figures."""
    target = max(curve.best(smooth) for curve in curves.values())
    lines, facts = [], {"loss_reached": target}
    for name, curve in curves.items():
        step, seconds = curve.reached(target, smooth)
        after = f"after {step} steps, {seconds:.1f} s; a gradient {curve.stale:.1f} updates late"
        lines.append(f"{name:<14} loss {target:.2f} {after}")
        facts |= {f"{name}_steps": step, f"{name}_seconds": seconds, f"{name}_staleness": curve.stale}
    return lines, facts


def speeds(curve: Curve, options: Options) -> dict[str, float]:
    """What every training tells of its steps."""
    times = [end - begin for begin, end in pairwise([0.0, *curve.seconds])]
    return {
        "loss_last": curve.losses[-1],
        "tokens_per_second": speed(options, times[1:] or times),
        "step_time_median": quantile(times, 0.5),
        "step_time_p95": quantile(times, 0.95),
        "steps": options.steps,
    }
