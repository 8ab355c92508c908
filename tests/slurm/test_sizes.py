"""Sizes of jobs and steps, computed from options."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.sizes import (
    UNKNOWN,
    GpuCounts,
    JobSize,
    asks_for_gpus,
    count_gpus,
    count_gres_gpus,
    count_nodes,
    read_gpu_counts,
    size_of_job,
    size_of_step,
    spread_tasks,
    sum_sizes,
)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("gpu:a100:2,gpu:h100:1,nvme:1", 3),
        ("gres/gpu:a100:2", 2),
        ("gpu:1g.10gb:2", 2),
        ("nvme:1", None),
        ("gpu:$N", None),
        ("", None),
        (None, None),
    ],
)
def test_gpus_among_generic_resources_are_counted(text: str | None, gpus: int | None) -> None:
    assert count_gres_gpus(text) == gpus


@pytest.mark.parametrize(("text", "gpus"), [("4", 4), ("a100:2,h100", 3), ("0", 0), ("$N", None), ("", None)])
def test_gpus_of_all_types_are_counted_together(text: str, gpus: int | None) -> None:
    assert count_gpus(text) == gpus


@pytest.mark.parametrize(
    ("options", "counts", "in_job", "on_node"),
    [
        ({"gpus": "8"}, GpuCounts(total=8), 8, 4),
        ({"gpus": "7"}, GpuCounts(total=7), 7, None),
        ({"gpus-per-node": "a100:4"}, GpuCounts(per_node=4), 8, 4),
        ({"gres": "gpu:4"}, GpuCounts(per_node=4), 8, 4),
        ({"gpus-per-node": "2", "gres": "gpu:4"}, GpuCounts(per_node=2), 4, 2),
        ({"gpus-per-task": "1"}, GpuCounts(per_task=1), 6, 3),
        ({}, GpuCounts(), None, None),
    ],
)
def test_gpus_of_a_job_and_of_a_node(
    options: dict[str, str], counts: GpuCounts, in_job: int | None, on_node: int | None
) -> None:
    assert read_gpu_counts(options) == counts
    assert (counts.in_job(2, 6), counts.on_node(2, 3)) == (in_job, on_node)
    assert counts.is_unset == (not options)


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"gpus-per-socket": "1"}, True),
        ({"gres": "nvme:1,gpu"}, True),
        ({"tres-per-task": "cpu=4,gres/gpu=1"}, True),
        ({"gres": "nvme:1"}, False),
        ({"gpu-bind": "none", "nodes": "2"}, False),
    ],
)
def test_options_that_request_gpus_are_recognized(options: dict[str, str], asks: bool) -> None:
    assert asks_for_gpus(options) == asks
    assert size_of_job(options).has_gpus == asks


@pytest.mark.parametrize(
    ("numbers", "tasks"),
    [
        ((None, 8, 4), (8, 4)),
        ((2, None, None), (2, 1)),
        ((2, None, 4), (8, 4)),
        ((2, 8, None), (8, 4)),
        ((2, 7, None), (7, None)),
    ],
)
def test_missing_task_counts_are_derived(
    numbers: tuple[int | None, int | None, int | None], tasks: tuple[int | None, int | None]
) -> None:
    assert spread_tasks(*numbers) == tasks


@pytest.mark.parametrize(
    ("nodes", "hosts", "counts"),
    [
        ("4", None, (4, 4)),
        ("2-4", None, (None, 2)),
        (None, "n[1-3]", (3, 3)),
        (None, "./hosts", (None, 1)),
        ("2", "n[1-3]", (2, 2)),
        ("$N", None, (None, 1)),
    ],
)
def test_nodes_are_counted(nodes: str | None, hosts: str | None, counts: tuple[int | None, int]) -> None:
    assert count_nodes(nodes, hosts) == counts


JOB = size_of_job({"nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "2", "gres": "gpu:4"})


def test_the_size_of_a_job_follows_from_its_options() -> None:
    assert JobSize(2, 8, 4, 2, 4, has_gpus=True, min_nodes=2) == JOB
    assert JOB.variables()["SLURM_NTASKS"] == "8"
    assert size_of_job({}) == JobSize(1, 1, 1, is_stated=False)
    assert size_of_job({"ntasks": "8"}).nodes is None
    assert size_of_job({"nodes": "2", "ntasks-per-gpu": "1"}).ntasks is None


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({}, JOB),
        ({"label": ""}, JOB),
        ({"ntasks": "1"}, JOB._replace(nodes=1, ntasks=1, tasks_per_node=1, min_nodes=1)),
        ({"nodes": "1"}, JOB._replace(nodes=1, ntasks=4, tasks_per_node=4, min_nodes=1)),
        ({"exclude": "n1"}, JOB._replace(nodes=None, ntasks=None, tasks_per_node=4, min_nodes=1)),
        ({"gpus-per-task": "1"}, JOB),
        ({"gpus-per-node": "1"}, JOB._replace(gpus_per_node=1)),
        ({"nodes": "$N"}, UNKNOWN),
    ],
)
def test_the_size_of_a_step_follows_from_its_options(options: dict[str, str], step: JobSize) -> None:
    assert size_of_step(JOB, options) == step


def test_components_are_summed() -> None:
    assert sum_sizes([JOB]) == JOB
    total = sum_sizes([JOB, size_of_job({"nodes": "1", "ntasks": "4"})])
    assert (total.nodes, total.ntasks, total.tasks_per_node, total.has_gpus) == (3, 12, 4, True)
    assert sum_sizes([JOB, size_of_job({"ntasks": "3"})]).nodes is None
