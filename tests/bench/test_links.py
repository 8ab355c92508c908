"""Which links are measured, and the line through their times."""

from __future__ import annotations

import sys

import pytest

from hpc_kit.bench import collectives, collectives_rank, local_ranks
from hpc_kit.bench.collectives import CommOptions
from hpc_kit.bench.recorder import FileRecorder
from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.planner.calibration import fit_line
from hpc_kit.planner.calibration import fit_links as planned


def test_few_ranks_measure_all_pairs_and_many_one_pair_per_two_nodes() -> None:
    assert [(pair.place, pair.link) for pair in collectives_rank.choose_pairs(["a", "a", "b"])[0]] == [
        ("inside", "a 0-1"),
        ("across", "a-b 0-2"),
        ("across", "a-b 1-2"),
    ]
    many, _ = collectives_rank.choose_pairs([f"n{number // 4}" for number in range(16)])
    assert [pair.place for pair in many] == ["inside"] * 4 + ["across"] * 6
    in_turns, _ = collectives_rank.choose_pairs([f"n{number % 4}" for number in range(16)])
    assert sorted(pair.link.split()[0] for pair in in_turns) == sorted(pair.link.split()[0] for pair in many)


def test_with_too_many_nodes_the_measured_links_are_spread_and_noted() -> None:
    hosts = [f"n{number // 2}" for number in range(16)]
    found, note = collectives_rank.choose_pairs(hosts)
    assert [pair.place for pair in found] == ["inside"] * 7 + ["across"] * 21
    across = [pair.link.split()[0] for pair in found if pair.place == collectives_rank.ACROSS_NODES]
    # Each node has a link to more than a few others, the last ones among themselves, too.
    assert {sum(f"n{number}" in link.split("-") for link in across) for number in range(8)} <= {4, 5, 6, 7}
    assert "inside 7 of 8 nodes and between 21 of 28 pairs" in note
    many = [f"n{number}" for number in range(64)]
    assert len({pair.link for pair in collectives_rank.choose_pairs(many)[0]}) == collectives_rank.MAX_PAIRS
    assert collectives_rank.choose_pairs(hosts[:8])[1] == ""


def test_a_fit_recovers_the_line_of_its_points() -> None:
    line = fit_line([(size, 5e-6 + size * 2e-10) for size in (1024, 4096, 1 << 20, 1 << 26)])
    assert line is not None
    assert line.intercept == pytest.approx(5e-6)
    assert line.slope == pytest.approx(2e-10)
    assert line.intercept_error == pytest.approx(0, abs=1e-9)
    noisy = fit_line([(1024, 5.6e-6), (4096, 5.4e-6), (1 << 20, 2.3e-4), (1 << 26, 1.3e-2)])
    assert noisy is not None
    assert noisy.slope_error is not None
    assert abs(noisy.slope - 2e-10) < 3 * noisy.slope_error


@pytest.mark.parametrize("points", [[], [(4, 1.0)], [(4, 1.0), (4, 2.0)], [(4, 2.0), (8, 1.0)]])
def test_points_without_a_slope_have_no_fit(points: list[tuple[float, float]]) -> None:
    assert fit_line(points) is None


def test_a_fit_without_numpy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(HpcKitError, match="numpy is not installed") as error:
        fit_line([(1, 1.0), (2, 2.0)])
    assert error.value.remedy == "pip install 'hpc_kit[plan]'"


def test_alpha_and_beta_of_each_link_and_a_sentence_on_the_kinds() -> None:
    sheet = FileRecorder("comm", title="", columns=collectives.COLUMNS, parameters={}, load_seconds=0)
    rows = [
        sheet.add_row({**collectives_rank.link_labels("gloo", pair), "bytes": size}, seconds=start + size * slope)
        for pair, start, slope in (
            (collectives_rank.RankPair(0, 1, collectives_rank.INSIDE_NODE, "a 0-1"), 1e-6, 1e-10),
            (collectives_rank.RankPair(0, 2, collectives_rank.ACROSS_NODES, "a-b 0-2"), 5e-5, 1e-9),
        )
        for size in (1024, 65536, 1 << 20)
    ]
    flat = {
        **collectives_rank.link_labels(
            "gloo", collectives_rank.RankPair(1, 2, collectives_rank.ACROSS_NODES, "a-b 1-2")
        )
    }
    rows += [sheet.add_row({**flat, "bytes": size}, seconds=1.0) for size in (4, 8)]
    collectives_rank.add_link_fits(rows, sheet)
    fits = [row for row in sheet.close().results if "alpha" in row.values]
    assert [row.values["bandwidth"] for row in fits] == pytest.approx([10, 1])
    notes = sheet.close().notes
    assert notes[0].startswith("gloo: no line through the times of a-b 1-2")
    assert notes[1].endswith("inside a node 10 times the bandwidth.")


def test_the_planner_reads_only_rows_of_the_library() -> None:
    rows = [
        {
            "backend": "gloo",
            "collective": "all_reduce",
            "algorithm": name,
            "ranks": 2,
            "bytes": size,
            "seconds": size * slope,
        }
        for name, slope in (("library", 1e-9), ("star", 1e-6))
        for size in (1024, 1 << 20)
    ]
    found = planned([*rows, {"backend": "gloo", "link": "a 0-1", "alpha": 1.0}], 1)
    assert found.link == pytest.approx(1e9)


def test_ranks_beyond_the_memory_are_refused() -> None:
    with pytest.raises(SpecError, match=r"bench comm on 1000000 ranks does not fit into memory"):
        CommOptions(("gloo",), ranks=1_000_000).check(1)


def test_nccl_needs_a_gpu_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(collectives, "unavailable_reason", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked = CommOptions(("nccl",))
    with pytest.raises(SpecError, match=r"needs a GPU a rank\n.*2 ranks, 1 GPUs"):
        asked.check(1)
    asked.check(2)


def test_the_backends_that_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(collectives, "unavailable_reason", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(local_ranks, "find_mpirun", lambda: "mpirun")
    assert collectives.available_backends(2, 1) == ("gloo", "mpi", "nccl")
    assert collectives.available_backends(4, 1) == ("gloo", "mpi")
    assert collectives.available_backends(4, 4) == ("gloo", "nccl")


def test_progress_shows_the_number_of_rows() -> None:
    asked = CommOptions(("gloo", "mpi"), ("all_reduce", "broadcast"), 3, (4096, 8192), ("ring", "star"), links=True)
    assert asked.row_count(3) == 2 * (2 * 2 + 2 * 2 + 3 * 2 + 3) + 2 * 3


def test_a_backend_missing_from_torch_is_refused() -> None:
    from torch import distributed as dist

    asked = CommOptions(("horovod",))
    with pytest.raises(SpecError, match="unknown backend 'horovod'"):
        asked.check(1)
    if not dist.is_nccl_available():
        with pytest.raises(SpecError, match="nccl is not built in"):
            asked._replace(backends=("nccl",)).check(1)
