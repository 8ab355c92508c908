"""Judges the nodes of a job by the reports of `preflight_rank`: which are slow, which are broken, which may be used.

The batch script runs `python -m hpc_kit.bench.preflight THRESHOLD` after the step of the reports.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, structs

from hpc_kit.bench.results import format_number
from hpc_kit.run_files import PREFLIGHT, RUN_VARIABLE, write_whole
from hpc_kit.slurm import nodelist
from hpc_kit.slurm.units import name_some

THRESHOLD = 0.7
"""A node is slow if a rate is below this share of the median."""

DISK_THRESHOLD = 0.25
"""Threshold for the disk, whose rate varies with its cache and its other users."""

LEAST_NODES = 3
"""Minimum number of nodes to compare: of two, either may be the slow one."""

CLOCK_SECONDS = 5.0
"""Maximum difference between the clocks of a node and of the others. NTP keeps it below a second."""

IMPORT_SECONDS, SECONDS = 90.0, 50.0
"""Time limits on each node: of the import of torch, and of the measurement after the import.

From a cold shared file system, the import may take a minute on all nodes, and must not use up the time of the others.
"""

MATRIX, MEMORY, DISK, NETWORK = "matrix product", "memory", "disk", "network"
UNITS = {MATRIX: (1e9, "GFLOP/s"), MEMORY: (1e9, "GB/s"), DISK: (1e6, "MB/s"), NETWORK: (1e9, "Gb/s")}
"""Size and name of the unit of each rate."""

LEAST_PAIRS = 2
"""Minimum number of measured pairs of a node: of one pair, either node may be the slow one."""

HANG_SECONDS = 20.0
"""A measurement that was still running at the time limit has hung if it had run for this time. Otherwise earlier ones
may have taken most of the limit."""

MOST_PEERS = 64
"""Maximum number of other nodes whose names and connections each node tries; spread evenly."""

IMPORT, RATES, GPU_ERRORS, NAMES = "import of torch", "rates", "GPU errors", "names"
"""The measurements that need no other node. All further ones are between nodes."""

COMPARED_VERSIONS = ("python", "torch")
"""Versions that must be equal on all nodes."""

VERDICT, EXCLUDED = "verdict.json", "excluded"
"""Files in the folder `PREFLIGHT`: the verdict, and a line `NODE REASON` for each excluded node, for the script."""


class NodeReport(Struct, frozen=True, kw_only=True):
    """The measurements of one node."""

    node: str
    """Its name in Slurm."""
    host: str = ""
    """Its own name. Virtual nodes of one machine have the same."""
    stage: str = ""
    """The measurement that was running when the report was written; empty: the report is complete."""
    error: str = ""
    """The exception that ended the measurement."""
    kind: str = ""
    """Processor and GPUs. Only nodes of the same kind are compared."""
    gpus: int = 0
    versions: dict[str, str] = {}
    rates: dict[str, float] = {}
    """Operations or bytes per second in the fastest of some periods, by the names in `UNITS`; without the network."""
    typical: dict[str, float] = {}
    """The same in the median of these periods."""
    gpu_errors: tuple[str, ...] = ()
    """Errors of the job's GPUs that need a repair."""
    warnings: tuple[str, ...] = ()
    """Messages about GPUs that do not show whether they need a repair."""
    late: bool = False
    """The node was not ready in time for the measurement of the network."""
    unresolved: tuple[str, ...] = ()
    """Nodes whose names do not resolve on this node."""
    misnamed: dict[str, str] = {}
    """Nodes whose addresses have the name of another host on this node, with that name."""
    unreachable: tuple[str, ...] = ()
    """Nodes to which this node cannot connect."""
    clock: float = 0.0
    """Median of the seconds by which the clocks of the other nodes are ahead."""
    pairs: dict[str, float] = {}
    """Bits per second to and from other nodes."""
    all_reduce: float | None = None
    """Bits per second of the all-reduce over all nodes (bus bandwidth)."""
    seconds: float = 0.0
    import_seconds: float = 0.0
    """The part of `seconds` until torch was imported."""

    @property
    def all_rates(self) -> dict[str, float]:
        """The rates with that of the network: the fastest pair, because a slow pair may be the other node's fault."""
        return {**self.rates, **({NETWORK: max(self.pairs.values())} if self.pairs else {})}


State = Literal["ok", "slow", "broken"]


class NodeVerdict(Struct, frozen=True, kw_only=True):
    """The verdict on one node, with the reasons."""

    node: str
    state: State = "ok"
    reasons: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        return f"{self.node} is {self.state}: {'; '.join(self.reasons)}"


