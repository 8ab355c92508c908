"""Time limits, signals, scancel and requeue: signals in the script, lines in the log, states in the records."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.pocketslurm.conftest import Slurm, wait_for

LISTENS = """
for name in USR1 USR2 TERM; do trap "echo $name >> heard" $name; done
echo ready > ready
while [ ! -e go ]; do sleep 0.05; done
"""


def ready(slurm: Slurm) -> bool:
    return bool(slurm.log("ready"))


def notice(job_id: int, cause: str) -> str:
    return (
        rf"slurmstepd: error: \*\*\* JOB {job_id} ON n1 CANCELLED AT \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{cause} \*\*\*\n"
    )


def booked(slurm: Slurm, job_id: int) -> list[str]:
    return slurm.check_output("sacct", "-nP", "-o", "JobID,State,ExitCode", "-j", str(job_id)).splitlines()


def test_a_job_at_its_time_limit_is_ended(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=0.5)
    job_id = slurm.submit("sleep 600", "--time=1")
    job = slurm.until(job_id, "TIMEOUT")
    assert 0.5 <= job.end_time - job.start_time < 1.5
    assert re.fullmatch(notice(job_id, " DUE TO TIME LIMIT"), slurm.log(f"slurm-{job_id}.out"))
    assert booked(slurm, job_id) == [f"{job_id}|TIMEOUT|0:0", f"{job_id}.batch|CANCELLED|0:15"]
    assert "JobState=TIMEOUT Reason=TimeLimit" in slurm.check_output("scontrol", "show", "job", str(job_id))


@pytest.mark.slow
def test_a_script_that_ignores_sigterm_is_killed_after_kill_wait(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=3.0, kill_wait=0.5)  # by then the shell listens, also on a busy machine
    job_id = slurm.submit("trap 'echo TERM' TERM; while true; do sleep 0.05; done", "--time=1")
    slurm.until(job_id, "TIMEOUT")
    assert booked(slurm, job_id)[1] == f"{job_id}.batch|CANCELLED|0:9"
    assert slurm.log(f"slurm-{job_id}.out").endswith("TERM\n")


@pytest.mark.slow
def test_a_script_that_exits_0_after_its_time_limit_still_times_out(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=3.0)
    job_id = slurm.submit("trap 'exit 0' TERM; while true; do sleep 0.05; done", "--time=1")
    slurm.until(job_id, "TIMEOUT")
    assert booked(slurm, job_id) == [f"{job_id}|TIMEOUT|0:0", f"{job_id}.batch|COMPLETED|0:0"]


def test_seconds_of_a_limit_are_rounded_up_to_minutes(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--time=0:30", "--hold")
    assert slurm.check_output("squeue", "-h", "-j", str(job_id), "-o", "%l") == "1:00\n"


def test_with_b_the_signal_before_the_limit_reaches_the_batch_shell(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=6.0)  # the signal comes after a second and a half: by then the shell listens
    job_id = slurm.submit(LISTENS, "--time=1", "--signal=B:USR1@45")
    wait_for(lambda: slurm.log("heard") == "USR1\n")
    (slurm.folder / "go").touch()
    assert slurm.ended(job_id).state == "COMPLETED"


def test_without_b_the_signal_before_the_limit_does_not_reach_the_batch_shell(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=1.0)
    job_id = slurm.submit(LISTENS, "--time=1", "--signal=USR1@50")
    slurm.until(job_id, "TIMEOUT")
    assert slurm.log("heard") == "TERM\n"


def test_a_limit_can_be_changed_while_the_job_runs(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=0.5)
    job_id = slurm.submit(LISTENS)
    wait_for(lambda: ready(slurm))
    slurm.check_output("scontrol", "update", f"JobId={job_id}", "TimeLimit=1")
    slurm.until(job_id, "TIMEOUT")


def test_a_running_job_is_cancelled(slurm: Slurm) -> None:
    job_id = slurm.submit("sleep 600; echo after")
    slurm.until(job_id, "RUNNING")
    slurm.check_output("scancel", str(job_id))
    assert slurm.job(job_id).state == "CANCELLED"
    job = slurm.until(job_id, "CANCELLED")
    assert booked(slurm, job_id) == [f"{job_id}|CANCELLED by {job.uid}|0:0", f"{job_id}.batch|CANCELLED|0:15"]
    assert re.fullmatch(notice(job_id, ""), slurm.log(f"slurm-{job_id}.out"))
    slurm.check_output("scancel", str(job_id))


def test_children_of_a_cancelled_script_get_no_sigterm(slurm: Slurm) -> None:
    below = "trap 'echo below >> heard' TERM; echo ready > ready; while :; do sleep 0.05; done"
    job_id = slurm.submit(f"trap 'echo shell >> heard; sleep 0.5; exit 0' TERM\nbash -c \"{below}\" &\nwait")
    wait_for(lambda: ready(slurm))
    slurm.check_output("scancel", str(job_id))
    slurm.until(job_id, "CANCELLED")
    assert slurm.log("heard") == "shell\n"


LATE_SUPERVISOR = """
import pathlib, time
from pocketslurm.queue.supervisor import Supervisor

