"""Variables of batch shells, steps and tasks, computed from the records; tests compare whole environments."""

from __future__ import annotations

import pytest

from pocketslurm.queue.job_environment import batch_environ
from pocketslurm.queue.records import Job, Step
from pocketslurm.settings import Settings
from pocketslurm.steps.environment import SrunContext, step_environ, task_environ

JOB = Job(
    job_id=31, name="env.sh", user="ada", uid=1000, group="users", gid=100, partition="main", cluster="ring",
    submit_dir="/home/ada", submit_host="login", options={"nodes": "2", "ntasks-per-node": "2"},
    nodes=["n1", "n2"], cpus=[2, 2], mem=[0, 0], gpus=[[], []], tasks=[2, 2],
)  # fmt: skip
STEP = Step(31, 4, 0, "python", ["n2"], cpus=[2], tasks=[[0, 1]], gpus=[[]])
PLAIN = Settings()
WITH_GPUS = Settings(gpus=2)

BATCH = {
    "ENVIRONMENT": "BATCH",
    "HOSTNAME": "n1",
    "SLURMD_NODENAME": "n1",
    "SLURM_CLUSTER_NAME": "ring",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOBID": "31",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
    "SLURM_JOB_GID": "100",
    "SLURM_JOB_ID": "31",
    "SLURM_JOB_NAME": "env.sh",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_PARTITION": "main",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "ada",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "n[1-2]",
    "SLURM_NODE_ALIASES": "(null)",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PRIO_PROCESS": "0",
    "SLURM_PROCID": "0",
    "SLURM_SUBMIT_DIR": "/home/ada",
    "SLURM_SUBMIT_HOST": "login",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_TOPOLOGY_ADDR": "n1",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    "TMPDIR": "/tmp",
}


def added_variables(job: Job, settings: Settings = PLAIN, submit: dict[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a batch shell that the plain job lacks or has with another value."""
    return dict(batch_environ(job, settings, submit or {}).items() - BATCH.items())


def missing_variables(job: Job) -> set[str]:
    """Return the names of the plain job's variables that a batch shell lacks."""
    return BATCH.keys() - batch_environ(job, PLAIN, {}).keys()


def test_the_variables_of_a_batch_shell() -> None:
    assert batch_environ(JOB, PLAIN, {}) == BATCH


def test_ntasks_is_set_only_if_an_option_asks_for_tasks() -> None:
    job = JOB._replace(options={"nodes": "2"})
    assert missing_variables(job) == {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"}


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"ntasks": "3"}, {"SLURM_NTASKS": "3", "SLURM_NPROCS": "3"}),
        ({"cpus-per-task": "2"}, {"SLURM_CPUS_PER_TASK": "2"}),
        ({"mem": "4G"}, {"SLURM_MEM_PER_NODE": "4096"}),
        ({"mem": "0"}, {}),
        ({"mem-per-cpu": "300"}, {"SLURM_MEM_PER_CPU": "300"}),
        ({"gpus-per-node": "a100:2"}, {"SLURM_GPUS_PER_NODE": "a100:2"}),
        ({"gpus": "2"}, {"SLURM_GPUS": "2"}),
        ({"distribution": "cyclic"}, {"SLURM_DISTRIBUTION": "cyclic"}),
        ({"distribution": "plane=2"}, {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"}),
        ({"open-mode": "append"}, {"SLURM_OPEN_MODE": "a"}),
        ({"overcommit": ""}, {"SLURM_OVERCOMMIT": "1"}),
        ({"dependency": "afterok:3"}, {"SLURM_JOB_DEPENDENCY": "afterok:3"}),
        ({"export": "NONE"}, {"SLURM_EXPORT_ENV": "NONE", "SLURM_GET_USER_ENV": "1"}),
        ({"export": "ALL"}, {}),
        ({"hint": "nomultithread"}, {"SLURM_HINT": "nomultithread"}),
        ({"reservation": "r"}, {"SLURM_JOB_RESERVATION": "r"}),
        ({"kill-on-invalid-dep": "yes", "time": "3", "signal": "USR1@60"}, {}),
    ],
)
def test_options_have_the_variables_that_slurm_sets(options: dict[str, str], output: dict[str, str]) -> None:
    assert added_variables(JOB._replace(options={**JOB.options, **options})) == output


def test_account_and_qos_have_variables_if_they_are_given() -> None:
    assert added_variables(JOB._replace(account="proj", qos="high")) == {
        "SLURM_JOB_ACCOUNT": "proj",
        "SLURM_JOB_QOS": "high",
    }


def test_the_restart_count_is_set_only_after_a_restart() -> None:
    assert added_variables(JOB._replace(restart_count=2)) == {"SLURM_RESTART_COUNT": "2"}


@pytest.mark.parametrize(("given", "step"), [("1-5:2%2", "2"), ("3,5", "1"), ("1,3,5", "1")])
def test_the_variables_of_an_array_task(given: str, step: str) -> None:
    spec = "3,5" if given == "3,5" else "1,3,5"
    job = JOB._replace(array_job_id=30, array_task_id=5, array_spec=spec, options={**JOB.options, "array": given})
    assert added_variables(job) == {
        "SLURM_ARRAY_JOB_ID": "30",
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_ARRAY_TASK_COUNT": str(len(spec.split(","))),
        "SLURM_ARRAY_TASK_MIN": spec[0],
        "SLURM_ARRAY_TASK_MAX": "5",
        "SLURM_ARRAY_TASK_STEP": step,
    }


def test_variables_of_a_surrounding_step_are_inherited() -> None:
    submit = {
        "HOME": "/home/ada",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n9",
        "TMPDIR": "/scratch",
        "SLURM_UMASK": "0022",
    }
    kept = {name: value for name, value in submit.items() if name != "SLURM_UMASK"}
    assert added_variables(JOB, submit=submit) == kept


def test_the_script_sees_the_gpus_of_the_batch_host_or_none() -> None:
    job = JOB._replace(gpus=[[0, 1], [0]])
    seen = dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS"), "0,1"
    )
    assert added_variables(job, WITH_GPUS) == {**seen, "SLURM_GPUS_ON_NODE": "2"}
    assert added_variables(JOB, WITH_GPUS, {"CUDA_VISIBLE_DEVICES": "0"}) == {}
    assert added_variables(JOB, PLAIN, {"CUDA_VISIBLE_DEVICES": "0"}) == {"CUDA_VISIBLE_DEVICES": "0"}


