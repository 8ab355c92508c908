"""A job fitted to a cluster: counts, GPUs, defaults put aside, and what is refused before sbatch sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.slurm.getopt import SBATCH
from hpc_kit.spec import load
from hpc_kit.spec.cluster import Cluster, Embedded, Node
from hpc_kit.spec.job import Job, Launch
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.spec.resources import Resources

HAS_GPUS = Cluster(name="c", node=Node(cpus=8, gpus=4))
UNKNOWN = Cluster(name="c")


def fit(cluster: Cluster = UNKNOWN, root: Path = Path("/project"), defaults: Any = None, **resources: Any) -> Resolved:
    """A job of these options, on a cluster with these defaults."""
    cluster = structs.replace(cluster, defaults=Resources(**(defaults or {})))
    job = Job(name="job", command=("python", "train.py"), resources=Resources(**resources))
    return resolve(load.load(job, cluster, root=root), root=root)


def options(resolved: Resolved, *names: str) -> dict[str, object]:
    given = resolved.job.resources.given()
    return {name: given[name] for name in names if name in given}


def refusal(cluster: Cluster = UNKNOWN, **resources: Any) -> str:
    with pytest.raises(SpecError) as caught:
        fit(cluster, **resources)
    assert caught.value.remedy
    return str(caught.value)


GPUS = ("gpus", "gpus_per_node", "gpus_per_socket", "gpus_per_task", "gres", "gpu_bind")


@pytest.mark.parametrize(("asked", "by_node"), [(1, "2"), ("a100:1", "a100:2"), ("a100", "a100:2"), ("3", "6")])
def test_gpus_per_task_become_gpus_per_node(asked: object, by_node: str) -> None:
    job = fit(nodes=2, ntasks_per_node=2, gpus_per_task=asked, cpus_per_task=1)
    assert options(job, *GPUS) == {"gpus_per_node": by_node}
    assert job.notes == (
        f"using --gpus-per-node={by_node} for --gpus-per-task={asked}, so that every rank sees all GPUs of its node",
    )


def test_one_rank_a_node_sees_the_same_gpus_with_both_options() -> None:
    job = fit(nodes=2, ntasks_per_node=1, gpus_per_task=2, cpus_per_task=1)
    assert (options(job, *GPUS), job.notes) == ({"gpus_per_node": "2"}, ())


@pytest.mark.parametrize(
    ("tres", "older"),
    [
        ("cpu=4", {"cpus_per_task": 4}),
        ("cpu:4,gres/gpu:a100:1", {"cpus_per_task": 4, "gpus_per_node": "a100:2"}),
        ("gres/gpu=2,license/x:1", {"gpus_per_node": "4", "tres_per_task": "license/x:1"}),
        ("license/x:1", {"cpus_per_task": 1, "tres_per_task": "license/x:1"}),
    ],
)
def test_cpus_and_gpus_of_tres_per_task_count(tres: str, older: dict[str, object]) -> None:
    job = fit(HAS_GPUS, nodes=2, ntasks_per_node=2, tres_per_task=tres)
    assert options(job, *GPUS, "cpus_per_task", "tres_per_task") == older
    without = fit(Cluster(name="c", node=Node(gpus=0)), ntasks_per_node=2, tres_per_task="cpu=4,gres/gpu=1")
    assert options(without, *GPUS, "cpus_per_task", "tres_per_task") == {"cpus_per_task": 4}
    assert without.notes[0] == "using --cpus-per-task=4 --gpus-per-task=1 for --tres-per-task=cpu=4,gres/gpu=1"


@pytest.mark.parametrize(
    "asked",
    [
        {"cpus_per_task": 2, "tres_per_task": "cpu=4"},
        {"gpus_per_node": 2, "cpus_per_task": 2, "tres_per_task": "gres/gpu=1"},
        {"gres": "gpu:2", "cpus_per_task": 2, "tres_per_task": "gres/gpu=1"},
    ],
)
def test_an_option_of_its_own_leaves_tres_per_task_to_sbatch(asked: Any) -> None:
    job = fit(ntasks_per_node=2, **asked)
    assert options(job, *GPUS, "cpus_per_task", "tres_per_task") == asked


def test_tres_per_task_with_gpus_only_keeps_the_cpus_of_the_job() -> None:
    job = fit(ntasks_per_node=2, cpus_per_task=3, tres_per_task="gres/gpu=1")
    assert options(job, *GPUS, "cpus_per_task", "tres_per_task") == {"cpus_per_task": 3, "gpus_per_node": "2"}


@pytest.mark.parametrize(
    "asked",
    [
        {"nodes": 2, "ntasks": 3, "gpus_per_task": 1},
        {"ntasks_per_node": 2, "gpus_per_task": 1, "gpu_bind": "closest"},
        {"ntasks_per_node": 2, "gpus_per_task": 1, "tres_bind": "gres/gpu:none"},
        {"ntasks_per_node": 2, "gpus_per_task": 1, "gpus_per_node": 2},
    ],
)
def test_gpus_per_task_stay_if_tasks_are_uneven_or_other_options_need_them(asked: dict[str, Any]) -> None:
    job = fit(**asked, cpus_per_task=1)
    assert (options(job, *asked), job.notes) == (asked, ())


@pytest.mark.parametrize(
    ("asked", "cpus", "note"),
    [
        ({"nodes": 2, "ntasks_per_node": 2}, 1, None),
        ({"ntasks_per_node": 2, "gpus_per_task": 1, "cpus_per_task": 3}, 3, None),
        ({"ntasks_per_node": 2, "gpus_per_node": 2, "cpus_per_gpu": 3}, None, None),
        ({"nodes": 2, "ntasks_per_node": 2, "gpus_per_task": 1}, None, "(DefCpuPerGPU)"),
        ({"nodes": 2, "gres": "gpu:a100:4"}, None, "(DefCpuPerGPU)"),
        ({"nodes": 2, "gres": "lscratch:4"}, 1, None),
        ({"nodes": 2, "ntasks": 3, "gpus_per_node": 2}, 1, "using --cpus-per-task=1"),
        ({"ntasks_per_node": 2, "gpus_per_node": 2, "hint": "nomultithread"}, 1, "using --cpus-per-task=1"),
    ],
)
def test_unset_cpus_are_those_of_the_cluster_per_gpu(asked: dict[str, Any], cpus: int | None, note: str | None) -> None:
    job = fit(**asked)
    assert (job.job.resources.cpus_per_task, job.cpus_by_slurm) == (cpus, cpus is None and "cpus_per_gpu" not in asked)
    printed = [each for each in job.notes if "cpus" in each]
    assert [note in each if note else each for each in printed] == [True] * (note is not None)


@pytest.mark.parametrize(
    "own", [{"gpus": 4}, {"gpus_per_node": 4}, {"gpus_per_socket": 2, "sockets_per_node": 2}, {"gres": "gpu:a100:4"}]
)
def test_gpus_of_the_job_replace_all_gpu_options_of_the_cluster(own: dict[str, Any]) -> None:
    for default in ({"gpus_per_task": 1}, {"gpus": 8}, {"gres": "gpu:2"}):
        assert options(fit(defaults=default, **own), *GPUS, *own) == own


def test_other_generic_resources_are_not_counted_as_gpus() -> None:
    assert options(fit(defaults={"gpus_per_node": 2}, gres="disk:1"), *GPUS) == {"gpus_per_node": 2, "gres": "disk:1"}
    none = fit(Cluster(name="c", node=Node(gpus=0)), gres="disk:1,gpu:2,tmp:3")
    assert options(none, *GPUS) == {"gres": "disk:1,tmp:3"}
    assert none.notes == ("ignoring --gres=disk:1,gpu:2,tmp:3 because cluster 'c' has no GPUs",)


def test_constraints_and_licenses_are_ignored_on_the_embedded_slurm() -> None:
    asked: dict[str, Any] = {"constraint": "a100", "licenses": "solver:1"}
    here, there = (fit(Cluster(name="c", slurm=slurm), **asked) for slurm in ("embedded", "system"))
    assert options(here, *asked) == {}
    assert here.notes == (
        "ignoring --constraint=a100 because cluster 'c' has no features",
        "ignoring --licenses=solver:1 because cluster 'c' has no licences",
    )
    assert (options(there, *asked), there.notes) == (asked, ())


@pytest.mark.parametrize(
    ("asked", "left", "strict"),
    [("gpu", None, False), ("gpu,b", "b", False), ("a,b", "a,b", False), ("gpu", "gpu", True), (None, None, False)],
)
def test_a_partition_of_a_real_cluster_is_ignored_on_the_embedded_slurm(
    asked: str | None, left: str | None, strict: bool
) -> None:
    embedded = Embedded(partitions=("a", "b"), strict=strict)
    job = fit(Cluster(name="c", slurm="embedded", embedded=embedded), partition=asked)
    assert job.job.resources.partition == left
    assert job.notes == (
        () if left == asked else (f"ignoring --partition={asked} because cluster 'c' has no such partition",)
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"ntasks_per_node": 8, "gpus_per_task": "a100"},
        {"ntasks_per_node": 2, "gpus_per_task": "a100:3"},
        {"gpus_per_node": "a100:4,h100:1"},
        {"gres": "gpu:a100:5"},
        {"nodes": 2, "gpus": 9},
    ],
)
def test_more_gpus_than_a_node_has_are_refused(asked: dict[str, Any]) -> None:
    assert "a node of c has 4" in refusal(HAS_GPUS, **asked)


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("gpus_per_task = 2", "gpus_per_task = 2 x 2 tasks in mine.toml, line 3"),
        ('tres_per_task = "gres/gpu:2"', "gpus_per_task = 2 x 2 tasks in mine.toml, line 3"),
        ("gpus_per_node = 5", "gpus_per_node = 5 in mine.toml, line 3"),
    ],
)
def test_the_refusal_of_gpus_names_the_option_and_the_line_of_the_user(tmp_path: Path, option: str, found: str) -> None:
    (tmp_path / "mine.toml").write_text(f'command = ["python", "train.py"]\n[resources]\n{option}\n')
    cluster = Cluster(name="c", node=Node(gpus=3))
    loaded = load.load("mine.toml", cluster, set={"resources.ntasks_per_node": 2}, root=tmp_path)
    with pytest.raises(SpecError) as caught:
        resolve(loaded, root=tmp_path)
    assert caught.value.found == f"{found}; a node of c has 3"


def test_as_many_gpus_as_a_node_has_are_accepted() -> None:
    assert options(fit(HAS_GPUS, ntasks_per_node=4, gpus_per_task="a100"), *GPUS) == {"gpus_per_node": "a100:4"}
    assert options(fit(HAS_GPUS, nodes=2, gpus=8), *GPUS) == {"gpus": 8}


def test_cpus_per_gpu_replace_cpus_per_task() -> None:
    job = fit(nodes=2, ntasks_per_node=2, gpus_per_node=4, cpus_per_gpu=3, defaults={"cpus_per_task": 12})
    assert options(job, "cpus_per_task", "cpus_per_gpu") == {"cpus_per_gpu": 3}
    assert job.cpus == 6


@pytest.mark.parametrize(
    ("asked", "nodes", "ntasks"),
    [
        ({"nodes": 2, "gpus_per_node": 4, "ntasks_per_gpu": 1}, 2, 8),
        ({"nodes": 2, "gpus": "a100:4", "ntasks_per_gpu": 2}, 2, 8),
        ({"gres": "gpu:2", "ntasks_per_gpu": 1}, 1, 2),
        ({"nodes": 2, "ntasks": 8, "ntasks_per_gpu": 2}, 2, 8),
        ({"ntasks": 8, "gpus_per_node": 2, "ntasks_per_gpu": 2}, 2, 8),
    ],
)
def test_tasks_per_gpu_are_counted(asked: dict[str, Any], nodes: int, ntasks: int) -> None:
    job = fit(HAS_GPUS, defaults={"gpus_per_task": 1, "ntasks_per_node": 3}, **asked)
    assert (job.nodes, job.ntasks) == (nodes, ntasks)
    assert options(job, "ntasks_per_node", "gpus_per_task") == {}


def test_tasks_per_gpu_are_counted_without_gpus() -> None:
    job = fit(Cluster(name="c", node=Node(gpus=0)), nodes=2, gpus_per_node=4, ntasks_per_gpu=1)
    assert (job.ntasks, job.job.resources.ntasks_per_node, job.job.resources.cpus_per_task) == (8, 4, 1)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"ntasks_per_gpu": 1}, "ntasks_per_gpu needs a number of GPUs"),
        ({"nodes": 1, "gpus": 4, "ntasks_per_gpu": 1, "ntasks": 3}, "ntasks = 4"),
        ({"ntasks_per_gpu": 1, "gpus": 4, "ntasks_per_node": 4}, "exclude one another"),
        ({"ntasks_per_gpu": 1, "gpus_per_task": 1}, "exclude one another"),
        ({"ntasks_per_gpu": 1, "gpus_per_socket": 1}, "exclude one another"),
        ({"cpus_per_gpu": 1, "cpus_per_task": 1}, "exclude one another"),
        ({"ntasks": 64}, "nodes = 1, or as many as 64 tasks need"),
        ({"nodes": 4, "ntasks": 2}, "set nodes = 2 or ntasks = 4"),
        ({"ntasks": 7, "ntasks_per_node": 4}, "2 nodes x 4 tasks = 8; ntasks = 7"),
        ({"partition": ""}, "partition in the job is empty"),
        ({"exclusive": " "}, "is empty"),
        ({"export": "ALL,HF_TOKEN=hf_abc"}, "HF_TOKEN"),
        ({"job_name": "a/b"}, "'a/b' cannot name a job"),
        ({"job_name": "ä" * 128}, "the name of the job is too long for a folder\n  found  256 bytes"),
    ],
)
def test_contradictory_sizes_are_refused(asked: dict[str, Any], expected: str) -> None:
    message = refusal(**asked)
    assert expected in message
    assert "hf_abc" not in message


def test_tasks_without_nodes_use_one_node_if_they_fit() -> None:
    assert fit(HAS_GPUS, ntasks=8).nodes == 1
    assert fit(ntasks=1).nodes == 1
    assert "nodes = 3" in refusal(HAS_GPUS, ntasks=12, cpus_per_task=2)
    assert "nodes = 2" in refusal(HAS_GPUS, ntasks=8, gpus_per_task=1)


def test_nodes_follow_from_tasks_and_tasks_per_node() -> None:
    assert (fit(ntasks=16, ntasks_per_node=4).nodes, fit(ntasks_per_node=4).nodes) == (4, 1)


def test_false_removes_a_flag_of_the_cluster() -> None:
    defaults = {"requeue": True, "exclusive": True}
    job = fit(defaults=defaults, requeue=False, exclusive=False)
    assert options(job, "requeue", "exclusive") == {}
    assert options(fit(defaults=defaults), "requeue", "exclusive") == defaults
    assert options(fit(defaults={"no_requeue": True}, requeue=False), "no_requeue") == {"no_requeue": True}


def test_the_job_name_of_sbatch_is_the_name_of_the_job() -> None:
    job = fit(job_name="other")
    assert (job.job.name, job.log_folder, options(job, "job_name")) == ("other", "runs/other", {})


@pytest.mark.parametrize("folder", ["/data/50%", "/data/a\\b", "/data/two\nlines"])
def test_a_folder_with_slurms_filename_patterns_is_refused(folder: str) -> None:
    with pytest.raises(SpecError, match="would not write its logs") as caught:
        fit(root=Path(folder))
    assert folder in (caught.value.found or "").replace("\\n", "\n")
    assert fit(Cluster(name="c", runs="/data/runs"), root=Path(folder)).log_folder == "/data/runs/job"
    assert fit(root=Path(folder), chdir="/data").log_folder == "runs/job"
    with pytest.raises(SpecError, match="would not write its logs"):
        fit(Cluster(name="c", runs="/data/runs"), root=Path(folder), output="job.log")


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (Cluster(name="c", runs="a\\b"), "a backslash in runs"),
        (Cluster(name="c", runs="~/runs"), "wrong value for runs"),
        (Cluster(name="c", runs="$SCRATCH/runs"), "wrong value for runs"),
        (Cluster(name="c", runs=""), "wrong value for runs"),
        (Cluster(name="c", python="~/venv/bin/python"), "wrong value for python"),
        (Cluster(name="c", python=""), "wrong value for python"),
        (Cluster(name="c", env={"UID": 1}), "UID in the cluster is bash's own"),
        (Cluster(name="c", env={"HF_TOKEN": "hf_abc"}), "HF_TOKEN in the cluster looks like a secret"),
        (Cluster(name="c", setup=("module load a; export HF_TOKEN='hf_abc'",)), "HF_TOKEN in the cluster looks like"),
        (Cluster(name="c", node=Node(mem="480 GB")), "wrong value for node.mem in the cluster"),
    ],
)
def test_an_impossible_cluster_is_refused(cluster: Cluster, expected: str) -> None:
    message = refusal(cluster)
    assert expected in message
    assert "hf_abc" not in message


def test_torchrun_is_started_once_per_node() -> None:
    uneven = Job(name="job", command=("a",), resources=Resources(nodes=3, ntasks=7))
    loaded = load.load(uneven, UNKNOWN, set={"launch.launcher": "torchrun"})
    with pytest.raises(SpecError, match="torchrun would start 3 times on each node"):
        resolve(loaded)


def find_starter(*, set: dict[str, object] | None = None, **resources: Any) -> tuple[str | None, tuple[str, ...]]:
    """Return who starts the ranks of a program that knows nothing of hpc_kit, and the notes."""
    job = Job(
        name="job", command=("python", "train.py"), launch=Launch(bootstrap=True), resources=Resources(**resources)
    )
    resolved = resolve(load.load(job, UNKNOWN, set=set))
    return resolved.job.launch.ranks_by, tuple(note for note in resolved.notes if "ranks" in note and "starts" in note)


def test_a_program_with_several_gpus_in_one_task_starts_its_own_ranks() -> None:
    ranks_by, notes = find_starter(gpus_per_node=4)
    assert ranks_by == "program"
    assert notes == (
        "one task with 4 GPUs: the program starts its own ranks; if not, set [launch] ranks_by = 'launcher'",
    )


@pytest.mark.parametrize(
    ("set", "resources", "expected"),
    [
        ({}, {}, "launcher"),
        ({}, {"gpus_per_node": 1}, "launcher"),
        ({}, {"nodes": 2, "gpus_per_node": 4}, "launcher"),
        ({"launch.ranks_by": "program"}, {}, "program"),
        ({"launch.ranks_by": "launcher"}, {"gpus_per_node": 4}, "launcher"),
        ({"launch.bootstrap": False}, {"gpus_per_node": 4}, None),
    ],
)
def test_by_default_the_launcher_starts_the_ranks_unless_the_job_says_otherwise(
    set: dict[str, object], resources: dict[str, Any], expected: str | None
) -> None:
    assert find_starter(set=set, **resources) == (expected, ())


def test_a_program_cannot_start_the_ranks_of_several_tasks() -> None:
    with pytest.raises(SpecError, match="needs a job of one task"):
        find_starter(set={"launch.ranks_by": "program"}, ntasks_per_node=2)


NTASKS_PER_GPU_AGAIN = {"ntasks-per-tres"}
SUBMISSION_ONLY = {
    "gid", "help", "ignore-pbs", "parsable", "quiet", "test-only", "uid", "usage", "verbose", "version", "wait", "wrap",
}  # fmt: skip


def test_every_sbatch_option_of_a_job_is_a_resource() -> None:
    fields = {name.replace("_", "-") for name in Resources.__struct_fields__}
    assert fields == SBATCH.keys() - SUBMISSION_ONLY - NTASKS_PER_GPU_AGAIN
