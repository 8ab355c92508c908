"""Steps as a batch script sees them: exit statuses, messages, streams, places; all against real processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import pytest

from pocketslurm import processes
from tests.pocketslurm.conftest import wait_for
from tests.pocketslurm.inside import Inside, Said, ends, enter

BUSY = "srun: Job {} step creation temporarily disabled, retrying (Requested nodes are busy)"


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A job of four nodes with two tasks each."""
    yield from enter(tmp_path_factory, "-N4", "--ntasks-per-node=2", gpus=0)


def error(*lines: str) -> list[str]:
    """Lines of srun's complaints, sorted as `Said` has them."""
    return sorted(f"srun: error: {line}" for line in lines)


# Exit statuses


def test_every_task_runs_on_its_node_in_block_order(inside: Inside) -> None:
    said = inside.srun("bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID")
    assert said == Said(0, [f"{rank} n{rank // 2 + 1} {rank % 2}" for rank in range(8)], [])


def test_srun_ends_with_the_highest_exit_code_and_names_each(inside: Inside) -> None:
    said = inside.srun("bash", "-c", "exit $((SLURM_PROCID / 2))")
    expected = {f"n{rank // 2 + 1} {rank}": f"Exited with exit code {rank // 2}" for rank in range(2, 8)}
    assert (said.status, said.out, ends(said.err)) == (3, [], expected)


def test_a_signal_counts_128_more_and_before_any_exit_code(inside: Inside) -> None:
    said = inside.srun("bash", "-c", "[ $SLURM_PROCID = 5 ] && kill -USR1 $$; exit $((SLURM_PROCID == 0 ? 200 : 0))")
    assert said == Said(138, [], error("n1: task 0: Exited with exit code 200", "n3: task 5: User defined signal 1"))


def test_a_killed_step_is_reported_at_the_end(inside: Inside) -> None:
    said = inside.srun("-n1", "-N1", "bash", "-c", "kill -KILL $$")
    assert said.status == 137
    assert said.err[1:] == ["srun: error: n1: task 0: Killed"]
    assert said.err[0].startswith("srun: Force Terminated StepId=")


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
    inside: Inside, program: str, status: int, words: str
) -> None:
    for name, text in (("no-shebang", "echo hi\n"), ("bad-shebang", "#!/no/such/shell\n")):
        path = inside.folder / name
        path.write_text(text)
        path.chmod(0o755)
    said = inside.srun("-N1", "-n1", program)
    assert said == Said(
        status,
        [],
        [
            f"slurmstepd: error: execve(): {words.format(folder=inside.folder)}",
            f"srun: error: n1: task 0: Exited with exit code {status}",
        ],
    )


def test_a_failed_task_does_not_end_the_other_tasks(inside: Inside) -> None:
    said = inside.srun("-l", "bash", "-c", "[ $SLURM_PROCID = 0 ] && exit 3; sleep 0.5; echo on")
    assert said == Said(3, [f"{rank}: on" for rank in range(1, 8)], error("n1: task 0: Exited with exit code 3"))


def test_kill_on_bad_exit_asks_the_others_to_end(inside: Inside) -> None:
    said = inside.srun("-K", "bash", "-c", "[ $SLURM_PROCID = 5 ] && exit 3; exec sleep 100")
    assert said.status == 143
    expected = {f"n{rank // 2 + 1} {rank}": "Terminated" for rank in range(8)} | {"n3 5": "Exited with exit code 3"}
    assert ends(said.err) == expected
    assert [line.split("StepId")[0] for line in said.err if "StepId" in line] == [
        "srun: Force Terminated ",
        "srun: launch/slurm: _step_signal: Terminating ",
    ]


def test_kill_on_bad_exit_does_not_wait_long_for_those_that_will_not(inside: Inside) -> None:
    program = "trap '' TERM; [ $SLURM_PROCID = 5 ] && sleep 1 && exit 3; while :; do sleep 0.1; done"
    said = inside.srun("--kill-on-bad-exit=1", "bash", "-c", program)
    assert (said.status, ends(said.err)["n4 7"]) == (137, "Killed")


