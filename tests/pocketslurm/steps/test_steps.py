"""Steps as a batch script sees them: exit statuses, messages, streams and placement, with real processes."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator

import pytest

from pocketslurm import processes
from tests.pocketslurm.conftest import wait_for
from tests.pocketslurm.running_job import RunningJob, StepOutput, exits_of_tasks, start_job

BUSY = "srun: Job {} step creation temporarily disabled, retrying (Requested nodes are busy)"


@pytest.fixture(scope="module")
def running_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """A job of four nodes with two tasks each."""
    yield from start_job(tmp_path_factory, "-N4", "--ntasks-per-node=2", gpus=0)


def error(*lines: str) -> list[str]:
    """Lines of srun's complaints, sorted as `StepOutput` has them."""
    return sorted(f"srun: error: {line}" for line in lines)


# Exit statuses


def test_every_task_runs_on_its_node_in_block_order(running_job: RunningJob) -> None:
    output = running_job.srun("bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID")
    assert output == StepOutput(0, [f"{rank} n{rank // 2 + 1} {rank % 2}" for rank in range(8)], [])


def test_srun_ends_with_the_highest_exit_code_and_reports_each(running_job: RunningJob) -> None:
    output = running_job.srun("bash", "-c", "exit $((SLURM_PROCID / 2))")
    expected = {f"n{rank // 2 + 1} {rank}": f"Exited with exit code {rank // 2}" for rank in range(2, 8)}
    assert (output.status, output.out, exits_of_tasks(output.err)) == (3, [], expected)


def test_a_signal_adds_128_and_has_priority_over_exit_codes(running_job: RunningJob) -> None:
    output = running_job.srun(
        "bash", "-c", "[ $SLURM_PROCID = 5 ] && kill -USR1 $$; exit $((SLURM_PROCID == 0 ? 200 : 0))"
    )
    assert output == StepOutput(
        138, [], error("n1: task 0: Exited with exit code 200", "n3: task 5: User defined signal 1")
    )


def test_a_killed_step_is_reported_at_the_end(running_job: RunningJob) -> None:
    output = running_job.srun("-n1", "-N1", "bash", "-c", "kill -KILL $$")
    assert output.status == 137
    assert output.err[1:] == ["srun: error: n1: task 0: Killed"]
    assert output.err[0].startswith("srun: Force Terminated StepId=")


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("nosuchprogram", 2, "nosuchprogram: No such file or directory"),
        ("./missing", 2, "{folder}/./missing: No such file or directory"),
        ("/etc/passwd", 13, "/etc/passwd: Permission denied"),
        ("./no-shebang", 8, "{folder}/./no-shebang: Exec format error"),
        ("./bad-shebang", 2, "bad interpreter(/no/such/shell): No such file or directory"),
    ],
)
def test_a_program_that_cannot_start_ends_its_task_with_the_reason(
    running_job: RunningJob, program: str, status: int, words: str
) -> None:
    for name, text in (("no-shebang", "echo hi\n"), ("bad-shebang", "#!/no/such/shell\n")):
        path = running_job.folder / name
        path.write_text(text)
        path.chmod(0o755)
    output = running_job.srun("-N1", "-n1", program)
    assert output == StepOutput(
        status,
        [],
        [
            f"slurmstepd: error: execve(): {words.format(folder=running_job.folder)}",
            f"srun: error: n1: task 0: Exited with exit code {status}",
        ],
    )


def test_a_failed_task_does_not_end_the_other_tasks(running_job: RunningJob) -> None:
    output = running_job.srun("-l", "bash", "-c", "[ $SLURM_PROCID = 0 ] && exit 3; sleep 0.5; echo on")
    assert output == StepOutput(
        3, [f"{rank}: on" for rank in range(1, 8)], error("n1: task 0: Exited with exit code 3")
    )


