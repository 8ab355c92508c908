"""Pytest fixtures for tests that need the real cluster: `from tests.cluster.fixture import cluster`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from . import Cluster, Settings, find_obstacle
from .cluster import missing_packages
from .settings import load, visible_paths

if TYPE_CHECKING:
    from collections.abc import Iterator


def require_cluster() -> None:
    """Skip the test if a cluster is impossible. If CI requires the real Slurm, missing packages are a failure."""
    reason = find_obstacle()
    if reason is None:
        return
    if os.environ.get("HPC_KIT_REQUIRE_ORACLES") and os.geteuid() == 0 and missing_packages():
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def raised(settings: Settings) -> Iterator[Cluster]:
    """Start a separate cluster, and stop it in any case."""
    require_cluster()
    built = Cluster(settings)
    built.down()
    try:
        built.up()
        yield built
    finally:
        built.down()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster of `make slurm-up` if it has the default settings; otherwise a cluster for this session."""
    require_cluster()
    standing = Cluster(Settings(carry=visible_paths()))
    if load(standing.settings.root) == standing.settings and standing.healthy():
        yield standing
        return
    with raised(Settings(name="test", carry=visible_paths())) as built:
        yield built


@pytest.fixture(scope="session")
def _to_be_broken() -> Iterator[Cluster]:
    quick = {"SlurmdTimeout": "6", "MessageTimeout": "5"}
    with raised(Settings(name="faulty", accounting=False, small=4, carry=visible_paths(), slurm=quick)) as built:
        yield built


@pytest.fixture
def faulty(_to_be_broken: Cluster) -> Iterator[Cluster]:
    """A cluster without accounting for tests of faults. It is repaired after each test."""
    try:
        yield _to_be_broken
    finally:
        _to_be_broken.repair()


REAL = "real Slurm"
"""The property of a test that needs the real Slurm."""

FIXTURES = {"cluster", "tracked", "other", "faulty", "munge"}


def count(item: pytest.Item) -> None:
    """Record that this test needs the real Slurm, if one of its fixtures is a cluster."""
    if FIXTURES & set(getattr(item, "fixturenames", ())):
        item.user_properties.append((REAL, True))


def summary(reporter: pytest.TerminalReporter) -> str:
    """Return the line for CI with the number of tests that ran on the real Slurm."""
    ran = {
        outcome: sum(
            (REAL, True) in report.user_properties
            for report in reporter.stats.get(outcome, [])
            if isinstance(report, pytest.TestReport)
        )
        for outcome in ("passed", "failed", "error", "skipped")
    }
    failed = ran["failed"] + ran["error"]
    return f"on the real Slurm: {ran['passed'] + failed} tests ran, {failed} failed, {ran['skipped']} skipped"
