"""The two engines: each test of this folder runs on the embedded Slurm, and, if marked `real`, on the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pocketslurm.settings import Partition
from tests.cluster.fixture import REAL, cluster
from tests.conformance.engine import Embedded, Engine, Real
from tests.pocketslurm.conftest import Slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cluster"]

MINUTE = 6.0
"""Seconds per minute of a time limit on the embedded engine."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("real"):
        item.user_properties.append((REAL, True))


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("embedded", marks=pytest.mark.slow),
        pytest.param("real", marks=pytest.mark.real),
    ],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The Slurm under test."""
    if request.param == "real":
        yield Real(request.getfixturevalue("cluster"))
        return
    partitions = (Partition("main", 86400, 3600), Partition("high", 86400, 3600))
    slurm = Slurm(
        tmp_path_factory.mktemp("engine"), partitions=partitions, max_array_size=20, kill_wait=5.0, minute=MINUTE
    )
    try:
        yield Embedded(slurm)
    finally:
        slurm.clear()


@pytest.fixture(autouse=True, scope="module")
def _empty_queue(engine: Engine) -> Iterator[None]:
    """Empty the queue after each module, so that a failed test does not affect the next one."""
    yield
    engine.run("scancel", "--user=root")
    engine.wait_until(lambda: engine.output_of("squeue", "-h") == "")
