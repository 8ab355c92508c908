"""Status, watch, logs and cancel against a Slurm of fixed answers: what is printed, and with which status."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_kit.cli import root
from hpc_kit.cli.output import program_name
from hpc_kit.errors import SlurmUnavailable, SpecError, UnknownJob
from hpc_kit.run_files import END, STACKS, VERDICT, claim_first_failure, progress_file
from hpc_kit.runs.run_folders import Run
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm, queue_row

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in this process; its status and what it printed."""
    monkeypatch.setenv("HPC_KIT_CLUSTER", "fake")

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = root.main(list(words), standalone_mode=False)
        return status or 0, capsys.readouterr().out

    return run


@pytest.fixture
def failed(slurm: FakeSlurm, project: Path) -> Run:
    """Job 12, of which rank 3 has failed."""
    run = submit("job", "fake").run
    claim_first_failure(run.folder, 3, "n2", 1)
    for rank in range(4):
        run.rank_log(rank).write_text(f"I am {rank}\n")
    with run.rank_log(3).open("a") as log:
        log.write("Traceback (most recent call last):\nValueError: bad\n")
    run.batch_log.write_text("srun said this\n")
    slurm.queue("12 FAILED")
    return run


def test_waiting_jobs_show_the_jobs_ahead(slurm: FakeSlurm, call: Call) -> None:
    rows = [queue_row(str(i), "PENDING", "Priority", everybody=True, priority="900", user="bob") for i in range(14)]
    rows.append(queue_row("40", "PENDING", "Priority", everybody=True, start="2999-01-01T14:20:00"))
    rows.append(queue_row("41_[0-9]", "PENDING", "Dependency", everybody=True))
    rows.append(queue_row("39", "RUNNING", everybody=True))
    slurm.write("squeue.queue", "".join(rows))
    assert [re.sub(r" \b[01] s", " now", line) for line in call("status", "--all")[1].splitlines()] == [
        "     job  name  age   ran  state",
        "41_[0-9]  job   now        PENDING (Dependency): It waits for other jobs.",
        "                           Look at what it waits for: squeue --job=41 --format='%i %E'",
        "      40  job   now        PENDING (Priority): 14 jobs ahead, starts about 1 Jan 2999 14:20",
        "      39  job   now  10 s  RUNNING: 9 min 50 s left of 10 min on n[1-2]",
    ]
    entries = json.loads(call("status", "40", "--json")[1])
    assert entries[0]["sentence"].startswith("14 jobs ahead")
    assert (entries[0]["reason"], entries[0]["start"]) == ("Priority", "2999-01-01T14:20:00")


def test_a_job_beyond_the_limits_of_its_partition_names_the_limit_and_the_option(
    slurm: FakeSlurm, project: Path, call: Call
) -> None:
    submit("job", "fake")
    with (project / "env/fake.toml").open("a") as file:
        file.write("[partition.main]\nnodes = 4\ncpus = 8\nmax_nodes = 1\n")
    slurm.queue("12 PENDING PartitionNodeLimit")
    size = {"nodes": "2", "cpus": "4", "gres": "N/A", "qos": "normal"}
    slurm.write("squeue.queue", queue_row("12", "PENDING", "PartitionNodeLimit", everybody=True, **size))
    sentence = "It can never start in partition main: 2 nodes; a job may have 1"
    remedy = "Cancel it and submit it again: ask for --nodes=1 or less"
    [row, step] = call("status", "12")[1].splitlines()[1:]
    assert row.endswith(f"PENDING (PartitionNodeLimit): {sentence}.")
    assert step.strip() == remedy
    entry = json.loads(call("why", "12", "--json")[1])
    assert entry["cause"].endswith(sentence)
    assert entry["fix"] == remedy


