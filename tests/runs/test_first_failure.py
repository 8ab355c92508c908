"""Finds the rank that failed first, by the marks and logs of a run."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc_kit.cli.outcomes import print_failure
from hpc_kit.runs import first_failure
from hpc_kit.runs.first_failure import find_failure, find_hidden_failure, signal_name
from hpc_kit.runs.run_folders import Run, open_run
from hpc_kit.runs.why.run_evidence import explain_run
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.states import JobState


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "runs" / "job" / "12"
    folder.mkdir(parents=True)
    return open_run(folder)


def status(state: JobState, exit_code: int | None = None, signal: int | None = None) -> JobStatus:
    start = dt.datetime(2026, 1, 1, 12, 0, 0)  # noqa: DTZ001 - as Slurm prints it, local
    end = start + dt.timedelta(minutes=10)
    return JobStatus(
        job_id="12",
        raw_id="12",
        name="job",
        state=state,
        raw_state=str(state),
        reason=None,
        exit_code=exit_code,
        signal=signal,
        nodelist="n[1-4]",
        submit=start,
        start=start,
        end=end,
        time_limit=600,
        elapsed=600,
        user="ada",
        partition="main",
    )


FAILED = status(JobState.FAILED, 1, 0)


def write_files(run: Run, *, mark: str = "", batch: str = "", **ranks: str) -> None:
    """Ranks by keyword: r5="its log"."""
    if mark:
        (run.folder / "first-failure").write_text(f"{mark}\n")
    run.batch_log.write_text(batch)
    for name, text in ranks.items():
        run.rank_log(int(name[1:])).write_text(text)


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 2, in <module>
    raise ValueError("bad")
ValueError: bad"""
VICTIM = TRACEBACK.replace("ValueError: bad", "RuntimeError: Connection closed by peer")


def test_only_the_marked_rank_is_shown(run: Run) -> None:
    write_files(run, mark="5 n3 1 100.0", r0=VICTIM, r5=f"step 4\n{TRACEBACK}\n", r6=VICTIM)
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure[:7] == (
        5,
        "n3",
        1,
        None,
        "rank 5 on n3 failed with ValueError: bad (train.py:2)",
        TRACEBACK,
        run.rank_log(5),
    )


