"""A project of several users: each can submit, and none can change the runs of another one.

Files of another user are those that root has given to a user id without an account.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_kit.errors import RecordError
from hpc_kit.runs.run_folders import open_run
from hpc_kit.script.render import render
from hpc_kit.submission.executor import Executor
from hpc_kit.submission.resubmit import prepare_resubmission
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm
from tests.submission import functions

OTHER = 54321

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


@pytest.fixture(autouse=True)
def group_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, -1)


def test_others_can_add_runs_but_not_replace_them(slurm: FakeSlurm, project: Path) -> None:
    job = submit("job", "fake")
    runs = project / "runs"
    folders = (runs, runs / "job", runs / ".shell", next((runs / ".shell").iterdir()), job.run.folder)
    assert [folder.stat().st_mode & 0o7777 for folder in folders] == [0o1775, 0o1775, 0o1775, 0o755, 0o700]


def test_folders_that_something_else_has_created_are_protected_by_the_next_submission(
    slurm: FakeSlurm, project: Path
) -> None:
    for name in ("job/7", ".shell/h0"):
        (project / "runs" / name).mkdir(parents=True)
    submit("job", "fake")
    modes = [(project / "runs" / name).stat().st_mode & 0o7777 for name in (".", "job", ".shell")]
    assert modes == [0o1775] * 3


def test_the_folders_of_a_script_for_sbatch_are_protected_when_it_is_rendered(slurm: FakeSlurm, project: Path) -> None:
    render("job", "fake", root=project)
    assert (project / "runs").stat().st_mode & 0o7777 == 0o1775


@as_root
def test_no_job_runs_the_shell_files_of_another_user(slurm: FakeSlurm, project: Path) -> None:
    first = render("job", "fake", root=project)
    (theirs,) = (project / "runs/.shell").iterdir()
    give_away(theirs.parent)
    (theirs / "task.sh").write_text("exit 1\n")
    submit("job", "fake")
    own = project / "runs/.shell-0" / theirs.name
    assert f"/.shell/{theirs.name}\n" in first
    assert f"/.shell-0/{own.name}\n" in slurm.read("12.script")
    assert {path.stat().st_uid for path in (own, *own.iterdir())} == {0}
    assert (theirs / "task.sh").read_text() == "exit 1\n"
    give_away(own)
    with pytest.raises(RecordError, match="belongs to another user"):
        submit("job", "fake")


@as_root
@pytest.mark.parametrize("name", [".", "script.sbatch", "record.json"])
def test_a_run_of_another_user_is_not_submitted_again(slurm: FakeSlurm, project: Path, name: str) -> None:
    run = submit("job", "fake").run.folder
    os.chown(run / name, OTHER, -1)
    with pytest.raises(RecordError, match="cannot be submitted again by you") as raised:
        prepare_resubmission(open_run(run), {}, project)
    assert f"belongs to user {OTHER}" in str(raised.value)


@as_root
def test_pickles_that_another_user_lists_are_neither_moved_nor_deleted(slurm: FakeSlurm, project: Path) -> None:
    victim, planted = project / "thesis.txt", project / "runs/job/.submitting-1234"
    victim.write_text("years of work")
    planted.mkdir(parents=True)
    (planted / "answer-lost").touch()
    (planted / "pickles.json").write_text(f'{{"folder": "{project}", "paths": ["{victim}"], "array": false}}')
    give_away(planted)
    submit("job", "fake")
    assert victim.read_text() == "years of work"
    assert planted.is_dir()


@as_root
def test_the_functions_of_each_user_have_a_folder(slurm: FakeSlurm, project: Path) -> None:
    theirs = Executor("job", cluster="fake").submit(functions.add, 1, 2).paths.folder
    give_away(theirs)
    own = Executor("job", cluster="fake").submit(functions.add, 1, 2).paths.folder
    assert (theirs.name, own.name) == ("functions", "functions-0")