def test_kill_on_bad_exit_from_the_environment(inside: Inside) -> None:
    program = ("bash", "-c", "[ $SLURM_PROCID = 5 ] && exit 3; sleep 0.5")
    assert inside.srun(*program, env={"SLURM_KILL_BAD_EXIT": "1"}).status == 143
    assert inside.srun("-K0", *program, env={"SLURM_KILL_BAD_EXIT": "1"}).status == 3


def test_wait_ends_the_step_some_time_after_its_first_task(inside: Inside) -> None:
    said = inside.srun("-W1", "-N2", "-n2", "bash", "-c", "[ $SLURM_PROCID = 0 ] || exec sleep 100")
    assert said.status == 137
    assert "srun: First task exited 1s ago" in said.err
    assert "srun: error: n2: task 1: Killed" in said.err


def test_a_step_of_its_own_time_limit_is_cancelled(inside: Inside) -> None:
    said = inside.srun("-t", "0:01", "-N1", "-n1", "sleep", "100")
    assert said.status == 143
    assert any(line.endswith("DUE TO TIME LIMIT ***") for line in said.err)


def test_background_processes_of_tasks_end_with_the_step(inside: Inside) -> None:
    said = inside.srun("-N1", "-n1", "bash", "-c", "sleep 1000 & echo $!; setsid sleep 1000 & echo $!")
    assert said.status == 0
    left = [processes.identity(pid) for pid in map(int, said.out)]
    wait_for(lambda: not any(map(processes.is_alive, left)))


# Streams


def test_label_numbers_lines_and_completes_the_last_line(inside: Inside) -> None:
    said = inside.srun("-l", "-O", "-n11", "bash", "-c", "[ $SLURM_PROCID -gt 8 ] && printf a; echo b >&2")
    assert said.out == ["10: a", " 9: a"][::-1] or said.out == [" 9: a", "10: a"]
    assert said.err[:2] == [" 0: b", " 1: b"]


def test_lines_of_many_tasks_are_not_mixed(inside: Inside) -> None:
    line = "a" * 50
    said = inside.srun("-O", "-n8", "bash", "-c", f"yes {line} | head -2000")
    assert said == Said(0, [line] * 8 * 2000, [])


def test_stdin_goes_to_every_task_or_to_one_or_to_none(inside: Inside) -> None:
    step = ("-l", "-N2", "-n2")
    assert inside.srun(*step, "cat", stdin="x\ny\n").out == ["0: x", "0: y", "1: x", "1: y"]
    assert inside.srun(*step, "-i", "1", "cat", stdin="x\n").out == ["1: x"]
    assert inside.srun(*step, "-i", "none", "cat", stdin="x\n").out == []
    (inside.folder / "input").write_text("from a file\n")
    assert inside.srun(*step, "-i", "input", "cat", stdin="x\n").out == ["0: from a file", "1: from a file"]


def test_a_task_may_close_its_stdin_while_others_read_on(inside: Inside) -> None:
    text = "line\n" * 200_000
    said = inside.srun("-l", "-n2", "-N1", "bash", "-c", "[ $SLURM_PROCID = 0 ] && exec head -1; wc -l", stdin=text)
    assert said == Said(0, ["0: line", "1: 200000"], [])


def test_output_goes_to_a_file_of_each_task(inside: Inside) -> None:
    said = inside.srun("-N2", "-n2", "-o", "rank-%t-%n-%N.log", "bash", "-c", "echo $SLURM_PROCID; echo e >&2")
    assert said == Said(0, [], [])
    assert [inside.text(f"rank-{rank}-{rank}-n{rank + 1}.log") for rank in (0, 1)] == ["0\ne\n", "1\ne\n"]


def test_labels_reach_files_of_single_tasks(inside: Inside) -> None:
    inside.srun("-l", "-N2", "-n2", "-o", "labelled-%t", "echo", "hi")
    assert [inside.text(f"labelled-{rank}") for rank in (0, 1)] == ["0: hi\n", "1: hi\n"]


def test_output_and_error_go_to_one_file_for_all_or_to_two(inside: Inside) -> None:
    program = ("-N2", "-n2", "bash", "-c", "echo out; echo err >&2")
    inside.srun("-o", "both", *program)
    inside.srun("-o", "out", "-e", "err", *program)
    assert sorted(inside.text("both").split()) == ["err", "err", "out", "out"]
    assert (inside.text("out"), inside.text("err")) == ("out\nout\n", "err\nerr\n")