def test_a_rank_for_which_the_ranks_waited_in_vain_is_shown_without_what_it_reports_after_it_was_resumed(
    run: Run,
) -> None:
    reason = "ranks 0, 1 waited for it in vain: its process 77 is stopped"
    write_files(run, mark=f"2 n2 1 100.0 {reason}", r0=VICTIM, r2=f"step 4\n[rank2]: {VICTIM}\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure[:6] == (2, "n2", None, None, f"rank 2 on n2: {reason}", "step 4")


def test_without_a_mark_the_first_rank_named_by_srun_is_shown(run: Run) -> None:
    batch = "srun: error: n3: task 5: Exited with exit code 3\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n"
    write_files(run, batch=batch, r0=VICTIM, r5="loading\nno such file: data.bin\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    cause = "rank 5 on n3 ended with exit code 3 after it had printed: no such file: data.bin"
    text = "loading\nno such file: data.bin\nsrun: error: n3: task 5: Exited with exit code 3"
    assert failure[:7] == (5, "n3", 3, None, cause, text, run.rank_log(5))


def test_a_victim_is_not_the_first_failure_even_if_srun_names_it_first(run: Run) -> None:
    batch = "srun: error: n1: task 0: Exited with exit code 143\nsrun: error: n3: task 5: Exited with exit code 3\n"
    write_files(run, batch=batch, r0="step 1\n", r5="no such file\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.rank == 5


def test_a_program_without_a_python_traceback_is_shown_by_its_last_lines(run: Run) -> None:
    lines = [f"line {number}" for number in range(100)]
    write_files(run, mark="2 n1 7 100.0", r2="\n".join(lines))
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.text.splitlines() == lines[-20:]


LAUNCH = "srun: error: Task launch for StepId=12.0 failed on node {}: Communication connection failure\n"


def test_a_node_that_cannot_launch_tasks_is_the_cause_of_killed_ranks(run: Run) -> None:
    batch = LAUNCH.format("n2") + LAUNCH.format("n4") + "srun: error: n3: task 2: Killed\n"
    write_files(run, mark="2 n3 137 100.0", batch=batch, r2="step 1\n")
    (run.folder / "record.json").write_bytes(
        b'{"job_id": "12", "job_name": "job", "submitted": "", "logs": {"batch": "%j.log", "ranks": "%j/rank-%t.log"}, '
        b'"command_line": ["hpc-kit", "submit", "-j", "4x1", "--", "python", "t.py"], '
        b'"resolved": {"job": {"resources": {"exclude": "n[9-10]"}}}}'
    )
    failure = find_failure(open_run(run.folder)._replace(logs=run.logs), FAILED)
    assert failure is not None
    assert failure.rank is None
    assert failure.headline == "Slurm could not start the tasks on n[2,4]: Communication connection failure"
    again = "hpc-kit submit -j 4x1 '--exclude=n[9-10,2,4]' -- python t.py"
    assert failure.fix == f"submit again without it: {again}"


def test_a_node_that_could_not_launch_tasks_before_a_requeue_is_not_the_cause(run: Run) -> None:
    requeue = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T12:00:00 DUE TO JOB REQUEUE ***\n"
    write_files(run, mark="5 n3 1 100.0", batch=LAUNCH.format("n2") + requeue, r5=TRACEBACK)
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.headline.endswith("failed with ValueError: bad (train.py:2)")


def test_a_killed_rank_is_shown_with_its_signal_and_slurms_message(run: Run) -> None:
    oom = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed."
    write_files(run, batch=f"{oom}\nsrun: error: n2: task 3: Out Of Memory\n", r3="step 1\nstep 2\n")
    failure = find_failure(run, status(JobState.OUT_OF_MEMORY, 0, 9))
    assert failure is not None
    assert (failure.rank, failure.host, failure.signal) == (3, "n2", "SIGKILL")
    assert failure.headline == "rank 3 on n2 ran out of host memory: the kernel killed it"
    assert failure.text.splitlines() == ["step 1", "step 2", oom, "srun: error: n2: task 3: Out Of Memory"]


def test_exit_codes_above_128_are_read_as_signals(run: Run) -> None:
    write_files(run, mark="3 n2 139 100.0", r3="step 1\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert (failure.signal, failure.headline) == ("SIGSEGV", "rank 3 on n2 crashed with a segmentation fault")


def test_an_earlier_handled_exception_is_not_the_cause_of_a_kill(run: Run) -> None:
    write_files(run, mark="3 n2 137 100.0", r3=f"{TRACEBACK}\ntrying again\nstep 1\nstep 2\nstep 3\nstep 4\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.headline.startswith("rank 3 on n2 was killed by SIGKILL")


@pytest.mark.parametrize(
    "state", [JobState.BOOT_FAIL, JobState.LAUNCH_FAILED, JobState.RECONFIG_FAIL, JobState.REVOKED]
)
def test_a_job_ended_by_slurm_before_its_start_has_no_failed_rank(run: Run, state: JobState) -> None:
    assert find_failure(run, status(state, 0, 0)) is None


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.NODE_FAIL])
def test_a_rank_killed_by_slurm_did_not_fail(run: Run, state: JobState) -> None:
    write_files(run, mark="3 n2 143 100.0", batch="srun: error: n2: task 3: Terminated\n", r3="step 1\n")
    assert find_failure(run, status(state, 0, 15)) is None


def test_a_rank_that_failed_before_a_cancellation_is_named(run: Run) -> None:
    write_files(run, mark="3 n2 1 100.0", r3=TRACEBACK)
    failure = find_failure(run, status(JobState.CANCELLED, 0, 15))
    assert failure is not None
    assert failure.headline.endswith("failed with ValueError: bad (train.py:2)")


def test_an_exception_during_the_time_limits_end_is_no_failure(run: Run) -> None:
    ended = status(JobState.TIMEOUT, 0, 15)
    assert ended.end is not None
    write_files(run, mark=f"3 n2 1 {ended.end.timestamp() - 5}", r3=TRACEBACK)
    assert find_failure(run, ended) is None
    write_files(run, mark=f"3 n2 1 {ended.end.timestamp() - 300}", r3=TRACEBACK)
    assert find_failure(run, ended) is not None


def test_the_clock_of_a_node_may_differ_by_minutes(run: Run) -> None:
    ended = status(JobState.TIMEOUT, 0, 15)
    assert ended.end is not None
    there = ended.end - dt.timedelta(minutes=7)
    output = f"slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT {there:%Y-%m-%dT%H:%M:%S} DUE TO TIME LIMIT ***\n"
    write_files(run, mark=f"3 n2 1 {there.timestamp() + 1}", batch=output, r3=TRACEBACK)
    assert find_failure(run, ended) is None
    write_files(run, mark=f"3 n2 1 {there.timestamp() - 300}", batch=output, r3=TRACEBACK)
    assert find_failure(run, ended) is not None


def test_a_script_that_fails_before_srun_is_shown_by_the_end_of_its_log(run: Run) -> None:
    write_files(run, batch="/var/spool/script: line 12: module: command not found\n")
    failure = find_failure(run, status(JobState.FAILED, 127, 0))
    printed = "/var/spool/script: line 12: module: command not found"
    sentence = "the shell of the script does not know the command `module`, so it loaded nothing"
    assert failure is not None
    assert failure[:7] == (None, "n1", 127, None, sentence, printed, run.batch_log)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("ValueError: Error: environment variable RANK expected, but not set", "launch.bootstrap=true"),
        ("KeyError: 'LOCAL_RANK'", "launch.bootstrap=true"),
        ("EOFError: EOF when reading a line", "pass the answer as an argument"),
    ],
)
def test_advice_follows_an_exception_that_a_job_causes(run: Run, error: str, advice: str) -> None:
    traceback = f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    main()\n{error}'
    write_files(run, mark="0 n1 1 100.0", r0=f"{traceback}\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.text == traceback
    assert advice in failure.fix


@pytest.mark.parametrize(("free", "text"), [(0, "the disk of"), (1, "no line shows why")])
def test_a_silent_script_on_a_full_disk_is_shown_with_the_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch, free: int, text: str
) -> None:
    write_files(run, batch="")
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=free))
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert text in failure.headline
    verdict = explain_run(run, FAILED, JobState.FAILED)
    assert ("the disk of" in verdict.cause, verdict.class_ == "disk-full") == (free == 0, free == 0)


