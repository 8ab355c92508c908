"""Measured numbers of a cluster, used instead of the built-in ones.

`hpc-kit plan calibrate` writes them: the links, fitted to the all-reduces of `hpc-kit bench comm`, and the rates of
matrix products and memory of one GPU (or core). A job measures these with
`python -m hpc_kit.planner.calibration env/mycluster.measured.json`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import HpcKitError, SpecError, explain_file_errors
from hpc_kit.planner import hardware
from hpc_kit.planner.communication_time import network_share
from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import Gpu, Machine, RankGroup

if TYPE_CHECKING:
    import torch

LIBRARY = "library"
"""Algorithm of the backend itself in the results of `hpc-kit bench comm`."""


class Measurement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Measured numbers; None: not measured.

    Attributes:
        flops: Operations/s of the fastest large 16-bit matrix product.
        bandwidth: Bytes/s of GPU memory.
        memory: Bytes of GPU memory.
        link: Bytes/s past each rank of a ring inside a node.
        latency: Seconds of one pass around this ring without data.
        network: Bytes/s past each rank of a ring over `nodes` nodes with `per_node` ranks on each.
        latency_network: Seconds of one pass around this ring without data.
        nodes: Default: 2.
        per_node: Default: 1.
    """

    gpu: str = ""
    flops: float | None = None
    bandwidth: float | None = None
    memory: float | None = None
    link: float | None = None
    latency: float | None = None
    network: float | None = None
    latency_network: float | None = None
    nodes: int | None = None
    per_node: int | None = None


def read_measurement(path: Path) -> Measurement:
    """Read the numbers of a calibration.

    Raises:
        SpecError: The file is missing or is not a calibration.
    """
    with explain_file_errors(
        SpecError, f"cannot read {path}", "hpc-kit plan calibrate writes it", also=(msgspec.DecodeError,)
    ):
        return msgspec.json.decode(path.read_bytes(), type=Measurement)


def merge_measurements(one: Measurement, other: Measurement) -> Measurement:
    """Merge two measurements; numbers of `other` take precedence."""
    # The plain values leave out numbers that were not measured, because the struct omits defaults.
    return structs.replace(one, **msgspec.to_builtins(other))


def add_measurement(path: Path, measured: Measurement) -> None:
    """Write numbers to a calibration; its other numbers stay.

    Raises:
        SpecError: The file is not a calibration, or cannot be written.
    """
    merged = merge_measurements(read_measurement(path), measured) if path.exists() else measured
    with explain_file_errors(SpecError, f"cannot write {path}", "a folder that exists"):
        path.write_text(json.dumps(msgspec.to_builtins(merged), indent=1) + "\n", encoding="utf-8")


def select_for_gpu(measured: Measurement, card: Gpu) -> Measurement:
    """Return the numbers that apply to a GPU: only the links if another GPU was measured."""
    if not measured.gpu:
        return measured
    try:
        is_same = hardware.find_gpu(measured.gpu, allow_similar=True).name == card.name
    except SpecError:
        # The measured GPU is not in the table. If the planned one is not either, the user has described this GPU.
        is_same = card.name not in hardware.gpu_names()
    return measured if is_same else structs.replace(measured, gpu="", flops=None, bandwidth=None, memory=None)


def apply_measurement(measured: Measurement, machine: Machine, fitted: Constants) -> tuple[Machine, Constants]:
    """Replace built-in numbers by measured ones.

    A measured link replaces both the data sheet's number and the share of it that is reached.
    """
    gpu = machine.gpu
    if measured.flops:
        gpu = structs.replace(gpu, measured=measured.flops / gpu.flops)
    gpu = structs.replace(gpu, bandwidth=measured.bandwidth or gpu.bandwidth, memory=measured.memory or gpu.memory)
    if measured.link:
        gpu = structs.replace(gpu, link=measured.link)
        fitted = structs.replace(fitted, link=1.0)
    if measured.latency is not None:
        fitted = structs.replace(fitted, latency=measured.latency)
    if measured.network:
        nodes, per_node = max(2, measured.nodes or 2), measured.per_node or 1
        ring = RankGroup(nodes * per_node, per_node, nodes)
        # The inverse of `ring_bandwidth` and `collective_latency`.
        machine = structs.replace(machine, network=measured.network / network_share(fitted, ring))
        fitted = structs.replace(fitted, network=1.0)
        if measured.latency_network is not None:
            between_nodes = max(0.0, measured.latency_network - fitted.latency)
            fitted = structs.replace(fitted, latency_network=between_nodes / (ring.nodes - 1))
    return structs.replace(machine, gpu=gpu), fitted


