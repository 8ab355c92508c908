"""Nodes are judged by their reports: the slow and the broken ones are named, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.bench import machine, preflight_rank
from hpc_kit.bench.preflight import (
    CLOCK_SECONDS,
    DISK,
    IMPORT,
    MATRIX,
    MEMORY,
    MOST_PEERS,
    SECONDS,
    NodeMeasurement,
    NodeReport,
    PreflightVerdict,
    find_culprits,
    judge,
    read_reports,
)
from hpc_kit.bench.preflight_network import SIGN_IN_SECONDS, check_host_names, choose_peers, next_size, pair_rounds
from hpc_kit.bench.preflight_rank import parse_gpu_query, parse_xids
from hpc_kit.runtime.rendezvous import network

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
    gpus_per_node: int | None = None,
    **more: Any,
) -> PreflightVerdict:
    """Judge good nodes, but for the changes of some of them."""
    changes = {**(changes or {}), **more}
    reports = [report(node, nodes=nodes, **changes.get(node, {})) for node in nodes if node != missing]
    return judge(nodes, reports, gpus_per_node=gpus_per_node)


def excluded(verdict: PreflightVerdict) -> dict[str, str]:
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
    "library": (
        {"stage": IMPORT, "error": "ImportError: libcudart.so.12"},
        "import of torch: ImportError: libcudart.so.12",
    ),
    "memory": ({"gpu_errors": ("GPU 3b waits for a reset",)}, "GPU 3b waits for a reset"),
    "names": ({"unresolved": ("n1", "n2", "n4")}, "names do not resolve: n1, n2, n4"),
    "no way to rank 0": (
        {"stage": "network", "error": "RendezvousError: no rank 0"},
        "network: RendezvousError: no rank 0",
    ),
    "unreachable": ({"unreachable": ("n1", "n2", "n4"), "pairs": {}}, "no connection: n1, n2, n4"),
}


@pytest.mark.parametrize(("values", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_fault_of_one_node_is_named(values: dict[str, Any], reason: str) -> None:
    verdict = judged(n3=values)
    assert excluded(verdict) == {"n3": "broken"}
    assert verdict.excluded[0].reasons == (reason,)


NETWORK_ERROR = {"stage": "network", "error": "RendezvousError: rank 1 did not find rank 0", "pairs": {}}

DOUBTS: dict[str, tuple[dict[str, Any], str]] = {
    "slow import": ({"stage": IMPORT, "rates": {}, "pairs": {}}, "n3: no end of: import of torch"),
    "late": ({"late": True, "pairs": {}}, "n3: came too late for the measurement of the network"),
    "one pair": (
        {"pairs": {"n1": 1e10}},
        "n3: network not compared: fewer than 2 pairs of nodes measured in time",
    ),
    "late rates": ({"stage": "rates", "seconds": 45.0, "pairs": {}}, "n3: no end of: rates"),
    "hanging network": ({"stage": "network", "pairs": {}}, "n3: no end of: network"),
    "one connection": ({"unreachable": ("n1",)}, "n1-n3: no connection"),
    "one name": ({"unresolved": ("n1",)}, "n1-n3: names do not resolve"),
    "driver": ({"versions": {**VERSIONS, "driver": "580.2"}}, "n3: driver 580.2; 570.1 on most nodes"),
    "Xid": ({"warnings": ("Xid 79 of GPU 3b",)}, "n3: Xid 79 of GPU 3b"),
}


@pytest.mark.parametrize(("values", "note"), DOUBTS.values(), ids=DOUBTS)
def test_what_may_be_no_fault_of_the_node_is_noted(values: dict[str, Any], note: str) -> None:
    verdict = judged(n3=values)
    assert excluded(verdict) == {}
    assert note in verdict.notes


@pytest.mark.parametrize("cause", ["no report", "no end", "error"])
def test_a_node_that_waits_in_vain_for_another_one_is_good(cause: str) -> None:
    hangs = {"n1": {"stage": "rates", "pairs": {}}} if cause == "no end" else {}
    fails = {"n1": {"stage": "rates", "error": "OSError: disk", "pairs": {}}} if cause == "error" else {}
    missing = "n1" if cause == "no report" else ""
    verdict = judged(("n1", "n2"), {**hangs, **fails, "n2": NETWORK_ERROR}, missing=missing)
    assert excluded(verdict) == {"n1": "broken"}
    assert "n2: network: RendezvousError: rank 1 did not find rank 0" in verdict.notes


def test_the_import_of_torch_uses_up_no_time_of_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    limits: list[float] = []
    monkeypatch.setattr("signal.setitimer", lambda _timer, seconds: limits.append(seconds))
    node = NodeMeasurement(tmp_path, "n1")
    node.start -= 60.0
    preflight_rank.describe(node)
    assert node.report.import_seconds >= 60.0
    assert node.time_left(SIGN_IN_SECONDS) > SIGN_IN_SECONDS - 20.0
    assert limits == [SECONDS]


def test_rates_without_end_after_a_slow_import_are_a_fault_of_the_node() -> None:
    hangs = {"stage": "rates", "seconds": 70.0, "import_seconds": 65.0, "pairs": {}}
    assert excluded(judged(n3=hangs)) == {"n3": "broken"}


def test_the_late_rank_0_and_those_that_wait_for_it_are_good() -> None:
    late = {"late": True, "pairs": {}}
    assert excluded(judged(("n1", "n2", "n3"), n1=late, n2=late, n3=NETWORK_ERROR)) == {}


def test_a_node_that_hangs_in_its_first_message_excludes_nobody() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 9))
    waiting = {"stage": "pairs of nodes, first with n1", "error": "RuntimeError: time-out", "pairs": {}}
    hanging = {other: {"stage": f"pairs of nodes, first with {first}"} for first, other in (("n3", "n5"), ("n5", "n3"))}
    verdict = judged(nodes, {**dict.fromkeys(nodes, waiting), **hanging})
    assert excluded(verdict) == {}
    assert "n3: no end of: pairs of nodes, first with n5" in verdict.notes


def test_one_failed_connection_of_many_excludes_nobody() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 9))
    assert excluded(judged(nodes, n3={"unreachable": ("n5", "n6", "n7")})) == {}
    assert excluded(judged(nodes, n3={"unreachable": ("n5", "n6", "n7", "n8")})) == {"n3": "broken"}


def test_two_halves_without_a_connection_exclude_nobody() -> None:
    verdict = judged(n1={"unreachable": ("n3", "n4")}, n2={"unreachable": ("n3", "n4")})
    assert excluded(verdict) == {}
    assert "n1-n3, n1-n4, n2-n3, n2-n4: no connection" in verdict.notes


def test_one_measured_pair_shows_no_slow_network() -> None:
    pairs = {"n1": {"n4": 1e10}, "n4": {"n1": 1e10}, "n2": {"n3": 1e8}, "n3": {"n2": 1e8}}
    assert excluded(judged(NODES, {node: {"pairs": own} for node, own in pairs.items()})) == {}


def test_numbers_of_gpus_count_if_slurm_gives_each_node_the_same() -> None:
    gpus = {"n1": {"gpus": 4}, "n2": {"gpus": 4}, "n3": {"gpus": 2}, "n4": {"gpus": 4}}
    assert excluded(judged(NODES, gpus)) == {}
    verdict = judged(NODES, gpus, gpus_per_node=4)
    assert [node.sentence for node in verdict.excluded] == ["n3 is broken: torch sees 2 of 4 GPUs"]


@pytest.mark.parametrize("fault", ["hangs", "fails", "clock", "memory"])
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
    node = NodeMeasurement(tmp_path, "n1")
    node.add(host="host of n1")
    (tmp_path / "node-n2.json").write_text("{")
    assert read_reports(tmp_path, NODES) == [node.report]


@pytest.mark.parametrize("count", range(2, 12))
def test_rounds_contain_each_pair_once_and_each_rank_at_most_once(count: int) -> None:
    rounds = pair_rounds(count)
    pairs = [pair for each in rounds for pair in each]
    assert sorted(pairs) == [(one, other) for one in range(count) for other in range(one + 1, count)]
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in rounds)
    assert len(rounds) == count - 1 + count % 2


def test_messages_grow_until_they_take_long_enough() -> None:
    assert next_size(1024, 0.001) == 8192
    assert next_size(1024, 0.1) == 1024
    assert next_size(1024, 1.0) == 0


def test_the_delays_of_busy_processors_do_not_keep_messages_small() -> None:
    assert next_size(1024, 0.044) == 8192


def test_a_node_of_many_tries_some_others() -> None:
    hosts = [f"n{number}" for number in range(1000)]
    peers = choose_peers("n7", hosts)
    assert len(set(peers)) == MOST_PEERS
    assert "n7" not in peers
    assert choose_peers("n1", ["n1", "n2", "n3"]) == ["n2", "n3"]


def test_errors_of_gpus_are_read() -> None:
    answer = (
        "GPU-a, 00000000:3B:00.0, 0, No, No\nGPU-b, 00000000:5E:00.0, 2, No, [N/A]\n"
        "GPU-c, 00000000:86:00.0, [N/A], Yes, [N/A]\nGPU-d, 00000000:AF:00.0, [N/A], [N/A], [N/A]\n"
    )
    assert parse_gpu_query(answer) == [
        ("GPU-a", "0000:3b:00", 0, False),
        ("GPU-b", "0000:5e:00", 2, False),
        ("GPU-c", "0000:86:00", 0, True),
        ("GPU-d", "0000:af:00", 0, False),
    ]


def test_xids_of_the_hardware_since_a_moment_are_errors() -> None:
    log = (
        "[  100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
        "[ 5000.000001] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python, MMU Fault\n"
        "[ 5000.500001] NVRM: Xid (PCI:0000:3b:00): 94, pid=1, Contained ECC error\n"
        "[ 5001.000001] NVRM: Xid (PCI:0000:5e:00): 74, pid=1, NVLink error\n"
    )
    assert parse_xids(log, since=1000) == [(74, "0000:5e:00")]


def test_only_the_gpus_of_the_job_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    answers = {
        "nvidia-smi": "GPU-a, 00000000:3B:00.0, 2, No, No\nGPU-b, 00000000:5E:00.0, 7, Yes, No\n",
        "dmesg": "[999999999.1] NVRM: Xid (PCI:0000:3b:00): 79, x\n[999999999.1] NVRM: Xid (PCI:0000:5e:00): 79, x\n",
    }
    monkeypatch.setattr(machine, "command_output", lambda program, *_, **_options: answers[program])
    monkeypatch.setattr("hpc_kit.runtime.placement.device_uuid", lambda *_: "GPU-a")
    node = NodeMeasurement(tmp_path, "n1")
    node.add(gpus=1)
    preflight_rank.find_gpu_errors(node)
    assert node.report.gpu_errors == ()
    assert node.report.warnings == ("GPU 0000:3b:00 has 2 uncorrected memory errors", "Xid 79 of GPU 0000:3b:00")


def test_the_disk_of_the_job_is_measured_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    with pytest.raises(FileNotFoundError):
        preflight_rank.measure_disk()


@pytest.mark.parametrize(
    ("names", "unresolved", "misnamed"),
    [
        (("n2", []), (), {}),
        (("N2.cluster.org", []), (), {}),
        (("n2-ib0", ["n2.cluster.org", "n2"]), (), {}),
        (("n3", ["old3"]), (), {"n2": "n3"}),
        (OSError("the address has no name"), (), {}),
        (None, ("n2",), {}),
    ],
)
def test_any_name_of_an_address_may_be_that_of_the_node(
    names: tuple[str, list[str]] | OSError | None,
    unresolved: tuple[str, ...],
    misnamed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`names` are those of the address of n2; None: n2 has no address."""

    def lookup(_host: str) -> list[str]:
        if names is None:
            raise OSError("unknown host")
        return ["10.0.0.2"]

    def gethostbyaddr(address: str) -> tuple[str, list[str], list[str]]:
        if not isinstance(names, tuple):
            raise OSError("no name")
        return (*names, [address])

    monkeypatch.setattr(network, "lookup", lookup)
    monkeypatch.setattr("socket.gethostbyaddr", gethostbyaddr)
    node = NodeMeasurement(tmp_path, "n1")
    check_host_names(node, ["n1", "n2"])
    assert (node.report.unresolved, node.report.misnamed) == (unresolved, misnamed)