def test_a_step_that_could_not_be_created_is_shown_by_sruns_message(run: Run) -> None:
    output = "srun: error: Unable to create step for job 12: More processors requested than permitted"
    write_files(run, batch=f"loading modules\n{output}\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.rank is None
    assert failure.headline.endswith("More processors requested than permitted")
    assert output in failure.text


def test_a_missing_log_is_named(run: Run) -> None:
    failure = find_failure(run, status(JobState.FAILED, 0, 53))
    assert failure is not None
    assert failure.headline == f"Slurm could not open the log of the job: {run.batch_log}"


def test_a_successful_job_has_no_failure(run: Run) -> None:
    write_files(run, batch="", r0="done\n")
    assert find_failure(run, status(JobState.COMPLETED, 0, 0)) is None
    assert find_failure(run, None) is None


def test_a_half_written_mark_is_ignored(run: Run) -> None:
    write_files(run, mark="5 n3", batch="srun: error: n2: task 1: Exited with exit code 2\n", r1="x\n")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.rank == 1


def test_a_huge_log_is_read_from_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_failure, "MAX_BYTES", 1 << 16)
    early = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.\n"
    run.rank_log(5).write_text(early + "step 1\n" * 10_000 + TRACEBACK)
    write_files(run, mark="5 n3 1 100.0")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert failure.headline.endswith("failed with ValueError: bad (train.py:2)")


@pytest.mark.parametrize(
    ("code", "name"), [(137, "SIGKILL"), (130, "SIGINT"), (128, None), (255, None), (1, None), (None, None)]
)
def test_signals_are_read_from_exit_codes(code: int | None, name: str | None) -> None:
    assert signal_name(code) == name


