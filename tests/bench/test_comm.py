"""`hpc-kit bench comm`: what is asked for, and that it is measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpc_kit.bench import collectives as comm
from hpc_kit.cli.bench import command
from hpc_kit.errors import SpecError


@pytest.mark.parametrize(
    ("text", "expected"), [("4096", 4096), ("4KiB", 4096), ("4K", 4096), ("4 MB", 4 << 20), ("64MiB", 64 << 20)]
)
def test_sizes(text: str, expected: int) -> None:
    assert comm.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "0", "3", "4XB", "-1", "big"])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is no size"):
        comm.parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4MiB,4KiB", (4096, 4 << 20)), ("1KiB-20KiB", (1024, 4096, 16384, 20480)), ("1KiB-4KiB,1KiB", (1024, 4096))],
)
def test_ranges_of_sizes(text: str, expected: tuple[int, ...]) -> None:
    assert comm.parse_sizes(text) == expected


def test_a_range_of_sizes_must_ascend() -> None:
    with pytest.raises(SpecError, match="goes down"):
        comm.parse_sizes("4MiB-1KiB")


def test_ring_and_star_are_all_reduces() -> None:
    with pytest.raises(SpecError, match="ways to do an all_reduce"):
        comm.CommOptions(("gloo",), ("broadcast",), algorithms=("ring",)).check(1)
    asked = comm.CommOptions(("gloo",), ("all",), algorithms=("ring", "star")).resolve(1)
    asked.check(1)
    assert asked.collectives == tuple(comm.BUS_FACTORS)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--backends", "goo"), "unknown backend 'goo'"),
        (("--collectives", "all_reduc"), "unknown collective 'all_reduc'"),
        (("--algorithms", "tree"), "unknown algorithm 'tree'"),
        (("--backends", ""), "the value contains no name"),
        (("--ranks", "1"), "fewer than 2 ranks"),
        (("--sizes", "4XB"), "is no size"),
    ],
)
def test_impossible_measurements_are_refused(words: tuple[str, ...], fault: str) -> None:
    done = CliRunner().invoke(command, ["comm", *words])
    assert fault in f"{done.exception}{done.output}"


@pytest.mark.slow
@pytest.mark.oracle("mpirun.openmpi")
def test_every_collective_on_both_backends() -> None:
    collectives = ",".join(comm.BUS_FACTORS)
    argv = ["comm", "--backends", "gloo,mpi", "--collectives", collectives, "--sizes", "1KiB", "--json"]
    done = CliRunner().invoke(command, argv)
    results = json.loads(done.stdout)["results"]
    assert [(each["collective"], each["bytes"], each["backend"]) for each in results] == [
        (collective, 1024, backend) for collective in comm.BUS_FACTORS for backend in ("gloo", "mpi")
    ]
    assert all(each["seconds"] > 0 and each["ranks"] == 2 for each in results)


@pytest.mark.slow
def test_gloo_alone_needs_no_mpirun(tmp_path: Path) -> None:
    argv = [
        "comm",
        "--backends",
        "gloo",
        "--ranks",
        "3",
        "--sizes",
        "4KiB,64KiB",
        "--algorithms",
        "ring,star",
        "--links",
    ]
    done = CliRunner().invoke(command, [*argv, "--json", "--out", str(tmp_path)])
    results = json.loads(done.stdout)["results"]
    assert [each["algorithm"] for each in results if each.get("bytes") == 4096 and "algbw" in each] == [
        "library",
        "ring",
        "star",
    ]
    traffic = {(each["algorithm"], each["rank"]): each["traffic"] for each in results if "traffic" in each}
    assert traffic["star", 0] == 2 * traffic["star", 1] == 4 * 65532
    assert len([each for each in results if "alpha" in each]) <= 3
    assert json.loads((tmp_path / "bench_comm.json").read_text()) == json.loads(done.stdout)
    assert (tmp_path / "bench_comm-traffic.svg").is_file()


@pytest.mark.slow
def test_ctrl_c_keeps_the_results_so_far(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hpc_kit", "bench", "comm", "--backends", "gloo", "--sizes", "1KiB-256MiB"]
    argv += ["--collectives", "all", "--out", str(tmp_path)]
    running = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    result = tmp_path / "bench_comm.json"
    while not result.exists():
        assert running.poll() is None
        time.sleep(0.2)
    assert json.loads(result.read_text())["interrupted"]
    running.send_signal(signal.SIGINT)
    assert running.wait(120) == 130
    output = json.loads(result.read_text())
    assert output["interrupted"]
    assert output["results"]
    assert "**Interrupted:" in (tmp_path / "bench_comm.md").read_text()