def late(self, register=Supervisor._register):
    while not pathlib.Path("{folder}/go").exists():
        time.sleep(0.02)
    return register(self)

Supervisor._register = late
"""


def test_a_job_cancelled_before_its_script_starts_has_a_batch_step(slurm: Slurm) -> None:
    slurm.first = LATE_SUPERVISOR.format(folder=slurm.folder)
    job_id = slurm.submit("echo ran; sleep 600")
    slurm.until(job_id, "RUNNING")
    slurm.check_output("scancel", str(job_id))
    (slurm.folder / "go").touch()
    job = slurm.until(job_id, "CANCELLED")
    assert booked(slurm, job_id) == [f"{job_id}|CANCELLED by {job.uid}|0:0", f"{job_id}.batch|CANCELLED|0:15"]
    assert re.fullmatch(notice(job_id, ""), slurm.log(f"slurm-{job_id}.out"))


def test_a_waiting_job_is_cancelled_and_never_starts(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--begin=now+1hour")
    slurm.check_output("scancel", str(job_id))
    job = slurm.job(job_id)
    assert (job.state, job.start_time, job.completing) == ("CANCELLED", 0.0, False)
    output = slurm.check_output("sacct", "-nP", "-o", "State,Elapsed,NodeList", "-j", str(job_id))
    assert output == f"CANCELLED by {job.uid}|00:00:00|None assigned\n"


@pytest.mark.parametrize(
    ("options", "heard"), [(("-s", "USR1"), ""), (("-b", "-s", "USR1"), "USR1\n"), (("-f", "-s", "USR2"), "USR2\n")]
)
def test_signals_go_to_the_steps_the_shell_or_all(slurm: Slurm, options: tuple[str, ...], heard: str) -> None:
    job_id = slurm.submit(LISTENS)
    wait_for(lambda: ready(slurm))
    slurm.check_output("scancel", *options, str(job_id))
    slurm.check_output("scancel", "-b", "-s", "TERM", str(job_id))
    wait_for(lambda: slurm.log("heard").endswith("TERM\n"))
    assert slurm.log("heard") == heard + "TERM\n"
    (slurm.folder / "go").touch()
    assert slurm.ended(job_id).state == "COMPLETED"


def test_jobs_are_cancelled_by_name_state_partition_or_all(make_slurm: Callable[..., Slurm]) -> None:
    from pocketslurm.settings import Partition

    slurm = make_slurm(partitions=(Partition("one"), Partition("two")))
    for name, partition in (("a", "one"), ("a", "two"), ("b", "one"), ("b", "two")):
        slurm.submit("sleep 600", "-J", name, "-p", partition, "--hold")
    running = slurm.submit("sleep 600", "-J", "a")
    slurm.until(running, "RUNNING")
    slurm.check_output("scancel", "-n", "a", "-t", "PENDING", "-p", "one")
    assert slurm.check_output("squeue", "-h", "-S", "i", "-o", "%i").split() == ["2", "3", "4", "5"]
    slurm.check_output("scancel", "--name=b")
    assert slurm.check_output("squeue", "-h", "-S", "i", "-o", "%i").split() == ["2", "5"]
    slurm.check_output("scancel", "-u", slurm.job(running).user)
    slurm.until(running, "CANCELLED")
    assert slurm.check_output("squeue", "-h") == ""


@pytest.mark.parametrize(
    ("argv", "status", "complaint"),
    [
        ((), 1, "scancel: error: No job identification provided\n"),
        (("abc",), 1, "scancel: error: Invalid job id abc\n"),
        (("-u", "nobody-of-that-name"), 1, "scancel: error: Invalid user name: nobody-of-that-name\n"),
        (("-s", "FOO", "1"), 1, "Unknown job signal: FOO\n"),
        (("-s", "USR1", "77"), 1, "scancel: error: Kill job error on job id 77: Invalid job id specified\n"),
        (("--foo",), 1, "scancel: unrecognized option '--foo'\nTry \"scancel --help\" for more information\n"),
    ],
)
def test_scancel_refuses_wrong_ids_and_states(slurm: Slurm, argv: tuple[str, ...], status: int, complaint: str) -> None:
    assert slurm.refused("scancel", *argv) == (status, complaint)


RESTARTS = """
echo "run ${SLURM_RESTART_COUNT-none}"
test -n "$SLURM_RESTART_COUNT" || { echo ready > ready; sleep 600; }
"""


@pytest.mark.parametrize(("mode", "kept"), [("truncate", ""), ("append", "run none\n{notice}")])
def test_a_requeued_job_starts_again_with_its_id(slurm: Slurm, mode: str, kept: str) -> None:
    job_id = slurm.submit(RESTARTS, f"--open-mode={mode}")
    wait_for(lambda: ready(slurm))
    slurm.check_output("scontrol", "requeue", str(job_id))
    job = slurm.until(job_id, "COMPLETED")
    assert (job.restart_count, job.attempt) == (1, 2)
    expected = re.escape(kept).replace(r"\{notice\}", notice(job_id, " DUE TO JOB REQUEUE")) + "run 1\n"
    assert re.fullmatch(expected, slurm.log(f"slurm-{job_id}.out"))
    assert "Restarts=1" in slurm.check_output("scontrol", "show", "job", str(job_id))


def test_a_script_may_requeue_itself(slurm: Slurm) -> None:
    body = 'test -n "$SLURM_RESTART_COUNT" && exit 0; scontrol requeue $SLURM_JOB_ID; sleep 600'
    assert slurm.until(slurm.submit(body), "COMPLETED").restart_count == 1


def test_requeuehold_keeps_the_job_until_its_release(slurm: Slurm) -> None:
    job_id = slurm.submit(RESTARTS)
    wait_for(lambda: ready(slurm))
    slurm.check_output("scontrol", "requeuehold", str(job_id))
    shown = ("squeue", "-h", "-j", str(job_id), "-o", "%T %R")
    wait_for(lambda: slurm.check_output(*shown) == "PENDING (job requeued in held state)\n")
    slurm.check_output("scontrol", "release", str(job_id))
    slurm.until(job_id, "COMPLETED")


def test_a_finished_job_can_be_requeued(slurm: Slurm) -> None:
    job_id = slurm.submit("exit 3")
    slurm.until(job_id, "FAILED")
    slurm.check_output("scontrol", "requeue", str(job_id))
    wait_for(lambda: slurm.job(job_id).restart_count == 1)
    slurm.until(job_id, "FAILED")


def test_jobs_that_cannot_be_requeued(slurm: Slurm) -> None:
    never = slurm.submit("sleep 600", "--no-requeue")
    slurm.until(never, "RUNNING")
    waiting = slurm.submit("true", "--begin=now+1hour")
    disabled = f"Requested operation is presently disabled for job {never}\n"
    assert slurm.refused("scontrol", "requeue", str(never)) == (1, disabled)
    assert slurm.refused("scontrol", "requeue", str(waiting)) == (1, f"Job is pending execution for job {waiting}\n")
    assert slurm.refused("scontrol", "requeue", "99") == (1, "Invalid job id specified for job 99\n")
    assert slurm.job(never).state == "RUNNING"


def test_requeue_can_be_off_for_all(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(requeue=False)
    assert not slurm.job(slurm.submit("true", "--hold")).requeue
    assert slurm.job(slurm.submit("true", "--hold", "--requeue")).requeue