def run_and_log(program: str, folder: Path) -> str:
    """What Python writes while it runs a program and dies of it."""
    (folder / "train.py").write_text(program)
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


PLAIN = "print('step 1')\nraise ValueError('bad sample')"
CAUSE = """
def load():
    try:
        {}['loss']
    except KeyError as error:
        raise RuntimeError('no loss') from error
try:
    load()
except RuntimeError:
    1 / 0
"""
HANDLED = """
import traceback
try:
    raise OSError('tried again')
except OSError:
    traceback.print_exc()
raise ValueError('the end')
"""
GROUP = "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])"
SYNTAX = "print('x')\nfor\n"
LINES = "raise RuntimeError('shapes differ:\\n  size mismatch for a\\n\\n  size mismatch for b')"
DEEP = "def f(n): return f(n + 1)\nf(0)"


@pytest.mark.parametrize(
    ("program", "start", "end", "cause"),
    [
        (PLAIN, "Traceback (most", "ValueError: bad sample", "failed with ValueError: bad sample"),
        (CAUSE, "Traceback (most", "ZeroDivisionError: division by zero", "failed with ZeroDivisionError"),
        (HANDLED, "Traceback (most", "ValueError: the end", "failed with ValueError: the end"),
        (GROUP, "Traceback (most", "TypeError: b", "failed with ExceptionGroup: two (2 sub-exceptions)"),
        (SYNTAX, "step 0", "SyntaxError: invalid syntax", "has a syntax error"),
        (LINES, "Traceback (most", "  size mismatch for b", "failed with RuntimeError: shapes differ:"),
        (DEEP, "Traceback (most", "depth exceeded", "recursed too deeply"),
    ],
)  # fmt: skip
def test_the_traceback_of_a_program_is_shown_completely(
    run: Run, tmp_path: Path, program: str, start: str, end: str, cause: str
) -> None:
    log = run_and_log(program, tmp_path)
    write_files(run, mark="0 n1 1 100.0", r0=f"step 0\nTraceback of nothing\n{log}")
    failure = find_failure(run, FAILED)
    assert failure is not None
    assert cause in failure.headline
    assert failure.text.strip(" +").startswith(start.strip())
    assert failure.text.endswith(end)


def test_a_failure_that_the_exit_status_hides_is_named(run: Run) -> None:
    write_files(run, r0=f"step 4\n{TRACEBACK}\n")
    assert "failed with ValueError: bad (train.py:2)" in str(find_hidden_failure(run))
    write_files(run, r0=f"step 4\n{TRACEBACK}\nstep 5\nTraining finished\n")
    assert find_hidden_failure(run) is None
    write_files(run, r0="step 4\n")
    assert find_hidden_failure(run) is None


def test_an_attempt_before_a_requeue_is_no_hidden_failure(run: Run) -> None:
    requeue = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T12:00:00 DUE TO JOB REQUEUE ***\n"
    write_files(run, batch=f"srun: error: n1: task 0: Exited with exit code 124\n{requeue}", r0="step 4\n")
    assert find_hidden_failure(run) is None
    assert explain_run(run, status(JobState.COMPLETED, 0), JobState.COMPLETED).cause.startswith("did not fail")


@pytest.mark.parametrize(
    ("by", "cause"),
    [("ada", "the job was cancelled by its own user (ada)"), ("root", "root cancelled the job: an administrator")],
)
def test_the_user_who_cancelled_a_job_is_named(run: Run, by: str, cause: str) -> None:
    write_files(run, r0="step 4\n")
    cancelled = status(JobState.CANCELLED)._replace(raw_state=f"CANCELLED by {by}")
    assert explain_run(run, cancelled, JobState.CANCELLED).cause.startswith(cause)


def test_a_fix_contains_commands_that_the_user_can_type(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(run, mark="0 n1 137 100.0", r0="step 4\n", batch="srun: error: n1: task 0: Exited with exit code 137\n")
    failure = find_failure(run, status(JobState.FAILED, 137))
    assert failure is not None
    print_failure(failure, client=SlurmClient({}, embedded=True))
    assert "look at hpc-kit embedded run sacct -j 12" in capsys.readouterr().out
