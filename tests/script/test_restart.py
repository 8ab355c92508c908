"""Jobs with [restart] on the embedded Slurm: the kinds of end, and the next attempt after each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.run_files import END, RankStack
from hpc_kit.runtime.stack_comparison import compare_stacks
from hpc_kit.script.render import render
from tests.pocketslurm.conftest import Slurm, wait_for

pytestmark = pytest.mark.waits

PROGRAM = """import os, pathlib, signal, sys, time

rank, folder = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))), pathlib.Path("saved")
folder.mkdir(exist_ok=True)
file = folder / f"rank-{rank}"
stopped = []
for name in os.environ.get("HANDLED", "USR1").split():
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: stopped.append(number))
if os.environ.get("IGNORED"):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
step = int(file.read_text()) if file.exists() and "--resume" in sys.argv else 0
print("attempt", os.environ["HPC_KIT_ATTEMPT"], "from", step, flush=True)
last = int(os.environ.get("STEPS", "40"))
while step < last and not stopped:
    time.sleep(0.1)
    step += 1
    if rank == 0 and step == 5 and os.environ.get("RUN") and os.environ["HPC_KIT_ATTEMPT"] == "1":
        os.system(os.environ["RUN"])
    if step % 5 == 0 and not os.environ.get("FORGETS"):
        file.write_text(str(step))
if stopped and not os.environ.get("FORGETS"):
    file.write_text(str(step))
sys.exit(int(os.environ.get("CODE", "138")) if step < last else 0)
"""
"""Counts 40 steps, and saves the number after SIGUSR1."""

RESTART = {"resume_args": ["--resume"], "progress": "saved", "lead": 30}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A queue whose work folder is the project."""
    own = Slurm(tmp_path, gpus=0, kill_wait=20.0)  # on a busy machine, a script needs more than a second to end
    (own.folder / "runs" / "job").mkdir(parents=True)
    (own.folder / "count.py").write_text(PROGRAM)
    try:
        yield own
    finally:
        own.clear()


def submit(
    slurm: Slurm,
    *options: str,
    env: dict[str, str] | None = None,
    standalone: bool = False,
    changes: dict[str, object] | None = None,
    **more: object,
) -> Path:
    """Submit a job with [restart] that runs PROGRAM; returns the folder of its run."""
    settings: dict[str, object] = {"name": "job", "command": ["python3", "count.py"], "resources.time": "10"}
    settings |= {"resources.ntasks_per_node": 2, "restart": RESTART}
    settings |= {f"env.{name}": value for name, value in (env or {}).items()}
    settings |= {**(changes or {}), **more}
    text = render("single", "local", set=settings, root=slurm.folder, standalone=standalone)
    (slurm.folder / "job.sbatch").write_text(text)
    job_id = slurm.check_output("sbatch", "--parsable", *options, "job.sbatch").strip()
    return slurm.folder / "runs" / "job" / job_id


def await_end(run: Path) -> int:
    """Return the exit code of the job after its last attempt."""
    wait_for(lambda: (run / END).is_file() and (run / END).read_text(), seconds=240)
    return int((run / END).read_text().split()[0])


def history(run: Path) -> list[dict[str, Any]]:
    """Return the events of a job."""
    return [json.loads(line) for line in (run / "history").read_text().splitlines()]


def events(run: Path, *keys: str) -> list[tuple[Any, ...]]:
    """Return some values of each event."""
    return [tuple(event.get(key) for key in ("event", "attempt", *keys)) for event in history(run)]


def starts(run: Path) -> list[int]:
    """Return the step at which rank 0 continued in each attempt."""
    lines = (run / "rank-0.log").read_text().splitlines()
    return [int(line.split()[3]) for line in lines if line.startswith("attempt")]


def log(run: Path) -> str:
    """Return the log of the batch script."""
    return run.with_name(f"{run.name}.log").read_text()


