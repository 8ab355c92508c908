"""Whether it fits: what the machine and the job's own limit leave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from hpc_kit.bench import collectives, option_checks
from hpc_kit.errors import SpecError


def test_the_smallest_limit_on_memory_counts(tmp_path: Path) -> None:
    meminfo, own, job = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "cgroups" / "slurm" / "job_1"
    assert option_checks.free_memory(meminfo, own, tmp_path) is None
    meminfo.write_text("MemTotal:  8000000 kB\nMemAvailable:    4000000 kB\n")
    assert option_checks.free_memory(meminfo, own, tmp_path) == 4_096_000_000
    job.mkdir(parents=True)
    own.write_text("0::/slurm/job_1\n")
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text("5\n")
    (job.parent / "memory.max").write_text("1000\n")
    (job.parent / "memory.current").write_text("400\n")
    (job.parent / "memory.stat").write_text("anon 100\n")
    assert option_checks.free_memory(meminfo, own, tmp_path / "cgroups") == 600
    # Cached files count as free.
    (job.parent / "memory.stat").write_text("anon 100\nfile 300\ninactive_file 250\n")
    assert option_checks.free_memory(meminfo, own, tmp_path / "cgroups") == 850


def test_sizes_that_do_not_fit_are_refused() -> None:
    option_checks.check_memory(2**30, "a model", "a smaller one", free=2**30)
    with pytest.raises(SpecError, match=r"a model does not fit into memory\n.*about 2 GiB needed, 1 GiB available"):
        option_checks.check_memory(2**31, "a model", "a smaller one", free=2**30)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, each with a GPU that has 8 GiB left; the other one's has 4."""

    def gather(found: list[object], mine: object) -> None:
        found[:] = [mine, 4 << 30 if isinstance(mine, int) else ("n2", 1 << 50, 4 << 30)]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 << 30, 80 << 30))


@pytest.mark.usefixtures("gpus")
def test_the_gpu_with_the_least_memory_left_counts() -> None:
    world: Any = SimpleNamespace(world_size=2, device=torch.device("cuda"))
    option_checks.check_gpu_memory(3 << 30, "the model", "less", world)
    with pytest.raises(SpecError, match=r"the model, on a GPU, does not fit into memory\n.*5 GiB needed, 4 GiB"):
        option_checks.check_gpu_memory(5 << 30, "the model", "less", world)
    on_cpu: Any = SimpleNamespace(device=torch.device("cpu"))  # the check reads nothing else of the world
    option_checks.check_gpu_memory(5 << 30, "the model", "less", on_cpu)


@pytest.mark.usefixtures("gpus")
def test_sizes_of_nccl_must_fit_into_the_gpus_not_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_checks, "free_memory", lambda: 1)
    asked, gpu = collectives.CommOptions(("nccl",), sizes=(1 << 30,)), torch.device("cuda")
    collectives.check_sizes(asked, ["n1", "n2"], gpu)
    with pytest.raises(SpecError, match="3 times for each of 1 ranks of a GPU of n2, does not fit"):
        collectives.check_sizes(asked._replace(sizes=(2 << 30,)), ["n1", "n2"], gpu)
    with pytest.raises(SpecError, match="ranks of n1, does not fit into memory") as caught:
        collectives.check_sizes(asked._replace(backends=("gloo",)), ["n1", "n2"])
    assert "available" in str(caught.value)
    assert "--sizes up to 0MiB" in str(caught.value)
