"""Measures alpha and beta of the links of a cluster, by `hpc-kit bench comm` in small jobs of srun."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpc_kit.bench.results import format_quantity
from hpc_kit.errors import HpcKitError, SlurmUnavailable
from hpc_kit.planner import calibration
from hpc_kit.planner.calibration import Measurement
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.spec.discovery import Fact
from hpc_kit.spec.node_probe import PROBE_ARGV, SECONDS


class LinkProbe(NamedTuple):
    """The measured links, and a line for each job that did not measure."""

    facts: tuple[Fact, ...]
    gaps: tuple[str, ...]


def probe_links(client: SlurmClient, python: str, options: Sequence[str], *, gpus: int, nodes: int) -> LinkProbe:
    """Measure the all-reduce inside a node and, if there are several, between two nodes.

    On nodes with GPUs, NCCL is measured with all GPUs of a node, and with one GPU on each of two nodes; otherwise gloo
    with two processes.

    Args:
        client: The Slurm.
        python: Interpreter with hpc_kit and torch on the nodes.
        options: Options of srun.
        gpus: GPUs of a node.
        nodes: Nodes of the partition.
    """
    facts: list[Fact] = []
    gaps: list[str] = []
    # One GPU alone has no link inside its node.
    shapes = [("link", 1, gpus or 2)] if gpus != 1 else []
    shapes += [("network", 2, 1)] if nodes > 1 else []
    for name, count, ranks in shapes:
        try:
            found = _measure(client, python, options, (count, ranks), has_gpus=gpus > 0)
        except HpcKitError as error:
            gaps.append(f"{name}_alpha, {name}_beta: {error.found or error.what}")
        else:
            backend = "nccl" if gpus else "gloo"
            where = f"{ranks} ranks on a node" if count == 1 else "2 nodes"
            facts += _facts(found, name, f"bench comm by srun: all-reduce of {backend}, {where}")
    return LinkProbe(tuple(facts), tuple(gaps))


def _measure(
    client: SlurmClient, python: str, options: Sequence[str], shape: tuple[int, int], *, has_gpus: bool
) -> Measurement:
    """Run one job of `nodes, ranks on each node = shape`, and fit the line.

    Raises:
        HpcKitError: The job did not measure.
    """
    nodes, ranks = shape
    argv = [*PROBE_ARGV, f"--nodes={nodes}", f"--ntasks-per-node={ranks}"]
    argv += [f"--gpus-per-node={ranks}"] if has_gpus else []
    backend = "nccl" if has_gpus else "gloo"
    argv += [*options, python, "-m", "hpc_kit", "bench", "comm", "--backends", backend, "--json"]
    answer = client.run(argv, timeout=SECONDS)
    # Prologs of sites print lines before the document.
    start = answer.stdout.find("{\n")
    try:
        document = json.loads(answer.stdout[start:]) if answer.returncode == 0 and start >= 0 else {}
        found = calibration.fit_links(document["results"], nodes)
    except (ValueError, KeyError, TypeError):
        raise SlurmUnavailable("no result", found=_reason(answer.stderr, answer.returncode)) from None
    if found == Measurement():
        raise SlurmUnavailable("the time of an all-reduce does not grow with its size")
    return found


def _reason(errors: str, status: int) -> str:
    """Return the first error of the program, else the last line of srun."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    own = [line.removeprefix("hpc-kit: ") for line in lines if line.startswith("hpc-kit: ") or "Error: " in line]
    return (own or lines[-1:] or [f"srun ended with {status}"])[0]


def _facts(found: Measurement, name: str, source: str) -> Iterator[Fact]:
    rate, latency = (found.link, found.latency) if name == "link" else (found.network, found.latency_network)
    if rate is None or latency is None:
        return
    # A measurement has no more than three digits.
    yield Fact(("node", f"{name}_alpha"), float(f"{latency:.3g}"), f"{source}: {format_quantity(latency, 's', 3)}")
    yield Fact(("node", f"{name}_beta"), float(f"{1 / rate:.3g}"), f"{source}: {rate / 1e9:.3g} GB/s")
