"""Submission: the bytes for sbatch, the folders, the environment, and the files that remain after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hpc_kit
from hpc_kit.errors import RecordError, SlurmUnavailable, SpecError, SubmitRefused
from hpc_kit.run_files import write_whole
from hpc_kit.runs.record import RecordedGit, encode_record
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


UNTOUCHED = ["env", "env/fake.toml", "jobs", "jobs/job.toml", "templates", "train.py"]


def record_of(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run / "record.json").read_text())
    return data


def test_sbatch_gets_the_bytes_that_render_prints(slurm: FakeSlurm, project: Path) -> None:
    changes = {"resources.comment": 'it\'s "odd"', "env.A": "two words"}
    job = submit("job", "fake", set=changes)
    assert job.job_id == "12"
    assert slurm.read("12.script") == render("job", "fake", set=changes)
    assert (project / "runs/job/12/script.sbatch").read_text() == slurm.read("12.script")


def test_a_program_without_a_job_file_is_submitted_as_on_the_command_line(slurm: FakeSlurm, project: Path) -> None:
    (project / "train.py").write_text("")
    job = submit(cluster="fake", command=["python", "train.py"], nodes=2, ranks_per_node=3)
    assert (job.run.name, job.run.record and job.run.record.resolved.world_size) == ("train", 6)
    script = slurm.read("12.script")
    assert "#SBATCH --nodes=2\n" in script
    assert "-m hpc_kit.runtime train.py" in script


def test_nodes_and_ranks_replace_those_of_a_job_file(slurm: FakeSlurm, project: Path) -> None:
    job = submit("job", "fake", nodes=3, ranks_per_node=1)
    assert job.run.record and job.run.record.resolved.world_size == 3


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"job": ["python", "t.py"]}, r"submit\(command=\['python', 't.py'\]\)"),
        ({"command": "python t.py"}, r"submit\(command=\['python', 't.py'\]\)"),
        ({"job": "job", "command": ["t.py"]}, "either a job or a command"),
        ({}, 'submit\\("ddp_4node"\\)'),
        ({"job": 3}, 'submit\\("ddp_4node"\\)'),
    ],
)
def test_a_wrong_argument_is_refused_with_the_call_that_works(arguments: dict[str, Any], remedy: str) -> None:
    with pytest.raises(SpecError, match=remedy):
        submit(**arguments)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"command": ["python", "missing.py"]}, "no program file missing.py"),
        ({"setup": ["export MASTER_PORT=29500", "srun --ntasks=99 true"]}, r"\(KIT\d+\)"),
    ],
)
def test_a_job_that_the_command_line_refuses_is_refused_unless_check_is_false(
    slurm: FakeSlurm, project: Path, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(SpecError, match=what):
        submit("job", "fake", set=changes)
    assert tree(project) == UNTOUCHED
    assert submit("job", "fake", set=changes, check=False).job_id == "12"


def test_sbatch_gets_only_the_script_in_the_folder_of_the_project(slurm: FakeSlurm, project: Path) -> None:
    submit("job", "fake")
    (argument,) = slurm.read("sbatch.argv").splitlines()
    assert Path(argument).parent.parent == project / "runs/job"
    assert slurm.read("sbatch.cwd").strip() == str(project)


def test_the_log_folder_exists_before_sbatch_runs(slurm: FakeSlurm, project: Path) -> None:
    slurm.write("sbatch.hook", 'ls -d runs/job logs >"$FAKE/seen"')
    submit("job", "fake", set={"resources.output": "logs/%x-%j.log"})
    assert slurm.read("seen") == "logs\nruns/job\n"


def test_chdir_moves_logs_and_runs(slurm: FakeSlurm, project: Path) -> None:
    (project / "elsewhere").mkdir()
    (project / "elsewhere/train.py").touch()
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
    with pytest.raises(SpecError, match="no folder has this name before the job runs"):
        submit("job", "fake", set={"resources.output": "logs/%j/out.log"})
    assert tree(project) == UNTOUCHED


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


def test_the_users_defaults_for_sbatch_are_kept(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    submit("job", "fake")
    assert slurm.sbatch_environ()["SBATCH_ACCOUNT"] == "mine"


def test_the_script_has_priority_over_the_users_defaults_for_sbatch(
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


def test_the_record_contains_job_command_and_versions(slurm: FakeSlurm, project: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("WANDB_API_KEY", "geheim")
    monkeypatch.setenv("NCCL_SECRET", "geheim")
    job = submit("job", "fake", set={"resources.nodes": 1})
    record = record_of(job.run.folder)
    assert (record["format"], record["job_id"], record["job_name"]) == (1, "12", "job")
    assert (record["cluster"], record["slurm"], record["root"]) == ("fake", "system", str(project))
    assert record["command_line"] == sys.argv
    assert record["resolved"]["job"]["resources"]["nodes"] == 1
    assert record["resolved"]["cluster"]["python"] == sys.executable
    assert record["logs"]["batch"] == "%j.log"
    assert record["environment"]["NCCL_DEBUG"] == "INFO"
    assert "geheim" not in (job.run.folder / "record.json").read_text()
    assert record["end"] is None


def test_the_record_lists_the_installed_packages(slurm: FakeSlurm, project: Path) -> None:
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
    assert tree(project / "runs/job") == sorted(
        ["12", "12/record.json", "12/script.sbatch", "13", "13/record.json", "13/script.sbatch", "latest"]
    )


def test_a_sticky_folder_keeps_the_latest_of_another_user(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(link: Path, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(staging, "replace_symlink", refuse)
    job = submit("job", "fake")
    assert record_of(job.run.folder)["job_id"] == job.job_id
    assert tree(project / "runs/job") == ["12", "12/record.json", "12/script.sbatch"]


def test_secrets_are_masked_in_record_and_patch(slurm: FakeSlurm, project: Path, monkeypatch: Any) -> None:
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    token = f"hf_{'a1' * 17}"
    code = 'pad_token="<|endoftext|>", next_token="greedy_search", secret="train_images_v1", ask_password="before2022"'
    with (project / "jobs" / "job.toml").open("a") as file:
        file.write(f'# {token} password = "hunter2hunter2" pg://me:hunter2@db/x\n# {code}\n')
    monkeypatch.setattr(sys, "argv", ["hpc-kit", "submit", "job", "--", "--api-key=hunter2", "--password", "hunter2"])
    run = submit("job", "fake").run.folder
    for name in ("record.json", "git.patch"):
        text = (run / name).read_text()
        assert "***" in text
        assert "hunter2" not in text
        assert token not in text
    assert code in (run / "git.patch").read_text()
    assert "git.patch contains *** instead of secrets" in json.loads((run / "record.json").read_text())["git"]["note"]


def test_the_record_keeps_a_value_that_may_be_a_secret(slurm: FakeSlurm, project: Path) -> None:
    # Another submission of the run renders its script from the record.
    job = submit("job", "fake", set={"env.MY_TOKEN": "hunter2", "command": ["python", "train.py", "--token", "llama3"]})
    resolved = record_of(job.run.folder)["resolved"]
    for recorded in (resolved["job"], resolved["requested_job"]):
        assert recorded["command"] == ["python", "train.py", "--token", "llama3"]
        assert recorded["env"]["MY_TOKEN"] == "hunter2"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.oracle("git")
def test_the_commit_and_uncommitted_changes_are_recorded(slurm: FakeSlurm, project: Path) -> None:
    git(project, "init", "-q")
    (project / "table.bin").write_bytes(b"a = 1\n\0\xff")
    git(project, "add", "table.bin", "train.py")
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
    (project / "table.bin").write_bytes(b"a = 2\n\0\xfe")
    dirty = submit("job", "fake")
    kept = record_of(dirty.run.folder)["git"]
    assert (kept["dirty"], kept["patch"]) == (True, "git.patch")
    git(project, "checkout", "-q", "table.bin")
    git(project, "apply", str(dirty.run.folder / "git.patch"))
    assert (project / "table.bin").read_bytes() == b"a = 2\n\0\xfe"


@pytest.mark.oracle("git")
def test_untracked_files_are_listed_without_runs(slurm: FakeSlurm, project: Path) -> None:
    (project / ".gitignore").write_text("*.pt\n")
    (project / "notes").mkdir()
    for name in ("new.py", "model.pt", "notes/a b.txt"):
        (project / name).touch()
    git(project, "init", "-q")
    git(project, "add", "env", "jobs", "train.py", ".gitignore")
    git(project, "commit", "-qm", "first")
    submit("job", "fake")
    kept = record_of(submit("job", "fake").run.folder)["git"]
    assert (kept["dirty"], kept["untracked"]) == (False, ["new.py", "notes/"])


@pytest.mark.oracle("git")
def test_a_repository_without_a_commit_is_accepted(slurm: FakeSlurm, project: Path) -> None:
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
def test_a_job_goes_to_the_cluster_that_is_queried_afterwards(
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


def test_the_record_notes_a_missing_repository_or_git(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record_of(submit("job", "fake").run.folder)["git"]["note"] == "no git repository here"
    (project / ".git").mkdir()
    monkeypatch.setattr("hpc_kit.submission.provenance._GIT", ("no-such-git",))
    note = record_of(submit("job", "fake").run.folder)["git"]["note"]
    assert note == "git cannot be run here: No such file or directory"


@pytest.mark.slow
@pytest.mark.oracle("git")
def test_a_huge_patch_is_omitted_with_a_note(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc_kit.submission.provenance.MAX_PATCH", 1000)
    git(project, "init", "-q")
    (project / "train.py").write_text("")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "first")
    (project / "train.py").write_text("line\n" * 1_000)
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
            f"change the option that the message names; print the script: {RENDER}",
        ),
    ],
)
def test_an_error_quotes_sbatch_first(slurm: FakeSlurm, project: Path, error: str, found: str, remedy: str) -> None:
    slurm.write("sbatch.error", error)
    slurm.write("sinfo.out", "main\ngpu\n")
    with pytest.raises(SubmitRefused) as refused:
        submit("job", "fake", set={"resources.partition": "mian"})
    assert (refused.value.found, refused.value.remedy) == (found, remedy)
    assert refused.value.exit_status == 1
    assert tree(project) == UNTOUCHED


def test_a_refusal_leaves_earlier_files_unchanged(slurm: FakeSlurm, project: Path) -> None:
    submit("job", "fake")
    before = tree(project)
    slurm.write("sbatch.error", "sbatch: error: no\n")
    with pytest.raises(SubmitRefused):
        submit("job", "fake")
    assert tree(project) == before


def test_an_unreachable_controller_is_not_a_refusal(slurm: FakeSlurm, project: Path) -> None:
    slurm.write(
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


def test_a_job_with_a_lost_answer_is_found(slurm: FakeSlurm, project: Path) -> None:
    slurm.write("sbatch.error", LOST)
    slurm.write("sbatch.hook", 'echo "${!#}" >"$FAKE/40.path"')
    job = submit("job", "fake")
    assert job.job_id == "40"
    assert record_of(project / "runs/job/40")["job_id"] == "40"


def lose(slurm: FakeSlurm, project: Path) -> Path:
    """Submit, and lose the answer; the folder in which the submission waits."""
    slurm.write("sbatch.error", LOST)
    with pytest.raises(AnswerLost) as error:
        submit("job", "fake")
    (slurm.folder / "sbatch.error").unlink()
    (staged,) = (project / "runs/job").glob(".submitting-*")
    assert sorted(path.name for path in staged.iterdir()) == ["answer-lost", "record.json", "script.sbatch"]
    assert staged.name in str(error.value.remedy)
    assert error.value.found == "Batch job submission failed: Socket timed out on send/recv operation"
    return staged


def test_squeue_variables_of_the_user_hide_no_lost_job(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = slurm.bin / "squeue"
    squeue.write_text(squeue.read_text().replace("\n", '\n[ -n "$SQUEUE_PARTITION" ] && exit 0\n', 1))
    monkeypatch.setenv("SQUEUE_PARTITION", "gpu")
    slurm.write("sbatch.error", LOST)
    slurm.write("sbatch.hook", 'echo "${!#}" >"$FAKE/40.path"')
    assert submit("job", "fake").job_id == "40"


def test_a_late_job_is_waited_for(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(_: float) -> None:
        if (slurm.folder / "late").exists():
            (slurm.folder / "late").rename(slurm.folder / "41.path")

    slurm.write("sbatch.error", LOST)
    slurm.write("sbatch.hook", 'echo "${!#}" >"$FAKE/late"')
    monkeypatch.setattr(lost_answers, "LOOK_SECONDS", 60)
    monkeypatch.setattr(lost_answers, "AWAY_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", pause)
    assert submit("job", "fake").job_id == "41"


def test_ctrl_c_during_the_search_for_a_lost_job_keeps_its_note(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(script: Path, client: SlurmClient) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lost_answers, "find_job", interrupted)
    assert lose(slurm, project).is_dir()


def test_a_repeated_submission_after_a_lost_answer_returns_the_same_job(slurm: FakeSlurm, project: Path) -> None:
    staged = lose(slurm, project)
    slurm.write("40.path", f"{staged}/script.sbatch")
    again = submit("job", "fake")
    assert (again.job_id, again.found_again) == ("40", True)
    assert record_of(project / "runs/job/40")["job_id"] == "40"
    assert (project / "runs/job/latest").resolve().name == "40"
    assert not staged.exists()
    third = submit("job", "fake")
    assert (third.job_id, third.found_again) == ("12", False)


@pytest.mark.parametrize("command", ["sbatch", "sbatch --exclude=n1,n2", "/usr/bin/sbatch.real --exclude=n1"])
def test_a_lost_job_missing_from_squeue_is_found_by_sacct(slurm: FakeSlurm, project: Path, command: str) -> None:
    staged = lose(slurm, project)
    sacct = '#!/bin/bash\nprintf "%s\\n" "$@" >"$FAKE/sacct.argv"\n'
    (slurm.bin / "sacct").write_text(f"{sacct}echo '40|COMPLETED|{command} {staged}/script.sbatch'\n")
    again = submit("job", "fake")
    assert (again.job_id, again.found_again) == ("40", True)
    assert "--format=JobID,State,SubmitLine" in slurm.read("sacct.argv").splitlines()


@pytest.mark.parametrize("changed", [{"state": "FAILED"}, {"nodes": 1}])
def test_after_a_lost_answer_another_script_is_submitted_and_the_lost_job_recorded(
    slurm: FakeSlurm, project: Path, changed: dict[str, object]
) -> None:
    staged = lose(slurm, project)
    slurm.write("40.path", f"{staged}/script.sbatch")
    slurm.write("state", str(changed.get("state", "RUNNING")))
    again = submit("job", "fake", set={"resources.nodes": changed.get("nodes", 2)})
    assert (again.job_id, again.found_again) == ("12", False)
    assert record_of(project / "runs/job/40")["job_id"] == "40"


def test_a_note_of_a_job_unknown_to_slurm_is_deleted_unless_slurm_may_have_forgotten_it(
    slurm: FakeSlurm, project: Path
) -> None:
    staged = lose(slurm, project)
    assert submit("job", "fake").job_id == "12"
    assert not staged.exists()
    staged = lose(slurm, project)
    # A site's controller may forget what has ended at once.
    slurm.write("min_job_age", "2")
    aged = time.time() - 3
    os.utime(staged, (aged, aged))
    assert submit("job", "fake").job_id == "13"
    assert (project / "runs/job" / staged.name.replace(".submitting", "lost") / "record.json").is_file()


def test_threads_submit_at_the_same_time(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: staging.replace_symlink(link, str(number)), range(400)))
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_a_link_that_cannot_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(IsADirectoryError):
        staging.replace_symlink(tmp_path / "latest", "12")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]


def test_nothing_is_resubmitted_while_slurm_does_not_answer(slurm: FakeSlurm, project: Path) -> None:
    staged = lose(slurm, project)
    slurm.write("squeue.error", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmUnavailable, match="does not tell yet what became of it"):
        submit("job", "fake")
    assert staged.is_dir()
    assert "last" not in {path.name for path in slurm.folder.iterdir()}


def test_a_submission_of_another_process_is_not_touched(slurm: FakeSlurm, project: Path) -> None:
    other = project / "runs/job/.submitting-abc"
    other.mkdir(parents=True)
    slurm.write("41.path", f"{other}/script.sbatch")
    assert submit("job", "fake").job_id == "12"
    assert other.is_dir()


def test_a_modified_answer_of_sbatch_is_read(slurm: FakeSlurm) -> None:
    hook = 'echo "Welcome to job 7 of the day"; echo "13;cluster2"; cp -- "$1" "$FAKE/13.script"; exit 0'
    slurm.write("sbatch.hook", hook)
    assert submit("job", "fake").job_id == "13"


def test_a_printed_job_id_counts_whatever_the_exit_code_of_sbatch(slurm: FakeSlurm, project: Path) -> None:
    hook = 'echo "job 7 of the day"; echo "Submitted batch job 13"; cp -- "$1" "$FAKE/13.script"; exit 2'
    slurm.write("sbatch.hook", hook)
    assert submit("job", "fake").job_id == "13"
    assert record_of(project / "runs/job/13")["job_id"] == "13"


def test_without_slurm_no_file_is_created(project: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmUnavailable, match="there is no Slurm here, and cluster fake needs one"):
        submit("job", "fake")
    assert not (project / "runs").exists()


def test_an_impossible_runs_folder_is_refused_before_sbatch(slurm: FakeSlurm, project: Path) -> None:
    (project / "runs").write_text("")
    with pytest.raises(SpecError, match="cannot be created"):
        submit("job", "fake")
    with pytest.raises(RecordError, match="cannot make the folder"):
        submit("job", "fake", check=False)
    assert not (slurm.folder / "sbatch.argv").exists()


def test_a_full_disk_is_refused_before_sbatch(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_with_full_disk(path: Path, *arguments: Any) -> int:
        if STAGING in str(path):
            raise OSError(28, "No space left on device")
        return open_file(path, *arguments)

    open_file = os.open
    monkeypatch.setattr(os, "open", fail_with_full_disk)
    with pytest.raises(RecordError, match="cannot write to") as error:
        submit("job", "fake")
    assert error.value.found == "No space left on device"
    assert not (slurm.folder / "sbatch.argv").exists()
    assert not (project / "runs").exists()


def test_a_record_that_fails_after_sbatch_names_the_submitted_job(slurm: FakeSlurm, project: Path) -> None:
    slurm.write("sbatch.hook", "mkdir runs/job/latest")
    with pytest.raises(RecordError, match="job 12 was submitted") as error:
        submit("job", "fake")
    assert "scancel 12" in str(error.value.remedy)


def test_a_disk_that_fills_up_after_sbatch_keeps_the_record_and_no_lost_answer(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with_full_disk(path: Path, data: bytes, mode: int = 0o600, *, lasting: bool = True) -> None:
        if lasting:
            raise OSError(28, "No space left on device")
        write_whole(path, data, mode, lasting=False)

    monkeypatch.setattr(staging, "write_whole", fail_with_full_disk)
    with pytest.raises(RecordError, match="job 12 was submitted, but its record could not be written") as error:
        submit("job", "fake")
    assert f"partial record: {project / 'runs/job/12'}" in str(error.value.remedy)
    assert tree(project / "runs/job") == ["12", "12/record.json", "12/script.sbatch", "latest"]
    assert record_of(project / "runs/job/12")["job_name"] == "job"


def test_the_record_goes_into_a_run_folder_created_by_the_job(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project / "runs/job/12"
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path != made and exists(path))  # as NFS may have it
    slurm.write("sbatch.hook", f"mkdir {made}; echo there >{made}/rank-0.log")
    assert submit("job", "fake").job_id == "12"
    assert sorted(path.name for path in made.iterdir()) == ["rank-0.log", "record.json", "script.sbatch"]
    assert not list((project / "runs/job").glob(f"{STAGING}*"))


def test_a_lost_submission_stays_noted_if_a_full_disk_prevents_its_record(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = lose(slurm, project)
    slurm.write("40.path", f"{staged}/script.sbatch")

    def fail_with_full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "write_whole", fail_with_full_disk)
        with pytest.raises(RecordError, match="job 40 was found"):
            submit("job", "fake")
    assert submit("job", "fake").job_id == "40"
    assert sorted(path.name for path in (project / "runs/job/40").iterdir()) == ["record.json", "script.sbatch"]


def test_ctrl_c_while_files_are_written_leaves_no_file(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit("job", "fake")
    assert not (project / "runs").exists()


def test_an_earlier_run_with_the_same_id_is_renamed(slurm: FakeSlurm, project: Path) -> None:
    old = submit("job", "fake").run
    (old.folder / "summary.json").write_text('{"loss": 1}')
    old.batch_log.write_text("old")
    for path in (*old.folder.iterdir(), old.batch_log):
        os.utime(path, (1, 1))
    slurm.write("last", "11")
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
    with pytest.raises(SubmitInterrupted, match="job 12 was submitted and continues") as stopped:
        submit("job", "fake")
    assert stopped.value.job_id == "12"
    assert (project / "runs/job/12/record.json").is_file()


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_after(call: Callable[..., Any]) -> Callable[..., Any]:
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
        (staging, "_move_to_run_folder"),
    ],
)
def test_ctrl_c_at_any_time_after_the_start_of_sbatch_keeps_the_record_and_the_message(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    monkeypatch.setattr(place, name, interrupt_after(getattr(place, name)))
    with pytest.raises(SubmitInterrupted, match="job 12 was submitted and continues"):
        submit("job", "fake")
    assert record_of(project / "runs/job/12")["job_id"] == "12"
    assert not list((project / "runs/job").glob(f"{STAGING}*"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_sbatch_submits_nothing(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "encode_record", interrupt_after(encode_record))
    with pytest.raises(KeyboardInterrupt) as stopped:
        submit("job", "fake")
    assert not isinstance(stopped.value, SubmitInterrupted)
    assert not (project / "runs").exists()
    assert not (slurm.folder / "last").exists()


def test_a_second_ctrl_c_ends_a_hanging_sbatch(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.write("sbatch.hook", "kill -INT $PPID; while sleep 0.1; do kill -INT $PPID; done")
    with pytest.raises(AnswerLost, match="did not report whether it accepted job"):
        submit("job", "fake")
    (own,) = (project / "runs/job").glob(f"{STAGING}*")
    assert staging.is_unanswered(own)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_while_sbatch_works_loses_no_record(slurm: FakeSlurm, project: Path, number: int) -> None:
    slurm.write("sbatch.hook", f"kill -{int(number)} $PPID; sleep 0.5\n")
    (project / "train.py").touch()
    words = [sys.executable, "-m", "hpc_kit", "submit", "job", "--cluster", "fake"]
    words += ["--set", f"cluster.python={sys.executable}"]
    # Where lines are counted, coverage has a handler of SIGTERM, and handlers are left alone.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -number, done.stderr
    assert done.stdout.startswith("job     12 ")
    assert record_of(project / "runs/job/12")["job_id"] == "12"
    assert not list((project / "runs/job").glob(".submitting-*"))


def test_ignored_signals_and_handlers_stay_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ctrl_c_while_git_runs_keeps_the_record(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance.GitQuery, "state", interrupt)
    with pytest.raises(SubmitInterrupted, match="job 12 was submitted and continues"):
        submit("job", "fake")
    record = record_of(project / "runs/job/12")
    assert (record["job_id"], record["git"]["note"]) == ("12", "unknown: Ctrl-C ended the wait for git")
    assert not list((project / "runs/job").glob(".submitting-*"))


def test_a_job_id_is_printed_before_git_runs_and_recorded_even_if_printing_fails(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve(load.load("job", "fake"))
    text = render_resolved(resolved, root=project)
    output: list[str] = []

    def state(git: provenance.GitQuery) -> provenance.GitState:
        output.append("git")
        git.stop()
        return provenance.GitState(RecordedGit())

    monkeypatch.setattr(provenance.GitQuery, "state", state)
    submission.submit_script(resolved, text, root=project, on_submitted=lambda done: output.append(done.job_id))
    assert output == ["12", "git"]
    with pytest.raises(SubmitInterrupted, match="job 13"):
        submission.submit_script(resolved, text, root=project, on_submitted=interrupt)
    assert record_of(project / "runs/job/13")["job_id"] == "13"


def test_bytes_that_are_not_text_are_refused_in_a_script_and_escaped_in_a_record(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_X", "\udcff")
    with pytest.raises(SpecError, match="not UTF-8") as error:
        submit("job", "fake", set={"env.NAME": "caf\udce9"})
    assert str(error.value.found).endswith("env.NAME=caf\\xe9")
    assert not (project / "runs").exists()
    assert record_of(submit("job", "fake").run.folder)["environment"]["NCCL_X"] == "\\xff"


def test_an_error_before_sbatch_leaves_no_file(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "encode_record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        submit("job", "fake")
    assert not (project / "runs").exists()


def test_a_second_ctrl_c_does_not_wait_for_a_hanging_sbatch(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    slurm.write("sbatch.hook", "exec sleep 60")
    monkeypatch.setattr(submission, "import_module", interrupted)
    monkeypatch.setattr(sbatch, "INTERRUPTED_SECONDS", 0.1)
    with pytest.raises(AnswerLost, match="did not report whether it accepted job"):
        submit("job", "fake")


def test_ctrl_c_while_sbatch_is_ended_keeps_the_note_of_the_job(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.write("sbatch.hook", "exec sleep 60")
    monkeypatch.setattr(sbatch, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(sbatch, "SBATCH_SECONDS", 0.2)
    killed = sbatch._kill_with_children

    def interrupt_twice(process: subprocess.Popen[str]) -> tuple[str, str]:
        killed(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(sbatch, "_kill_with_children", interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        submit("job", "fake")
    (own,) = (project / "runs" / "job").glob(f"{staging.STAGING}*")
    assert staging.is_unanswered(own)
    assert (own / "record.json").exists()


def test_an_sbatch_that_cannot_start_leaves_no_file(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(slurm.bin))
    (slurm.bin / "sbatch").write_text("#!/no/such/interpreter\n")
    with pytest.raises(SlurmUnavailable, match="cannot run sbatch"):
        submit("job", "fake")
    assert "runs" not in tree(project)


@pytest.mark.parametrize("hook", ["exec sleep 60", "sleep 60; true"])
def test_a_hanging_sbatch_is_ended_with_its_children(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    slurm.write("sbatch.hook", hook)
    monkeypatch.setattr(sbatch, "_KILLED_SECONDS", 30)
    monkeypatch.setattr(sbatch, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(sbatch, "SBATCH_SECONDS", 0.2)
    with pytest.raises(AnswerLost, match="did not report whether it accepted job"):
        submit("job", "fake")


def test_the_command_line_does_not_import_submitit() -> None:
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


def test_submit_is_a_function_even_after_its_package_was_imported(slurm: FakeSlurm) -> None:
    assert hpc_kit.submit("job", "fake").job_id == "12"
    assert hpc_kit.submit("job", "fake").job_id == "13"
    # No room has the name of a public function, which an import of the room would replace.
    rooms = {path.stem for path in Path(hpc_kit.__file__).parent.iterdir()}
    assert not rooms & set(hpc_kit.__all__)


@pytest.mark.parametrize("name", ["two words", "it's", "größe", "a#b", "100%", "$HOME"])
def test_unusual_names_keep_their_logs(slurm: FakeSlurm, project: Path, name: str) -> None:
    job = submit("job", "fake", set={"name": name, "cluster.runs": "my runs"}, check=False)
    assert job.run.batch_log == project / "my runs" / name / "12.log"
    assert job.run.rank_log(3) == project / "my runs" / name / "12" / "rank-3.log"
