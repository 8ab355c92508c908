"""Which links are measured, and the line through their times."""

from __future__ import annotations

import pytest

from hpc_kit.bench import collectives, comm_checks, links, local_ranks
from hpc_kit.bench.recorder import Kept
from hpc_kit.errors import SpecError
from hpc_kit.planner.calibration import links as planned
from hpc_kit.planner.line_fit import fit


def test_all_pairs_of_few_ranks_and_one_for_each_two_nodes_of_many() -> None:
    assert [(pair.place, pair.link) for pair in links.pairs(["a", "a", "b"])] == [
        ("inside", "a 0-1"),
        ("across", "a-b 0-2"),
        ("across", "a-b 1-2"),
    ]
    many = links.pairs([f"n{number // 4}" for number in range(16)])
    assert [pair.place for pair in many] == ["inside"] * 4 + ["across"] * 6
    in_turns = links.pairs([f"n{number % 4}" for number in range(16)])
    assert sorted(pair.link.split()[0] for pair in in_turns) == sorted(pair.link.split()[0] for pair in many)


def test_of_too_many_nodes_the_links_measured_are_spread_and_the_rest_is_told() -> None:
    hosts = [f"n{number // 2}" for number in range(16)]
    found = links.pairs(hosts)
    assert [pair.place for pair in found] == ["inside"] * 7 + ["across"] * 21
    across = [pair.link.split()[0] for pair in found if pair.place == links.ACROSS]
    # Each node has a link to more than a few others, the last ones among themselves, too.
    assert {sum(f"n{number}" in link.split("-") for link in across) for number in range(8)} <= {4, 5, 6, 7}
    assert "inside 7 of 8 nodes and between 21 of 28 pairs" in links.left_out(hosts, found)
    many = [f"n{number}" for number in range(64)]
    assert len({pair.link for pair in links.pairs(many)}) == links.MOST_PAIRS
    assert links.left_out(hosts[:8], links.pairs(hosts[:8])) == ""


def test_the_line_gives_back_what_made_it() -> None:
    line = fit([(size, 5e-6 + size * 2e-10) for size in (1024, 4096, 1 << 20, 1 << 26)])
    assert line is not None
    assert line.start == pytest.approx(5e-6)
    assert line.slope == pytest.approx(2e-10)
    assert line.start_error == pytest.approx(0, abs=1e-9)
    noisy = fit([(1024, 5.6e-6), (4096, 5.4e-6), (1 << 20, 2.3e-4), (1 << 26, 1.3e-2)])
    assert noisy is not None
    assert noisy.slope_error is not None
    assert abs(noisy.slope - 2e-10) < 3 * noisy.slope_error


@pytest.mark.parametrize("points", [[], [(4, 1.0)], [(4, 1.0), (4, 2.0)], [(4, 2.0), (8, 1.0)]])
def test_no_line(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


def test_alpha_and_beta_of_each_link_and_a_sentence_on_the_kinds() -> None:
    sheet = Kept("comm", title="", columns=collectives.COLUMNS, parameters={}, look=0)
    rows = [
        sheet.add({**links.labels("gloo", pair), "bytes": size}, seconds=start + size * slope)
        for pair, start, slope in (
            (links.Pair(0, 1, links.INSIDE, "a 0-1"), 1e-6, 1e-10),
            (links.Pair(0, 2, links.ACROSS, "a-b 0-2"), 5e-5, 1e-9),
        )
        for size in (1024, 65536, 1 << 20)
    ]
    flat = {**links.labels("gloo", links.Pair(1, 2, links.ACROSS, "a-b 1-2"))}
    rows += [sheet.add({**flat, "bytes": size}, seconds=1.0) for size in (4, 8)]
    links.put_fits(rows, sheet)
    fits = [row for row in sheet.close().results if "alpha" in row.values]
    assert [row.values["bandwidth"] for row in fits] == pytest.approx([10, 1])
    notes = sheet.close().notes
    assert notes[0].startswith("gloo: no line through the times of a-b 1-2")
    assert notes[1].endswith("inside a node 10 times the bandwidth.")


def test_the_planner_reads_what_the_library_did_alone() -> None:
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
    found = planned([*rows, {"backend": "gloo", "link": "a 0-1", "alpha": 1.0}], 8)
    assert found.link == pytest.approx(1e9)


def test_sizes_beyond_the_memory_are_refused_with_the_numbers() -> None:
    asked = collectives.question("gloo", "all_reduce", 2, "64GiB")
    with pytest.raises(SpecError, match="64 GiB are too many for the memory of n1") as caught:
        comm_checks.refuse_on_host(asked, 2, "n1", 20 << 30)
    assert "384 GiB, 20 GiB are left" in str(caught.value)
    assert "--sizes up to 3413MiB" in str(caught.value)
    comm_checks.refuse_on_host(asked, 2, "n1", None)
    with pytest.raises(SpecError, match=r"bench comm on 500 ranks of n1 does not fit into memory"):
        comm_checks.refuse_on_host(collectives.question("gloo", "all_reduce", 500, "4"), 500, "n1", 20 << 30, 150 << 20)
    with pytest.raises(SpecError, match="too many for the memory"):
        comm_checks.refuse(collectives.question("gloo", "all_reduce", 2, "99999GiB"), 1)


def test_nccl_needs_a_gpu_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(comm_checks, "why_not", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked = collectives.question("nccl", "all_reduce", 2, "4KiB")
    with pytest.raises(SpecError, match=r"needs a GPU a rank\n.*2 ranks, 1 GPUs"):
        comm_checks.refuse(asked, 1)
    comm_checks.refuse(asked, 2)


def test_the_backends_that_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(comm_checks, "why_not", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(local_ranks, "has_mpirun", lambda: True)
    assert comm_checks.automatic(2, 1) == ("gloo", "mpi", "nccl")
    assert comm_checks.automatic(4, 1) == ("gloo", "mpi")
    assert comm_checks.automatic(4, 4) == ("gloo", "nccl")


def test_the_progress_knows_how_many_rows_will_come() -> None:
    asked = collectives.question("gloo,mpi", "all_reduce,broadcast", 3, "4KiB,8KiB", "ring,star", links=True)
    assert asked.rows(3) == 2 * (2 * 2 + 2 * 2 + 3 * 2 + 3) + 2 * 3


def test_what_this_torch_has_not_is_refused() -> None:
    from torch import distributed as dist

    asked = collectives.question("horovod", "all_reduce", 2, "4KiB")
    with pytest.raises(SpecError, match="no backend horovod"):
        comm_checks.refuse(asked, 1)
    if not dist.is_nccl_available():
        with pytest.raises(SpecError, match="nccl is not built in"):
            comm_checks.refuse(asked._replace(backends=("nccl",)), 1)
