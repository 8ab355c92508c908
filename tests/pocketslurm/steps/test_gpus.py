"""GPUs: the number that a step requests, and the GPUs that each task sees."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.sizes import GpuCounts, read_gpu_counts
from pocketslurm.errors import CommandError
from pocketslurm.queue.job_size import check_gpu_options
from pocketslurm.steps.environment import gpu_binding, visible_gpus
from pocketslurm.steps.options import StepOptions, read_options


def parse_line(line: str) -> StepOptions:
    return read_options([*line.split(), "true"], {})


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("", GpuCounts()),
        ("--gpus=3", GpuCounts(total=3)),
        ("--gpus=a100:2,v100:1", GpuCounts(total=3)),
        ("--gpus-per-node=2", GpuCounts(per_node=2)),
        ("--gpus-per-task=1", GpuCounts(per_task=1)),
        ("--gres=gpu:2", GpuCounts(per_node=2)),
        ("--gres=gpu", GpuCounts(per_node=1)),
        ("--gres=gpu:a100:2", GpuCounts(per_node=2)),
        ("--gres=none", GpuCounts()),
    ],
)
def test_counts_of_gpus(line: str, gpus: GpuCounts) -> None:
    assert read_gpu_counts(parse_line(line).values) == gpus
    assert gpus.is_unset == (line in {"", "--gres=none"})
    assert gpus.is_positive == (line not in {"", "--gres=none"})


def test_other_resources_are_refused() -> None:
    with pytest.raises(CommandError):
        check_gpu_options({"gres": "lustre:1"})


@pytest.mark.parametrize(
    ("line", "bind"),
    [
        ("", ""),
        ("--gpus-per-task=1", "gpu:per_task:1"),
        ("--gpus-per-task=1 --gpu-bind=none", "gpu:none"),
        ("--ntasks-per-gpu=2 --gpus=1", "gpu:single:2"),
        ("--gpu-bind=single:1", "gpu:single:1"),
    ],
)
def test_binding(line: str, bind: str) -> None:
    assert gpu_binding(parse_line(line)) == bind


@pytest.mark.parametrize(
    ("bind", "seen"),
    [
        ("", ["4567"] * 4),
        ("gpu:none", ["4567"] * 4),
        ("gpu:closest", ["4567"] * 4),
        ("gpu:per_task:1", ["4", "5", "6", "7"]),
        ("gpu:per_task:2", ["45", "67", "45", "67"]),
        ("gpu:single:1", ["4", "5", "6", "7"]),
        ("gpu:single:2", ["4", "4", "5", "5"]),
        ("gpu:verbose,single:2", ["4", "4", "5", "5"]),
        ("gpu:map_gpu:3,1", ["7", "5", "7", "5"]),
        ("gpu:map_gpu:0*3,2", ["4", "4", "4", "6"]),
        ("gpu:map_gpu:9", [""] * 4),
        ("gpu:mask_gpu:0x3,0xc", ["45", "67", "45", "67"]),
    ],
)
def test_visible_gpus_of_four_tasks(bind: str, seen: list[str]) -> None:
    assert ["".join(map(str, visible_gpus([4, 5, 6, 7], bind, local))) for local in range(4)] == seen


def test_a_task_without_gpus_sees_none() -> None:
    assert visible_gpus([], "gpu:per_task:1", 0) == []