def test_open_mode_appends_or_begins_anew(inside: Inside) -> None:
    for mode in ("truncate", "append", "append", "truncate", "append"):
        inside.srun("-N1", "-n1", f"--open-mode={mode}", "-o", "grown", "echo", "x")
    assert inside.text("grown") == "x\nx\n"


def test_output_of_one_task_alone_can_be_chosen(inside: Inside) -> None:
    assert inside.srun("-l", "-o", "1", "echo", "hi") == Said(0, ["1: hi"], [])
    assert inside.srun("-o", "none", "-e", "all", "bash", "-c", "echo gone; echo $SLURM_PROCID >&2").err == list(
        "01234567"
    )


def test_a_missing_folder_of_the_output_is_refused_before_the_start(inside: Inside) -> None:
    said = inside.srun("-N1", "-n1", "-o", "no/such/folder/log", "touch", "started")
    assert said == Said(1, [], ["srun: error: Could not open stdout file: No such file or directory"])
    assert not (inside.folder / "started").exists()


def test_a_missing_folder_of_a_tasks_own_output_fails_the_step(inside: Inside) -> None:
    said = inside.srun("-N1", "-n1", "-o", "no/such/folder/%t", "touch", "started")
    assert (said.status, said.out) == (1, [])
    assert said.err[-1] == "srun: error: task 0 launch failed: Slurmd could not connect IO"


def test_unbuffered_gives_tasks_a_terminal_to_write_to(inside: Inside) -> None:
    program = ("-N1", "-n1", "bash", "-c", "[ -t 1 ] && echo terminal || echo pipe")
    assert inside.srun("-u", *program).out == ["terminal"]
    assert inside.srun(*program).out == ["pipe"]


def test_a_reader_that_goes_away_ends_the_step(inside: Inside) -> None:
    process = inside.start("-N1", "-n1", "yes")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 137
    assert process.stderr is not None
    process.stderr.close()


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
def test_nodes_of_tasks(inside: Inside, options: tuple[str, ...], places: str) -> None:
    said = inside.srun(*options, "bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME")
    assert (said.status, said.out) == (0, [f"{rank} {node}" for rank, node in enumerate(places.split())])


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
    inside: Inside, argv: tuple[str, ...], status: int, lines: list[str] | None
) -> None:
    said = inside.srun(*argv)
    assert (said.status, said.out) == (status, [])
    if lines is None:
        assert any("error: " in line for line in said.err)
    else:
        assert said.err == [f"srun: {line.format(inside.job_id)}" for line in lines]


def test_an_unknown_option_is_named(inside: Inside) -> None:
    said = inside.srun("--bogus", "true")
    assert said == Said(255, [], ['Try "srun --help" for more information', "srun: unrecognized option '--bogus'"])


def test_scripts_choose_the_status_of_sruns_own_failures(inside: Inside) -> None:
    assert inside.srun("-n9", "true", env={"SLURM_EXIT_ERROR": "77"}).status == 77


def test_tasks_run_in_the_folder_of_chdir_or_in_tmp(inside: Inside) -> None:
    (inside.folder / "sub").mkdir()
    assert inside.srun("-N1", "-n1", "-D", "sub", "pwd").out == [f"{inside.folder}/sub"]
    said = inside.srun("-N1", "-n1", "-D", "/no/such", "pwd")
    assert (said.status, said.out) == (0, ["/tmp"])
    assert said.err == [
        "slurmstepd: error: couldn't chdir to `/no/such': No such file or directory: going to /tmp instead"
    ]


def test_export_passes_named_variables_and_those_of_slurm(inside: Inside) -> None:
    program = ("-N1", "-n1", "/bin/bash", "-c", "echo $A,$B,$C,$SLURM_PROCID,${PATH:+path}")
    env = {"A": "1", "B": "2", "C": "3"}
    assert inside.srun("--export=A,C=x", *program, env=env).out[0].startswith("1,,x,0,")
    assert inside.srun("--export=ALL,D=4", "-N1", "-n1", "bash", "-c", "echo $A$D", env=env).out == ["14"]
    assert inside.srun("--export=NONE", *program, env=env).out[0].startswith(",,,0,")


def test_each_task_has_its_own_session(inside: Inside) -> None:
    said = inside.srun("-N1", "-n2", "bash", "-c", "echo $$ $(ps -o sid=,pgid= -p $$)")
    for line in said.out:
        pid, session, group = line.split()
        assert pid == session == group