def test_kill_on_bad_exit_terminates_the_remaining_tasks(running_job: RunningJob) -> None:
    output = running_job.srun("-K", "bash", "-c", "[ $SLURM_PROCID = 5 ] && exit 3; exec sleep 100")
    assert output.status == 143
    expected = {f"n{rank // 2 + 1} {rank}": "Terminated" for rank in range(8)} | {"n3 5": "Exited with exit code 3"}
    assert exits_of_tasks(output.err) == expected
    assert [line.split("StepId")[0] for line in output.err if "StepId" in line] == [
        "srun: Force Terminated ",
        "srun: launch/slurm: _step_signal: Terminating ",
    ]


def test_kill_on_bad_exit_kills_tasks_that_ignore_sigterm(running_job: RunningJob) -> None:
    program = "trap '' TERM; [ $SLURM_PROCID = 5 ] && sleep 1 && exit 3; while :; do sleep 0.1; done"
    output = running_job.srun("--kill-on-bad-exit=1", "bash", "-c", program)
    assert (output.status, exits_of_tasks(output.err)["n4 7"]) == (137, "Killed")


def test_kill_on_bad_exit_from_the_environment(running_job: RunningJob) -> None:
    program = ("bash", "-c", "[ $SLURM_PROCID = 5 ] && exit 3; sleep 0.5")
    assert running_job.srun(*program, env={"SLURM_KILL_BAD_EXIT": "1"}).status == 143
    assert running_job.srun("-K0", *program, env={"SLURM_KILL_BAD_EXIT": "1"}).status == 3


def test_wait_ends_the_step_some_time_after_its_first_task(running_job: RunningJob) -> None:
    output = running_job.srun("-W1", "-N2", "-n2", "bash", "-c", "[ $SLURM_PROCID = 0 ] || exec sleep 100")
    assert output.status == 137
    assert "srun: First task exited 1s ago" in output.err
    assert "srun: error: n2: task 1: Killed" in output.err


def test_a_step_is_cancelled_at_its_own_time_limit(running_job: RunningJob) -> None:
    output = running_job.srun("-t", "0:01", "-N1", "-n1", "sleep", "100")
    assert output.status == 143
    assert any(line.endswith("DUE TO TIME LIMIT ***") for line in output.err)


def test_background_processes_of_tasks_end_with_the_step(running_job: RunningJob) -> None:
    output = running_job.srun("-N1", "-n1", "bash", "-c", "sleep 1000 & echo $!; setsid sleep 1000 & echo $!")
    assert output.status == 0
    left = [processes.identity(pid) for pid in map(int, output.out)]
    wait_for(lambda: not any(map(processes.is_alive, left)))


# Streams


def test_label_numbers_lines_and_completes_the_last_line(running_job: RunningJob) -> None:
    output = running_job.srun("-l", "-O", "-n11", "bash", "-c", "[ $SLURM_PROCID -gt 8 ] && printf a; echo b >&2")
    assert output.out == ["10: a", " 9: a"][::-1] or output.out == [" 9: a", "10: a"]
    assert output.err[:2] == [" 0: b", " 1: b"]


def test_lines_of_many_tasks_are_not_mixed(running_job: RunningJob) -> None:
    line = "a" * 50
    output = running_job.srun("-O", "-n8", "bash", "-c", f"yes {line} | head -2000")
    assert output == StepOutput(0, [line] * 8 * 2000, [])


def test_stdin_goes_to_every_task_or_to_one_or_to_none(running_job: RunningJob) -> None:
    step = ("-l", "-N2", "-n2")
    assert running_job.srun(*step, "cat", stdin="x\ny\n").out == ["0: x", "0: y", "1: x", "1: y"]
    assert running_job.srun(*step, "-i", "1", "cat", stdin="x\n").out == ["1: x"]
    assert running_job.srun(*step, "-i", "none", "cat", stdin="x\n").out == []
    (running_job.folder / "input").write_text("from a file\n")
    assert running_job.srun(*step, "-i", "input", "cat", stdin="x\n").out == ["0: from a file", "1: from a file"]


