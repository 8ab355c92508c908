"""The device, the backend and the number of threads of a rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from hpc_kit.errors import ContradictoryEnvironment, SpecError
from hpc_kit.runtime import World, devices, resolve
from tests.runtime.launches import Environ, Step, captured_case, worker


def node_of(tasks: int, rank: int) -> World:
    """Return the World of one of several ranks on one node."""
    return resolve(Step.of(tasks).environ(rank))


@pytest.mark.parametrize(
    ("local_rank", "visible", "expected"),
    [(0, 4, 0), (3, 4, 3), (3, 1, 0), (0, 1, 0)],
    ids=["first of all", "last of all", "one of its own", "one alone"],
)
def test_the_device_is_the_local_rank_among_the_visible_devices(local_rank: int, visible: int, expected: int) -> None:
    assert devices.device_index(node_of(4, local_rank), visible, {}) == expected


DEEPSPEED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
PER_TASK = [
    {"SLURM_GPUS_PER_TASK": "2"},
    {"SLURM_GPUS_PER_TASK": "a100:2"},
    {"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=2"},
    {"SLURM_TRES_PER_TASK": "gres/gpu:a100:2"},
    {"SLURM_GPUS_PER_TASK": "a100:1,v100:1"},
    {"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu:a100=1,gres/gpu:v100=1"},
]


@pytest.mark.parametrize("gpus", PER_TASK)
def test_a_single_task_with_several_devices_uses_the_first(gpus: Environ) -> None:
    environ = Step.of(4).environ(3) | gpus
    assert devices.device_index(resolve(environ), 2, environ) == 0
    assert devices.device_index(resolve(environ), 8, environ) == 3  # --gpu-bind=none shows all GPUs of the node


@pytest.mark.parametrize("gpus", PER_TASK)
def test_ranks_started_by_one_task_share_its_devices(gpus: Environ) -> None:
    agent = Step.of(1, 1).environ(1)
    launches = {
        "torchrun": agent | worker(3, per_agent=2),
        "mpi": captured_case("34_ompi4_mpirun@22.05")[5],
        "env": agent | DEEPSPEED,
    }
    for launcher, environ in launches.items():
        world = resolve(environ | gpus)
        assert (world.launcher, devices.device_index(world, 2, environ | gpus)) == (launcher, 1)


def test_a_rank_without_device_is_refused_with_both_counts() -> None:
    with pytest.raises(ContradictoryEnvironment) as refused:
        devices.device_index(node_of(4, 2), 2, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert str(refused.value) == (
        "local rank 2 has no device: 4 ranks on this node see 2\n"
        "  found  2 devices are visible (CUDA_VISIBLE_DEVICES = 0,1)\n"
        "  do     --ntasks-per-node=2; or --gpus-per-node=4"
    )


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Simulate a node with two CUDA devices, and return the list of devices that were made current."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "is_backend_available", {"nccl", "gloo"}.__contains__)
    return current


def test_cuda_uses_nccl_and_sets_the_device_first(two_gpus: list[torch.device]) -> None:
    assert devices.choose_backend("auto") == "nccl"
    assert devices.select_device("nccl", node_of(2, 1)) == torch.device("cuda", 1)
    assert two_gpus == [torch.device("cuda", 1)]


def test_intel_devices_use_xccl(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 4)
    monkeypatch.setattr(torch.xpu, "set_device", current.append)
    monkeypatch.setattr(dist, "is_backend_available", {"xccl", "gloo"}.__contains__)
    assert devices.choose_backend("auto") == "xccl"
    assert devices.select_device("xccl", node_of(4, 3)) == torch.device("xpu", 3)
    assert current == [torch.device("xpu", 3)]


def test_gloo_uses_the_cpu_even_with_a_gpu(two_gpus: list[torch.device]) -> None:
    assert devices.choose_backend("gloo") == "gloo"
    assert devices.select_device("gloo", node_of(2, 1)) == torch.device("cpu")
    assert two_gpus == []


def test_without_cuda_gloo_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.choose_backend("auto") == "gloo"
    assert devices.select_device("gloo", node_of(4, 3)) == torch.device("cpu")


def test_a_backend_missing_from_torch_is_refused_with_a_list() -> None:
    with pytest.raises(SpecError, match="torch has no backend 'infiniband' here"):
        devices.choose_backend("infiniband")


def test_nccl_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(dist, "is_backend_available", {"nccl", "gloo"}.__contains__)
    with pytest.raises(SpecError, match="the backend nccl needs a CUDA device"):
        devices.choose_backend("nccl")


@pytest.mark.parametrize(
    ("environ", "local_world_size", "expected"),
    [
        ({"OMP_NUM_THREADS": "3", "SLURM_CPUS_PER_TASK": "8"}, 2, None),
        ({"SLURM_CPUS_PER_TASK": "8"}, 2, 8),
        ({"SRUN_CPUS_PER_TASK": "4"}, 2, 4),
        ({"SLURM_CPUS_PER_TASK": "8", "TORCHELASTIC_RUN_ID": "1"}, 2, 4),
        ({"SLURM_CPUS_PER_TASK": "8"} | DEEPSPEED, 2, 4),
        ({}, 10_000, 1),
    ],
)
def test_threads_come_from_the_cpus_of_a_task(
    environ: dict[str, str], local_world_size: int, expected: int | None
) -> None:
    assert devices.thread_count(environ, local_world_size) == expected


def test_without_slurm_ranks_share_the_allowed_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert devices.thread_count({}, 4) == 2


def test_a_process_that_runs_alone_has_a_thread_for_each_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(devices, "_SIBLINGS", f"{tmp_path}/{{}}")
    assert devices.thread_count({}, 1) == 4
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / str(cpu)).write_text(siblings)
    assert devices.thread_count({}, 1) == 2
