"""Heterogeneous jobs: variables, steps, listings and exit codes."""

from __future__ import annotations

from tests.conformance.engine import Engine

BUT = "but the job allocation has maximum value of 1"
TWO = ("-n2", "--mem=100", ":", "-n1")


def run_heterogeneous(engine: Engine, body: str) -> list[str]:
    """Run a job of two components, which must succeed, and return its output."""
    job_id = engine.submit(f"exec >output-$SLURM_JOB_ID 2>&1\n{body}", *TWO)
    ended = engine.await_end(f"{job_id}+0")
    text = engine.read_text(f"output-{job_id}")
    assert ended.state == "COMPLETED", text
    return text.splitlines()


def test_the_batch_shell_gets_the_variables_of_its_components(engine: Engine) -> None:
    output = run_heterogeneous(engine, "env | grep -E '^SLURM_(HET_SIZE|NTASKS|JOB_NUM_NODES|MEM_PER_NODE)' | sort")
    groups = {"JOB_NUM_NODES": ("1", "1"), "MEM_PER_NODE": ("100", "100"), "NTASKS": ("2", "1")}
    told = {
        f"SLURM_{name}_{word}_GROUP_{number}={values[number]}"
        for name, values in groups.items()
        for word in ("HET", "PACK")
        for number in (0, 1)
    }
    plain = {"SLURM_HET_SIZE=2", "SLURM_NTASKS=2", "SLURM_JOB_NUM_NODES=1", "SLURM_MEM_PER_NODE=100"}
    assert set(output) == told | plain


def test_steps_span_components(engine: Engine) -> None:
    told = "bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS/$SLURM_NODEID/$SLURM_STEP_ID'"
    steps = ("", "--het-group=0,1", "--het-group=1", f"-n1 {told} :")
    body = "\n".join(f"srun {step} {told} | sort; echo" for step in steps)
    assert " ".join(run_heterogeneous(engine, body)).split("  ") == [
        "0/2/0/0 1/2/0/0", "0/3/0/1 1/3/0/1 2/3/1/1", "0/1/0/2", "0/2/0/3 1/2/1/3 ",
    ]  # fmt: skip


def test_components_have_exit_codes(engine: Engine) -> None:
    first = "srun --het-group=0,1 bash -c 'exit $((3 * SLURM_PROCID))'; echo $?"
    lines = run_heterogeneous(engine, f"{first}; srun --het-group=0 true : --het-group=1 false; echo $?")
    ends = sorted(line.rpartition(": ")[2] for line in lines if line.startswith("srun: error: "))
    assert [line for line in lines if line.isdecimal()] == ["6", "1"]
    assert ends == ["Exited with exit code 1", "Exited with exit code 3", "Exited with exit code 6"]


def test_each_task_of_each_component_has_its_file(engine: Engine) -> None:
    body = "srun --het-group=0,1 -o het-$SLURM_JOB_ID-%t-%n true; ls | grep het-$SLURM_JOB_ID-"
    assert [line.split("-", 2)[2] for line in run_heterogeneous(engine, body)] == ["0-0", "1-0", "3-0"]


def test_missing_components_are_refused(engine: Engine) -> None:
    assert run_heterogeneous(engine, "for g in 5 0,5 x; do srun --het-group=$g true; done; true") == [
        "srun: error: Requested het-group offset exceeds highest hetjob index (5 > 1)",
        f"srun: error: Attempt to run a job step with het group value of 5, {BUT}",
        "srun: error: _parse_single_range: Invalid range: `x'",
        "srun: error: Invalid --het-group value: x",
    ]


def test_a_waiting_job_is_held_and_cancelled_with_all_components(engine: Engine) -> None:
    leader = engine.submit("true", "--hold", *TWO)
    other = str(int(leader) + 1)
    both = engine.output_of("squeue", "-h", "-j", leader, "-o", "%i %T").splitlines()
    assert sorted(both) == [f"{leader}+0 PENDING", f"{leader}+1 PENDING"]
    assert engine.output_of("squeue", "-h", "-j", other, "-O", "jobid:9,hetjobidset:9").split() == [
        other,
        f"{leader}-{other}",
    ]
    refused = engine.run("scancel", other)
    assert refused.returncode == 60
    assert "Operation not permitted on individual component of heterogeneous job" in refused.stderr
    engine.output_of("scancel", leader)
    assert {engine.show_job(each)["JobState"] for each in (other, leader)} == {"CANCELLED"}


def test_a_single_running_component_is_cancelled(engine: Engine) -> None:
    leader = engine.submit("touch began-$SLURM_JOB_ID; sleep 300", *TWO)
    other = str(int(leader) + 1)
    engine.await_file(leader, f"began-{leader}")
    engine.output_of("scancel", other)
    assert engine.await_end(other).state == "CANCELLED"
    assert engine.show_job(f"{leader}+0")["JobState"] == "RUNNING"
    requeue = engine.run("scontrol", "requeue", other)
    assert (requeue.returncode, requeue.stderr) == (1, f"Job not heterogeneous job leader for job {other}\n")
    engine.output_of("scancel", leader)
    assert engine.await_end(f"{leader}+0").state == "CANCELLED"


def test_an_array_has_no_components(engine: Engine) -> None:
    done = engine.run("sbatch", "--array=0-1", "-n1", ":", "-n1", "--wrap=true")
    assert (done.returncode, done.stderr) == (
        1,
        "sbatch: error: Batch job submission failed: Invalid job array specification\n",
    )


def test_a_component_leaves_the_node_that_another_needs(engine: Engine) -> None:
    leader = engine.submit("true", "-N1", ":", "-N1", "-w", "n1")
    assert engine.await_end(f"{leader}+1").state == "COMPLETED"