def test_a_task_may_close_its_stdin_while_others_continue_to_read(running_job: RunningJob) -> None:
    text = "line\n" * 200_000
    output = running_job.srun(
        "-l", "-n2", "-N1", "bash", "-c", "[ $SLURM_PROCID = 0 ] && exec head -1; wc -l", stdin=text
    )
    assert output == StepOutput(0, ["0: line", "1: 200000"], [])


def test_output_goes_to_a_file_of_each_task(running_job: RunningJob) -> None:
    output = running_job.srun("-N2", "-n2", "-o", "rank-%t-%n-%N.log", "bash", "-c", "echo $SLURM_PROCID; echo e >&2")
    assert output == StepOutput(0, [], [])
    assert [running_job.text(f"rank-{rank}-{rank}-n{rank + 1}.log") for rank in (0, 1)] == ["0\ne\n", "1\ne\n"]


def test_labels_reach_files_of_single_tasks(running_job: RunningJob) -> None:
    running_job.srun("-l", "-N2", "-n2", "-o", "labelled-%t", "echo", "hi")
    assert [running_job.text(f"labelled-{rank}") for rank in (0, 1)] == ["0: hi\n", "1: hi\n"]


def test_output_and_error_go_to_one_file_for_all_or_to_two(running_job: RunningJob) -> None:
    program = ("-N2", "-n2", "bash", "-c", "echo out; echo err >&2")
    running_job.srun("-o", "both", *program)
    running_job.srun("-o", "out", "-e", "err", *program)
    assert sorted(running_job.text("both").split()) == ["err", "err", "out", "out"]
    assert (running_job.text("out"), running_job.text("err")) == ("out\nout\n", "err\nerr\n")


def test_open_mode_appends_or_truncates(running_job: RunningJob) -> None:
    for mode in ("truncate", "append", "append", "truncate", "append"):
        running_job.srun("-N1", "-n1", f"--open-mode={mode}", "-o", "grown", "echo", "x")
    assert running_job.text("grown") == "x\nx\n"


def test_the_output_of_one_task_can_be_selected(running_job: RunningJob) -> None:
    assert running_job.srun("-l", "-o", "1", "echo", "hi") == StepOutput(0, ["1: hi"], [])
    assert running_job.srun("-o", "none", "-e", "all", "bash", "-c", "echo gone; echo $SLURM_PROCID >&2").err == list(
        "01234567"
    )


def test_a_missing_folder_of_the_output_is_refused_before_the_start(running_job: RunningJob) -> None:
    output = running_job.srun("-N1", "-n1", "-o", "no/such/folder/log", "touch", "started")
    assert output == StepOutput(1, [], ["srun: error: Could not open stdout file: No such file or directory"])
    assert not (running_job.folder / "started").exists()


def test_a_missing_folder_of_a_tasks_own_output_fails_the_step(running_job: RunningJob) -> None:
    output = running_job.srun("-N1", "-n1", "-o", "no/such/folder/%t", "touch", "started")
    assert (output.status, output.out) == (1, [])
    assert output.err[-1] == "srun: error: task 0 launch failed: Slurmd could not connect IO"


def test_unbuffered_connects_the_output_of_tasks_to_a_terminal(running_job: RunningJob) -> None:
    program = ("-N1", "-n1", "bash", "-c", "[ -t 1 ] && echo terminal || echo pipe")
    assert running_job.srun("-u", *program).out == ["terminal"]
    assert running_job.srun(*program).out == ["pipe"]


def test_a_closed_reader_ends_the_step(running_job: RunningJob) -> None:
    line = "srun -N1 -n1 yes 2>/dev/null | head -n1; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", line], env=running_job.environ, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (137, b"y\n")


# Places, programs, folders


