"""The [partition.NAME] tables of a cluster file: they replace [node], and refuse jobs that could never start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.spec.load import load
from hpc_kit.spec.resolve import Resolved, resolve

Fit = Callable[..., Resolved]

CLUSTER = """
python = "python"
max_array_size = 100
accounts = ["ours"]
containers = ["apptainer"]

[node]
cpus = 64
gpus = 0

[partition.cpu]
default = true
nodes = 10
max_time = "2-00:00:00"

[partition.gpu]
nodes = 4
cpus = 32
gpus = 4
gpu = "a100"
max_nodes = 2
max_time = "12:00:00"
qos = ["normal"]
"""


@pytest.fixture
def fit(project: Path) -> Fit:
    (project / "env" / "site.toml").write_text(CLUSTER)
    (project / "jobs" / "mine.toml").write_text('command = ["python", "train.py"]\n')

    def fit(*, check: bool = True, **resources: object) -> Resolved:
        settings = {f"resources.{name}": value for name, value in resources.items()}
        return resolve(load("mine", "site", set=settings), check=check)

    return fit


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"nodes": 11}, "11 nodes; the partition has 10"),
        ({"time": "3-0"}, "--time=3-00:00:00; the partition allows 2-00:00:00"),
        ({"partition": "gpu", "nodes": 3}, "3 nodes; a job may have 2"),
        ({"partition": "gpu", "time": "13:00:00"}, "the partition allows 12:00:00"),
        ({"partition": "gpu", "ntasks_per_node": 33}, "a node of site has 32"),
        ({"ntasks_per_node": 65}, "a node of site has 64"),
        ({"partition": "gpu", "gpus_per_node": 8}, "a node of site has 4"),
        ({"array": "0-100"}, "MaxArraySize is 100"),
    ],
)
def test_a_job_that_the_cluster_can_never_start_is_refused(
    fit: Fit, resources: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        fit(**resources)
    assert message in str(refused.value)


@pytest.mark.usefixtures("fit")
def test_spare_nodes_are_nodes_of_the_job() -> None:
    settings = {"resources.nodes": 9, "resources.ntasks_per_node": 1}
    resolve(load("mine", "site", set={**settings, "restart.spares": 1}))
    with pytest.raises(SpecError, match="11 nodes; the partition has 10"):
        resolve(load("mine", "site", set={**settings, "restart.spares": 2}))


@pytest.mark.parametrize(
    "resources",
    [
        {"nodes": 10, "ntasks_per_node": 64, "time": "2-0"},
        {"partition": "gpu,cpu", "nodes": 3, "time": "13:00:00"},
        {"partition": "gpu", "time": "13:00:00", "qos": "normal"},
        {"partition": "unknown", "nodes": 500},
        {"partition": "gpu", "nodes": 9, "reservation": "course"},
        {"array": "0-99%4"},
    ],
)
def test_a_job_that_may_start_is_accepted(fit: Fit, resources: dict[str, object]) -> None:
    fit(**resources)


@pytest.mark.parametrize("limit", ["UNLIMITED", "infinite", -1])
def test_a_partition_without_a_time_limit_accepts_any_time(project: Path, fit: Fit, limit: str | int) -> None:
    text = CLUSTER.replace('max_time = "2-00:00:00"', f"max_time = {limit!r}")
    (project / "env" / "site.toml").write_text(text)
    fit(time="30-0")
    fit(time="UNLIMITED")


def test_gpu_options_stay_in_a_partition_with_gpus(fit: Fit) -> None:
    there = fit(partition="gpu", gpus_per_node=4)
    assert there.job.resources.gpus_per_node == 4
    assert there.cluster.node.gpu == "a100"
    without = fit(gpus_per_node=4)
    assert without.job.resources.gpus_per_node is None


def test_no_check_insists(fit: Fit) -> None:
    assert fit(nodes=11, array="0-100", check=False).nodes == 11


def test_unlisted_names_are_notes(fit: Fit) -> None:
    notes = fit(partition="gpu", account="other", qos="long").notes
    assert "--account=other is not among those of cluster 'site': ours" in notes
    assert "--qos=long is not among those of cluster 'site': normal" in notes
    assert not [note for note in fit(account="ours").notes if "account" in note]
