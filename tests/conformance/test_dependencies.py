"""Jobs that wait for other jobs, for resources, or for their release."""

from __future__ import annotations

import pytest

from tests.conformance.engine import Ended, Engine

QUIET = ("--output=/dev/null", "--mem=100")


@pytest.mark.parametrize(
    ("kind", "body", "runs"),
    [
        ("afterok", "true", True),
        ("afterok", "false", False),
        ("afternotok", "false", True),
        ("afternotok", "true", False),
        ("afterany", "false", True),
        ("afterany", "true", True),
    ],
)
def test_a_job_starts_after_the_end_of_another(engine: Engine, kind: str, body: str, runs: bool) -> None:
    first = engine.submit(f"sleep 1; {body}", *QUIET)
    then = engine.submit("true", *QUIET, f"--dependency={kind}:{first}")
    assert engine.output_of("squeue", "-h", "-j", then, "-o", "%T %r") == "PENDING Dependency\n"
    if runs:
        assert engine.await_end(then).state == "COMPLETED"
        return
    engine.await_reason(then, "DependencyNeverSatisfied")
    engine.output_of("scancel", then)
    assert engine.await_end(then).state == "CANCELLED"


def test_a_job_starts_after_the_start_of_another(engine: Engine) -> None:
    first = engine.submit("sleep 300", *QUIET, "--hold")
    then = engine.submit("true", *QUIET, f"--dependency=after:{first}")
    engine.await_reason(then, "Dependency")
    engine.output_of("scontrol", "release", first)
    assert engine.await_end(then).state == "COMPLETED"
    engine.output_of("scancel", first)


def test_a_job_waits_for_all_of_several_jobs(engine: Engine) -> None:
    one, two = engine.submit("true", *QUIET), engine.submit("sleep 1; false", *QUIET)
    then = engine.submit("true", *QUIET, f"--dependency=afterok:{one},afternotok:{two}")
    assert engine.await_end(then).state == "COMPLETED"


def test_a_job_waits_for_any_of_several_jobs(engine: Engine) -> None:
    one, two = engine.submit("true", *QUIET), engine.submit("sleep 300", *QUIET)
    then = engine.submit("true", *QUIET, f"--dependency=afterok:{one}?afterok:{two}")
    assert engine.await_end(then).state == "COMPLETED"
    engine.output_of("scancel", two)


def test_singleton_jobs_run_one_at_a_time(engine: Engine) -> None:
    first = engine.submit("sleep 2", *QUIET, "--job-name=alone", "--dependency=singleton")
    then = engine.submit("true", *QUIET, "--job-name=alone", "--dependency=singleton")
    engine.await_reason(then, "Dependency")
    assert engine.await_end(then).state == "COMPLETED"
    assert engine.await_end(first).state == "COMPLETED"


def test_a_job_with_an_impossible_dependency_is_cancelled_on_request(engine: Engine) -> None:
    first = engine.submit("false", *QUIET)
    engine.await_end(first)
    then = engine.submit("true", *QUIET, f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    assert engine.await_end(then).state == "CANCELLED"


def test_a_held_job_waits_for_its_release(engine: Engine) -> None:
    held = engine.submit("true", *QUIET, "--hold")
    engine.await_reason(held, "JobHeldUser")
    engine.output_of("scontrol", "release", held)
    assert engine.await_end(held).state == "COMPLETED"


def test_a_waiting_job_is_held(engine: Engine) -> None:
    waiting = engine.submit("true", *QUIET, "--begin=now+1hour")
    engine.await_reason(waiting, "BeginTime")
    engine.output_of("scontrol", "hold", waiting)
    # If there are two reasons, Slurm lists the hold.
    engine.wait_until(
        lambda: engine.output_of("squeue", "-h", "-j", waiting, "-o", "%r").strip() in {"JobHeldUser", "JobHeldAdmin"}
    )
    engine.output_of("scancel", waiting)
    assert engine.await_end(waiting) == Ended("CANCELLED", "0:0")


def test_a_job_without_free_nodes_waits_for_resources(engine: Engine) -> None:
    wide = engine.submit("sleep 300", "-N4", "--exclusive", "--output=/dev/null")
    engine.wait_until(lambda: engine.show_job(wide)["JobState"] == "RUNNING")
    late = engine.submit("true", "-N4", "--exclusive", "--output=/dev/null")
    engine.await_reason(late, "Resources")
    engine.output_of("scancel", wide, late)
    engine.await_end(late)
    engine.await_end(wide)