@pytest.mark.parametrize(
    "standalone", [pytest.param(False, id="kit"), pytest.param(True, id="standalone", marks=pytest.mark.slow)]
)
def test_a_stopped_job_is_requeued_and_goes_on(slurm: Slurm, *, standalone: bool) -> None:
    run = submit(slurm, env={"RUN": "scancel --signal=USR1 --batch $SLURM_JOB_ID"}, standalone=standalone)
    assert await_end(run) == 0, log(run)
    first, second = starts(run)
    assert first == 0
    assert 5 <= second < 40
    assert events(run, "decision", "reason", "progress", "exit_code") == [
        ("start", 1, None, None, None, None),
        ("end", 1, "requeue", "stopped by USR1", "made", 138),
        ("start", 2, None, None, None, None),
        ("end", 2, "finished", None, "made", 0),
    ]
    assert history(run)[2]["requeues"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("standalone", [False, True], ids=["kit", "standalone"])
@pytest.mark.parametrize(
    ("command", "reason"),
    [("scancel --signal=USR1 --batch $SLURM_JOB_ID", "stopped by USR1"), ("kill -9 $PPID", "exit code 137")],
    ids=["stop", "kill"],
)
def test_a_job_of_torchrun_is_requeued(tmp_path: Path, command: str, reason: str, *, standalone: bool) -> None:
    own = Slurm(tmp_path / "own", gpus=0, nodes="127.0.0.[1-2]")
    (own.folder / "runs" / "job").mkdir(parents=True)
    (own.folder / "count.py").write_text(PROGRAM)
    changes: dict[str, object] = {"launch.launcher": "torchrun", "launch.nproc_per_node": 2, "resources.nodes": 2}
    changes |= {"resources.ntasks_per_node": 1}
    try:
        run = submit(own, env={"RUN": command}, standalone=standalone, changes=changes)
        assert await_end(run) == 0, log(run)
        assert [event["reason"] for event in history(run) if event.get("decision") == "requeue"] == [reason]
        assert reason == "exit code 137" or starts(run)[1] >= 5
    finally:
        own.clear()


@pytest.mark.slow
def test_the_time_limit_is_the_end_of_an_attempt_only(tmp_path: Path) -> None:
    fast = Slurm(tmp_path / "fast", gpus=0, minute=1.0)
    (fast.folder / "runs" / "job").mkdir(parents=True)
    (fast.folder / "count.py").write_text(PROGRAM)
    try:
        run = submit(fast, env={"STEPS": "60"}, changes={"resources.time": "8", "restart.lead": 180})
        assert await_end(run) == 0, log(run)
        assert [event["reason"] for event in history(run) if event.get("decision") == "requeue"] != []
        assert starts(run)[1] > 5
    finally:
        fast.clear()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param("scancel --signal=USR1 $SLURM_JOB_ID", "stopped by USR1", id="signal to the steps"),
        pytest.param(
            "scancel --signal=TERM --full $SLURM_JOB_ID", "stopped by TERM", id="TERM to all", marks=pytest.mark.slow
        ),
        pytest.param("kill -9 $PPID", "exit code 137", id="a killed rank"),
    ],
)
def test_other_ends_that_start_another_attempt(slurm: Slurm, command: str, reason: str) -> None:
    run = submit(slurm, env={"RUN": command, "HANDLED": "USR1 TERM"})
    assert await_end(run) == 0, log(run)
    assert [event["reason"] for event in history(run) if event.get("decision") == "requeue"] == [reason]


@pytest.mark.parametrize("name", [pytest.param("USR1", marks=pytest.mark.slow), "TERM"])
def test_a_signal_in_the_first_lines_of_the_script_stops_the_attempt(slurm: Slurm, name: str) -> None:
    command = slurm.folder / "bin" / "install"
    command.parent.mkdir()
    command.write_text(f'#!/bin/bash\n[ -e sent ] || kill -{name} $PPID; touch sent; exec /usr/bin/install "$@"\n')
    command.chmod(0o755)
    slurm.environ["PATH"] = f"{command.parent}:{slurm.environ['PATH']}"
    run = submit(slurm, env={"STEPS": "5"})
    assert await_end(run) == 0, log(run)
    assert [event["reason"] for event in history(run) if event.get("decision") == "requeue"] == [f"stopped by {name}"]


