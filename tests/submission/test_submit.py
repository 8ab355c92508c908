"""Submitting: the bytes, the folders, the environment; and what is left when it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpc_kit
from hpc_kit.errors import RecordError, SlurmUnavailable, SpecError, SubmitRefused
from hpc_kit.run_files import write_whole
from hpc_kit.runs.record import encode_record
from hpc_kit.script.render import render, render_resolved
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.spec import load
from hpc_kit.spec.resolve import resolve
from hpc_kit.submission import lost_answers, provenance, sbatch, staging
from hpc_kit.submission import submit as submission
from hpc_kit.submission.deferred_signals import defer_signals
from hpc_kit.submission.sbatch import AnswerLost, SubmitInterrupted
from hpc_kit.submission.staging import STAGING
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm


def tree(folder: Path) -> list[str]:
    """All files and folders but the shell files of scripts, which a refused job leaves to other jobs."""
    paths = [path for path in folder.rglob("*") if ".shell" not in path.parts]
    return sorted(
        str(path.relative_to(folder))
        for path in paths
        if not path.is_dir() or [each.name for each in path.iterdir()] != [".shell"]
    )


def record_of(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run / "record.json").read_text())
    return data


def test_sbatch_gets_the_very_bytes_that_render_prints(slurm: FakeSlurm, project: Path) -> None:
    changes = {"resources.comment": 'it\'s "odd"', "env.A": "two words"}
    job = submit("job", "fake", set=changes)
    assert job.job_id == "12"
    assert slurm.told("12.script") == render("job", "fake", set=changes)
    assert (project / "runs/job/12/script.sbatch").read_text() == slurm.told("12.script")


def test_sbatch_is_given_the_script_alone_in_the_projects_folder(slurm: FakeSlurm, project: Path) -> None:
    submit("job", "fake")
    (argument,) = slurm.told("sbatch.argv").splitlines()
    assert Path(argument).parent.parent == project / "runs/job"
    assert slurm.told("sbatch.cwd").strip() == str(project)


def test_the_log_folder_is_there_before_sbatch_runs(slurm: FakeSlurm, project: Path) -> None:
    slurm.says("sbatch.hook", 'ls -d runs/job logs >"$FAKE/seen"')
    submit("job", "fake", set={"resources.output": "logs/%x-%j.log"})
    assert slurm.told("seen") == "logs\nruns/job\n"


def test_chdir_moves_logs_and_runs(slurm: FakeSlurm, project: Path) -> None:
    job = submit("job", "fake", set={"resources.chdir": "elsewhere"})
    assert job.run.folder == project / "elsewhere/runs/job/12"
    assert job.run.batch_log == project / "elsewhere/runs/job/12.log"
    assert not (project / "runs").exists()


def test_a_script_that_bash_cannot_read_is_refused(slurm: FakeSlurm, project: Path) -> None:
    with pytest.raises(SpecError, match="not valid bash") as error:
        submit("job", "fake", set={"setup": ["if true; then"]})
    assert "syntax error" in str(error.value.found)
    assert not (project / "runs").exists()
    assert not (slurm.folder / "last").exists()
    assert submit("job", "fake", set={"setup": ["shopt -s extglob", "ls !(*.py) || true"]}).job_id == "12"


def test_a_log_folder_named_by_the_jobs_id_is_refused(slurm: FakeSlurm, project: Path) -> None:
    with pytest.raises(SpecError, match="cannot exist when the job starts"):
        submit("job", "fake", set={"resources.output": "logs/%j/out.log"})
    assert tree(project) == ["env", "env/fake.toml", "jobs", "jobs/job.toml", "templates"]


def test_a_log_folder_that_cannot_be_written_to_is_refused(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "logs").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "logs")
    with pytest.raises(RecordError, match="cannot be written to"):
        submit("job", "fake", set={"resources.output": "logs/%j.log"})


def test_a_log_that_is_a_folder_is_refused(slurm: FakeSlurm, project: Path) -> None:
    (project / "logs").mkdir()
    with pytest.raises(SpecError, match="logs is a folder"):
        submit("job", "fake", set={"resources.output": "logs"})


def test_a_log_may_be_a_device(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/dev")
    assert submit("job", "fake", set={"resources.output": "/dev/null"}).job_id == "12"


def test_a_surrounding_jobs_variables_do_not_reach_sbatch(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "8", "SBATCH_PARTITION": "x", "RANK": "3", "SLURM_CONF": "/c"}
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    submit("job", "fake")
    assert {name for name in slurm.sbatch_environ() if name in inherited} == {"SLURM_CONF"}


def test_the_users_own_defaults_for_sbatch_stay(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    submit("job", "fake")
    assert slurm.sbatch_environ()["SBATCH_ACCOUNT"] == "mine"


def test_what_the_script_says_holds_against_the_users_defaults_for_sbatch(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"SBATCH_PARTITION": "debug", "SBATCH_OUTPUT": "/x", "SBATCH_WAIT": "", "SBATCH_QOS": "low"}
    for name, value in defaults.items():
        monkeypatch.setenv(name, value)
    resolved = resolve(load.load("job", "fake", set={"resources.partition": "gpu"}))
    done = submission.submit_script(resolved, render_resolved(resolved, root=project), root=project)
    assert {name for name in slurm.sbatch_environ() if name in defaults} == {"SBATCH_QOS"}
    assert done.notes == (
        "ignoring SBATCH_OUTPUT=/x of the environment: the script has --output=runs/job/%j.log",
        "ignoring SBATCH_PARTITION=debug of the environment: the script has --partition=gpu",
        "ignoring SBATCH_WAIT of the environment: sbatch would return only after the end of the job",
    )
    assert not defaults.keys() - {"SBATCH_QOS"} & record_of(done.run_folder)["environment"].keys()


def test_the_record_says_what_was_run_and_with_what(slurm: FakeSlurm, project: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("WANDB_API_KEY", "geheim")
    monkeypatch.setenv("NCCL_SECRET", "geheim")
    job = submit("job", "fake", set={"resources.nodes": 1})
    record = record_of(job.run.folder)
    assert (record["format"], record["job_id"], record["job_name"]) == (1, "12", "job")
    assert (record["cluster"], record["slurm"], record["root"]) == ("fake", "system", str(project))
    assert record["command_line"] == sys.argv
    assert record["resolved"]["job"]["resources"]["nodes"] == 1
    assert record["resolved"]["cluster"]["python"] == "/opt/python"
    assert record["logs"]["batch"] == "%j.log"
    assert record["environment"]["NCCL_DEBUG"] == "INFO"
    assert "geheim" not in (job.run.folder / "record.json").read_text()
    assert record["end"] is None


def test_the_record_knows_the_installed_packages(slurm: FakeSlurm, project: Path) -> None:
    import importlib.metadata

    job = submit("job", "fake", set={"cluster.python": sys.executable})
    packages = record_of(job.run.folder)["packages"]
    assert packages["submitit"] == importlib.metadata.version("submitit")


def test_records_are_private_and_latest_points_to_the_newest(slurm: FakeSlurm, project: Path) -> None:
    for _ in range(2):
        job = submit("job", "fake")
    assert (project / "runs/job/latest").readlink() == Path("13")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (job.run.folder, *job.run.folder.iterdir())}
    assert modes == {"13": 0o700, "record.json": 0o600, "script.sbatch": 0o600}
    assert (project / "runs").stat().st_mode & 0o777 == 0o700
    assert tree(project / "runs/job") == sorted(
        ["12", "12/record.json", "12/script.sbatch", "13", "13/record.json", "13/script.sbatch", "latest"]
    )


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.oracle("git")
def test_the_commit_and_what_differs_from_it_are_kept(slurm: FakeSlurm, project: Path) -> None:
    git(project, "init", "-q")
    (project / "train.py").write_bytes(b"a = 1\n\0\xff")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "first")
    clean = submit("job", "fake")
    kept = record_of(clean.run.folder)["git"]
    commit = git(project, "rev-parse", "HEAD")
    assert kept == {
        "root": str(project),
        "commit": commit,
        "branch": "main",
        "dirty": False,
        "patch": None,
        "untracked": ["env/", "jobs/"],
        "note": None,
    }
    (project / "train.py").write_bytes(b"a = 2\n\0\xfe")
    dirty = submit("job", "fake")
    kept = record_of(dirty.run.folder)["git"]
    assert (kept["dirty"], kept["patch"]) == (True, "git.patch")
    git(project, "checkout", "-q", "train.py")
    git(project, "apply", str(dirty.run.folder / "git.patch"))
    assert (project / "train.py").read_bytes() == b"a = 2\n\0\xfe"


@pytest.mark.oracle("git")
def test_files_that_git_does_not_know_are_named_and_runs_are_not(slurm: FakeSlurm, project: Path) -> None:
    (project / ".gitignore").write_text("*.pt\n")
    (project / "notes").mkdir()
    for name in ("new.py", "model.pt", "notes/a b.txt"):
        (project / name).touch()
    git(project, "init", "-q")
    git(project, "add", "env", "jobs", ".gitignore")
    git(project, "commit", "-qm", "first")
    submit("job", "fake")
    kept = record_of(submit("job", "fake").run.folder)["git"]
    assert (kept["dirty"], kept["untracked"]) == (False, ["new.py", "notes/"])


@pytest.mark.oracle("git")
def test_a_project_without_a_commit_is_no_error(slurm: FakeSlurm, project: Path) -> None:
    git(project, "init", "-q")
    assert record_of(submit("job", "fake").run.folder)["git"]["note"] == "no commit here, or git did not answer"


@pytest.mark.parametrize(
    ("variables", "option", "taken"),
    [
        ({}, None, "here"),
        ({}, "here", "here"),
        ({"SLURM_CLUSTERS": "there"}, None, "there"),
        ({"SLURM_CLUSTERS": "there", "SBATCH_CLUSTERS": "here"}, None, "there"),
        ({"SLURM_CLUSTERS": "there"}, "There", "there"),
        ({"SBATCH_CLUSTERS": "there"}, None, None),
        ({"SLURM_CLUSTERS": "there"}, "here", None),
        ({}, "there", None),
        ({"SLURM_CLUSTERS": "here,there"}, "There", "there"),
        ({"SLURM_CLUSTERS": "all"}, "there", "there"),
        ({"SLURM_CLUSTERS": "there,here"}, "here,there", "here,there"),
        ({"SLURM_CLUSTERS": "there", "SLURM_JOB_ID": "7"}, None, "there"),
    ],
)
def test_a_job_goes_to_the_cluster_that_is_asked_for_it_afterwards(
    slurm: FakeSlurm,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    option: str | None,
    taken: str | None,
) -> None:
    (project / "slurm.conf").write_text("# ClusterName=old\n clustername = Here # ours\n")
    for name, value in {**variables, "SLURM_CONF": str(project / "slurm.conf")}.items():
        monkeypatch.setenv(name, value)
    more: dict[str, object] = {"resources.clusters": option} if option else {}
    if taken is not None:
        assert record_of(submit("job", "fake", set=more).run.folder)["slurm_cluster"] == taken
        return
    with pytest.raises(SpecError, match="sbatch would give the job to cluster") as error:
        submit("job", "fake", set=more)
    wanted = option or "there"
    assert error.value.remedy == f"use one cluster for all commands: export SLURM_CLUSTERS={wanted}"
    assert not (slurm.folder / "last").exists()
    assert not (project / "runs").exists()
    monkeypatch.setenv("SLURM_CLUSTERS", wanted)
    assert record_of(submit("job", "fake", set=more).run.folder)["slurm_cluster"] == wanted


def test_without_a_repository_or_without_git_the_record_says_which(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record_of(submit("job", "fake").run.folder)["git"]["note"] == "no git repository here"
    (project / ".git").mkdir()
    monkeypatch.setattr("hpc_kit.submission.provenance._GIT", ("no-such-git",))
    note = record_of(submit("job", "fake").run.folder)["git"]["note"]
    assert note == "git cannot be run here: No such file or directory"


@pytest.mark.oracle("git")
def test_a_patch_beyond_all_measure_is_left_out_and_said_so(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_kit.submission.provenance.MAX_PATCH", 1000)
    git(project, "init", "-q")
    (project / "train.py").write_text("")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "first")
    (project / "train.py").write_text("line\n" * 100_000)
    kept = record_of(submit("job", "fake").run.folder)["git"]
    assert (kept["dirty"], kept["patch"]) == (None, None)
    assert "more than 1000 bytes" in kept["note"]


REFUSED = "sbatch: error: Batch job submission failed: {}\n"


RENDER = "hpc-kit render job --cluster fake --set resources.partition=mian"


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (
            "sbatch: error: invalid partition specified: mian\n" + REFUSED.format("Invalid partition name specified"),
            "invalid partition specified: mian\nBatch job submission failed: Invalid partition name specified",
            "use --partition=main",
        ),
        (
            REFUSED.format("Invalid account or account/partition combination specified"),
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "use --account=... of yours: sacctmgr show associations user=$USER format=account%30,partition%20,qos%40",
        ),
        (
            "sbatch: error: site plugin: no weekend jobs\n",
            "site plugin: no weekend jobs",
            f"change what the message names; print the script: {RENDER}",
        ),
    ],
)
def test_sbatchs_own_words_come_first_and_then_ours(
    slurm: FakeSlurm, project: Path, error: str, found: str, remedy: str
) -> None:
    slurm.says("sbatch.error", error)
    slurm.says("sinfo.out", "main\ngpu\n")
    with pytest.raises(SubmitRefused) as refused:
        submit("job", "fake", set={"resources.partition": "mian"})
    assert (refused.value.found, refused.value.remedy) == (found, remedy)
    assert refused.value.exit_status == 1
    assert tree(project) == ["env", "env/fake.toml", "jobs", "jobs/job.toml", "templates"]


def test_a_refusal_leaves_what_was_there_before(slurm: FakeSlurm, project: Path) -> None:
    submit("job", "fake")
    before = tree(project)
    slurm.says("sbatch.error", "sbatch: error: no\n")
    with pytest.raises(SubmitRefused):
        submit("job", "fake")
    assert tree(project) == before


def test_a_controller_that_is_away_is_not_a_refusal(slurm: FakeSlurm, project: Path) -> None:
    slurm.says(
        "sbatch.error",
        REFUSED.format("Unable to contact slurm controller (connect failure)"),
    )
    with pytest.raises(SlurmUnavailable, match="was not submitted"):
        submit("job", "fake")
    assert "runs" not in tree(project)


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "AWAY_SECONDS", "LOOK_PAUSE"):
        monkeypatch.setattr(lost_answers, name, 0)


LOST = REFUSED.format("Socket timed out on send/recv operation")


def test_a_job_whose_answer_was_lost_is_found_again(slurm: FakeSlurm, project: Path) -> None:
    slurm.says("sbatch.error", LOST)
    slurm.says("sbatch.hook", 'echo "${!#}" >"$FAKE/40.path"')
    job = submit("job", "fake")
    assert job.job_id == "40"
    assert record_of(project / "runs/job/40")["job_id"] == "40"


def lose(slurm: FakeSlurm, project: Path) -> Path:
    """Submit, and lose the answer; the folder in which the submission waits."""
    slurm.says("sbatch.error", LOST)
    with pytest.raises(AnswerLost) as error:
        submit("job", "fake")
    (slurm.folder / "sbatch.error").unlink()
    (staged,) = (project / "runs/job").glob(".submitting-*")
    assert sorted(path.name for path in staged.iterdir()) == ["answer-lost", "record.json", "script.sbatch"]
    assert staged.name in str(error.value.remedy)
    assert error.value.found == "Batch job submission failed: Socket timed out on send/recv operation"
    return staged


def test_what_the_user_filters_the_queue_by_hides_no_lost_job(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = slurm.bin / "squeue"
    squeue.write_text(squeue.read_text().replace("\n", '\n[ -n "$SQUEUE_PARTITION" ] && exit 0\n', 1))
    monkeypatch.setenv("SQUEUE_PARTITION", "gpu")
    slurm.says("sbatch.error", LOST)
    slurm.says("sbatch.hook", 'echo "${!#}" >"$FAKE/40.path"')
    assert submit("job", "fake").job_id == "40"


def test_a_job_that_slurm_takes_late_is_waited_for(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(_: float) -> None:
        if (slurm.folder / "late").exists():
            (slurm.folder / "late").rename(slurm.folder / "41.path")

    slurm.says("sbatch.error", LOST)
    slurm.says("sbatch.hook", 'echo "${!#}" >"$FAKE/late"')
    monkeypatch.setattr(lost_answers, "LOOK_SECONDS", 60)
    monkeypatch.setattr(lost_answers, "AWAY_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", pause)
    assert submit("job", "fake").job_id == "41"


def test_ctrl_c_while_it_is_looked_for_keeps_what_would_find_it(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(script: Path, client: SlurmClient) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lost_answers, "find_job", interrupted)
    assert lose(slurm, project).is_dir()


def test_repeated_after_a_lost_answer_it_is_the_same_job(slurm: FakeSlurm, project: Path) -> None:
    staged = lose(slurm, project)
    slurm.says("40.path", f"{staged}/script.sbatch")
    again = submit("job", "fake")
    assert (again.job_id, again.found_again) == ("40", True)
    assert record_of(project / "runs/job/40")["job_id"] == "40"
    assert (project / "runs/job/latest").resolve().name == "40"
    assert not staged.exists()
    third = submit("job", "fake")
    assert (third.job_id, third.found_again) == ("12", False)


def test_a_lost_job_that_squeue_has_forgotten_is_found_in_the_accounting(slurm: FakeSlurm, project: Path) -> None:
    staged = lose(slurm, project)
    sacct = '#!/bin/bash\nprintf "%s\\n" "$@" >"$FAKE/sacct.argv"\n'
    (slurm.bin / "sacct").write_text(f"{sacct}echo '40|COMPLETED|sbatch {staged}/script.sbatch'\n")
    again = submit("job", "fake")
    assert (again.job_id, again.found_again) == ("40", True)
    assert "--format=JobID,State,SubmitLine" in slurm.told("sacct.argv").splitlines()


@pytest.mark.parametrize("changed", [{"state": "FAILED"}, {"nodes": 1}])
def test_another_script_or_a_failed_job_is_submitted_and_the_lost_one_recorded(
    slurm: FakeSlurm, project: Path, changed: dict[str, object]
) -> None:
    staged = lose(slurm, project)
    slurm.says("40.path", f"{staged}/script.sbatch")
    slurm.says("state", str(changed.get("state", "RUNNING")))
    again = submit("job", "fake", set={"resources.nodes": changed.get("nodes", 2)})
    assert (again.job_id, again.found_again) == ("12", False)
    assert record_of(project / "runs/job/40")["job_id"] == "40"


def test_what_slurm_has_never_taken_is_dropped_and_what_it_may_have_forgotten_kept(
    slurm: FakeSlurm, project: Path
) -> None:
    staged = lose(slurm, project)
    assert submit("job", "fake").job_id == "12"
    assert not staged.exists()
    staged = lose(slurm, project)
    # A site's controller may forget what has ended at once.
    slurm.says("min_job_age", "2")
    aged = time.time() - 3
    os.utime(staged, (aged, aged))
    assert submit("job", "fake").job_id == "13"
    assert (project / "runs/job" / staged.name.replace(".submitting", "lost") / "record.json").is_file()


def test_while_slurm_does_not_tell_nothing_is_submitted_again(slurm: FakeSlurm, project: Path) -> None:
    staged = lose(slurm, project)
    slurm.says("squeue.error", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmUnavailable, match="does not tell yet what became of it"):
        submit("job", "fake")
    assert staged.is_dir()
    assert "last" not in {path.name for path in slurm.folder.iterdir()}


def test_a_submission_of_another_process_is_left_alone(slurm: FakeSlurm, project: Path) -> None:
    other = project / "runs/job/.submitting-abc"
    other.mkdir(parents=True)
    slurm.says("41.path", f"{other}/script.sbatch")
    assert submit("job", "fake").job_id == "12"
    assert other.is_dir()


def test_an_answer_in_a_sites_own_words_is_understood(slurm: FakeSlurm) -> None:
    hook = 'echo "Welcome to job 7 of the day"; echo "13;cluster2"; cp -- "$1" "$FAKE/13.script"; exit 0'
    slurm.says("sbatch.hook", hook)
    assert submit("job", "fake").job_id == "13"


def test_a_job_that_was_told_is_there_however_sbatch_ends(slurm: FakeSlurm, project: Path) -> None:
    hook = 'echo "job 7 of the day"; echo "Submitted batch job 13"; cp -- "$1" "$FAKE/13.script"; exit 2'
    slurm.says("sbatch.hook", hook)
    assert submit("job", "fake").job_id == "13"
    assert record_of(project / "runs/job/13")["job_id"] == "13"


def test_without_slurm_nothing_is_made(project: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmUnavailable, match="there is no Slurm here, and cluster fake needs one"):
        submit("job", "fake")
    assert not (project / "runs").exists()


def test_a_runs_folder_that_cannot_be_made_is_met_before_sbatch(slurm: FakeSlurm, project: Path) -> None:
    (project / "runs").write_text("")
    with pytest.raises(RecordError, match="cannot make the folder"):
        submit("job", "fake")
    assert not (slurm.folder / "sbatch.argv").exists()


def test_a_full_disk_is_met_before_sbatch(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *arguments: Any) -> int:
        if STAGING in str(path):
            raise OSError(28, "No space left on device")
        return open_file(path, *arguments)

    open_file = os.open
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(RecordError, match="cannot write to") as error:
        submit("job", "fake")
    assert error.value.found == "No space left on device"
    assert not (slurm.folder / "sbatch.argv").exists()
    assert not (project / "runs").exists()


def test_a_record_that_fails_after_sbatch_says_that_the_job_is_there(slurm: FakeSlurm, project: Path) -> None:
    slurm.says("sbatch.hook", "mkdir runs/job/latest")
    with pytest.raises(RecordError, match="job 12 is submitted") as error:
        submit("job", "fake")
    assert "scancel 12" in str(error.value.remedy)


def test_a_disk_that_fills_up_after_sbatch_leaves_the_record_as_it_was_and_no_lost_answer(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, mode: int = 0o600, *, lasting: bool = True) -> None:
        if lasting:
            raise OSError(28, "No space left on device")
        write_whole(path, data, mode, lasting=False)

    monkeypatch.setattr(staging, "write_whole", full)
    with pytest.raises(RecordError, match="job 12 is submitted, but its record could not be written") as error:
        submit("job", "fake")
    assert f"partial record: {project / 'runs/job/12'}" in str(error.value.remedy)
    assert tree(project / "runs/job") == ["12", "12/record.json", "12/script.sbatch", "latest"]
    assert record_of(project / "runs/job/12")["job_name"] == "job"


def test_a_folder_that_the_job_makes_unseen_takes_the_record_in(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project / "runs/job/12"
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path != made and exists(path))  # as NFS may have it
    slurm.says("sbatch.hook", f"mkdir {made}; echo there >{made}/rank-0.log")
    assert submit("job", "fake").job_id == "12"
    assert sorted(path.name for path in made.iterdir()) == ["rank-0.log", "record.json", "script.sbatch"]
    assert not list((project / "runs/job").glob(f"{STAGING}*"))


def test_a_lost_submission_that_a_full_disk_kept_from_being_recorded_stays_one(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = lose(slurm, project)
    slurm.says("40.path", f"{staged}/script.sbatch")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "write_whole", full)
        with pytest.raises(RecordError, match="job 40 is found again"):
            submit("job", "fake")
    assert submit("job", "fake").job_id == "40"
    assert sorted(path.name for path in (project / "runs/job/40").iterdir()) == ["record.json", "script.sbatch"]


def test_ctrl_c_while_the_files_are_written_leaves_none(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit("job", "fake")
    assert not (project / "runs").exists()


def test_an_earlier_run_of_the_same_id_is_set_aside(slurm: FakeSlurm, project: Path) -> None:
    old = submit("job", "fake").run
    (old.folder / "summary.json").write_text('{"loss": 1}')
    old.batch_log.write_text("old")
    for path in (*old.folder.iterdir(), old.batch_log):
        os.utime(path, (1, 1))
    slurm.says("last", "11")
    new = submit("job", "fake").run
    assert new.folder == old.folder
    assert sorted(path.name for path in new.folder.iterdir()) == ["record.json", "script.sbatch"]
    assert not new.batch_log.exists()
    (aside,) = (project / "runs/job").glob("12.before-*")
    assert sorted(path.name for path in aside.iterdir()) == ["12.log", "record.json", "script.sbatch", "summary.json"]


def test_ctrl_c_while_sbatch_works_loses_no_job(slurm: FakeSlurm, project: Path, monkeypatch: Any) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submission, "import_module", interrupted)
    with pytest.raises(SubmitInterrupted, match="job 12 is submitted and goes on") as stopped:
        submit("job", "fake")
    assert stopped.value.job_id == "12"
    assert (project / "runs/job/12/record.json").is_file()


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def behind(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with Ctrl-C before it returns."""

    def called(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        ctrl_c()
        return result

    return called


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (sbatch, "_start"),  # sbatch runs, and nobody holds its handle yet
        (sbatch, "run_sbatch"),
        (submission, "name_pickles"),
        (provenance.GitQuery, "state"),
        (staging, "_set_aside"),
        (staging, "replace_symlink"),
        (staging, "_move"),
    ],
)
def test_ctrl_c_at_any_moment_behind_the_start_of_sbatch_keeps_the_record_and_is_told(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    monkeypatch.setattr(place, name, behind(getattr(place, name)))
    with pytest.raises(SubmitInterrupted, match="job 12 is submitted and goes on"):
        submit("job", "fake")
    assert record_of(project / "runs/job/12")["job_id"] == "12"
    assert not list((project / "runs/job").glob(f"{STAGING}*"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_sbatch_is_started_submits_nothing(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "encode_record", behind(encode_record))
    with pytest.raises(KeyboardInterrupt) as stopped:
        submit("job", "fake")
    assert not isinstance(stopped.value, SubmitInterrupted)
    assert not (project / "runs").exists()
    assert not (slurm.folder / "last").exists()


def test_a_second_ctrl_c_gives_up_an_sbatch_that_hangs(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.says("sbatch.hook", "kill -INT $PPID; while sleep 0.1; do kill -INT $PPID; done")
    with pytest.raises(AnswerLost, match="did not tell whether it took job"):
        submit("job", "fake")
    (own,) = (project / "runs/job").glob(f"{STAGING}*")
    assert staging.is_unanswered(own)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_while_sbatch_works_loses_no_record(slurm: FakeSlurm, project: Path, number: int) -> None:
    slurm.says("sbatch.hook", f"kill -{int(number)} $PPID; sleep 0.5\n")
    (project / "train.py").touch()
    words = [sys.executable, "-m", "hpc_kit", "submit", "job", "--cluster", "fake"]
    words += ["--set", f"cluster.python={sys.executable}"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == -number, done.stderr
    assert done.stdout.startswith("job     12 ")
    assert record_of(project / "runs/job/12")["job_id"] == "12"
    assert not list((project / "runs/job").glob(".submitting-*"))


def test_a_signal_that_is_ignored_or_has_a_handler_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, interrupt)
    try:
        with defer_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_git_is_waited_for_keeps_the_record(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance.GitQuery, "state", interrupt)
    with pytest.raises(SubmitInterrupted, match="job 12 is submitted and goes on"):
        submit("job", "fake")
    record = record_of(project / "runs/job/12")
    assert (record["job_id"], record["git"]["note"]) == ("12", "git was not waited for: Ctrl-C")
    assert not list((project / "runs/job").glob(".submitting-*"))


def test_a_job_is_told_before_git_is_waited_for_and_recorded_whoever_is_told(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve(load.load("job", "fake"))
    text = render_resolved(resolved, root=project)
    told: list[str] = []

    def state(git: provenance.GitQuery) -> provenance.GitState:
        told.append("git")
        git.stop()
        return provenance.GitState()

    monkeypatch.setattr(provenance.GitQuery, "state", state)
    submission.submit_script(resolved, text, root=project, on_submitted=lambda done: told.append(done.job_id))
    assert told == ["12", "git"]
    with pytest.raises(SubmitInterrupted, match="job 13"):
        submission.submit_script(resolved, text, root=project, on_submitted=interrupt)
    assert record_of(project / "runs/job/13")["job_id"] == "13"


def test_bytes_that_are_no_text_are_refused_in_a_script_and_spelt_out_in_a_record(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_X", "\udcff")
    with pytest.raises(SpecError, match="not UTF-8") as error:
        submit("job", "fake", set={"env.NAME": "caf\udce9"})
    assert str(error.value.found).endswith("env.NAME=caf\\xe9")
    assert not (project / "runs").exists()
    assert record_of(submit("job", "fake").run.folder)["environment"]["NCCL_X"] == "\\xff"


def test_whatever_stops_it_before_sbatch_nothing_is_left(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "encode_record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        submit("job", "fake")
    assert not (project / "runs").exists()


def test_a_second_ctrl_c_does_not_wait_for_an_sbatch_that_hangs(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    slurm.says("sbatch.hook", "exec sleep 60")
    monkeypatch.setattr(submission, "import_module", interrupted)
    monkeypatch.setattr(sbatch, "INTERRUPTED_SECONDS", 0.1)
    with pytest.raises(AnswerLost, match="did not tell whether it took job"):
        submit("job", "fake")


def test_ctrl_c_while_it_is_given_up_keeps_what_finds_the_job_later(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.says("sbatch.hook", "exec sleep 60")
    monkeypatch.setattr(sbatch, "SBATCH_SECONDS", 0.2)
    killed = sbatch._kill

    def twice(process: subprocess.Popen[str]) -> tuple[str, str]:
        killed(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(sbatch, "_kill", twice)
    with pytest.raises(KeyboardInterrupt):
        submit("job", "fake")
    (own,) = (project / "runs" / "job").glob(f"{staging.STAGING}*")
    assert staging.is_unanswered(own)
    assert (own / "record.json").exists()


def test_an_sbatch_that_cannot_be_started_leaves_nothing(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(slurm.bin))
    (slurm.bin / "sbatch").write_text("#!/no/such/interpreter\n")
    with pytest.raises(SlurmUnavailable, match="cannot run sbatch"):
        submit("job", "fake")
    assert "runs" not in tree(project)


@pytest.mark.parametrize("hook", ["exec sleep 60", "sleep 60; true"])
def test_an_sbatch_that_hangs_is_given_up_with_all_that_it_has_started(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    slurm.says("sbatch.hook", hook)
    monkeypatch.setattr(sbatch, "_KILLED_SECONDS", 30)
    monkeypatch.setattr(sbatch, "SBATCH_SECONDS", 0.2)
    with pytest.raises(AnswerLost, match="did not tell whether it took job"):
        submit("job", "fake")


def test_what_the_command_line_needs_does_not_import_submitit() -> None:
    modules = [
        "submission.submit",
        "runs.follow",
        "runs.status",
        "runs.outcome",
        "runs.run_folders",
        "spec.cluster_client",
    ]
    imports = "; ".join(f"import hpc_kit.{name}" for name in modules)
    program = f"{imports}; import sys; print([name for name in ('submitit', 'torch', 'jinja2') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_public_name_is_a_function_also_after_its_package_was_imported(slurm: FakeSlurm) -> None:
    assert hpc_kit.submit("job", "fake").job_id == "12"
    assert hpc_kit.submit("job", "fake").job_id == "13"
    # No room has the name of a public function, which an import of the room would replace.
    rooms = {path.stem for path in Path(hpc_kit.__file__).parent.iterdir()}
    assert not rooms & set(hpc_kit.__all__)


@pytest.mark.parametrize("name", ["two words", "it's", "größe", "a#b", "100%", "$HOME"])
def test_odd_names_keep_their_logs(slurm: FakeSlurm, project: Path, name: str) -> None:
    job = submit("job", "fake", set={"name": name, "cluster.runs": "my runs"})
    assert job.run.batch_log == project / "my runs" / name / "12.log"
    assert job.run.rank_log(3) == project / "my runs" / name / "12" / "rank-3.log"