@pytest.mark.parametrize(
    ("options", "places"),
    [
        (("-m", "cyclic"), "n1 n2 n3 n4 n1 n2 n3 n4"),
        (("-m", "plane=2", "-N2", "-n4"), "n1 n1 n2 n2"),
        (("-m", "block", "-N3", "-n5"), "n1 n1 n2 n2 n3"),
        (("-N2", "-n3", "-m", "cyclic:block"), "n1 n2 n1"),
        (("-r", "1", "-N2", "-n2"), "n2 n3"),
        (("-w", "n3,n1", "-n2"), "n1 n3"),
        (("-x", "n1", "-N3", "-n3"), "n2 n3 n4"),
        (("-N2-3", "-n6"), "n1 n1 n2 n2 n3 n3"),
    ],
)
def test_nodes_of_tasks(running_job: RunningJob, options: tuple[str, ...], places: str) -> None:
    output = running_job.srun(*options, "bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME")
    assert (output.status, output.out) == (0, [f"{rank} {node}" for rank, node in enumerate(places.split())])


@pytest.mark.parametrize(
    ("argv", "status", "lines"),
    [
        ((), 1, ["fatal: No command given to execute."]),
        (("-n9", "true"), 1, ["error: Unable to create step for job {}: More processors requested than permitted"]),
        (
            ("-w", "n9", "true"),
            1,
            ["error: Unable to create step for job {}: Requested node configuration is not available"],
        ),
        (("-x", "n[1-4]", "true"), 1, ["error: Hostlist is empty!  Can't run job."]),
        (
            ("--mem=1T", "true"),
            1,
            ["error: Unable to create step for job {}: Memory required by task is not available"],
        ),
        (("--mpi=lam", "true"), 1, None),
        (("-t", "1x", "true"), 255, ["error: Invalid --time specification"]),
        (("-n", "x", "true"), 1, ['error: Invalid numeric value "x" for --ntasks.']),
        (("--jobid=99999", "true"), 1, None),
        (("--task-prolog=x", "true"), 1, None),
        (("--het-group=0", "true"), 1, None),
    ],
)
def test_impossible_steps_are_refused_as_by_slurm(
    running_job: RunningJob, argv: tuple[str, ...], status: int, lines: list[str] | None
) -> None:
    output = running_job.srun(*argv)
    assert (output.status, output.out) == (status, [])
    if lines is None:
        assert any("error: " in line for line in output.err)
    else:
        assert output.err == [f"srun: {line.format(running_job.job_id)}" for line in lines]


def test_an_unknown_option_is_named(running_job: RunningJob) -> None:
    output = running_job.srun("--bogus", "true")
    assert output == StepOutput(
        255, [], ['Try "srun --help" for more information', "srun: unrecognized option '--bogus'"]
    )


def test_a_variable_sets_the_exit_status_of_failures_of_srun(running_job: RunningJob) -> None:
    assert running_job.srun("-n9", "true", env={"SLURM_EXIT_ERROR": "77"}).status == 77


def test_tasks_run_in_the_folder_of_chdir_or_in_tmp(running_job: RunningJob) -> None:
    (running_job.folder / "sub").mkdir()
    assert running_job.srun("-N1", "-n1", "-D", "sub", "pwd").out == [f"{running_job.folder}/sub"]
    output = running_job.srun("-N1", "-n1", "-D", "/no/such", "pwd")
    assert (output.status, output.out) == (0, ["/tmp"])
    assert output.err == [
        "slurmstepd: error: couldn't chdir to `/no/such': No such file or directory: going to /tmp instead"
    ]


def test_export_passes_named_variables_and_those_of_slurm(running_job: RunningJob) -> None:
    program = ("-N1", "-n1", "/bin/bash", "-c", "echo $A,$B,$C,$SLURM_PROCID,${PATH:+path}")
    env = {"A": "1", "B": "2", "C": "3"}
    assert running_job.srun("--export=A,C=x", *program, env=env).out[0].startswith("1,,x,0,")
    assert running_job.srun("--export=ALL,D=4", "-N1", "-n1", "bash", "-c", "echo $A$D", env=env).out == ["14"]
    assert running_job.srun("--export=NONE", *program, env=env).out[0].startswith(",,,0,")


def test_each_task_has_its_own_session(running_job: RunningJob) -> None:
    output = running_job.srun("-N1", "-n2", "bash", "-c", "echo $$ $(ps -o sid=,pgid= -p $$)")
    for line in output.out:
        pid, session, group = line.split()
        assert pid == session == group


