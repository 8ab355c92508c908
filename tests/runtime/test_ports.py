"""Where a launch may meet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.runtime.rendezvous import ports

EPHEMERAL = 32_768


@given(st.text())
def test_candidates_lie_below_the_ports_that_linux_hands_out(key: str) -> None:
    for found in (ports.candidate_ports(key), ports.discovery_ports(key)):
        assert len(set(found)) == ports.CANDIDATES
        assert all(ports.FIRST <= port < EPHEMERAL for port in found)


def test_a_port_that_was_asked_for_comes_first() -> None:
    assert ports.candidate_ports("job 1", 29_500) == [29_500, *ports.candidate_ports("job 1")]
    again = ports.candidate_ports("job 1")[3]
    assert ports.candidate_ports("job 1", again)[0] == again
    assert len(ports.candidate_ports("job 1", again)) == ports.CANDIDATES


def test_jobs_of_a_day_meet_apart() -> None:
    keys = [f"job {job}, step {step}, restart 0" for job in range(5_000, 5_500) for step in range(2)]
    first = [ports.candidate_ports(key)[0] for key in keys]
    assert len(set(first)) > 0.95 * len(keys)
