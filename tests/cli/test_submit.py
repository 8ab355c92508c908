"""A job's whole life from the command line, on the embedded Slurm: submit, follow, status, logs, cancel."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.submission import sbatch
from tests.cli.conftest import Kit
from tests.runs.fake import FakeSlurm

pytestmark = pytest.mark.usefixtures("own_slurm")


def test_a_program_is_followed_to_its_end(kit: Kit, project: Path) -> None:
    done = kit("submit", "-j", "2x2", "--", "bash", "-c", "echo I am $RANK of $WORLD_SIZE")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "rank 0  I am 0 of 4" in lines
    assert any(line.strip().startswith("RUNNING -> COMPLETED") for line in lines)
    assert any(line.startswith("record  runs/bash/1/record.json") for line in lines)
    # Another shell, in which they are pasted, may not have HPC_KIT_CLUSTER.
    assert lines[-1].endswith("logs 1 --all --cluster local")
    assert json.loads((project / "runs/bash/1/record.json").read_text())["job_name"] == "bash"
    assert (project / "runs/bash/latest").resolve() == project / "runs/bash/1"
    listed = kit("logs", "--all").stdout.splitlines()
    assert {f"   {rank}: I am {rank} of 4" for rank in range(4)} <= {*listed}
    assert kit("logs", "1", "--rank", "3").stdout.splitlines()[0] == "I am 3 of 4"
    assert kit("logs", "1", "-f").returncode == 0


@pytest.mark.slow
def test_torchrun_behind_the_dashes_is_one_world_with_the_exit_code_of_the_training(kit: Kit, project: Path) -> None:
    (project / "train.py").write_text(
        "import sys\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\ndist.barrier()\n"
        "print('rank', dist.get_rank(), 'of', dist.get_world_size())\n"
        "dist.barrier()\nsys.exit(7 if dist.get_rank() == 2 else 0)\n"
    )
    done = kit("submit", "-j", "2x2", "--", "torchrun", "train.py")
    assert done.returncode == 7, done.stdout + done.stderr
    listed = kit("logs", "--all").stdout.splitlines()
    assert {f"   {rank}: rank {rank} of 4" for rank in range(4)} <= {*listed}
    refused = kit("submit", "-j", "2x1", "--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "hpc-kit submit -j 2x2 -- torchrun train.py" in refused.stderr


def test_the_first_failed_rank_is_shown_and_sets_the_exit_code(kit: Kit, project: Path) -> None:
    (project / "train.py").write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad batch')\ntime.sleep(600)\n"
    )
    done = kit("submit", "-j", "2x1", "--", "python", "-u", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed  rank 1 on 127.0.0.2 failed with ValueError: bad batch (train.py:3)" in done.stdout.splitlines()
    assert done.stdout.count("Traceback (most recent call last)") == 1
    status = json.loads(kit("status", "1", "--json").stdout)
    assert [(entry["job_id"], entry["state"]) for entry in status] == [("1", "FAILED")]
    assert "bad batch" in kit("status").stdout
    assert "ValueError: bad batch" in kit("logs", "1").stdout


HET = """
command = ["bash", "-c", "{}"]

[[component]]
nodes = 1

