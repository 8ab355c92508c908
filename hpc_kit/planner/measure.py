"""Measures one GPU (or one core) in a job: the rates of a large matrix product and of memory, and its size.

python -m hpc_kit.planner.measure env/mycluster.measured.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.planner.calibration import Measurement, merge_measurements, read_measurement, write_measurement

if TYPE_CHECKING:
    import torch

SECONDS = 2.0
"""Duration of each measurement."""


def best_time(work: Callable[[], object], settle: Callable[[], object], seconds: float = SECONDS) -> float:
    """Return the seconds of the fastest of many runs, after one warm-up."""
    work()
    settle()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        settle()
        best = min(best, time.perf_counter() - begin)
    return best


def mean_time(work: Callable[[], object], settle: Callable[[], object], seconds: float = SECONDS) -> float:
    """Return the mean seconds of the runs in a period, after one warm-up."""
    work()
    settle()
    runs, begin = 0, time.perf_counter()
    while not runs or time.perf_counter() - begin < seconds:
        work()
        settle()
        runs += 1
    return (time.perf_counter() - begin) / runs


def measure_device(
    device: torch.device, seconds: float = SECONDS, timer: Callable[..., float] = best_time
) -> Measurement:
    """Measure one device.

    Args:
        device: The device.
        seconds: Duration of each measurement.
        timer: `best_time`, for the rate that the device can reach, or `mean_time`, for the rate that it keeps up.
    """
    import torch

    cuda = device.type == "cuda"
    size, kind = (8192, torch.bfloat16) if cuda else (1024, torch.float32)
    settle: Callable[[], object] = torch.cuda.synchronize if cuda else (lambda: None)
    a = torch.randn(size, size, device=device, dtype=kind)
    b = torch.randn(size, size, device=device, dtype=kind)
    out = torch.empty_like(a)
    flops = 2 * size**3 / timer(lambda: torch.mm(a, b, out=out), settle, seconds)
    many = torch.empty(2**30 if cuda else 2**26, device=device, dtype=torch.uint8)
    copy = torch.empty_like(many)
    bandwidth = 2 * many.numel() / timer(lambda: copy.copy_(many), settle, seconds)
    name = torch.cuda.get_device_name(device) if cuda else "cpu"
    memory = float(torch.cuda.get_device_properties(device).total_memory) if cuda else None
    return Measurement(gpu=name, flops=flops, bandwidth=bandwidth, memory=memory)


def main() -> None:
    """Measure this process's device and add the numbers to the named file."""
    import torch

    path = Path(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    found = measure_device(device)
    write_measurement(path, merge_measurements(read_measurement(path), found) if path.exists() else found)


if __name__ == "__main__":
    main()
