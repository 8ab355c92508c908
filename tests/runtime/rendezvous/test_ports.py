"""Candidate ports of a launch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.runtime.rendezvous import store

EPHEMERAL = 32_768


@given(st.text())
def test_candidate_ports_are_below_the_ephemeral_range(key: str) -> None:
    for found in (store.candidate_ports(key), store.discovery_ports(key)):
        assert len(set(found)) == store.CANDIDATES
        assert all(store.FIRST <= port < EPHEMERAL for port in found)


def test_a_requested_port_comes_first() -> None:
    assert store.candidate_ports("job 1", 29_500) == [29_500, *store.candidate_ports("job 1")]
    again = store.candidate_ports("job 1")[3]
    assert store.candidate_ports("job 1", again)[0] == again
    assert len(store.candidate_ports("job 1", again)) == store.CANDIDATES


def test_jobs_of_one_day_rarely_share_a_port() -> None:
    keys = [f"job {job}, step {step}, restart 0" for job in range(5_000, 5_500) for step in range(2)]
    first = [store.candidate_ports(key)[0] for key in keys]
    assert len(set(first)) > 0.95 * len(keys)