class PreflightVerdict(Struct, frozen=True, kw_only=True):
    """The verdict on all nodes of a job."""

    nodes: tuple[NodeVerdict, ...]
    reports: tuple[NodeReport, ...]
    notes: tuple[str, ...] = ()
    """Findings that are no single node's fault, and measurements that are missing."""
    threshold: float = THRESHOLD

    @property
    def excluded(self) -> list[NodeVerdict]:
        """The slow and the broken nodes."""
        return [each for each in self.nodes if each.state != "ok"]

    @property
    def is_measured(self) -> bool:
        """At least one node has completed its measurements."""
        return any(not report.stage and not report.error for report in self.reports)


def judge(
    nodes: Sequence[str],
    reports: Iterable[NodeReport],
    threshold: float = THRESHOLD,
    gpus_per_node: int | None = None,
) -> PreflightVerdict:
    """Judge the nodes of a job.

    A node is broken only by a fault that is certainly its own. Faults between two nodes and late nodes are noted. A
    fault of more than half of the nodes is one of the environment or of this measurement itself, and is noted, too.

    A node without a report is broken. A node is slow if a rate is below the share `threshold` of the median.
    `gpus_per_node` are those that Slurm gave to the job; None: not the same number on each node, or unknown.
    """
    found = {report.node: report for report in reports if report.node in nodes}
    broken: dict[str, list[str]] = defaultdict(list)
    doubts: dict[str, list[str]] = defaultdict(list)
    faults: dict[str, list[NodeFinding]] = defaultdict(list)
    for finding in _list_findings(nodes, found, gpus_per_node):
        if finding.is_certain:
            faults[finding.kind].append(finding)
        else:
            doubts[finding.reason].append(finding.node)
    notes: list[str] = []
    for kind in faults.values():
        if 2 * len(kind) <= len(nodes):
            for finding in kind:
                broken[finding.node].append(finding.reason)
        else:
            counts = Counter(finding.reason for finding in kind)
            notes += [f"{count} of {len(nodes)} nodes: {reason}" for reason, count in counts.items()]
    notes += [f"{name_some(places)}: {reason}" for reason, places in doubts.items()]
    slow, not_compared = find_slow(list(found.values()), threshold)
    good = [report for report in found.values() if not broken[report.node] and report.node not in slow]
    notes += not_compared or _note_pairs(good, threshold)
    wrong = [f"{node} is {name} on {each.node}" for each in found.values() for node, name in each.misnamed.items()]
    notes += [f"addresses with other names: {name_some(wrong)}"] if wrong else []
    verdicts = []
    for node in nodes:
        state: State = "broken" if broken[node] else "ok"
        if state == "ok" and node in slow:
            state = "slow"
        verdicts.append(NodeVerdict(node=node, state=state, reasons=(*broken[node], *slow.get(node, ()))))
    return PreflightVerdict(
        nodes=tuple(verdicts),
        reports=tuple(found[node] for node in nodes if node in found),
        notes=tuple(notes),
        threshold=threshold,
    )


class NodeFinding(NamedTuple):
    """A finding about a node, or about two nodes: `n1-n2`."""

    kind: str
    node: str
    reason: str
    is_certain: bool = True
    """It is certainly a fault of the node; otherwise its cause may be outside of the node, or it may be harmless."""


def _list_findings(
    nodes: Sequence[str], found: Mapping[str, NodeReport], gpus_per_node: int | None
) -> Iterator[NodeFinding]:
    for node in nodes:
        if node not in found:
            yield NodeFinding("report", node, "no report: the measurement did not start")
    for node, each in found.items():
        if each.stage:
            end = f"{each.stage}: {each.error}" if each.error else f"no end of: {each.stage}"
            yield NodeFinding("error" if each.error else "hang", node, end, _is_own_fault(each, nodes, found))
        elif abs(each.clock) > CLOCK_SECONDS:
            # `clock` is the lead of the other nodes, so its sign is reversed.
            yield NodeFinding("clock", node, f"its clock differs by {-each.clock:+.1f} s")
        if each.gpu_errors:
            yield NodeFinding("GPU errors", node, "; ".join(each.gpu_errors))
        # Without a kind, the node has not counted its GPUs yet.
        if gpus_per_node is not None and each.kind and each.gpus < gpus_per_node:
            yield NodeFinding("GPUs", node, f"torch sees {each.gpus} of {gpus_per_node} GPUs")
        missing = ["came too late for the measurement of the network"] if each.late else []
        if 0 < len(each.pairs) < min(LEAST_PAIRS, len(nodes) - 1):
            missing.append(f"network not compared: fewer than {LEAST_PAIRS} pairs of nodes measured in time")
        yield from (NodeFinding("note", node, reason, is_certain=False) for reason in (*missing, *each.warnings))
    yield from _compare_reports(list(found.values()), nodes)


