"""Measured numbers of a cluster, used instead of the built-in ones.

`hpc-kit plan calibrate` writes them: the rates of matrix products and memory, measured by `hpc_kit.planner.measure` on
one GPU, and the links, fitted to the all-reduces of `hpc-kit bench comm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.planner import hardware
from hpc_kit.planner.communication_time import network_share
from hpc_kit.planner.constants import Constants
from hpc_kit.planner.hardware import Gpu, Machine, RankGroup

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
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measurement)
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"cannot read {path}", found=str(error), remedy="hpc-kit plan calibrate writes it") from error


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
    try:
        path.write_text(json.dumps(msgspec.to_builtins(merged), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}", found=str(error), remedy="a folder that exists") from error


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


def fit_bandwidth(points: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Fit a line through (bytes, seconds); return the latency in seconds and bytes/s, or None as `fit_line` does."""
    line = fit_line(points)
    return (max(0.0, line.intercept), 1 / line.slope) if line else None


def _is_all_reduce(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a backend's own all-reduce, not a ring, a star or a link."""
    if row.get("algorithm", LIBRARY) != LIBRARY or "link" in row:
        return False
    return "all" in str(row["collective"]) and "reduce" in str(row["collective"]) and int(row["ranks"]) > 1


def _fastest_backend(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of the backend with the fastest large all-reduce; a line must not mix backends."""
    by_backend: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_backend.setdefault(str(row.get("backend", "")), []).append(row)

    def sort_key(own: list[Mapping[str, Any]]) -> tuple[int, float, float]:
        # Most ranks first, then the largest size, then the shortest time.
        largest = max(own, key=lambda row: (int(row["ranks"]), float(row["bytes"])))
        return -int(largest["ranks"]), -float(largest["bytes"]), float(largest["seconds"])

    return min(by_backend.values(), key=sort_key, default=[])


def fit_links(results: Iterable[Mapping[str, Any]], gpus_per_node: int, hosts: int | None = None) -> Measurement:
    """Fit the links inside a node and between nodes to the all-reduces of `hpc-kit bench comm`.

    A ring of n ranks moves 2 (n-1)/n of the bytes past each rank.

    Args:
        results: Rows of the result.
        gpus_per_node: Ranks that fill a node, used if `hosts` is unknown.
        hosts: Number of hosts of the ranks.
    """
    by_ranks: dict[int, list[tuple[float, float]]] = {}
    for row in _fastest_backend(row for row in results if _is_all_reduce(row)):
        ranks = int(row["ranks"])
        by_ranks.setdefault(ranks, []).append((2 * (ranks - 1) / ranks * float(row["bytes"]), float(row["seconds"])))
    nodes = {n: hosts or -(-n // gpus_per_node) for n in by_ranks}
    inside = max((n for n in by_ranks if nodes[n] == 1), default=0)
    across = min((n for n in by_ranks if nodes[n] > 1), default=0)
    link, network = (fit_bandwidth(by_ranks[n]) if n else None for n in (inside, across))
    found = Measurement()
    # An all-reduce passes the ring twice.
    if link:
        found = structs.replace(found, link=link[1], latency=link[0] / 2)
    if network:
        found = structs.replace(found, network=network[1], latency_network=network[0] / 2)
        found = structs.replace(found, nodes=nodes[across], per_node=max(1, across // nodes[across]))
    return found


def read_comm_result(path: Path, gpus_per_node: int) -> Measurement:
    """Fit the links to a file of `hpc-kit bench comm --json`.

    Raises:
        SpecError: The file cannot be read or is not such a result.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        hosts = document["machine"]["hosts"] if "machine" in document else []
        return fit_links(document["results"], gpus_per_node, len(hosts) or None)
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