@pytest.mark.slow
def test_a_signal_that_ends_a_setup_line_stops_the_attempt(slurm: Slurm) -> None:
    setup = '[ "$HPC_KIT_ATTEMPT" != 1 ] || { kill -TERM $$; (exit 143); }'
    run = submit(slurm, env={"STEPS": "5"}, setup=[setup])
    assert await_end(run) == 0, log(run)
    assert [event["reason"] for event in history(run) if event.get("decision") == "requeue"] == ["stopped by TERM"]


def test_a_setup_line_that_fails_ends_the_job_with_its_code(slurm: Slurm) -> None:
    run = submit(slurm, setup=["(exit 3)"])
    slurm.until(int(run.name), "FAILED")
    assert events(run, "decision", "exit_code") == [("start", 1, None, None), ("end", 1, "failed", 3)]


def test_a_failure_is_not_tried_again(slurm: Slurm) -> None:
    run = submit(slurm, env={"RUN": "touch failed", "STEPS": "3"}, command=["false"])
    assert await_end(run) == 1
    assert events(run, "decision") == [("start", 1, None), ("end", 1, "failed")]


@pytest.mark.slow
def test_the_loss_of_a_rank_that_the_other_ranks_recorded_is_tried_again(slurm: Slurm) -> None:
    record = 'echo "1 n1 1 1700000000 rank 0 waited for it in vain" >"$HPC_KIT_RUN/first-failure"'
    run = submit(slurm, command=["bash", "-c", f'[ "$HPC_KIT_ATTEMPT" = 2 ] || {{ {record}; exit 1; }}'])
    assert await_end(run) == 0
    assert [event["reason"] for event in history(run) if event.get("decision") == "requeue"] == ["the loss of rank 1"]


@pytest.mark.slow
def test_a_rank_that_the_stop_signal_ended_is_no_failure(slurm: Slurm) -> None:
    # The signal went to the steps, and not to the batch script. task.sh ends with 0.
    stop = lose_rank(138, "0", "")
    run = submit(slurm, command=["bash", "-c", f'[ "$HPC_KIT_ATTEMPT" = 2 ] || {{ {stop}; }}'])
    assert await_end(run) == 0
    assert decisions(run) == ["requeue", "finished"]


def test_listed_exit_codes_are_tried_again_until_the_attempts_are_used_up(slurm: Slurm) -> None:
    run = submit(slurm, command=["bash", "-c", "exit 75"], restart={"exit_codes": [75], "max_attempts": 3})
    assert await_end(run) == 75
    assert events(run, "decision") == [
        ("start", 1, None), ("end", 1, "requeue"), ("start", 2, None), ("end", 2, "requeue"),
        ("start", 3, None), ("end", 3, "gave_up"),
    ]  # fmt: skip
    assert "max_attempts = 3" in log(run)


@pytest.mark.slow
def test_two_attempts_without_progress_end_the_job(slurm: Slurm) -> None:
    run = submit(slurm, command=["bash", "-c", "sleep 1; exit 75"], restart={"exit_codes": [75], "progress": "saved"})
    assert await_end(run) == 75
    assert [event["decision"] for event in history(run) if event["event"] == "end"] == ["requeue", "gave_up"]
    assert "two attempts without a new checkpoint in" in log(run)


def lose_rank(code: int, rank: str, reason: str) -> str:
    """Return shell code that ends a rank as the ranks do that waited for another one."""
    record = f'echo "{rank} 127.0.0.1 {code} 1700000000 {reason}" >"$HPC_KIT_RUN/first-failure"'
    return f"{record}; exit {code}"


def decisions(run: Path) -> list[str]:
    """Return the decisions at the ends of the attempts."""
    return [event["decision"] for event in history(run) if event["event"] == "end"]


HANG = "no step has ended for 615 s after step 5: ranks 0, 1 are in train.py:15 in <module> (all_reduce)"