def _compare_reports(reports: Sequence[NodeReport], nodes: Sequence[str]) -> Iterator[NodeFinding]:
    """Yield findings by versions that differ, and by failures between two nodes."""
    for name in (*COMPARED_VERSIONS, "driver"):
        versions = {each.node: each.versions[name] for each in reports if name in each.versions}
        for node, reason in _minority(versions, name).items():
            yield NodeFinding(name, node, reason, is_certain=name in COMPARED_VERSIONS)
    for problem, edges in (
        ("names do not resolve", {each.node: each.unresolved for each in reports}),
        ("no connection", {each.node: each.unreachable for each in reports}),
    ):
        culprits = find_culprits(edges)
        isolated = _find_isolated(culprits, nodes)
        for node, others in isolated.items():
            yield NodeFinding(problem, node, f"{problem}: {name_some(others)}")
        pairs = {tuple(sorted((node, other))) for node in culprits.keys() - isolated for other in culprits[node]}
        for pair in sorted(pairs):
            yield NodeFinding(problem, "-".join(pair), problem, is_certain=False)


def _is_own_fault(report: NodeReport, nodes: Sequence[str], found: Mapping[str, NodeReport]) -> bool:
    """Return whether an incomplete report shows a fault of its own node, not of another node or of a slow start."""
    if report.stage == IMPORT:
        # The import of torch from a shared file system may take minutes on a node without a fault.
        return bool(report.error)
    if report.stage in {RATES, GPU_ERRORS, NAMES}:
        return bool(report.error) or report.seconds - report.import_seconds <= SECONDS - HANG_SECONDS
    # If all remaining nodes have measured each other, only this node can have failed.
    others = [found.get(node) for node in nodes if node != report.node]
    return bool(report.error) and len(others) >= LEAST_PAIRS and all(other and other.pairs for other in others)


def _find_isolated(culprits: Mapping[str, list[str]], nodes: Sequence[str]) -> dict[str, list[str]]:
    """Return the culprits that fail with most of the nodes that they have tried, if most nodes are no culprits."""
    if 2 * len(culprits) >= len(nodes):
        return {}
    half = min(MOST_PEERS, len(nodes) - 1) / 2
    return {node: others for node, others in culprits.items() if len(others) > half}


