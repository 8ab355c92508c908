"""Whether it fits: what the machine and the job's own limit leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.bench import room
from hpc_kit.errors import SpecError


def test_the_least_of_the_machine_and_every_limit_above_counts(tmp_path: Path) -> None:
    meminfo, own, job = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "cgroups" / "slurm" / "job_1"
    assert room.available(meminfo, own, tmp_path) is None
    meminfo.write_text("MemTotal:  8000000 kB\nMemAvailable:    4000000 kB\n")
    assert room.available(meminfo, own, tmp_path) == 4_096_000_000
    job.mkdir(parents=True)
    own.write_text("0::/slurm/job_1\n")
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text("5\n")
    (job.parent / "memory.max").write_text("1000\n")
    (job.parent / "memory.current").write_text("400\n")
    assert room.available(meminfo, own, tmp_path / "cgroups") == 600


def test_what_does_not_fit_is_refused() -> None:
    room.refuse_beyond(2**30, "a model", "a smaller one", left=2**30)
    with pytest.raises(SpecError, match=r"a model does not fit into memory\n.*about 2.0 GiB needed, 1.0 GiB available"):
        room.refuse_beyond(2**31, "a model", "a smaller one", left=2**30)