@pytest.mark.slow
def test_two_hangs_end_a_job_without_known_progress(slurm: Slurm) -> None:
    # If no rank is late, any rank may be the first to report the hang.
    run = submit(slurm, command=["bash", "-c", lose_rank(124, "$HPC_KIT_ATTEMPT", HANG)], restart={})
    assert await_end(run) == 124
    assert decisions(run) == ["requeue", "gave_up"]
    assert "two attempts ended with a hang, and saved no checkpoint that is known" in log(run)


@pytest.mark.slow
def test_the_loss_of_the_same_rank_again_ends_a_job_without_known_progress(slurm: Slurm) -> None:
    lost = lose_rank(1, "$((HPC_KIT_ATTEMPT < 3 ? HPC_KIT_ATTEMPT : 2))", "rank 0 waited for it in vain")
    run = submit(slurm, command=["bash", "-c", lost], restart={})
    assert await_end(run) == 1
    assert decisions(run) == ["requeue", "requeue", "gave_up"]
    assert "two attempts ended with the loss of rank 2" in log(run)


@pytest.mark.slow
def test_a_hang_does_not_replace_one_spare_node_after_the_other(tmp_path: Path) -> None:
    own = Slurm(tmp_path / "own", gpus=0, nodes="127.0.0.[1-4]")
    (own.folder / "runs" / "job").mkdir(parents=True)
    # The embedded Slurm has no slurmd, for which spares.sh looks.
    slurmd_answers = own.folder / "bin" / "timeout"
    slurmd_answers.parent.mkdir()
    slurmd_answers.write_text("#!/bin/bash\n")
    slurmd_answers.chmod(0o755)
    own.environ["PATH"] = f"{slurmd_answers.parent}:{own.environ['PATH']}"
    hang = lose_rank(124, "0", HANG).replace("127.0.0.1", "$SLURMD_NODENAME")
    try:
        run = submit(own, command=["bash", "-c", hang], restart={"spares": 3}, changes={"resources.nodes": 1})
        assert await_end(run) == 124, log(run)
        assert decisions(run) == ["spare", "gave_up"]
        assert "two attempts ended with a hang" in log(run)
    finally:
        own.clear()


def test_ranks_in_different_collectives_are_a_failure(slurm: Slurm) -> None:
    calls = ["all_reduce of [8] Float", "all_reduce of [8] Float", "broadcast of [8] Float"]
    stacks = [
        RankStack(
            rank, "n1", 0.0, 5, None, "train.py:15", call, waits=True, threads={}, collectives={"gloo": (7, call)}
        )
        for rank, call in enumerate(calls)
    ]
    sentence = f"no step has ended for 615 s after step 5: {compare_stacks(stacks, 3).sentence}"
    run = submit(slurm, command=["bash", "-c", lose_rank(124, "2", sentence)], restart={})
    assert await_end(run) == 124
    assert decisions(run) == ["failed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("exit 137", id="exit code"),
        pytest.param(lose_rank(124, "0", HANG), id="hang", marks=pytest.mark.slow),
    ],
)
def test_attempts_that_make_progress_do_not_count(slurm: Slurm, end: str) -> None:
    save = 'echo "$HPC_KIT_ATTEMPT $(date +%s)" >"$HPC_KIT_RUN/saved"'
    command = f"[ $HPC_KIT_ATTEMPT -gt 3 ] || {{ {save}; {end}; }}; [ $HPC_KIT_ATTEMPT -gt 4 ] || exit 137"
    run = submit(slurm, command=["bash", "-c", command], restart={"max_attempts": 2})
    assert await_end(run) == 0, log(run)
    assert decisions(run) == ["requeue"] * 4 + ["finished"]


@pytest.mark.slow
def test_signals_soon_after_the_start_are_no_attempts_without_progress(slurm: Slurm) -> None:
    soon = "[ $HPC_KIT_ATTEMPT = 4 ] || scancel --signal=USR1 --batch $SLURM_JOB_ID; sleep 3"
    run = submit(slurm, command=["bash", "-c", soon], restart={"progress": "saved", "lead": 30})
    assert await_end(run) == 0
    assert [event["decision"] for event in history(run) if event["event"] == "end"] == ["requeue"] * 3 + ["finished"]


