"""Scripts for other clusters run unchanged. The setting `strict` refuses their options."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pocketslurm.queue.job_size import JobRequest, portable_options
from pocketslurm.queue.node_selection import NodeResources, enlarge_nodes, select_nodes
from tests.pocketslurm.conftest import Slurm

OF_ANOTHER_CLUSTER = [
    "--constraint=a100&ib", "--prefer=fast", "--licenses=matlab:1", "--reservation=course", "--partition=gpu",
    "--partition=gpu,long", "--clusters=large", "--exclude=gpu[01-04],n4", "--gres=lscratch:10", "--gres=gpu:a100:1",
    "--gres=nvme:1,gpu:8", "--gpus-per-node=h100:4", "--mem=900G", "--mem-per-cpu=100G", "-n1 -c16", "--bb=x",
    "-n1 --tres-per-task=cpu=2,gres/gpu=1", "--segment=2", "--oom-kill-step", "--stepmgr", "--resv-ports=2", "--reboot",
    "--requeue=expedite", "--batch=x", "--cluster-constraint=x", "--context=x", "--tres-bind=gres/gpu:closest",
]  # fmt: skip


@pytest.fixture
def lenient(make_slurm: Callable[..., Slurm]) -> Slurm:
    return make_slurm(strict=False, gpus=0, memory=1000, cpus=8)


def test_options_of_other_clusters_are_accepted(lenient: Slurm) -> None:
    ids = [lenient.submit("true", *options.split(), "-o", "/dev/null") for options in OF_ANOTHER_CLUSTER]
    for job_id, options in zip(ids, OF_ANOTHER_CLUSTER, strict=True):
        assert lenient.until(job_id, "COMPLETED", "FAILED").state == "COMPLETED", options


def test_strict_settings_refuse_options_of_other_clusters(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(strict=True, gpus=0, memory=1000, cpus=8)
    accepted = {"--bb=x", "--reboot", "--batch=x", "--cluster-constraint=x", "--context=x"}
    for options in OF_ANOTHER_CLUSTER:
        done = slurm.run("sbatch", "--hold", *options.split(), "--wrap", "true")
        assert (done.returncode == 0, done.stderr == "") == (options in accepted,) * 2, options


def test_a_node_is_as_large_as_a_job_needs_it(lenient: Slurm) -> None:
    script = """
        echo $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES
        echo $SLURM_MEM_PER_NODE $SLURM_JOB_PARTITION $SLURM_JOB_NODELIST
        srun -c 72 sh -c 'echo $SLURM_PROCID $SLURM_CPUS_PER_TASK $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS'
        srun --gres=gpu:1 -N1 -n1 --mpi=pmix sh -c 'echo $CUDA_VISIBLE_DEVICES'
    """
    options = ["-N2", "--ntasks-per-node=1", "-c72", "--gres=gpu:a100:4", "--mem=440G", "-p", "gpu", "-C", "a100"]
    job_id = lenient.submit(script, *options)
    lenient.until(job_id, "COMPLETED")
    first, second, *steps = lenient.log(f"slurm-{job_id}.out").splitlines()
    assert (first, second) == ("72 72 4 0,1,2,3", "450560 gpu n[1-2]")
    assert sorted(steps[:2]) == ["0 72 0,1,2,3 0,1,2,3", "1 72 0,1,2,3 0,1,2,3"]
    assert steps[2:] == ["0"]


def test_two_large_jobs_do_not_share_a_node(lenient: Slurm) -> None:
    ids = [lenient.submit("sleep 60", "-c72", "-n1", "-o", "/dev/null") for _ in range(5)]
    nodes = [lenient.until(job_id, "RUNNING").nodes for job_id in ids[:4]]
    assert sorted(nodes) == [["n1"], ["n2"], ["n3"], ["n4"]]
    assert lenient.check_output("squeue", "-h", "-t", "PD", "-o", "%A %r") == f"{ids[4]} Resources\n"
    assert lenient.check_output("sinfo", "-h", "-o", "%D %t") == "4 alloc\n"


def test_a_job_for_too_many_nodes_waits(lenient: Slurm) -> None:
    job_id = lenient.submit("true", "-N9")
    lenient.submit("true", "--wait")
    assert lenient.check_output("squeue", "-h", "-o", "%A %r") == f"{job_id} PartitionNodeLimit\n"


def test_a_step_outside_of_a_job_may_also_be_large(lenient: Slurm) -> None:
    line = 'echo "$SLURM_JOB_PARTITION $CUDA_VISIBLE_DEVICES"'
    done = lenient.run("srun", "-p", "gpu", "--gres=gpu:2", "-C", "x", "sh", "-c", line)
    assert (done.returncode, done.stdout) == (0, "gpu 0,1\n")


def test_a_partition_of_another_cluster_is_shown_by_its_name(lenient: Slurm) -> None:
    lenient.submit("true", "--hold", "-p", "gpu")
    assert lenient.check_output("sinfo", "-h", "-p", "gpu,local", "-o", "%P %D") == "local* 4\ngpu 4\n"
    assert lenient.check_output("squeue", "-h", "-p", "gpu", "-o", "%P") == "gpu\n"
    assert lenient.check_output("scontrol", "show", "partition", "gpu").startswith("PartitionName=gpu\n")
    assert lenient.check_output("sinfo", "-h", "-o", "%P") == "local*\n"


def test_options_of_pyxis_are_refused_with_advice(lenient: Slurm) -> None:
    for command in (["sbatch", "--container-image=x", "--wrap", "true"], ["srun", "--container-mounts=/a:/a", "true"]):
        assert "start the container in the script" in lenient.refused(*command)[1]


def test_a_node_grows_only_while_nothing_runs_on_it() -> None:
    busy, idle = NodeResources("a", 4, 100, (), whole=False), NodeResources("b", 8, 100)
    request = JobRequest(min_nodes=1, ntasks=1, cpus_per_task=20, mem_per_node=500, gpus=2, fits=True)
    assert enlarge_nodes(request, [busy, idle]) == [busy, NodeResources("b", 20, 500, (0, 1))]
    assert select_nodes(request, [busy], [idle._replace(name="a"), idle]) is None


def test_a_job_that_fits_gets_no_larger_node() -> None:
    nodes = [NodeResources(name, 8, 100, (0, 1)) for name in "ab"]
    shares = select_nodes(JobRequest(ntasks=10, gpus=4, fits=True), nodes, nodes)
    assert shares
    assert [(share.node, share.cpus, share.gpus) for share in shares] == [("a", 8, (0, 1)), ("b", 2, (0, 1))]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"gres": "nvme:1,gpu:2,shard:1"}, {"gres": "gpu:2"}),
        ({"gres": "lscratch:10"}, {}),
        ({"gres": "none"}, {"gres": "none"}),
        ({"tres-per-task": "gres/gpu:h100:1"}, {"gpus-per-task": "h100:1"}),
        ({"tres-per-task": "cpu:3,gres/gpu=2,license/x=1"}, {"cpus-per-task": "3", "gpus-per-task": "2"}),
        ({"tres-per-task": "cpu=3", "cpus-per-task": "1"}, {"cpus-per-task": "1"}),
    ],
)
def test_options_that_determine_the_size(options: dict[str, str], found: dict[str, str]) -> None:
    assert portable_options(options) == found


def test_columns_of_a_newer_sacct(lenient: Slurm) -> None:
    job_id = lenient.submit("true", "-o", "/dev/null")
    lenient.ended(job_id)
    words = ("sacct", "-XnP", "-j", str(job_id), "-o", "StdOut,stdin,Restarts,Planned")
    assert lenient.check_output(*words) == "/dev/null|/dev/null|0|00:00:00\n"
    assert "StdOut" not in lenient.check_output("sacct", "--helpformat")


def test_strict_settings_offer_only_the_columns_of_their_release(slurm: Slurm) -> None:
    assert slurm.refused("sacct", "-o", "StdOut")[1] == 'sacct: error: Invalid field requested: "StdOut"\n'