def test_signals_ignored_around_srun_are_not_ignored_in_tasks(inside: Inside) -> None:
    process = inside.start("-N1", "-n1", "bash", "-c", "grep SigIgn /proc/$$/status", env={})
    # 32 and 33 are glibc's own, and come as the test was started.
    assert int(inside.end(process).out[0].split()[1], 16) & ~(3 << 31) == 0


def test_a_type_of_gpu_that_the_job_does_not_have(inside: Inside) -> None:
    ended = inside.srun("-n1", "--gres=gpu:a100:1", "true")
    assert ended.status == 1
    assert "srun: error: Step requested GRES (gpu:a100) not found in the job" in ended.err


def test_the_umask_of_the_submission_is_the_tasks(inside: Inside) -> None:
    inside.srun("-N1", "-n1", "touch", "made", env={"SLURM_UMASK": "0077"})
    assert stat.S_IMODE((inside.folder / "made").stat().st_mode) == 0o600


def test_quick_answers_need_no_job(inside: Inside) -> None:
    assert inside.srun("--version").out == ["slurm 22.05.8"]
    assert inside.srun("--mpi=list").out == ["\tnone", "\tpmi2", "MPI plugin types are..."]
    assert any("--kill-on-bad-exit" in line for line in inside.srun("--help").out)


# Steps beside one another


def test_steps_side_by_side_share_a_node_when_exact(inside: Inside) -> None:
    step = ("--exact", "-N1", "-n1", "-w", "n1")
    program = ("bash", "-c", "touch here-$0; until [ -e here-a ] && [ -e here-b ]; do sleep 0.02; done")
    sruns = [inside.start(*step, *program, name) for name in ("a", "b")]
    assert [inside.end(srun) for srun in sruns] == [Said(0, [], [])] * 2


def test_a_step_waits_for_the_nodes_of_another_step(inside: Inside) -> None:
    first = inside.start("-N1", "-n1", "-w", "n1", "bash", "-c", "touch first; until [ -e go ]; do sleep 0.02; done")
    wait_for((inside.folder / "first").exists)
    refused = inside.srun("-I", "-N1", "-n1", "-w", "n1", "true")
    assert refused.err == error(f"Unable to create step for job {inside.job_id}: Requested nodes are busy")
    second = inside.start("-N1", "-n1", "-w", "n1", "true")
    assert second.stderr is not None
    assert second.stderr.readline() == BUSY.format(inside.job_id) + "\n"
    (inside.folder / "go").touch()
    assert inside.end(first).status == 0
    assert inside.end(second) == Said(0, [], [f"srun: Step created for job {inside.job_id}"])


def test_overlap_does_not_wait(inside: Inside) -> None:
    first = inside.start("bash", "-c", "touch held; until [ -e free ]; do sleep 0.02; done")
    wait_for((inside.folder / "held").exists)
    assert inside.srun("--overlap", "-N1", "-n1", "echo", "in") == Said(0, ["in"], [])
    (inside.folder / "free").touch()
    assert inside.end(first).status == 0


def test_sixty_four_tasks_are_no_trouble(inside: Inside) -> None:
    said = inside.srun("-O", "-n64", "bash", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS")
    assert (said.status, said.out) == (0, sorted(f"{rank} of 64" for rank in range(64)))


def test_a_step_leaves_its_end_in_the_books(inside: Inside) -> None:
    state = inside.slurm.state()
    before = len(state.steps(inside.job_id))
    inside.srun("-N1", "-n1", "-J", "named", "bash", "-c", "exit 4")
    step = state.steps(inside.job_id)[-1]
    state.close()
    assert (before + 1, step.name, step.state, os.waitstatus_to_exitcode(step.exit_code)) == (
        step.step_id + 2, "named", "FAILED", 4,
    )  # fmt: skip


def test_multi_prog_gives_each_task_its_own_program(inside: Inside) -> None:
    (inside.folder / "multi").write_text("0 echo master %t\n1-2 echo worker %t of %o\n* echo rest %t\n")
    said = inside.srun("-N2", "-n4", "-l", "--multi-prog", "multi")
    assert said.out == ["0: master 0", "1: worker 1 of 0", "2: worker 2 of 1", "3: rest 3"]
