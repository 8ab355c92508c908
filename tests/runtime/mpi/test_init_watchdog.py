"""Ranks that never reach MPI_Init, and simultaneous launches with the same variables."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.runtime import resolve
from hpc_kit.runtime.mpi import init_watchdog
from hpc_kit.runtime.rendezvous import network
from tests.runtime.mpi import launch


def find_marked_processes(mark: str) -> list[str]:
    """Return the processes that have this marker in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(200)
@launch.both
def test_a_rank_that_does_not_reach_mpi_ends_the_wait_at_the_timeout(mpi: str, tmp_path: Path) -> None:
    done = launch.run_ranks(mpi, 3, "late_rank.py", "sleeps", str(tmp_path), timeout=150, HPC_KIT_RUN=str(tmp_path))
    assert done.returncode != 0
    assert "1 of 3 ranks did not come to MPI_Init within 8 s\n  found  not there: rank 2\n" in done.stderr
    assert ": 2 of 3 came\n" in done.stderr
    assert "met" not in done.stdout
    assert (tmp_path / "first-failure").read_text().split()[0] == "2"
    until = time.monotonic() + 10
    while (left := find_marked_processes(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_rank_that_ends_before_mpi_ends_the_wait(tmp_path: Path) -> None:
    done = launch.run_ranks("MPICH", 3, "late_rank.py", "ends", str(tmp_path), timeout=150)
    assert done.returncode != 0
    assert "1 of 3 ranks did not come to MPI_Init within 8 s" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_simultaneous_launches_have_separate_watchdogs() -> None:
    """Without mpi4py: rank 0 of one launch and rank 1 of a second launch are early."""
    started = [
        launch.start_ranks("MPICH", 2, "two_launches.py", name, late, MPI4PY_LIBMPI="/no/such/libmpi.so.12")
        for name, late in (("A", "1"), ("B", "0"))
    ]
    outputs = [process.communicate(timeout=150)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert [sorted(text.splitlines()) for text in outputs] == [[f"{name}: ['{name}', '{name}']"] * 2 for name in "AB"]


def make_watchdog(**named: Any) -> init_watchdog.InitWatchdog:
    facts: dict[str, Any] = {
        "token": f"test {os.getpid()} {time.monotonic_ns()}",
        "ports": [],
        "rank": 0,
        "size": 4,
        "local_size": 2,
        "here": "n1",
        "hosts": "n[1-3]",
        "timeout": 9.0,
        "pid": 0,
    }
    return init_watchdog.InitWatchdog(**facts | named)


def test_the_error_lists_the_ranks_that_came_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, tuple[int | None, list[int]]] = {"n2": (2, [3]), "n3": (None, [])}
    monkeypatch.setattr(init_watchdog.InitWatchdog, "_query_host", lambda _self, host: answers[host])
    mine = make_watchdog()
    with mine.present():
        error, is_first = mine.absent_ranks()
        short, is_first_too = make_watchdog(token=mine.token, rank=3).absent_ranks()
    assert is_first
    assert not is_first_too
    assert str(error).startswith(
        "2 of 4 ranks did not come to MPI_Init within 9 s\n"
        "  found  not there: ranks 1, 2\n"
        "         n1: 1 of 2 came\n"
        "         n2: 1 of 2 came\n"
        "         n3: no rank came\n"
    )
    assert str(short) == "2 of 4 ranks did not come to MPI_Init within 9 s: not there: ranks 1, 2"


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_the_largest_machines_have_a_time_limit_too() -> None:
    # The names of all hosts, one after the other, are longer than the kernel allows for one argument of a program.
    hosts = tuple(f"frontier{number:05}" for number in range(1, 9409))
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": str(len(hosts))}
    world = replace(resolve(environ), hosts=hosts)
    before = children()
    with init_watchdog.mpi_init_deadline(world, 60):
        assert children() > before


def test_without_a_list_of_hosts_the_error_lists_only_this_host() -> None:
    mine = make_watchdog(hosts="")
    with mine.present(), make_watchdog(token=mine.token, rank=1).present():
        error, _ = mine.absent_ranks()
        everybody, _ = make_watchdog(token=mine.token, size=2).absent_ranks()
    assert str(error).startswith(
        "not all of 4 ranks came to MPI_Init within 9 s\n"
        "  found  n1: ranks 0, 1 came; the other hosts are not known here"
    )
    assert "MPI_Init did not end within 9 s, although all 2 ranks have come to it" in str(everybody)


def test_a_query_of_another_host_is_answered() -> None:
    port = network.free_port(everywhere=True)
    there = make_watchdog(ports=[port], rank=2, here="localhost")
    here = make_watchdog(token=there.token, ports=[port], hosts="n1,localhost")
    with there.present():
        assert here._query_host("localhost") == (2, [2])
        assert make_watchdog(ports=[port])._query_host("localhost") == (None, [])  # another launch
    assert here._query_host("localhost") == (None, [])


def test_simultaneous_queries_count_the_ranks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def ranks_here(self: init_watchdog.InitWatchdog) -> list[int]:
        counted.append(self.rank)
        return [self.rank]

    monkeypatch.setattr(init_watchdog.InitWatchdog, "_local_ranks", ranks_here)
    monkeypatch.setattr(init_watchdog, "_COUNT_VALID_SECONDS", 600.0)
    there = make_watchdog(ports=[network.free_port(everywhere=True)], rank=2)
    with there.present():
        assert [there._query_host("localhost") for _ in range(3)] == [(2, [2])] * 3
    assert counted == [2]


def test_a_host_without_a_free_thread_watches_without_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_thread(_self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", raise_no_thread)
    mine = make_watchdog(ports=[network.free_port(everywhere=True)])
    with mine.present():
        assert mine._local_ranks() == [0]


@pytest.mark.parametrize("python", ["", "/no/such/python"])
def test_a_rank_that_cannot_start_a_timer_waits_without_one(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python)
    went = 0
    with init_watchdog.mpi_init_deadline(
        resolve({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "1"}), 9.0
    ):
        went += 1
    assert went == 1
    with (
        pytest.raises(OSError, match="of the body"),
        init_watchdog.mpi_init_deadline(
            resolve({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "1"}), 9.0
        ),
    ):
        raise OSError("of the body")


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_rank_is_ended_at_the_timeout_even_if_printing_fails(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, int]] = []

    def raise_broken_pipe(_self: init_watchdog.InitWatchdog) -> object:
        if goes_on:
            return None, False
        raise OSError("a broken pipe")

    mine = make_watchdog(pid=os.getppid())
    monkeypatch.setattr(sys, "argv", ["-c", json.dumps(astuple(mine))])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "kill", lambda *killed: ended.append(killed))
    monkeypatch.setattr(
        init_watchdog, "_rank_continues_within", lambda seconds: seconds == init_watchdog._REPORTER_SECONDS
    )
    monkeypatch.setattr(init_watchdog.InitWatchdog, "absent_ranks", raise_broken_pipe)
    if goes_on:
        init_watchdog.main()
    else:
        with pytest.raises(OSError, match="a broken pipe"):
            init_watchdog.main()
    assert ended == ([] if goes_on else [(mine.pid, signal.SIGKILL)])