def test_signals_ignored_around_srun_are_not_ignored_in_tasks(running_job: RunningJob) -> None:
    process = running_job.start("-N1", "-n1", "bash", "-c", "grep SigIgn /proc/$$/status", env={})
    # 32 and 33 are glibc's own, and come as the test was started.
    assert int(running_job.end(process).out[0].split()[1], 16) & ~(3 << 31) == 0


def test_a_type_of_gpu_that_the_job_does_not_have(running_job: RunningJob) -> None:
    ended = running_job.srun("-n1", "--gres=gpu:a100:1", "true")
    assert ended.status == 1
    assert "srun: error: Step requested GRES (gpu:a100) not found in the job" in ended.err


def test_tasks_have_the_umask_of_the_submission(running_job: RunningJob) -> None:
    running_job.srun("-N1", "-n1", "touch", "made", env={"SLURM_UMASK": "0077"})
    assert stat.S_IMODE((running_job.folder / "made").stat().st_mode) == 0o600


def test_help_and_version_need_no_job(running_job: RunningJob) -> None:
    assert running_job.srun("--version").out == ["slurm 22.05.8"]
    assert running_job.srun("--mpi=list").out == ["\tnone", "\tpmi2", "MPI plugin types are..."]
    assert any("--kill-on-bad-exit" in line for line in running_job.srun("--help").out)


# Steps beside one another


def test_steps_side_by_side_share_a_node_when_exact(running_job: RunningJob) -> None:
    step = ("--exact", "-N1", "-n1", "-w", "n1")
    program = ("bash", "-c", "touch here-$0; until [ -e here-a ] && [ -e here-b ]; do sleep 0.02; done")
    sruns = [running_job.start(*step, *program, name) for name in ("a", "b")]
    assert [running_job.end(srun) for srun in sruns] == [StepOutput(0, [], [])] * 2


def test_a_step_waits_for_the_nodes_of_another_step(running_job: RunningJob) -> None:
    first = running_job.start(
        "-N1", "-n1", "-w", "n1", "bash", "-c", "touch first; until [ -e go ]; do sleep 0.02; done"
    )
    wait_for((running_job.folder / "first").exists)
    refused = running_job.srun("-I", "-N1", "-n1", "-w", "n1", "true")
    assert refused.err == error(f"Unable to create step for job {running_job.job_id}: Requested nodes are busy")
    second = running_job.start("-N1", "-n1", "-w", "n1", "true")
    busy = BUSY.format(running_job.job_id)
    wait_for(lambda: second.output()[1] == f"{busy}\n")
    (running_job.folder / "go").touch()
    assert running_job.end(first).status == 0
    assert running_job.end(second) == StepOutput(0, [], [busy, f"srun: Step created for job {running_job.job_id}"])


def test_overlap_does_not_wait(running_job: RunningJob) -> None:
    first = running_job.start("bash", "-c", "touch held; until [ -e free ]; do sleep 0.02; done")
    wait_for((running_job.folder / "held").exists)
    assert running_job.srun("--overlap", "-N1", "-n1", "echo", "in") == StepOutput(0, ["in"], [])
    (running_job.folder / "free").touch()
    assert running_job.end(first).status == 0


def test_a_step_may_have_sixty_four_tasks(running_job: RunningJob) -> None:
    output = running_job.srun("-O", "-n64", "bash", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS")
    assert (output.status, output.out) == (0, sorted(f"{rank} of 64" for rank in range(64)))


def test_the_end_of_a_step_is_recorded(running_job: RunningJob) -> None:
    state = running_job.slurm.state()
    before = len(state.steps(running_job.job_id))
    running_job.srun("-N1", "-n1", "-J", "named", "bash", "-c", "exit 4")
    step = state.steps(running_job.job_id)[-1]
    state.close()
    assert (before + 1, step.name, step.state, os.waitstatus_to_exitcode(step.exit_code)) == (
        step.step_id + 2, "named", "FAILED", 4,
    )  # fmt: skip
