"""How long a pipeline stands idle, by schedule."""

from __future__ import annotations

from collections.abc import Sequence


def of_ideal(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle time as a fraction of the ideal time: GPipe and 1F1B (p-1)/m, interleaved (p-1)/(v m)."""
    return (stages - 1) / (virtual_stages * micro_batches)


def step(times: Sequence[float], micro_batches: int, virtual_stages: int = 1) -> float:
    """Seconds of one pipelined step whose stages take `times` seconds for forward and backward of a micro-batch.

    The slowest stage works through all micro-batches; filling and draining takes the others once, divided by the chunks
    that are interleaved. With equal stages it is (m + (p-1)/v) t.
    """
    slowest = max(times)
    return micro_batches * slowest + (sum(times) - slowest) / virtual_stages
