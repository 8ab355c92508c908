"""The output of `hpc-kit env`."""

from __future__ import annotations

from hpc_kit.runtime import resolve, world
from tests.runtime.launches import Step, captured_case

KEYS = ["rank", "local_rank", "world_size", "local_world_size", "node_rank", "nnodes", "master_addr", "master_port"]


def test_each_value_is_listed_with_its_variable() -> None:
    hosts = ("n3", "n4")
    step = Step(Step.of(2, 2).placement, hosts, job_hosts=("n1", "n2", *hosts))
    environ = step.environ(2) | {"PMI_RANK": "2", "PMI_SIZE": "4", "HOSTNAME": "n1"}
    port = resolve(environ).master_port
    assert world.explain_world(resolve(environ)) == (
        "World of 4 from the srun step 1234.0\n"
        "  rank              2         SLURM_PROCID\n"
        "  local_rank        0         SLURM_LOCALID\n"
        "  world_size        4         SLURM_STEP_NUM_TASKS\n"
        "  local_world_size  2         SLURM_STEP_TASKS_PER_NODE = 2(x2), node 1\n"
        "  node_rank         1         SLURM_NODEID\n"
        "  nnodes            2         SLURM_STEP_NUM_NODES\n"
        "  master_addr       n3        first of SLURM_STEP_NODELIST = n[3-4]\n"
        f"  master_port       {port}     from job 1234, step 0, restart 0\n"
        "agrees  PMI_RANK = 2, PMI_SIZE = 4\n"
        "ignored SLURM_JOB_NODELIST = n[1-4] (the job's, wider than this step); "
        "SLURM_JOB_NUM_NODES = 4 (the job's, wider than this step); HOSTNAME = n1 (the batch host's)\n"
    )


def test_a_batch_shell_gets_the_reason_for_its_single_rank() -> None:
    lines = world.explain_world(resolve(captured_case("10_batch_shell_8task_job@26.05")[0])).splitlines()
    assert lines[0] == "A world of one: one process in job 15, outside of any step"
    assert lines[1].split(maxsplit=2)[2] == "no launcher started this process: SLURM_STEP_ID = -5, a shell of the job"
    assert lines[-1].startswith("warning: this job has 8 tasks (SLURM_NTASKS)")


def test_an_unknown_value_is_a_dash() -> None:
    text = world.explain_world(resolve(captured_case("14_ompi_mpirun_sbatch_2x4@26.05")[5]))
    values = dict(line.split()[:2] for line in text.splitlines())
    assert [values[name] for name in ("node_rank", "nnodes", "master_addr")] == ["-"] * 3


def test_the_json_of_a_world_has_fixed_keys() -> None:
    data = world.to_json(resolve(Step.of(2, 2).environ(3)))
    assert list(data) == [*KEYS, "launcher", "sources", "warnings"]
    assert (data["rank"], data["launcher"], data["warnings"]) == (3, "slurm", [])
    assert list(data["sources"]) == sorted(data["sources"], key=list(data["sources"]).index)  # type: ignore[call-overload]
    assert set(data["sources"]) == set(KEYS)  # type: ignore[call-overload]