@pytest.mark.slow
def test_a_program_without_a_handler_goes_on_from_its_last_save(slurm: Slurm) -> None:
    run = submit(slurm, env={"RUN": "sleep 1; scancel --signal=USR1 --batch $SLURM_JOB_ID", "HANDLED": "USR2"})
    assert await_end(run) == 0, log(run)
    assert len(starts(run)) == 2


@pytest.mark.slow
def test_a_program_that_ignores_the_signal_is_requeued_before_the_limit(slurm: Slurm) -> None:
    env = {"RUN": "scancel --signal=USR1 --batch $SLURM_JOB_ID", "IGNORED": "1", "STEPS": "60"}
    run = submit(slurm, env=env, restart={**RESTART, "lead": 4})
    assert await_end(run) == 0, log(run)
    assert history(run)[1]["reason"] == "stopped by USR1, and the program went on until the time limit"


def test_a_program_that_ends_with_0_after_the_signal_is_started_again(slurm: Slurm) -> None:
    run = submit(slurm, env={"RUN": "scancel --signal=USR1 --batch $SLURM_JOB_ID", "CODE": "0"})
    assert await_end(run) == 0
    assert len(starts(run)) == 2


def test_a_cancelled_job_is_not_started_again(slurm: Slurm) -> None:
    run = submit(slurm, env={"RUN": "scancel $SLURM_JOB_ID", "HANDLED": "USR1 TERM"})
    slurm.until(int(run.name), "CANCELLED")
    # The state changes at once; the batch script ends a moment later.
    wait_for(lambda: len(events(run)) > 1, seconds=60)
    assert events(run, "decision") == [("start", 1, None), ("end", 1, "ended")]


@pytest.mark.slow
def test_a_requeue_by_an_administrator_is_an_attempt(slurm: Slurm) -> None:
    run = submit(slurm, env={"RUN": "scontrol requeue $SLURM_JOB_ID", "HANDLED": "USR1 TERM"})
    assert await_end(run) == 0
    assert [event["attempt"] for event in history(run) if event["event"] == "start"] == [1, 2]
    assert len(starts(run)) == 2


@pytest.mark.slow
def test_elements_of_an_array_are_requeued_alone(slurm: Slurm) -> None:
    stop = '[ "$SLURM_ARRAY_TASK_ID" = 1 ] && scancel --signal=USR1 --batch ${SLURM_ARRAY_JOB_ID}_1'
    run = submit(slurm, env={"RUN": stop}, changes={"resources.array": "0-1", "resources.ntasks_per_node": 1})
    for index, attempts in (0, 1), (1, 2):
        element = run.with_name(f"{run.name}_{index}")
        assert await_end(element) == 0
        assert [event["attempt"] for event in history(element) if event["event"] == "start"][-1] == attempts


@pytest.mark.slow
def test_a_job_that_may_not_be_requeued_is_submitted_again_with_one_record(slurm: Slurm) -> None:
    options = ("--no-requeue", "--exclude=n[3-4]")
    run = submit(slurm, *options, env={"RUN": "scancel --signal=USR1 --batch $SLURM_JOB_ID"})
    wait_for(lambda: "submitted" in (run / "history").read_text() if (run / "history").exists() else False, seconds=60)
    submitted = next(event for event in history(run) if event["event"] == "submitted")
    following = run.with_name(str(submitted["next"]))
    slurm.until(int(following.name), "COMPLETED")
    assert following.is_symlink()
    assert following.resolve() == run
    assert [event["job_id"] for event in history(run) if event["event"] == "start"] == [run.name, following.name]
    assert "sbatch" not in log(run).replace("submitting the job again", "")
    assert len(starts(run)) == 2
    shown = slurm.check_output("scontrol", "show", "job", following.name)
    assert "ExcNodeList=n[3-4]" in shown
    assert f"StdOut={run}.log\n" in shown