def launched(launch: SrunContext, environ: dict[str, str] | None = None, job: Job = JOB) -> dict[str, str]:
    """A step's variables beyond the batch shell's."""
    before = BATCH | (environ or {})
    return dict(step_environ(job, STEP, launch, before).items() - before.items())


STEP_TOLD = {
    "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": "2(x2)",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_NNODES": "1",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_SRUN_COMM_HOST": "127.0.0.1",
    "SLURM_SRUN_COMM_PORT": "40000",
    "SLURM_STEPID": "4",
    "SLURM_STEP_ID": "4",
    "SLURM_STEP_LAUNCHER_PORT": "40000",
    "SLURM_STEP_NODELIST": "n2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_UMASK": "0022",
}


def test_a_step_has_variables_of_the_job_and_of_the_step() -> None:
    assert launched(SrunContext(port=40000)) == STEP_TOLD


def test_options_of_srun_set_variables() -> None:
    launch = SrunContext(
        port=40000, distribution="block", options={"cpus-per-task": "2", "overcommit": "", "label": "", "plane": "3"},
        job_name="named", tres_bind="gpu:per_task:1", umask=0o077, nice=5,
    )  # fmt: skip
    assert launched(launch) == STEP_TOLD | {
        "SLURMD_TRES_BIND": "gpu:per_task:1",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_DISTRIBUTION": "block",
        "SLURM_DIST_PLANESIZE": "3",
        "SLURM_JOB_NAME": "named",
        "SLURM_LABELIO": "1",
        "SLURM_OVERCOMMIT": "1",
        "SLURM_PRIO_PROCESS": "5",
        "SLURM_UMASK": "0077",
    }


def test_preserve_env_keeps_the_counts_of_the_job() -> None:
    output = launched(SrunContext(port=40000, preserve=True))
    assert not output.keys() & {"SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE"}


def test_an_allocation_of_srun_has_the_folder_of_srun() -> None:
    output = step_environ(JOB, STEP, SrunContext(allocated=True, cwd="/here", host="me", job_name="python"), {})
    assert (output["SLURM_SUBMIT_DIR"], output["SLURM_SUBMIT_HOST"], output["SLURM_JOB_NUM_NODES"]) == (
        "/here",
        "me",
        "2",
    )
    assert not output.keys() & {"SLURM_NODE_ALIASES", "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0"}


def test_the_variables_of_a_task() -> None:
    step = STEP._replace(nodes=["n1", "n2"], cpus=[3, 2], tasks=[[0, 2, 4], [1, 3]])
    assert task_environ({"TMPDIR": "/t"}, step, PLAIN, (1, 1)) == {
        "SLURMD_NODENAME": "n2",
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_GTIDS": "1,3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "3",
        "SLURM_TOPOLOGY_ADDR": "n2",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "TMPDIR": "/t",
    }


def test_only_the_first_task_of_a_node_is_given_a_temporary_folder() -> None:
    assert [task_environ({}, STEP, PLAIN, (0, local)).get("TMPDIR") for local in (0, 1)] == ["/tmp", None]


def test_a_task_sees_its_gpus_and_a_step_without_gpus_removes_the_variables() -> None:
    step = STEP._replace(gpus=[[0, 1]])
    output = task_environ({}, step, WITH_GPUS, (0, 1), [1])
    assert {name: value for name, value in output.items() if "DEVICES" in name or "GPU" in name} == {
        "CUDA_VISIBLE_DEVICES": "1",
        "GPU_DEVICE_ORDINAL": "1",
        "ROCR_VISIBLE_DEVICES": "1",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_STEP_GPUS": "1",
    }
    assert "CUDA_VISIBLE_DEVICES" not in task_environ({"CUDA_VISIBLE_DEVICES": "0"}, STEP, WITH_GPUS, (0, 0))
    assert task_environ({"CUDA_VISIBLE_DEVICES": "0"}, STEP, PLAIN, (0, 0))["CUDA_VISIBLE_DEVICES"] == "0"
