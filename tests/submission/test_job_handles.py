"""Handles share one watcher for each Slurm, which queries all their jobs at once."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from hpc_kit.slurm.client import SlurmClient
from hpc_kit.submission.job_handles import JobWatcher, shared_watcher
from tests.runs.fake import FakeSlurm


@pytest.fixture
def watcher(slurm: FakeSlurm) -> JobWatcher:
    return JobWatcher(slurm.client(os.environ))


def test_each_cluster_of_a_real_slurm_has_its_own_watcher() -> None:
    there, here = (SlurmClient({"SLURM_CLUSTERS": name}, embedded=False) for name in ("there", "here"))
    assert shared_watcher(there) is shared_watcher(there)
    assert shared_watcher(there) is not shared_watcher(here)


def test_one_query_serves_all_jobs_until_it_expires(
    slurm: FakeSlurm, watcher: JobWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmClient, "poll_seconds", 3600.0)
    slurm.queue("12 RUNNING", "13_0 COMPLETED", "13_1 RUNNING")
    assert watcher.get_state("12") == "RUNNING"
    assert watcher.get_state("13") == "RUNNING"
    calls = len(slurm.read("squeue.calls").splitlines())
    assert [watcher.is_done(job_id) for job_id in ("13_0", "13_1", "12")] == [True, False, False]
    assert len(slurm.read("squeue.calls").splitlines()) == calls
    monkeypatch.setattr(SlurmClient, "poll_seconds", 0.0)
    assert watcher.get_state("12") == "RUNNING"
    assert len(slurm.read("squeue.calls").splitlines()) == calls + 1
    assert watcher.get_info("12", mode="cache") == {"JobID": "12", "State": "RUNNING", "NodeList": "n[1-2]"}


def test_a_job_missing_from_several_queries_is_done_and_may_reappear(slurm: FakeSlurm, watcher: JobWatcher) -> None:
    slurm.queue()
    assert [watcher.is_done("12", mode="force") for _ in range(3)] == [False, False, True]
    slurm.queue("12 RUNNING")
    assert not watcher.is_done("12", mode="force")


def test_a_running_job_that_slurm_forgets_is_done(slurm: FakeSlurm, watcher: JobWatcher) -> None:
    slurm.queue("12 RUNNING", "13_0 RUNNING")
    assert not watcher.is_done("12")
    slurm.queue()
    assert [watcher.is_done("12", mode="force") for _ in range(3)] == [False, False, True]
    assert watcher.get_state("12", mode="cache") == "UNKNOWN"


def test_a_clock_that_is_set_back_delays_no_query(
    slurm: FakeSlurm, watcher: JobWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.queue("12 RUNNING")
    assert not watcher.is_done("12")
    slurm.queue("12 COMPLETED")
    wall, monotonic = time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: wall - 3600)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic + 60)
    assert watcher.is_done("12")


def test_threads_wait_for_jobs(watcher: JobWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "client", SimpleNamespace(query=lambda _: {}, poll_seconds=0.0, environ={}))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(watcher.get_state, map(str, range(400)))) == {"UNKNOWN"}
    finally:
        sys.setswitchinterval(interval)


def test_an_ended_job_is_not_queried_again(
    slurm: FakeSlurm, watcher: JobWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.queue("12 COMPLETED")
    assert watcher.is_done("12")
    calls = slurm.read("squeue.calls")
    assert watcher.is_done("12", mode="force")
    assert slurm.read("squeue.calls") == calls


def test_without_a_controller_the_last_states_remain(slurm: FakeSlurm, watcher: JobWatcher) -> None:
    slurm.queue("12 RUNNING")
    assert watcher.get_state("12") == "RUNNING"
    slurm.write("squeue.error", "slurm_load_jobs error: Unable to contact slurm controller")
    assert watcher.get_state("12", mode="force") == "RUNNING"
