"""Jobs ended from outside: time limits, signals, scancel, requeue."""

from __future__ import annotations

import pytest

from tests.conformance.engine import Ended, Engine


def wait_loop(name: str) -> str:
    """Return a script whose shell and step record signals in a file and continue."""
    return f"""
trap 'echo batch-usr1 >> {name}' USR1
srun bash -c 'trap "echo step-usr1 >> {name}" USR1; touch {name}.up; for i in {{1..3000}}; do sleep 0.1; done' &
step=$!
while kill -0 $step 2>/dev/null; do wait $step; done
"""


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        (("--signal=USR1",), {"step-usr1"}),
        (("--batch", "--signal=USR1"), {"batch-usr1"}),
        (("--full", "--signal=USR1"), {"batch-usr1", "step-usr1"}),
    ],
)
def test_a_signal_reaches_the_chosen_processes(engine: Engine, options: tuple[str, ...], noted: set[str]) -> None:
    name = "signal-" + "-".join(option.strip("-").partition("=")[0] for option in options)
    job_id = engine.submit(wait_loop(name), "--output=/dev/null", "--mem=100")
    engine.await_file(job_id, f"{name}.up")
    engine.output_of("scancel", *options, job_id)
    engine.wait_until(lambda: (engine.folder / name).exists() and set(engine.read_text(name).split()) == noted)
    assert engine.show_job(job_id)["JobState"] == "RUNNING"
    engine.output_of("scancel", job_id)
    assert engine.await_end(job_id) == Ended("CANCELLED", "0:15")
    assert set(engine.read_text(name).split()) == noted


def test_a_running_job_is_cancelled(engine: Engine) -> None:
    job_id = engine.submit("touch up-cancelled; sleep 300; touch not-reached", "--mem=100", "--output=cancelled-%j")
    engine.await_file(job_id, "up-cancelled")
    engine.output_of("scancel", job_id)
    assert engine.await_end(job_id) == Ended("CANCELLED", "0:15")
    assert not (engine.folder / "not-reached").exists()
    assert "CANCELLED AT" in engine.read_text(f"cancelled-{job_id}")


def test_a_waiting_job_is_cancelled(engine: Engine) -> None:
    job_id = engine.submit("touch not-started", "--hold")
    engine.output_of("scancel", job_id)
    assert engine.await_end(job_id) == Ended("CANCELLED", "0:0")
    assert not (engine.folder / "not-started").exists()


def test_jobs_are_cancelled_by_name_and_by_state(engine: Engine) -> None:
    ours = engine.submit("true", "--hold", "--job-name=by_name")
    other = engine.submit("true", "--hold", "--job-name=by_other")
    engine.output_of("scancel", "--name=by_name", "--state=PENDING")
    assert engine.await_end(ours).state == "CANCELLED"
    assert engine.show_job(other)["JobState"] == "PENDING"
    engine.output_of("scancel", other)


def test_a_single_step_is_cancelled(engine: Engine) -> None:
    body = "srun sh -c 'touch up-step; sleep 300'; echo code $?; srun echo next"
    job_id = engine.submit(body, "--output=step-%j", "--mem=100")
    engine.await_file(job_id, "up-step")
    engine.output_of("scancel", f"{job_id}.0")
    assert engine.await_end(job_id).state == "COMPLETED"
    lines = engine.read_text(f"step-{job_id}").splitlines()
    assert lines[-1] == "next"
    assert int(next(line for line in lines if line.startswith("code ")).split()[1]) >= 128


def test_a_job_that_ignores_sigterm_is_killed(engine: Engine) -> None:
    job_id = engine.submit("trap '' TERM; touch up-deaf; sleep 300 & wait", "--mem=100", "--output=/dev/null")
    engine.await_file(job_id, "up-deaf")
    engine.output_of("scancel", job_id)
    assert engine.await_end(job_id).state == "CANCELLED"


def test_a_job_is_requeued(engine: Engine) -> None:
    body = "echo ${SLURM_RESTART_COUNT-none}; [ $SLURM_RESTART_COUNT ] && exit 0; touch up-again; sleep 300"
    job_id = engine.submit(body, "--output=again-%j", "--open-mode=append", "--requeue", "--mem=100")
    engine.await_file(job_id, "up-again")
    engine.output_of("scontrol", "requeue", job_id)
    # Slurm delays a requeued job by two minutes. A job that has already started cannot be held.
    engine.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    assert engine.await_end(job_id) == Ended("COMPLETED", "0:0")
    assert engine.show_job(job_id)["Restarts"] == "1"
    lines = [line for line in engine.read_text(f"again-{job_id}").split("\n") if len(line) < 6]
    assert [line for line in lines if line] == ["none", "1"]


def test_a_job_that_may_not_be_requeued(engine: Engine) -> None:
    job_id = engine.submit("sleep 300", "--no-requeue", "--output=/dev/null", "--mem=100")
    engine.wait_until(lambda: engine.show_job(job_id)["JobState"] == "RUNNING")
    refused = engine.run("scontrol", "requeue", job_id)
    assert refused.returncode == 1
    assert "Requested operation is presently disabled" in refused.stderr
    engine.output_of("scancel", job_id)
    assert engine.await_end(job_id).state == "CANCELLED"


def test_an_ended_job_is_requeued_and_held(engine: Engine) -> None:
    job_id = engine.submit("true", "--output=/dev/null", "--mem=100")
    engine.await_end(job_id)
    engine.output_of("scontrol", "requeuehold", job_id)
    engine.wait_until(lambda: engine.output_of("squeue", "-h", "-j", job_id, "-o", "%T").strip() == "PENDING")
    assert engine.output_of("squeue", "-h", "-j", job_id, "-o", "%r") in {
        "job requeued in held state\n",
        "JobHeldAdmin\n",
    }
    engine.output_of("scancel", job_id)


def test_the_time_limit_ends_a_job(engine: Engine) -> None:
    """Four jobs run in parallel: one without a trap, two that continue after the warning signal, and one that exits."""
    plain = engine.submit("touch never; sleep 300", "--time=1", "--output=over-%j", "--mem=100")
    batch = engine.submit(wait_loop("over-batch"), "--time=1", "--signal=B:USR1@10", "--mem=100", "--output=/dev/null")
    steps = engine.submit(wait_loop("over-steps"), "--time=1", "--signal=USR1@10", "--mem=100", "--output=/dev/null")
    ends = "trap 'exit 0' USR1; sleep 300 & wait"
    early = engine.submit(ends, "--time=1", "--signal=B:USR1@10", "--mem=100", "--output=/dev/null")
    engine.wait_until(lambda: engine.show_job(plain)["JobState"] not in {"PENDING", "RUNNING"}, seconds=140)
    # Slurm first signals the child of the shell. If it ends quickly, the shell still exits with a code.
    assert engine.await_end(plain) in {Ended("TIMEOUT", "0:15"), Ended("TIMEOUT", "143:0")}
    assert "DUE TO TIME LIMIT" in engine.read_text(f"over-{plain}")
    assert engine.await_end(early) == Ended("COMPLETED", "0:0")
    assert (engine.await_end(batch).state, engine.await_end(steps).state) == ("TIMEOUT", "TIMEOUT")
    assert engine.read_text("over-batch") == "batch-usr1\n"
    assert engine.read_text("over-steps") == "step-usr1\n"
