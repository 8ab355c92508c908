"""Numbers measured on the user's own cluster, in place of the built-in ones.

`hpc-kit plan calibrate` writes them: the rate of a large matrix product and of the memory, by `hpc_kit.planner.measure`
on one GPU; time over bytes of all-reduces, by the results of `hpc-kit bench comm`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.planner import hardware
from hpc_kit.planner.communication_time import network_share
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.hardware import Gpu, Machine, RankGroup

LIBRARY = "library"
"""In the results of `hpc-kit bench comm`, the algorithm of what the backend itself does."""


class Measurement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was measured; None: was not.

    Attributes:
        flops: Operations/s of the fastest large 16-bit matrix product.
        bandwidth: Bytes/s of GPU memory.
        memory: Bytes of GPU memory.
        link: Bytes/s past each rank of a ring inside a node; `latency`: seconds of one pass besides.
        network: The same of a ring over `nodes` nodes (2) with `per_node` ranks on each (1); `latency_network`.
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
    """The numbers that a calibration wrote.

    Raises:
        SpecError: No such file, or not one of these.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measurement)
    except (OSError, msgspec.DecodeError) as error:
        raise SpecError(f"cannot read {path}", found=str(error), remedy="hpc-kit plan calibrate writes it") from error


def write_measurement(path: Path, measured: Measurement) -> None:
    """Keep the numbers.

    Raises:
        SpecError: The file cannot be written.
    """
    try:
        path.write_text(json.dumps(msgspec.to_builtins(measured), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}", found=str(error), remedy="a folder that exists") from error


def select_for_gpu(measured: Measurement, card: Gpu) -> Measurement:
    """What of the numbers holds for a GPU: the links alone, where they were measured with another one."""
    if not measured.gpu:
        return measured
    try:
        same = hardware.find_gpu(measured.gpu, allow_similar=True).name == card.name
    except SpecError:  # not in the table, and no more can be its description on the command line or in a cluster file
        same = card.name not in hardware.gpu_names()
    return measured if same else structs.replace(measured, gpu="", flops=None, bandwidth=None, memory=None)


def apply_measurement(measured: Measurement, machine: Machine, rates: Rates) -> tuple[Machine, Rates]:
    """Machine and constants with measured numbers in place of built-in ones.

    A measured link replaces the data sheet's and the share of it that is reached.
    """
    gpu = machine.gpu
    if measured.flops:
        gpu = structs.replace(gpu, measured=measured.flops / gpu.flops)
    gpu = structs.replace(gpu, bandwidth=measured.bandwidth or gpu.bandwidth, memory=measured.memory or gpu.memory)
    if measured.link:
        gpu = structs.replace(gpu, link=measured.link)
        rates = structs.replace(rates, link=1.0)
    if measured.latency is not None:
        rates = structs.replace(rates, latency=measured.latency)
    if measured.network:
        ring = _ring_group(measured)
        machine = structs.replace(machine, network=measured.network / network_share(rates, ring))
        rates = structs.replace(rates, network=1.0)
        if measured.latency_network is not None:
            more = max(0.0, measured.latency_network - rates.latency)
            rates = structs.replace(rates, latency_network=more / (ring.nodes - 1))
    return structs.replace(machine, gpu=gpu), rates


def _ring_group(measured: Measurement) -> RankGroup:
    nodes, per_node = max(2, measured.nodes or 2), measured.per_node or 1
    return RankGroup(nodes * per_node, per_node, nodes)


def fit_bandwidth(points: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """(seconds before the first byte, bytes/s) through (bytes, seconds); None as in `straight.fit`."""
    found = fit_line(points)
    return (max(0.0, found.start), 1 / found.slope) if found else None


def _is_all_reduce(row: Mapping[str, Any]) -> bool:
    """Whether a row is an all-reduce of a backend itself: rings and stars of plain messages, and links, are others."""
    if row.get("algorithm", LIBRARY) != LIBRARY or "link" in row:
        return False
    return "all" in str(row["collective"]) and "reduce" in str(row["collective"]) and int(row["ranks"]) > 1


def _fastest_backend(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the backend whose largest all-reduce is the quickest: a line through two backends is neither's."""
    by_backend: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_backend.setdefault(str(row.get("backend", "")), []).append(row)

    def order(own: list[Mapping[str, Any]]) -> tuple[int, float, float]:
        last = max(own, key=lambda row: (int(row["ranks"]), float(row["bytes"])))
        return -int(last["ranks"]), -float(last["bytes"]), float(last["seconds"])

    return min(by_backend.values(), key=order, default=[])


def fit_links(results: Iterable[Mapping[str, Any]], gpus_per_node: int, hosts: int | None = None) -> Measurement:
    """Links from the results of `hpc-kit bench comm`: all-reduces inside a node, and beyond it.

    A ring of n ranks moves 2 (n-1)/n of the bytes past each.

    Args:
        results: Its rows.
        gpus_per_node: How many ranks fill a node, where `hosts` is not known.
        hosts: On how many hosts the ranks were.
    """
    by_ranks: dict[int, list[tuple[float, float]]] = {}
    for row in _fastest_backend(row for row in results if _is_all_reduce(row)):
        ranks = int(row["ranks"])
        by_ranks.setdefault(ranks, []).append((2 * (ranks - 1) / ranks * float(row["bytes"]), float(row["seconds"])))
    nodes = {n: hosts or -(-n // gpus_per_node) for n in by_ranks}
    inside = max((n for n in by_ranks if nodes[n] == 1), default=0)
    outside = min((n for n in by_ranks if nodes[n] > 1), default=0)
    near, far = (fit_bandwidth(by_ranks[n]) if n else None for n in (inside, outside))
    found = Measurement()
    if near:
        found = structs.replace(found, link=near[1], latency=near[0] / 2)
    if far:
        found = structs.replace(found, network=far[1], latency_network=far[0] / 2)
        found = structs.replace(found, nodes=nodes[outside], per_node=max(1, outside // nodes[outside]))
    return found


def read_comm_result(path: Path, gpus_per_node: int) -> Measurement:
    """Links from a file of `hpc-kit bench comm --json`.

    Raises:
        SpecError: It cannot be read, or is something else.
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


def merge_measurements(one: Measurement, other: Measurement) -> Measurement:
    """Both; `other` wins where both know."""
    return structs.replace(one, **msgspec.to_builtins(other))


class FittedLine(NamedTuple):
    """A line through measured times."""

    start: float
    """Seconds of an empty message: the latency, alpha."""
    slope: float
    """Seconds a byte: beta; bytes/s are 1 / slope."""
    start_error: float | None
    """One standard error; None where there are no more points than unknowns."""
    slope_error: float | None


def fit_line(points: Iterable[tuple[float, float]]) -> FittedLine | None:
    """The line through (bytes, seconds); each point's distance counts as a share of its own time.

    So the shortest message weighs as much as the longest. The errors come from what the points lie beside the line.
    None where fewer than two sizes were measured, or time does not grow with them.
    """
    known = [(float(size), seconds) for size, seconds in points if seconds > 0]
    if len({size for size, _ in known}) < 2:
        return None
    weights = [1 / seconds**2 for _, seconds in known]
    total = sum(weights)
    x = sum(w * size for w, (size, _) in zip(weights, known, strict=True)) / total
    y = sum(w * seconds for w, (_, seconds) in zip(weights, known, strict=True)) / total
    spread = sum(w * (size - x) ** 2 for w, (size, _) in zip(weights, known, strict=True))
    slope = sum(w * (size - x) * (seconds - y) for w, (size, seconds) in zip(weights, known, strict=True)) / spread
    if slope <= 0:
        return None
    start = y - slope * x
    if len(known) < 3:
        return FittedLine(start, slope, None, None)
    beside = sum(w * (seconds - start - slope * size) ** 2 for w, (size, seconds) in zip(weights, known, strict=True))
    variance = beside / (len(known) - 2)
    return FittedLine(start, slope, math.sqrt(variance * (1 / total + x**2 / spread)), math.sqrt(variance / spread))
