"""Measures one GPU (or one core) in a job: the rates of a large matrix product and of memory, and its size.

python -m hpc_kit.planner.measure env/mycluster.measured.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.planner.calibration import Measurement, add_measurement

if TYPE_CHECKING:
    import torch

SECONDS = 2.0
"""Duration of each measurement."""


def time_runs(work: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds of each run in a period of `seconds`, at least one, after one warm-up."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def measure_device(
    device: torch.device, seconds: float = SECONDS, summarize: Callable[[list[float]], float] = min
) -> Measurement:
    """Measure one device.

    Args:
        device: The device.
        seconds: Duration of each measurement.
        summarize: Chooses the time that counts: `min` for the rate that the device can reach, `statistics.mean` for
            the rate that it sustains.
    """
    import torch

    cuda = device.type == "cuda"

    def measure(work: Callable[[], object]) -> float:
        def synchronized_work() -> None:
            work()
            if cuda:
                torch.cuda.synchronize(device)

        return summarize(time_runs(synchronized_work, seconds))

    # Large enough for the full rate: 400 MB of matrices on a GPU, 12 MB on a core.
    size, dtype = (8192, torch.bfloat16) if cuda else (1024, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)
    flops = 2 * size**3 / measure(lambda: torch.mm(a, b, out=out))
    # Larger than the caches. A copy reads and writes each byte.
    source = torch.empty(2**30 if cuda else 2**26, device=device, dtype=torch.uint8)
    copy = torch.empty_like(source)
    bandwidth = 2 * source.numel() / measure(lambda: copy.copy_(source))
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
    add_measurement(path, measure_device(device))


if __name__ == "__main__":
    main()