def fit_links(results: Iterable[Mapping[str, Any]], hosts: int) -> Measurement:
    """Fit the links of a node, or between several hosts, to the all-reduces of `hpc-kit bench comm`.

    A ring of n ranks moves 2 (n-1)/n of the bytes past each rank, and an all-reduce passes it twice. Rows of rings,
    stars and links are ignored.
    """
    by_backend: dict[str, list[tuple[float, float]]] = defaultdict(list)
    ranks = 1
    for row in results:
        if row.get("collective") == "all_reduce" and row.get("algorithm", LIBRARY) == LIBRARY:
            ranks = int(row["ranks"])
            moved = 2 * (ranks - 1) / ranks * float(row["bytes"])
            by_backend[str(row.get("backend"))].append((moved, float(row["seconds"])))
    # A line must not mix backends: the one with the fastest all-reduce of the largest size counts.
    points = min(by_backend.values(), key=lambda own: max(own)[1], default=[])
    if (line := fit_line(points)) is None:
        return Measurement()
    bandwidth, latency = 1 / line.slope, max(0.0, line.intercept) / 2
    if hosts == 1:
        return Measurement(link=bandwidth, latency=latency)
    return Measurement(network=bandwidth, latency_network=latency, nodes=hosts, per_node=max(1, ranks // hosts))


def read_comm_result(path: Path) -> Measurement:
    """Fit the links to a file of `hpc-kit bench comm --json`.

    Raises:
        SpecError: The file cannot be read or is not such a result.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return fit_links(document["results"], len(document["machine"]["hosts"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"cannot read {path}",
            found=f"{type(error).__name__}: {error}",
            remedy="the output of hpc-kit bench comm --json",
        ) from error


class FittedLine(NamedTuple):
    """A line through measured times: seconds = intercept + slope x bytes."""

    intercept: float
    """Seconds of an empty message: the latency alpha."""
    slope: float
    """Seconds per byte, beta; the bandwidth is 1 / slope."""
    intercept_error: float | None
    """One standard error; None with as many points as unknowns."""
    slope_error: float | None


def fit_line(points: Iterable[tuple[float, float]]) -> FittedLine | None:
    """Fit a line through (bytes, seconds), weighted by relative errors.

    The shortest message therefore weighs as much as the longest. The standard errors come from the residuals. Returns
    None with fewer than two sizes, or if the time does not grow with the size.

    Raises:
        HpcKitError: numpy is not installed.
    """
    known = [(float(size), seconds) for size, seconds in points if seconds > 0]
    if len({size for size, _ in known}) < 2:
        return None
    try:
        import numpy as np
    except ImportError:
        raise HpcKitError(
            "numpy is not installed", found="the fit of the links needs numpy", remedy="pip install 'hpc_kit[plan]'"
        ) from None
    # The weights of polyfit multiply the residuals, so 1 / seconds makes them relative.
    sizes, seconds = np.array(known).T
    intercept_error = slope_error = None
    if len(known) < 3:  # The line meets both points, so there are no residuals.
        slope, intercept = np.polyfit(sizes, seconds, 1)
    else:
        (slope, intercept), covariance = np.polyfit(sizes, seconds, 1, w=1 / seconds, cov=True)
        slope_error, intercept_error = map(float, np.sqrt(np.diag(covariance)))
    # Equal times give a slope of about 1e-17 by rounding.
    grows = slope * np.ptp(sizes) > 1e-9 * seconds.min()
    return FittedLine(float(intercept), float(slope), intercept_error, slope_error) if grows else None


PERIOD_SECONDS = 2.0
"""Duration of each measurement of a device."""


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
    device: torch.device, seconds: float = PERIOD_SECONDS, summarize: Callable[[list[float]], float] = min
) -> Measurement:
    """Measure one device. Each measurement takes `seconds`.

    `summarize` chooses the time that counts: `min` for the rate that the device can reach, `statistics.mean` for the
    rate that it sustains.
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
