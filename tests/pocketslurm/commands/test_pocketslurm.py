"""The command `pocketslurm`, as other programs call it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pocketslurm.commands.pocketslurm import install, queue_directory
from pocketslurm.errors import StateError
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import Settings, check_private
from tests.conftest import ROOT

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


def call(
    *argv: str, stdin: str = "", folder: Path | None = None, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pocketslurm", *argv]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env={**os.environ, **(environ or {})}, cwd=folder
    )


def test_a_queue_needs_only_its_folder(tmp_path: Path) -> None:
    done = call("path", "--state", "queue", "--settings", "-", stdin='{"nodes": "n[1-2]", "cpus": 3}', folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}/queue/bin\n", "")
    assert (tmp_path / "queue/bin/.pocketslurm").exists()
    environ = {"PATH": f"{done.stdout.strip()}:/usr/bin:/bin"}
    argv = ["sinfo", "--noheader", "--format=%N %c"]
    assert subprocess.run(argv, env=environ, capture_output=True, text=True).stdout == "n[1-2] 3\n"
    # Without --settings, the queue keeps those that it has.
    assert call("path", "--state", str(tmp_path / "queue")).stdout == done.stdout
    assert subprocess.run(argv, env=environ, capture_output=True, text=True).stdout == "n[1-2] 3\n"


def test_a_named_queue_is_stored_beside_the_default_one(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    assert call("path", environ=home).stdout == f"{tmp_path}/hpc_kit/slurm/bin\n"
    assert call("path", "--queue=my laptop/2", environ=home).stdout == f"{tmp_path}/hpc_kit/slurm-my_laptop_2/bin\n"
    named = call("path", "--queue=other", environ={**home, "HPC_KIT_SLURM_STATE": str(tmp_path / "named")})
    assert named.stdout == f"{tmp_path}/named/bin\n"


def test_info(tmp_path: Path) -> None:
    state = str(tmp_path / "queue")
    output = json.loads(call("info", "--json", "--state", state).stdout)
    assert (output["bin"], output["next_job_id"], output["active_jobs"]) == (f"{state}/bin", None, [])
    assert output["settings"]["partitions"][0]["name"] == "local"
    assert not Path(state).exists()
    call("run", "--state", state, "sbatch", "--hold", "--wrap=true", folder=tmp_path)
    output = json.loads(call("info", "--json", "--state", state).stdout)
    assert (output["next_job_id"], output["active_jobs"]) == (2, [1])
    assert "next_job_id: 2\n" in call("info", "--state", state).stdout
    call("run", "--state", state, "--", "scancel", "--me")


def test_any_command_of_slurm(tmp_path: Path) -> None:
    home = {"HPC_KIT_SLURM_STATE": str(tmp_path)}
    assert call("sinfo", "--version", environ=home).stdout == call("--version").stdout == "slurm 22.05.8\n"
    done = call("run", "--state", str(tmp_path), "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert call("sprio").returncode == 1


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        ([], 2, "Usage: pocketslurm COMMAND [OPTIONS]\n"),
        (["paths"], 2, "pocketslurm: error: no such command: paths\n"),
        (["path", "--nodes=3"], 2, "pocketslurm: unrecognized option '--nodes=3'\n"),
        (["path", "here"], 2, "pocketslurm: error: unexpected argument: here\n"),
        (["run"], 2, "pocketslurm: error: no command to run\n"),
        (["path", "--settings=/nowhere.json"], 2, "pocketslurm: error: cannot read the settings"),
        (["path", "--settings=-"], 2, "/standard input: no setting is called 'node'"),
        (["path", "--state=/proc/1/none"], 1, "state directory cannot be used"),
        (["run", "--state=queue", "no-such-program"], 1, "pocketslurm: error: cannot run no-such-program\n"),
    ],
)
def test_wrong_arguments_are_refused(argv: list[str], status: int, text: str, tmp_path: Path) -> None:
    done = call(*argv, stdin='{"node": 4}', folder=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert text.replace("/standard", "standard") in done.stderr


@pytest.mark.parametrize("words", [["path"], ["path", "--settings=-"]])
def test_a_full_disk_leaves_no_drafts(tmp_path: Path, words: list[str]) -> None:
    argv = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-m", "pocketslurm", *words, "--state=queue"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, input='{"cpus": 3}', capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert (done.returncode, "state directory cannot be used" in done.stderr) == (1, True), done.stderr
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_pocketslurm_needs_the_standard_library_only(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", "-P", "-m", "pocketslurm", "path", "--state", str(tmp_path / "queue")]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [".", "bin", "slurm.db", "slurm.json"])
def test_a_state_directory_that_others_may_write_is_refused(tmp_path: Path, name: str) -> None:
    """Their jobs and commands would run with the rights of this user."""
    state = tmp_path / "queue"
    environ = install(Settings(cpus=3), state, os.environ)
    StateDirectory.open(environ).close()
    path = state / name
    path.chmod(path.stat().st_mode | 0o020)
    for words in (["path", "--state", str(state)], ["squeue"]):
        done = call(*words, environ={"HPC_KIT_SLURM_STATE": str(state)})
        assert (done.returncode, done.stdout) == (1, "")
        assert f"chmod go-w {path}" in done.stderr
    path.chmod(path.stat().st_mode & ~0o020)
    assert call("squeue", environ={"HPC_KIT_SLURM_STATE": str(state)}).returncode == 0


@pytest.mark.slow
def test_a_state_directory_that_others_may_rename_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    state = shared / "lab" / "queue"
    StateDirectory.open(install(Settings(cpus=3), state, os.environ)).close()
    for mode, status in ((0o777, 1), (0o1777, 0), (0o775, 0), (0o757, 1), (0o755, 0)):
        shared.chmod(mode)
        for words in (["path", "--state", str(state)], ["squeue"]):
            done = call(*words, environ={"HPC_KIT_SLURM_STATE": str(state)})
            assert (done.returncode, f"chmod o-w {shared}\n" in done.stderr) == (status, status == 1), done.stderr


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_state_directory_in_a_folder_of_another_user_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "theirs" / "lab" / "queue"
    StateDirectory.open(install(Settings(cpus=3), state, os.environ)).close()
    theirs = tmp_path / "theirs"
    theirs.chmod(mode)
    check_private(state)
    os.chown(theirs, 1234, -1)
    with pytest.raises(PermissionError, match=f"^{theirs} belongs to another user: .*HPC_KIT_SLURM_STATE=/"):
        check_private(state)


@as_root
@pytest.mark.parametrize("link", ["first", "second", "queue"])
def test_a_link_of_another_user_on_the_way_is_refused(tmp_path: Path, link: str) -> None:
    (tmp_path / "real" / "queue").mkdir(parents=True)
    (tmp_path / "second").symlink_to(tmp_path / "real")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "queue").symlink_to("first/queue")
    check_private(tmp_path / "queue")
    os.chown(tmp_path / link, 1234, -1, follow_symlinks=False)
    with pytest.raises(PermissionError, match=f"^{tmp_path / link} belongs to another user: "):
        check_private(tmp_path / "queue")


@as_root
def test_a_user_who_cannot_change_a_folder_of_root_is_sent_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Volumes of containers belong to root, and everyone may write."""
    volume = tmp_path / "volume"
    state = volume / "queue"
    state.mkdir(parents=True)
    volume.chmod(0o777)
    os.chown(state, 1234, -1)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    with pytest.raises(PermissionError) as caught:
        check_private(state)
    assert str(caught.value) == (
        f"others may write to {volume}, above it: choose a place outside, "
        "such as HPC_KIT_SLURM_STATE=/var/tmp/slurm-1234"
    )


