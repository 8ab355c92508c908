"""Jobs that wait for jobs, for a time, or for a person."""

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
def test_after_the_end_of_another(engine: Engine, kind: str, body: str, runs: bool) -> None:
    first = engine.submit(f"sleep 1; {body}", *QUIET)
    then = engine.submit("true", *QUIET, f"--dependency={kind}:{first}")
    assert engine.said("squeue", "-h", "-j", then, "-o", "%T %r") == "PENDING Dependency\n"
    if runs:
        assert engine.ended(then).state == "COMPLETED"
        return
    engine.waits_for(then, "DependencyNeverSatisfied")
    engine.said("scancel", then)
    assert engine.ended(then).state == "CANCELLED"


def test_after_the_start_of_another(engine: Engine) -> None:
    first = engine.submit("sleep 300", *QUIET, "--hold")
    then = engine.submit("true", *QUIET, f"--dependency=after:{first}")
    engine.waits_for(then, "Dependency")
    engine.said("scontrol", "release", first)
    assert engine.ended(then).state == "COMPLETED"
    engine.said("scancel", first)


def test_all_of_several(engine: Engine) -> None:
    one, two = engine.submit("true", *QUIET), engine.submit("sleep 1; false", *QUIET)
    then = engine.submit("true", *QUIET, f"--dependency=afterok:{one},afternotok:{two}")
    assert engine.ended(then).state == "COMPLETED"


def test_any_of_several(engine: Engine) -> None:
    one, two = engine.submit("true", *QUIET), engine.submit("sleep 300", *QUIET)
    then = engine.submit("true", *QUIET, f"--dependency=afterok:{one}?afterok:{two}")
    assert engine.ended(then).state == "COMPLETED"
    engine.said("scancel", two)


def test_one_of_a_name_at_a_time(engine: Engine) -> None:
    first = engine.submit("sleep 2", *QUIET, "--job-name=alone", "--dependency=singleton")
    then = engine.submit("true", *QUIET, "--job-name=alone", "--dependency=singleton")
    engine.waits_for(then, "Dependency")
    assert engine.ended(then).state == "COMPLETED"
    assert engine.ended(first).state == "COMPLETED"


def test_what_can_never_run_is_cancelled_where_that_is_asked_for(engine: Engine) -> None:
    first = engine.submit("false", *QUIET)
    engine.ended(first)
    then = engine.submit("true", *QUIET, f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    assert engine.ended(then).state == "CANCELLED"


def test_a_held_job_waits_for_its_release(engine: Engine) -> None:
    held = engine.submit("true", *QUIET, "--hold")
    engine.waits_for(held, "JobHeldUser")
    engine.said("scontrol", "release", held)
    assert engine.ended(held).state == "COMPLETED"


def test_a_waiting_job_is_held(engine: Engine) -> None:
    waiting = engine.submit("true", *QUIET, "--begin=now+1hour")
    engine.waits_for(waiting, "BeginTime")
    engine.said("scontrol", "hold", waiting)
    # Of two reasons, the hold is named.
    engine.until(
        lambda: engine.said("squeue", "-h", "-j", waiting, "-o", "%r").strip() in {"JobHeldUser", "JobHeldAdmin"}
    )
    engine.said("scancel", waiting)
    assert engine.ended(waiting) == Ended("CANCELLED", "0:0")


def test_a_job_without_a_place_waits_for_resources(engine: Engine) -> None:
    wide = engine.submit("sleep 300", "-N4", "--exclusive", "--output=/dev/null")
    engine.until(lambda: engine.show(wide)["JobState"] == "RUNNING")
    late = engine.submit("true", "-N4", "--exclusive", "--output=/dev/null")
    engine.waits_for(late, "Resources")
    engine.said("scancel", wide, late)
    engine.ended(late)
    engine.ended(wide)
