"""Heterogeneous jobs: what their shells, steps and listings say, and how they end."""

from __future__ import annotations

from tests.conformance.engine import Engine

BUT = "but the job allocation has maximum value of 1"
TWO = ("-n2", "--mem=100", ":", "-n1")


def het(engine: Engine, body: str) -> list[str]:
    """What the script of a job of two components prints; it must end well."""
    job_id = engine.submit(f"exec >said-$SLURM_JOB_ID 2>&1\n{body}", *TWO)
    ended = engine.ended(f"{job_id}+0")
    text = engine.text(f"said-{job_id}")
    assert ended.state == "COMPLETED", text
    return text.splitlines()


def test_the_shell_knows_its_components(engine: Engine) -> None:
    said = het(engine, "env | grep -E '^SLURM_(HET_SIZE|NTASKS|JOB_NUM_NODES|MEM_PER_NODE)' | sort")
    groups = {"JOB_NUM_NODES": ("1", "1"), "MEM_PER_NODE": ("100", "100"), "NTASKS": ("2", "1")}
    told = {
        f"SLURM_{name}_{word}_GROUP_{number}={values[number]}"
        for name, values in groups.items()
        for word in ("HET", "PACK")
        for number in (0, 1)
    }
    plain = {"SLURM_HET_SIZE=2", "SLURM_NTASKS=2", "SLURM_JOB_NUM_NODES=1", "SLURM_MEM_PER_NODE=100"}
    assert set(said) == told | plain


def test_steps_over_components(engine: Engine) -> None:
    told = "bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS/$SLURM_NODEID/$SLURM_STEP_ID'"
    steps = ("", "--het-group=0,1", "--het-group=1", f"-n1 {told} :")
    body = "\n".join(f"srun {step} {told} | sort; echo" for step in steps)
    assert " ".join(het(engine, body)).split("  ") == [
        "0/2/0/0 1/2/0/0", "0/3/0/1 1/3/0/1 2/3/1/1", "0/1/0/2", "0/2/0/3 1/2/1/3 ",
    ]  # fmt: skip


def test_exit_codes_of_components(engine: Engine) -> None:
    first = "srun --het-group=0,1 bash -c 'exit $((3 * SLURM_PROCID))'; echo $?"
    lines = het(engine, f"{first}; srun --het-group=0 true : --het-group=1 false; echo $?")
    ends = sorted(line.rpartition(": ")[2] for line in lines if line.startswith("srun: error: "))
    assert [line for line in lines if line.isdecimal()] == ["6", "1"]
    assert ends == ["Exited with exit code 1", "Exited with exit code 3", "Exited with exit code 6"]


def test_a_file_of_each_task(engine: Engine) -> None:
    body = "srun --het-group=0,1 -o het-$SLURM_JOB_ID-%t-%n true; ls | grep het-$SLURM_JOB_ID-"
    assert [line.split("-", 2)[2] for line in het(engine, body)] == ["0-0", "1-0", "3-0"]


def test_groups_that_are_not_there(engine: Engine) -> None:
    assert het(engine, "for g in 5 0,5 x; do srun --het-group=$g true; done; true") == [
        "srun: error: Requested het-group offset exceeds highest hetjob index (5 > 1)",
        f"srun: error: Attempt to run a job step with het group value of 5, {BUT}",
        "srun: error: _parse_single_range: Invalid range: `x'",
        "srun: error: Invalid --het-group value: x",
    ]


def test_a_waiting_job_is_held_and_cancelled_whole(engine: Engine) -> None:
    leader = engine.submit("true", "--hold", *TWO)
    other = str(int(leader) + 1)
    both = engine.said("squeue", "-h", "-j", leader, "-o", "%i %T").splitlines()
    assert sorted(both) == [f"{leader}+0 PENDING", f"{leader}+1 PENDING"]
    assert engine.said("squeue", "-h", "-j", other, "-O", "jobid:9,hetjobidset:9").split() == [
        other,
        f"{leader}-{other}",
    ]
    refused = engine.run("scancel", other)
    assert refused.returncode == 60
    assert "Operation not permitted on individual component of heterogeneous job" in refused.stderr
    engine.said("scancel", leader)
    assert {engine.show(each)["JobState"] for each in (other, leader)} == {"CANCELLED"}


def test_a_running_component_is_cancelled_alone(engine: Engine) -> None:
    leader = engine.submit("touch began-$SLURM_JOB_ID; sleep 300", *TWO)
    other = str(int(leader) + 1)
    engine.running(leader, f"began-{leader}")
    engine.said("scancel", other)
    assert engine.ended(other).state == "CANCELLED"
    assert engine.show(f"{leader}+0")["JobState"] == "RUNNING"
    requeue = engine.run("scontrol", "requeue", other)
    assert (requeue.returncode, requeue.stderr) == (1, f"Job not heterogeneous job leader for job {other}\n")
    engine.said("scancel", leader)
    assert engine.ended(f"{leader}+0").state == "CANCELLED"


def test_an_array_has_no_components(engine: Engine) -> None:
    done = engine.run("sbatch", "--array=0-1", "-n1", ":", "-n1", "--wrap=true")
    assert (done.returncode, done.stderr) == (
        1,
        "sbatch: error: Batch job submission failed: Invalid job array specification\n",
    )


def test_parts_of_a_step_in_an_ordinary_job(engine: Engine) -> None:
    said = engine.of("srun -l -N1 -n1 echo a : -N1 -n2 echo b", "-N2", "--ntasks-per-node=2", "--mem=100")
    assert sorted(said.splitlines()) == ["0: a", "1: b", "2: b"]


def test_a_component_leaves_the_node_that_another_must_have(engine: Engine) -> None:
    leader = engine.submit("true", "-N1", ":", "-N1", "-w", "n1")
    assert engine.ended(f"{leader}+1").state == "COMPLETED"