def test_a_full_disk_asks_for_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(StateError) as caught:
        install(None, tmp_path / "queue", os.environ)
    assert str(caught.value.remedy).startswith("free some space there, or set HPC_KIT_SLURM_STATE")


@as_root
@pytest.mark.parametrize("name", [".", "bin", "slurm.db"])
def test_a_state_directory_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    state = tmp_path / "queue"
    StateDirectory.open(install(Settings(cpus=3), state, os.environ)).close()
    os.chown(state / name, 1234, -1)
    done = call("squeue", environ={"HPC_KIT_SLURM_STATE": str(state)})
    assert (done.returncode, "belongs to another user" in done.stderr) == (1, True)


def test_help() -> None:
    assert call("--help").stdout == call("path", "--help").stdout
    assert "--settings FILE" in call("--help").stdout


def test_machines_with_a_shared_home_have_separate_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    mine = queue_directory("", home)
    mine.mkdir()
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="login2"))
    other = queue_directory("", home)
    assert (mine, other) == (tmp_path / "hpc_kit/slurm", tmp_path / "hpc_kit/login2/slurm")
    first = [StateDirectory.open({"HPC_KIT_SLURM_STATE": str(each)}) for each in (mine, other)]
    assert [each.next_job_id() for each in first] == [1, 37_100_001]
    assert first[1].next_job_id() == 37_100_002
    for each in first:
        each.close()
