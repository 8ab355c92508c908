"""A job that its partition can never start is refused before sbatch, with the numbers of sinfo."""

from __future__ import annotations

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.slurm.partitions import parse_partitions
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.cluster_client import open_client
from hpc_kit.spec.job import Job
from hpc_kit.spec.load import load
from hpc_kit.spec.partition_checks import check_with_sinfo
from hpc_kit.spec.resolve import Resolved, resolve
from tests.runs.conftest import slurm
from tests.runs.fake import FakeSlurm

__all__ = ["slurm"]

SINFO = "main*|4|8|1:00:00|1-infinite\nbig|2|8|infinite|1-2\nbig|6|64|infinite|1-2\n"
"""`main` has 4 nodes of 8 CPUs for an hour. `big` has 2 + 6 nodes, of which a job may have 2."""


def resolved(**resources: object) -> Resolved:
    job = Job(name="mine", command=("python", "train.py"))
    cluster = Cluster(name="real", python="python")
    return resolve(load(job, cluster, set={f"resources.{name}": value for name, value in resources.items()}))


def check(slurm: FakeSlurm, **resources: object) -> None:
    slurm.write("sinfo.out", SINFO)
    job = resolved(**resources)
    check_with_sinfo(job, open_client(job.cluster))


@pytest.mark.parametrize(
    ("resources", "found", "remedy"),
    [
        ({"nodes": 5, "ntasks_per_node": 2}, "5 nodes; the partition has 4", "--nodes=4 or less"),
        ({"nodes": 4, "ntasks_per_node": 9}, "9 CPUs on each of 4 nodes; the largest nodes have 8", "fewer tasks"),
        ({"nodes": 1, "cpus_per_task": 16}, "16 CPUs on each of 1 node; the largest nodes have 8", "fewer tasks"),
        ({"time": "1:00:01"}, "--time=01:00:01; the partition allows 01:00:00", "--time=01:00:00 or less"),
        ({"time": "UNLIMITED"}, "--time=UNLIMITED; the partition allows 01:00:00", "or less"),
        ({"partition": "big", "nodes": 3}, "3 nodes; a job may have 2", "--nodes=2 or less"),
        ({"partition": "main,big", "nodes": 9}, "9 nodes; the partition has 4", "--nodes=4 or less"),
    ],
)
def test_a_job_that_can_never_start_is_refused(
    slurm: FakeSlurm, resources: dict[str, object], found: str, remedy: str
) -> None:
    with pytest.raises(SpecError, match="would wait for ever in partition") as error:
        check(slurm, **resources)
    assert error.value.found == found
    assert remedy in str(error.value.remedy)
    assert "--no-check" in str(error.value.remedy)


@pytest.mark.parametrize(
    "resources",
    [
        {"nodes": 4, "ntasks_per_node": 8, "time": 60},
        {"partition": "big", "time": "9-0", "cpus_per_task": 64, "nodes": 2},
        {"partition": "main,big", "time": 90},
        {"partition": "unknown", "nodes": 50},
        {"nodes": 2, "ntasks_per_node": 9, "overcommit": True},
        {"time": 90, "qos": "long"},
        {"nodes": 5, "reservation": "course"},
        {"nodes": 5, "clusters": "other"},
    ],
)
def test_a_job_that_may_start_is_accepted(slurm: FakeSlurm, resources: dict[str, object]) -> None:
    check(slurm, **resources)


def test_options_of_the_shell_count(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_TIMELIMIT", "2:00:00")
    with pytest.raises(SpecError, match="partition main, the default one"):
        check(slurm)
    monkeypatch.setenv("SBATCH_PARTITION", "big")
    check(slurm)


def test_a_sinfo_without_an_answer_refuses_nothing(slurm: FakeSlurm) -> None:
    assert parse_partitions("error\nmain|x|8|1:00|1-2\n") == []
    job = resolved(nodes=500)
    check_with_sinfo(job, open_client(job.cluster))