def test_running_elements_are_one_row_with_the_least_time_left(slurm: FakeSlurm, call: Call) -> None:
    rows = [queue_row(f"12_{i}", "RUNNING", everybody=True, elapsed=f"{i}:00") for i in (3, 1, 2)]
    slurm.write("squeue.queue", "".join([*rows, queue_row("12_4", "COMPLETED", everybody=True)]))
    assert [re.sub(r" \b[01] s", " now", line) for line in call("status", "12")[1].splitlines()] == [
        "     job  name  age    ran  state",
        "12_[1-3]  job   now  3 min  RUNNING: 3 of them, at least 7 min left of 10 min on n[1-2]",
        "    12_4  job   now   10 s  COMPLETED: Its script ended with exit code 0.",
    ]


def test_status_shows_the_jobs_of_this_project_unless_all_are_asked_for(
    slurm: FakeSlurm, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    submit("job", "fake")
    slurm.queue("12 RUNNING", "13 RUNNING", "14_[0-9] PENDING")
    assert [job["job_id"] for job in json.loads(call("status", "--json")[1])] == ["12"]
    assert len(json.loads(call("status", "--all", "--json")[1])) == 12
    root.main(["status"], standalone_mode=False)
    assert "2 more of your jobs belong to other projects: hpc-kit status --all" in capsys.readouterr().err


def test_a_name_means_only_jobs_of_this_project(slurm: FakeSlurm, call: Call) -> None:
    slurm.queue("13 RUNNING")
    for command in ("cancel", "status"):
        with pytest.raises(UnknownJob, match=r"no job of this project is named job(.|\n)*13(.|\n)*use the id"):
            call(command, "job")
    assert not (slurm.folder / "scancel.calls").exists()
    submit("job", "fake")
    slurm.queue("12 RUNNING", "13 RUNNING")
    assert call("cancel", "job")[0] == 0
    assert slurm.read("scancel.calls") == "12\n"


def test_ended_jobs_of_another_project_are_not_offered(slurm: FakeSlurm, call: Call) -> None:
    slurm.queue("13 COMPLETED")
    with pytest.raises(UnknownJob, match=r"submitted elsewhere, and have ended") as failure:
        call("cancel", "job")
    assert "13" not in str(failure.value)


def test_cancel_of_a_name_lists_no_ended_jobs(slurm: FakeSlurm, call: Call) -> None:
    for _ in range(3):
        submit("job", "fake")
    slurm.queue("12 COMPLETED", "13 COMPLETED", "14 FAILED")
    assert call("cancel", "job")[1] == "no job named job waits or runs; the last, 14, has ended: FAILED\n"
    assert call("cancel", "job", "12")[1].splitlines()[1:] == ["      12  job  had ended already: COMPLETED"]
    slurm.queue("12 COMPLETED", "13 RUNNING", "14 FAILED")
    assert call("cancel", "job")[1] == "      13  job  cancelled: was RUNNING\n"


def test_the_name_of_a_job_comes_before_a_folder_in_report(call: Call, failed: Run, project: Path) -> None:
    (project / "job").mkdir()
    assert call("report", "job", "--out", "page.html") == (0, "page.html\n")
    assert "ValueError: bad" in (project / "page.html").read_text()
    with pytest.raises(SpecError, match="is not a run"):
        call("report", "./job")


def test_status_without_a_controller_exits_with_1_and_names_its_source(
    slurm: FakeSlurm, call: Call, failed: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.write("squeue.error", "squeue: error: Unable to contact slurm controller\n")
    (failed.folder / "end").write_text("1 1700000000\n")
    assert root.main(["status", "12"], standalone_mode=False) == 1
    told = capsys.readouterr()
    assert "FAILED: rank 3 on n2 failed with ValueError: bad" in told.out
    assert "Unable to contact slurm controller" in told.err
    assert "the jobs' own files" in told.err


def test_watch_prints_one_line_per_change(slurm: FakeSlurm, call: Call) -> None:
    submit("job", "fake")
    slurm.queue("12 RUNNING")
    (slurm.bin / "squeue").write_text(
        '#!/bin/bash\nn=$(cat "$FAKE/n" 2>/dev/null || echo 0); echo $((n + 1)) >"$FAKE/n"\n'
        '[ "$n" = 1 ] && { echo "squeue: error: Unable to contact slurm controller" >&2; exit 1; }\n'
        '[ "$n" -gt 2 ] && sed -i s/RUNNING/COMPLETED/ "$FAKE/squeue.queue"\ncat "$FAKE/squeue.queue"\n'
    )
    status, text = call("watch", "job", "--interval", "0.2")
    assert (status, [line[10:] for line in text.splitlines()]) == (
        0,
        [
            "12  job  RUNNING: 9 min 50 s left of 10 min on n[1-2]",
            "Slurm does not answer: squeue: error: Unable to contact slurm controller; asking on, the jobs go on",
            "Slurm answers again",
            "12  job  COMPLETED: Its script ended with exit code 0.   (was RUNNING)",
        ],
    )


def test_watch_prints_json_lines(slurm: FakeSlurm, call: Call, failed: Run) -> None:
    status, text = call("watch", "12", "--json")
    events = [json.loads(line) for line in text.splitlines()]
    assert (status, [event["event"] for event in events]) == (1, ["job", "over"])
    assert (events[0]["state"], events[0]["old"], events[1]["well"]) == ("FAILED", None, False)
    assert events[0]["sentence"] == "rank 3 on n2 failed with ValueError: bad"


def test_watch_without_jobs_prints_a_note(slurm: FakeSlurm, call: Call) -> None:
    assert call("watch") == (0, "no jobs in the queue\n")


def test_a_real_slurm_is_queried_every_ten_seconds_by_default(
    slurm: FakeSlurm, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        slurm.queue("12 COMPLETED")

    monkeypatch.setattr("hpc_kit.runs.follow.follow_listing.__kwdefaults__", {"cluster": None, "sleep": sleep})
    for words in ((), ("--interval", "30")):
        slurm.queue("12 RUNNING")
        call("watch", "12", *words)
    assert slept == [10, 30]


def test_watch_draws_in_place_on_a_terminal(slurm: FakeSlurm, project: Path, failed: Run) -> None:
    main, side = pty.openpty()
    environ = {**slurm.environ(os.environ), "HPC_KIT_CLUSTER": "fake", "TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
    argv = [sys.executable, "-m", "hpc_kit", "watch", "12"]
    with subprocess.Popen(argv, stdout=side, stderr=side, stdin=side, cwd=project, env=environ) as process:
        os.close(side)
        drawn = b""
        while True:
            try:
                drawn += os.read(main, 1000)
            except OSError:
                break
    os.close(main)
    assert process.returncode == 1, drawn
    assert b"0 of 1 jobs not over, asked every 10 s; Ctrl-C leaves them alone" in drawn
    assert re.search(rb"12  job +\d+ s +10 s  FAILED: rank 3 on n2 failed with ValueError: bad", drawn)
    assert b"\x1b[" in drawn


def test_logs_by_rank_by_name_and_as_json(slurm: FakeSlurm, call: Call, failed: Run) -> None:
    assert call("logs", "job", "--rank", "2")[1].startswith("I am 2\n")
    assert call("logs", "12", "--batch")[1].startswith("srun said this\n")
    assert [line for line in call("logs", "--all")[1].splitlines() if "I am" in line] == [
        f"   {rank}: I am {rank}" for rank in range(4)
    ]
    told = json.loads(call("logs", "12", "--all", "--json")[1])
    assert (told["state"], told["exit_status"], told["first_failure"]["rank"]) == ("FAILED", 1, 3)
    assert told["ranks"]["1"] == {"path": str(failed.rank_log(1)), "lines": ["I am 1"], "left_out": 0}
    assert told["batch"]["lines"] == ["srun said this"]
    failed.rank_log(1).write_bytes(b"step 1\rstep 2\r\n\nlast")
    told = json.loads(call("logs", "12", "--rank", "1", "--json")[1])
    assert told["ranks"]["1"]["lines"] == ["step 2", "", "last"]


def test_the_document_contains_the_last_lines_of_a_huge_log_and_a_mark(
    call: Call, failed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed.rank_log(0).write_text("".join(f"step {number:03}\n" for number in range(100)))
    monkeypatch.setattr("hpc_kit.cli.logs.JSON_BYTES", 30)
    told = json.loads(call("logs", "12", "--json")[1])["ranks"]["0"]
    assert (told["lines"], told["left_out"]) == (["step 097", "step 098", "step 099"], 97 * 9)


@pytest.mark.slow
@pytest.mark.parametrize("which", [["--rank", "2"], ["--all"]])
def test_printing_a_log_needs_little_memory(call: Call, failed: Run, which: list[str]) -> None:
    size = 100 << 20
    with failed.rank_log(2).open("wb") as log:
        log.truncate(size)
        log.seek(size)
        log.write("\ngrö".encode())
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_DATA, (80 << 20,) * 2)"
    words = [sys.executable, "-c", f"{limited}; runpy.run_module('hpc_kit', run_name='__main__')", "logs", "12", *which]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        end = b""
        while data := process.stdout.read(1 << 20):
            end = (end + data)[-2000:]
    assert process.returncode == 0, end
    assert "grö\n".encode() in end


def test_the_batch_log_is_shown_if_the_job_ended_before_any_rank(call: Call, failed: Run) -> None:
    for rank in range(4):
        failed.rank_log(rank).unlink()
    (failed.folder / END).write_text("1 1.0\n")
    assert call("logs", "12")[1].startswith("srun said this\n")
    with pytest.raises(UnknownJob, match="there is no "):
        call("logs", "12", "--rank", "1")


def test_following_all_ranks_gives_each_line_and_the_jobs_status(slurm: FakeSlurm, call: Call, failed: Run) -> None:
    status, text = call("logs", "12", "-f", "--all")
    assert status == 1
    assert {f"rank {rank}  I am {rank}" for rank in range(4)} <= {*text.splitlines()}
    status, text = call("logs", "12", "-f", "--json")
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["event"] for event in events] == ["line", "state", "ended"]
    assert (status, events[-1]["exit_status"]) == (1, 1)


def test_equal_failures_of_an_array_are_printed_once(slurm: FakeSlurm, call: Call, project: Path) -> None:
    submit("job", "fake", set={"resources.array": "0-3"})
    slurm.queue("12_0 FAILED", "12_1 FAILED", "12_2 COMPLETED", "12_3 FAILED")
    error = 'Traceback (most recent call last):\n  File "/w/train.py", line 4, in load\n    open(path)\n{}: {}\n'
    for index, name in ((0, "KeyError"), (1, "ValueError"), (3, "KeyError")):
        (project / f"runs/job/12_{index}").mkdir(parents=True)
        (project / f"runs/job/12_{index}/rank-0.log").write_text(error.format(name, index))
    lines = call("logs", "12", "-f")[1].splitlines()
    failed = [line for line in lines if line.startswith("failed")]
    assert len(failed) == 2
    assert failed[0].startswith("failed  12_[0,3], ") and "KeyError: 0" in failed[0]
    assert failed[1].startswith("failed  12_1, ") and "ValueError: 1" in failed[1]


def test_the_failed_job_behind_one_that_never_started(slurm: FakeSlurm, call: Call, project: Path) -> None:
    first = submit("job", "fake")
    second = submit("job", "fake", set={"resources.dependency": f"afterok:{first.job_id}"})
    slurm.queue(f"{first.job_id} FAILED", f"{second.job_id} CANCELLED DependencyNeverSatisfied")
    (project / f"runs/job/{first.job_id}/rank-0.log").write_text("ValueError: shard 3 is empty\n")
    answer = json.loads(call("why", second.job_id, "--json")[1])
    assert answer["class"] == "dependency"
    assert f"job {second.job_id} never started" in answer["cause"]
    assert f"job {first.job_id} (job) is FAILED: " in answer["cause"] and "shard 3 is empty" in answer["cause"]


def test_the_answer_about_a_running_job_that_stands_still(slurm: FakeSlurm, call: Call, project: Path) -> None:
    job = submit("job", "fake")
    slurm.queue(f"{job.job_id} RUNNING")
    run = project / f"runs/job/{job.job_id}"
    (run / STACKS).mkdir()
    sentence = "no step has ended for 700 s after step 7: rank 0 waits in a.py:9 in f for rank 1 on n2 in a.py:8 in g"
    (run / "rank-0.log").write_text(f"hpc-kit: {sentence}\n")
    (run / STACKS / VERDICT).write_text(json.dumps({"time": 200.0, "step": 7, "sentence": sentence, "ranks": [1]}))
    note = {"time": 100.0, "step": 7, "numbers": {}, "losses": []}
    (run / progress_file(0)).write_text(json.dumps(note))
    answer = json.loads(call("why", job.job_id, "--json")[1])
    assert answer["cause"].startswith("did not fail: ") and answer["cause"].endswith(sentence)
    assert (answer["class"], answer["rank"], answer["host"]) == ("late-rank", 1, "n2")
    (run / progress_file(0)).write_text(json.dumps({**note, "time": 300.0, "step": 8}))
    assert json.loads(call("why", job.job_id, "--json")[1])["class"] == "running"


def test_elements_of_an_array_are_followed_together(slurm: FakeSlurm, call: Call) -> None:
    submit("job", "fake", set={"resources.array": "0-1"})
    slurm.queue("12_0 COMPLETED", "12_1 FAILED")
    status, text = call("logs", "12", "-f")
    assert (status, [line.split() for line in text.splitlines()[:2]]) == (
        1,
        [["12_0", "COMPLETED"], ["12_1", "FAILED"]],
    )
    assert "ended   1 of 2 elements completed" in text
    status, text = call("logs", "12", "-f", "--json")
    assert (status, json.loads(text.splitlines()[-1])["event"]) == (1, "ended")
    assert [each["state"] for each in json.loads(call("logs", "12", "--json")[1])] == ["COMPLETED", "FAILED"]


def test_logs_that_do_not_exist_are_an_error(slurm: FakeSlurm, call: Call, failed: Run) -> None:
    for words, error, text in (
        (["--rank", "1", "--all"], SpecError, "exclude one another"),
        (["--rank", "9"], UnknownJob, "its ranks are 0 to 3"),
        (["nojob"], UnknownJob, "no run of nojob"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            call("logs", *([] if words == ["nojob"] else ["12"]), *words)


def test_cancel_lists_the_ended_jobs(slurm: FakeSlurm, call: Call, failed: Run) -> None:
    slurm.write(
        "squeue.queue", queue_row("12", "FAILED", everybody=True) + queue_row("13_[0-99]", "PENDING", everybody=True)
    )
    assert call("cancel", "12", "13")[1].splitlines() == [
        "13_[0-99]  job  cancelled: was PENDING",
        "      12  job  had ended already: FAILED",
    ]
    assert slurm.read("scancel.calls") == "13\n"
    assert json.loads(call("cancel", "12", "--json")[1]) == [{"job_id": "12", "name": "job", "was": "FAILED"}]


def test_logs_and_status_are_read_without_the_slurm_of_the_cluster(
    failed: Run, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    assert "I am 0" in call("logs", "12")[1]
    assert "12  job" in call("status", "12")[1]
    with pytest.raises(SlurmUnavailable, match="there is no Slurm here"):
        call("cancel", "12")


def test_a_run_of_another_slurm_is_read_without_a_query(failed: Run, call: Call, slurm: FakeSlurm) -> None:
    path = failed.folder / "record.json"
    known = {
        **json.loads(path.read_text()),
        "cluster": "a",
        "slurm": "embedded",
        "command_line": ["hpc-kit", "--cluster=a"],
    }
    path.write_text(json.dumps(known))
    slurm.queue("12 COMPLETED")
    before = path.read_bytes()
    text = call("logs", "12")[1]
    assert "I am 0" in text
    assert "job 12 was submitted to cluster a, which was not queried" in text
    assert f"{program_name()} logs 12 -f --cluster a" in text
    assert json.loads(call("logs", "12", "--json")[1])["state"] == "UNKNOWN"
    with pytest.raises(UnknownJob, match="belongs to cluster a, not to fake") as error:
        call("logs", "12", "-f")
    assert str(error.value.remedy).startswith("hpc-kit logs 12 -f --cluster a;")
    assert (path.read_bytes(), (slurm.folder / "squeue.calls").exists()) == (before, False)


def test_the_command_printed_by_a_submission_finds_a_run_in_any_folder(
    slurm: FakeSlurm, call: Call, project: Path, tmp_path: Path
) -> None:
    (project / "train.py").touch()
    runs, elsewhere = tmp_path / "my runs", ["--set", f"cluster.python={sys.executable}"]
    _, told = call("submit", "job", *elsewhere, "--set", f"cluster.runs={runs}")
    steps = [shlex.split(text.partition("  ")[2]) for text in told.splitlines() if "--runs" in text]
    assert [step[-2:] for step in steps] == [["--runs", str(runs)]] * 3
    logs = next(step for step in steps if "logs" in step)
    (runs / "job/12").mkdir(exist_ok=True)
    (runs / "job/12/rank-0.log").write_text("there\n")
    words = [word for word in logs[logs.index("logs") :] if word != "-f"]
    status, shown = call(*words)
    assert (status, shown.splitlines()[0]) == (0, "there")
    assert f"--runs '{runs}'" in shown
    slurm.queue("12 RUNNING")
    assert call("status", "12", "--runs", str(runs))[0] == 0
    assert call("report", "12", "--runs", str(runs), "--out", "page.html") == (0, "page.html\n")
    assert call("cancel", "job", "--runs", str(runs))[0] == 0


def test_without_a_run_the_error_does_not_mention_slurm(
    slurm: FakeSlurm, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownJob) as error:
        call("logs", "99")
    assert "scontrol show job ID" in str(error.value)
    assert "Slurm does not know" not in str(error.value)
    scandir = os.scandir

    def locked(path: Path) -> object:
        if Path(path).name == "runs":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    for words in (["logs", "99"], ["logs"]):
        with pytest.raises(UnknownJob, match="Permission denied"):
            call(*words)
    assert call("status") == (
        0,
        "no jobs: none in the queue, and none in runs, which cannot be read: Permission denied\n",
    )


def test_a_rendered_script_submitted_by_hand_is_found_by_name(call: Call, project: Path) -> None:
    for job_id, text in (("7", "old"), ("12", "new")):
        (project / f"runs/mine/{job_id}").mkdir(parents=True)
        (project / f"runs/mine/{job_id}/rank-0.log").write_text(f"{text}\n")
    assert call("logs", "mine")[1].splitlines()[0] == "new"


def test_a_log_whose_reader_leaves_is_no_missing_log(project: Path) -> None:
    run = project / "runs" / "job" / "12"
    run.mkdir(parents=True)
    (run / "rank-0.log").write_text("line\n" * 100_000)
    (run / "end").write_text("0 1.0\n")
    kit = f"{shlex.quote(sys.executable)} -m hpc_kit logs 12"
    done = subprocess.run(["bash", "-c", f"{kit} | head -n 1"], cwd=project, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("line\n", "")
    with open("/dev/full", "wb") as full:
        words = shlex.split(kit)
        done = subprocess.run(words, cwd=project, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "there is no" not in done.stderr


def test_a_job_of_a_broken_chain_was_not_cancelled_by_its_user(slurm: FakeSlurm, call: Call) -> None:
    submit("job", "fake")
    slurm.queue("12 CANCELLED DependencyNeverSatisfied")
    slurm.job("12", "CANCELLED")
    assert "because a job that it waited for did not end as required" in call("status", "12")[1]
    slurm.queue()
    (slurm.folder / "scontrol.out").unlink()
    assert "because a job that it waited for did not end as required" in call("status", "12")[1]


def test_the_same_advice_for_many_jobs_is_printed_once(slurm: FakeSlurm, call: Call) -> None:
    rows = [queue_row(str(number), "PENDING", "Dependency", everybody=True) for number in range(20, 30)]
    slurm.write("squeue.queue", "".join(rows))
    assert call("status", "--all")[1].count("Look at what it waits for") == 1
