"""A pytest fixture for rooms that want the real cluster: `from tests.cluster.fixture import cluster`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from . import Cluster, Settings, missing
from .cluster import missing_packages
from .settings import carried

if TYPE_CHECKING:
    from collections.abc import Iterator


def need_a_cluster() -> None:
    """Skip visibly where there can be no cluster; where CI requires its oracles, missing packages are a failure."""
    reason = missing()
    if reason is None:
        return
    if os.environ.get("HPC_KIT_REQUIRE_ORACLES") and missing_packages():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of this test session's own, taken down at its end."""
    need_a_cluster()
    built = Cluster(Settings(name="test", carry=carried()))
    built.down()
    try:
        built.up()
        yield built
    finally:
        built.down()
