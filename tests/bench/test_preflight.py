"""Nodes are judged by their reports: the slow and the broken ones are named, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.bench.preflight import (
    CLOCK_SECONDS,
    DISK,
    MATRIX,
    MEMORY,
    NodeReport,
    Verdict,
    find_culprits,
    judge,
    read_reports,
    write_report,
)
from hpc_kit.bench.preflight_rank import MOST_PEERS, choose_peers, next_size, pair_rounds, parse_gpu_query, parse_xids

NODES = ("n1", "n2", "n3", "n4")
RATES = {MATRIX: 1e12, MEMORY: 1e11, DISK: 1e9}
VERSIONS = {"python": "3.11.7", "torch": "2.9.0", "driver": "570.1"}


def report(node: str, *, nodes: tuple[str, ...] = NODES, **values: Any) -> NodeReport:
    """Return the complete report of a good node."""
    pairs = {other: 1e10 for other in nodes if other != node}
    usual: dict[str, Any] = {"host": node, "kind": "cpu", "versions": VERSIONS, "rates": RATES, "pairs": pairs}
    return NodeReport(node=node, **{**usual, **values})


def judged(
    nodes: tuple[str, ...] = NODES,
    changes: Mapping[str, dict[str, Any]] | None = None,
    *,
    missing: str = "",
    **more: Any,
) -> Verdict:
    """Judge good nodes, but for the changes of some of them."""
    changes = {**(changes or {}), **more}
    reports = [report(node, nodes=nodes, **changes.get(node, {})) for node in nodes if node != missing]
    return judge(nodes, reports)


def excluded(verdict: Verdict) -> dict[str, str]:
    """The nodes that must not be used, with their state."""
    return {each.node: each.state for each in verdict.excluded}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_equal_nodes_are_good(count: int) -> None:
    verdict = judged(tuple(f"n{number}" for number in range(count)))
    assert excluded(verdict) == {}
    assert len(verdict.nodes) == count


@pytest.mark.parametrize("name", [MATRIX, MEMORY])
def test_a_node_below_the_threshold_is_slow(name: str) -> None:
    verdict = judged(n3={"rates": {**RATES, name: 0.69 * RATES[name]}})
    assert excluded(verdict) == {"n3": "slow"}
    assert verdict.excluded[0].sentence.startswith(f"n3 is slow: {name} ")
    assert "0.69 of the median" in verdict.excluded[0].sentence
    assert excluded(judged(n3={"rates": {**RATES, name: 0.71 * RATES[name]}})) == {}


def test_disks_vary_more() -> None:
    assert excluded(judged(n3={"rates": {**RATES, DISK: 0.3e9}})) == {}
    assert excluded(judged(n3={"rates": {**RATES, DISK: 0.2e9}})) == {"n3": "slow"}


def test_a_node_is_slow_if_its_fastest_period_is_slower_than_usual_ones() -> None:
    busy = {"rates": {**RATES, MATRIX: 0.9e12}, "typical": {**RATES, MATRIX: 0.5e12}}
    lucky = {"rates": {**RATES, MATRIX: 2e12}, "typical": RATES}
    assert excluded(judged(n1=lucky, n2=lucky, n3=busy)) == {}
    assert excluded(judged(n1=lucky, n2=lucky, n3={"rates": {**RATES, MATRIX: 0.6e12}})) == {"n3": "slow"}


def test_two_nodes_cannot_be_compared() -> None:
    verdict = judged(("n1", "n2"), n2={"rates": {**RATES, MATRIX: 1e10}})
    assert excluded(verdict) == {}
    assert verdict.notes == ("a slow node is found among 3 nodes or more; measured: 2",)


def test_only_nodes_of_the_same_kind_are_compared() -> None:
    old = {"kind": "old cpu", "rates": {**RATES, MATRIX: 1e11}}
    assert excluded(judged(n3=old, n4=old)) == {}


def test_virtual_nodes_of_one_machine_are_not_compared() -> None:
    verdict = judged(NODES, {node: {"host": "vm", "rates": {**RATES, MATRIX: 1e12 / int(node[1])}} for node in NODES})
    assert excluded(verdict) == {}
    assert "one machine" in verdict.notes[0]


@pytest.mark.parametrize("seed", range(30))
def test_noise_excludes_no_node(seed: int) -> None:
    chance = random.Random(seed)
    nodes = tuple(f"n{number}" for number in range(chance.randint(3, 16)))

    def noisy() -> dict[str, Any]:
        rates = {name: rate * chance.uniform(0.85, 1.15) for name, rate in RATES.items()}
        return {"rates": rates, "pairs": {node: 1e10 * chance.uniform(0.85, 1.15) for node in nodes}}

    assert excluded(judged(nodes, {node: noisy() for node in nodes})) == {}


def test_a_slow_network_is_that_of_the_node_whose_every_pair_is_slow() -> None:
    def pairs(own: str) -> dict[str, Any]:
        return {"pairs": {other: 1e8 if "n3" in {own, other} else 1e10 for other in NODES if other != own}}

    verdict = judged(NODES, {node: pairs(node) for node in NODES})
    assert excluded(verdict) == {"n3": "slow"}
    assert verdict.excluded[0].reasons == ("network 0.1 Gb/s, 0.01 of the median 10 Gb/s",)


def test_a_slow_pair_is_noted_and_nobody_is_blamed() -> None:
    slow = {"n1": {"pairs": {"n2": 1e8, "n3": 1e10, "n4": 1e10}}, "n2": {"pairs": {"n1": 1e8, "n3": 1e10, "n4": 1e10}}}
    verdict = judged(NODES, slow)
    assert excluded(verdict) == {}
    assert verdict.notes == ("slow pairs of nodes, below 0.7 of the median: n1-n2",)


def test_a_node_without_a_report_is_broken() -> None:
    verdict = judged(missing="n2")
    assert excluded(verdict) == {"n2": "broken"}
    assert verdict.excluded[0].sentence == "n2 is broken: no report: the measurement did not start"


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "hangs": ({"stage": "rates", "rates": {}}, "no end of: rates"),
    "fails": ({"stage": "rates", "error": "OSError: No space left", "rates": {}}, "rates: OSError: No space left"),
    "clock": ({"clock": -100.0}, "its clock differs by +100.0 s"),
    "torch": ({"versions": {**VERSIONS, "torch": "2.8.0"}}, "torch 2.8.0; 2.9.0 on most nodes"),
    "gpus": ({"gpus": 3}, "number of GPUs 3; 0 on most nodes"),
    "ecc": ({"gpu_errors": ("Xid 79 of GPU 0000:3b:00",)}, "Xid 79 of GPU 0000:3b:00"),
    "names": ({"unresolved": ("n1", "n2", "n4")}, "names do not resolve: n1, n2, n4"),
    "unreachable": ({"unreachable": ("n1", "n2", "n4"), "pairs": {}}, "no connection with n1, n2, n4"),
}


@pytest.mark.parametrize(("values", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_fault_of_one_node_is_named(values: dict[str, Any], reason: str) -> None:
    verdict = judged(n3=values)
    assert excluded(verdict) == {"n3": "broken"}
    assert verdict.excluded[0].reasons == (reason,)


@pytest.mark.parametrize("fault", ["hangs", "fails", "clock"])
def test_a_fault_of_most_nodes_is_no_fault_of_a_node(fault: str) -> None:
    values, reason = BROKEN[fault]
    verdict = judged(n1=values, n2=values, n3=values)
    assert excluded(verdict) == {}
    assert f"3 of 4 nodes: {reason}" in verdict.notes


def test_a_measurement_that_works_nowhere_is_said_to_have_failed() -> None:
    values = {"stage": "import of torch", "error": "HpcKitError: there is no torch for this Python", "rates": {}}
    verdict = judged(NODES, dict.fromkeys(NODES, values))
    assert excluded(verdict) == {}
    assert not verdict.is_measured
    assert "4 of 4 nodes: import of torch: HpcKitError: there is no torch for this Python" in verdict.notes


def test_versions_without_a_majority_exclude_no_node() -> None:
    verdict = judged(("n1", "n2"), n2={"versions": {**VERSIONS, "torch": "2.8.0"}})
    assert excluded(verdict) == {}
    assert any(note.endswith("no version is that of most nodes") for note in verdict.notes)


def test_a_name_that_no_node_resolves_is_the_fault_of_the_named_node() -> None:
    verdict = judged(n1={"unresolved": ("n3",)}, n2={"unresolved": ("n3",)}, n4={"unresolved": ("n3",)})
    assert excluded(verdict) == {"n3": "broken"}


def test_a_cluster_without_names_excludes_no_node() -> None:
    others = {node: {"unresolved": tuple(other for other in NODES if other != node)} for node in NODES}
    assert excluded(judged(NODES, others)) == {}


def test_a_clock_within_the_limit_is_right() -> None:
    assert excluded(judged(n3={"clock": CLOCK_SECONDS})) == {}


def test_a_slow_node_with_a_fault_has_both_reasons() -> None:
    verdict = judged(n3={"rates": {**RATES, MATRIX: 1e11}, "clock": 60.0})
    assert verdict.excluded[0].state == "broken"
    assert len(verdict.excluded[0].reasons) == 2


def test_one_culprit_explains_all_failures_with_it() -> None:
    assert find_culprits({}) == {}
    assert find_culprits({"n1": ["n3"], "n2": ["n3"]}) == {"n3": ["n1", "n2"]}
    assert find_culprits({"n1": ["n2"]}) == {"n1": ["n2"], "n2": ["n1"]}


def test_reports_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_report(tmp_path, report("n1"))
    (tmp_path / "node-n2.json").write_text("{")
    assert read_reports(tmp_path, NODES) == [report("n1")]


@pytest.mark.parametrize("count", range(2, 12))
def test_rounds_contain_each_pair_once_and_each_rank_at_most_once(count: int) -> None:
    rounds = pair_rounds(count)
    pairs = [pair for each in rounds for pair in each]
    assert sorted(pairs) == [(one, other) for one in range(count) for other in range(one + 1, count)]
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in rounds)
    assert len(rounds) == count - 1 + count % 2


def test_messages_grow_until_they_take_long_enough() -> None:
    assert next_size(1024, 0.001) == 8192
    assert next_size(1024, 0.05) == 1024
    assert next_size(1024, 1.0) == 0


def test_a_node_of_many_tries_some_others() -> None:
    hosts = [f"n{number}" for number in range(1000)]
    peers = choose_peers("n7", hosts)
    assert len(set(peers)) == MOST_PEERS
    assert "n7" not in peers
    assert choose_peers("n1", ["n1", "n2", "n3"]) == ["n2", "n3"]


def test_errors_of_gpus_are_read() -> None:
    answer = "0, 0, No, No\n1, 2, No, [N/A]\n2, [N/A], Yes, [N/A]\n3, [N/A], [N/A], [N/A]\n"
    assert parse_gpu_query(answer) == [
        "GPU 1 has 2 uncorrected memory errors",
        "GPU 2 waits for a reset to repair its memory",
    ]


def test_xids_of_the_hardware_since_a_moment_are_errors() -> None:
    log = (
        "[  100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
        "[ 5000.000001] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python, MMU Fault\n"
        "[ 5001.000001] NVRM: Xid (PCI:0000:5e:00): 74, pid=1, NVLink error\n"
    )
    assert parse_xids(log, since=1000) == ["Xid 74 of GPU 0000:5e:00"]