[[component]]
nodes = 1
ntasks_per_node = 2
"""


@pytest.mark.slow
def test_a_heterogeneous_job_is_followed_listed_and_cancelled(kit: Kit, project: Path) -> None:
    (project / "jobs/het.toml").write_text(HET.format("echo I am $SLURM_PROCID of $SLURM_NTASKS"))
    done = kit("submit", "het")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0  I am 0 of 3" in done.stdout.splitlines()
    listed = kit("logs", "1", "--all").stdout.splitlines()
    assert {f"   {rank}: I am {rank} of 3" for rank in range(3)} <= {*listed}
    states = {entry["job_id"]: entry["state"] for entry in json.loads(kit("status", "1", "--json").stdout)}
    assert states == {"1+0": "COMPLETED", "1+1": "COMPLETED"}

    (project / "jobs/het.toml").write_text(HET.format("exec sleep 600"))
    assert kit("submit", "het", "--no-wait").returncode == 0
    assert kit("cancel", "3").returncode == 0
    states = {entry["job_id"]: entry["state"] for entry in json.loads(kit("status", "3", "--json").stdout)}
    assert states.keys() == {"3+0", "3+1"}
    assert set(states.values()) <= {"CANCELLED", "COMPLETING"}


@pytest.mark.slow
def test_an_array_is_followed_to_the_end_of_its_last_element(kit: Kit, project: Path) -> None:
    program = "echo I am $SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID / 2 * 5))"
    done = kit("submit", "--array", "0-2", "--", "bash", "-c", program)
    assert done.returncode == 5, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {f"1_{index}     I am {index}" for index in range(3)} <= {*lines}
    failed = "failed  1_2, rank 0 on 127.0.0.1 ended with exit code 5, and no line shows why; its last line: I am 2"
    assert failed in lines
    assert "ended   2 of 3 elements completed" in lines
    assert "logs    runs/bash/1_*/rank-*.log, runs/bash/1_*.log" in lines
    told = kit("logs", "1").stdout.splitlines()
    assert [line for line in told if line.startswith("I am")] == ["I am 0", "I am 1", "I am 2"]
    assert "   0: I am 1" in kit("logs", "1", "--all").stdout.splitlines()
    causes = json.loads(kit("why", "1", "--json").stdout)
    assert [each["jobs"] for each in causes["elements"]] == [["1_2"], ["1_0", "1_1"]]
    assert causes["cause"] == causes["elements"][0]["cause"]
    assert kit("logs", "1", "-f").returncode == 5
    ends = json.loads((project / "runs/bash/1/record.json").read_text())["elements"]
    assert {index: end["exit_status"] for index, end in ends.items()} == {"0": 0, "1": 0, "2": 5}


@pytest.mark.slow
def test_a_job_that_is_not_followed_can_be_seen_and_cancelled(kit: Kit) -> None:
    start = kit("submit", "-j", "1x1", "--no-wait", "--", "bash", "-c", "sleep 600")
    assert start.returncode == 0, start.stderr
    assert [line.split()[0] for line in start.stdout.splitlines()[-3:]] == ["status", "logs", "cancel"]
    assert json.loads(kit("status", "--json").stdout)[0]["name"] == "bash"
    assert "cancelled: was" in kit("cancel", "1").stdout
    ended = kit("logs", "1", "-f", "--batch")
    assert ended.returncode != 0
    assert "CANCELLED" in ended.stdout
    assert "had ended already" in kit("cancel", "1").stdout


def test_a_job_is_both_saved_and_submitted_or_neither(kit: Kit, project: Path) -> None:
    words = ["--hold", "--no-wait", "--save", "jobs/mine.toml", "--", "bash", "-c", "true"]
    assert kit("submit", "--nodelist", "nowhere", *words).returncode == 1
    assert not (project / "jobs/mine.toml").exists()
    assert kit("submit", *words).returncode == 0
    again = kit("submit", *words)
    assert (again.returncode, "jobs/mine.toml exists" in again.stderr) == (2, True)
    assert len(json.loads(kit("status", "--json").stdout)) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_the_jobs_and_prints_how_to_cancel_each(project: Path) -> None:
    for name in ("a", "b"):
        (project / "jobs" / f"{name}.toml").write_text('command = ["bash", "-c", "echo there; sleep 600"]\n')
    argv = [sys.executable, "-m", "hpc_kit", "submit", "a", "b", "--cluster", "local"]
    process = subprocess.Popen(argv, cwd=project, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line == "rank 0  there\n":
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=30) == 130, (seen, rest)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert [line.strip() for line in rest.splitlines() if "goes on" in line] == ["job 1 goes on", "job 2 goes on"]
    steps = [line for line in rest.splitlines() if line.startswith("cancel  ")]
    assert [line.partition(" cancel ")[2] for line in steps] == ["1 2 --cluster local"]


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["logs", "99"], 1, "no run of 99"),
        (["logs"], 1, "no runs in runs"),
        (["cancel", "99"], 1, "no job 99"),
        (["status", "99"], 1, "no job 99"),
        (["submit", "-j", "1x1", "--", "python", "gone.py"], 2, "gone.py"),
        (["submit", "-W", "-j", "1x1", "--", "true"], 2, "do     submit --wait follows the job to its end"),
        (["submit", "-j", "2x2", "python", "t.py", "a b"], 2, "hpc-kit submit -j 2x2 -- python t.py 'a b'"),
        (["submit", "-j", "2x2", "t.py"], 2, "hpc-kit submit -j 2x2 -- python t.py"),
        (["submit", "single", "--set", "cluster.embedded.partitions=[]"], 2, 'do     partitions = ["local"]'),
        (["submit", "single", "--set", "cluster.embedded.nodes="], 2, 'do     nodes = "127.0.0.[1-4]"'),
        (
            ["submit", "-j", "1x1", "-p", "nowhere", "--set", "cluster.embedded.strict=true", "--", "true"],
            2,
            "no partition 'nowhere'",
        ),
        (["submit", "-j", "1x1", "--cluster", "slurm", "--", "bash"], 1, "there is no Slurm here"),
        (["embedded", "run", "--cluster", "slurm", "true"], 2, "is not the embedded one"),
        (["embedded", "run", "no-such-program"], 2, "cannot run no-such-program"),
    ],
)
def test_a_wrong_submission_is_an_error_without_a_traceback(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], status: int, expected: str
) -> None:
    if "slurm" in words and words[0] == "submit":
        for name in ("bash", "git", "sh"):
            (tmp_path / name).symlink_to(f"/bin/{name}" if name != "git" else "/usr/bin/git")
        monkeypatch.setenv("PATH", str(tmp_path))
    done = kit(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stdout + done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) <= 6


def test_an_empty_listing_prints_a_note(kit: Kit) -> None:
    assert kit("status").stdout == "no jobs: none in the queue, and none in runs\n"


def test_the_commands_of_the_embedded_slurm_can_be_put_on_path(kit: Kit) -> None:
    folder = Path(kit("embedded", "path").stdout.strip())
    assert {path.name for path in folder.iterdir()} >= {"sbatch", "srun", "squeue"}


def test_the_start_is_estimated_without_submitting(kit: Kit) -> None:
    asked = kit("submit", "--test-only", "-j", "2x1", "--", "true")
    assert asked.stdout.splitlines()[-1].strip() == "nothing was submitted", asked.stderr
    assert ", on 127.0.0.[1-2], partition local: 2 CPUs" in asked.stdout
    start = json.loads(kit("submit", "--test-only", "--json", "-j", "2x1", "--", "true").stdout)
    assert (start["nodes"], start["cpus"], start["preempts"]) == ("127.0.0.[1-2]", 2, [])


@pytest.mark.slow
def test_two_queues_in_one_project_do_not_share_a_runs_folder(
    kit: Kit, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kit("submit", "--wait", "-j", "1x1", "--", "bash", "-c", "echo one")
    assert first.returncode == 0, first.stdout
    monkeypatch.setenv("HPC_KIT_SLURM_STATE", str(tmp_path / "other"))
    for number, text in ((2, "two"), (3, "three")):
        done = kit("submit", "--wait", "-j", "1x1", "--", "bash", "-c", f"echo {text} ${{HPC_KIT_SLURM_FIRST_ID-}}")
        assert f"record  runs/bash/{number}/record.json" in done.stdout
    assert sorted(path.name for path in (project / "runs/bash").iterdir() if path.is_dir()) == ["1", "2", "3", "latest"]
    logs = [(project / f"runs/bash/{number}/rank-0.log").read_text() for number in (1, 2, 3)]
    assert [log.split() for log in logs] == [["one"], ["two"], ["three"]]


@pytest.mark.slow
def test_following_ends_when_the_embedded_slurm_is_removed(kit: Kit, project: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hpc_kit", "submit", "--wait", "-j", "1x1", "--", "bash", "-c", "echo up; sleep 600"]
    with subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout
            while "| up" not in (text := follower.stdout.readline()) and not text.endswith(" up\n"):
                assert text
            shutil.rmtree(tmp_path / "slurm")
            (tmp_path / "slurm").mkdir(exist_ok=True)  # as a squeue does that was asked just before
            rest, _ = follower.communicate(timeout=90)
        finally:
            follower.kill()
    assert follower.returncode == 1
    assert "ended   UNKNOWN: Slurm no longer knows the job, and its script did not reach its end." in rest.splitlines()


def test_parsable_prints_only_the_id(slurm: FakeSlurm, kit: Kit, project: Path) -> None:
    (project / "train.py").touch()
    words = ("--cluster", "fake", "--set", f"cluster.python={sys.executable}")
    done = kit("submit", "job", *words, "--parsable")
    assert (done.returncode, done.stdout) == (0, "12\n"), done.stderr
    done = kit("submit", "job", *words, "--json")
    assert json.loads(done.stdout) == {
        "job_id": "13",
        "name": "job",
        "run": str(project / "runs" / "job" / "13"),
        "cluster": "fake",
    }
    done = kit("submit", "job", "job", *words, "--chain", "--json")
    assert [job["job_id"] for job in json.loads(done.stdout)] == ["14", "15"]
    done = kit("submit", "job", *words, "--parsable", "--wait")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_saved_job_has_the_name_of_its_file(slurm: FakeSlurm, kit: Kit, project: Path) -> None:
    (project / "train.py").touch()
    words = ("--cluster", "fake", "--set", f"cluster.python={sys.executable}", "--no-wait")
    done = kit("submit", "-j", "1x1", *words, "--save", "jobs/mine.toml", "--", "train.py")
    assert done.returncode == 0, done.stderr
    assert (project / "runs" / "mine" / "12").is_dir()
    assert 'name = "mine"' in (project / "jobs" / "mine.toml").read_text()


def test_an_sbatch_that_does_not_answer_is_reported(
    slurm: FakeSlurm, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch, "SLOW_SECONDS", 0.1)
    slurm.write("sbatch.hook", "sleep 0.5")
    done = kit("submit", "job", "--cluster", "fake", "--set", f"cluster.python={sys.executable}", "--parsable")
    assert (done.returncode, done.stdout) == (0, "12\n")
    assert "sbatch has not answered yet; waiting up to 300 s" in done.stderr
