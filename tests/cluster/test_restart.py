"""Jobs with [restart] on the real Slurm: the faults that the embedded one does not have."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.queues import RealQueue
from tests.faults.ring import ANYWHERE, REAL, Kind, Trial

from . import Cluster

pytestmark = pytest.mark.timeout(400)

KINDS = [pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] * (kind in ANYWHERE)) for kind in REAL]


@pytest.fixture
def queue(faulty: Cluster) -> Iterator[RealQueue]:
    own = RealQueue(faulty, Path(tempfile.mkdtemp(prefix="restart-", dir=faulty.settings.work)))
    yield own
    own.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_survives(queue: RealQueue, kind: Kind) -> None:
    Trial(queue, kind, random.Random(1), 1).survive()