def _minority(values: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the nodes whose value is not that of most nodes, with a reason; all nodes if no value has a majority."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return {}
    usual = counts[0][0] if 2 * counts[0][1] > len(values) else None
    comparison = f"; {usual} on most nodes" if usual is not None else ", and no version is that of most nodes"
    return {node: f"{name} {value}{comparison}" for node, value in values.items() if value != usual}


def find_culprits(edges: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the nodes that explain failures between two nodes, with the other nodes of these failures.

    `edges` contains, for each node, those with which something failed. This is the greedy vertex cover of the graph of
    failures: the node with the most failures is removed until none are left. If only two nodes fail with each other,
    both are returned.
    """
    pairs = {frozenset((node, other)) for node, others in edges.items() for other in others if node != other}
    culprits: dict[str, list[str]] = {}
    while pairs:
        counts = Counter(node for pair in pairs for node in pair)
        node, most = counts.most_common(1)[0]
        # If no node has two failures, the remaining pairs do not show which of their nodes is at fault.
        worst = [node] if most > 1 else list(counts)
        for each in worst:
            culprits[each] = sorted(other for pair in pairs if each in pair for other in pair - {each})
        pairs = {pair for pair in pairs if not pair & set(worst)}
    return culprits


def find_slow(reports: Sequence[NodeReport], threshold: float) -> tuple[dict[str, list[str]], list[str]]:
    """Return the slow nodes with their reasons, and notes about nodes that could not be compared."""
    slow: dict[str, list[str]] = defaultdict(list)
    if len(reports) < LEAST_NODES:
        return {}, [f"a slow node is found among {LEAST_NODES} nodes or more; measured: {len(reports)}"]
    if len({report.host for report in reports}) < len(reports):
        return {}, ["several nodes are on one machine: their rates are not compared"]
    for name in UNITS:
        by_kind: dict[str, list[NodeReport]] = defaultdict(list)
        for report in reports:
            if name in report.all_rates and (name != NETWORK or len(report.pairs) >= LEAST_PAIRS):
                # Nodes with different GPUs share one network, so that their rates on it are comparable.
                by_kind["" if name == NETWORK else report.kind].append(report)
        for group in by_kind.values():
            # A node with other work for a moment is not slow: its fastest period is compared with usual ones.
            median = statistics.median(each.typical.get(name, each.all_rates[name]) for each in group)
            limit = median * (min(threshold, DISK_THRESHOLD) if name == DISK else threshold)
            for each in group:
                rate = each.all_rates[name]
                if len(group) >= LEAST_NODES and rate < limit:
                    share = f"{format_number(rate / median, 2)} of the median {format_rate(name, median)}"
                    slow[each.node].append(f"{name} {format_rate(name, rate)}, {share}")
    return slow, []


def _note_pairs(good: Sequence[NodeReport], threshold: float) -> list[str]:
    """Return a note about slow pairs of good nodes."""
    names = {each.node for each in good}
    # Both nodes of a pair report its rate.
    rates = {
        tuple(sorted((each.node, other))): rate for each in good for other, rate in each.pairs.items() if other in names
    }
    median = statistics.median(rates.values()) if len(rates) >= LEAST_NODES else 0.0
    slow = [f"{one}-{other}" for (one, other), rate in rates.items() if rate < threshold * median]
    return [f"slow pairs of nodes, below {threshold:g} of the median: {name_some(slow)}"] if slow else []


def format_rate(name: str, rate: float) -> str:
    """Return a rate with its unit."""
    size, unit = UNITS[name]
    return f"{format_number(rate / size, 3)} {unit}"


def report_file(node: str) -> str:
    """Return the name of the report of a node, in the folder `PREFLIGHT`."""
    return f"node-{node}.json"


class NodeMeasurement:
    """The report of this node while it is measured."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.start = folder, time.monotonic()
        self.report = NodeReport(node=name, host=socket.gethostname())

    def add(self, **values: Any) -> None:
        """Add values to the report and write it."""
        self.report = structs.replace(self.report, **values, seconds=time.monotonic() - self.start)
        write_whole(self.folder / report_file(self.report.node), msgspec.json.encode(self.report), lasting=False)

    def time_left(self, seconds: float) -> float:
        """Return the seconds until a moment after the import of torch; 0 if the moment has passed."""
        return max(0.0, self.start + self.report.import_seconds + seconds - time.monotonic())


def read_reports(folder: Path, nodes: Iterable[str]) -> list[NodeReport]:
    """Return the reports of the nodes that have written one."""
    found = []
    for node in nodes:
        with suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode((folder / report_file(node)).read_bytes(), type=NodeReport))
    return found


def read_verdict(run: Path) -> PreflightVerdict | None:
    """Return the verdict on the nodes of a run; None if there is none."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((run / PREFLIGHT / VERDICT).read_bytes(), type=PreflightVerdict)
    return None


def main() -> None:
    """Judge the nodes of this job, write the verdict into the run folder, and log it."""
    folder = Path(os.environ[RUN_VARIABLE], PREFLIGHT)
    nodes = nodelist.expand(os.environ["SLURM_JOB_NODELIST"])
    # Slurm sets the variable if the job asks for the same number on each node: 4, or a100:4.
    gpus = os.environ.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2]
    gpus_per_node = int(gpus) if gpus.isdigit() else None
    verdict = judge(nodes, read_reports(folder, nodes), float(sys.argv[1]), gpus_per_node)
    write_whole(folder / VERDICT, msgspec.json.encode(verdict))
    lines = [f"{each.node} {each.sentence}\n" for each in verdict.excluded]
    write_whole(folder / EXCLUDED, "".join(lines).encode())
    count = len(verdict.excluded)
    summary = f"{count} must not be used" if count else "none is slow or broken"
    summary = summary if verdict.is_measured else "no node has completed its measurements"
    seconds = max((report.seconds for report in verdict.reports), default=0.0)
    log = [f"preflight of {len(nodes)} nodes in {seconds:.0f} s: {summary}"]
    log += [f"  {each.sentence}" for each in verdict.excluded] + [f"  note   {note}" for note in verdict.notes]
    sys.stderr.write("hpc-kit: " + "\n".join(log) + "\n")


if __name__ == "__main__":
    main()
