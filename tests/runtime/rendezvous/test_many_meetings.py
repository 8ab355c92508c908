"""64 jobs run on one node with colliding ports, and each meets only its own ranks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pytest

from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous import meeting as rendezvous
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.rendezvous.meeting import Meeting
from tests.runtime.launches import Environ, Step

JOBS, RANKS = 64, 2
STARTS = 8
"""Number of different first ports of all jobs."""


def choose_few_ports(start: int) -> list[int]:
    first = store.FIRST + (os.getpid() % 1000) * 20 + start % STARTS
    return [first + STARTS * turn for turn in range(2 * JOBS // STARTS)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_jobs_whose_ports_collide_meet_their_own_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "candidate_ports", lambda key, _first=None: choose_few_ports(crc32(key.encode())))
    monkeypatch.setattr(
        store, "discovery_ports", lambda key: [port + 500 for port in choose_few_ports(crc32(key.encode()))]
    )
    base = os.getpid() * 1000
    environs = [
        environ
        for job in range(JOBS)
        for environ in Step.of(1, 1, hosts=("127.0.0.1", "127.0.0.2"), job=str(base + job)).environs()
    ]

    def meet_one(environ: Environ) -> Meeting:
        return rendezvous.meet(resolve(environ), timeout=200, environ=environ, meeting_number=0)

    with ThreadPoolExecutor(len(environs)) as threads:
        meetings = list(threads.map(meet_one, environs))
    for first, second in zip(meetings[::RANKS], meetings[1::RANKS], strict=True):
        first.substore("test").set("job", first.world.name)
        assert second.substore("test").get("job").decode() == second.world.name
        assert first.port == second.port
    assert len({meeting.port for meeting in meetings}) == JOBS
