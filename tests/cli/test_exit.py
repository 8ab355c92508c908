"""How the process of a command ends: exit status, Ctrl-C, and output that nobody reads or that cannot be written."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.cli import main
from hpc_kit.spec import search_path
from hpc_kit.submission.sbatch import SubmitInterrupted
from tests.cli.conftest import Kit


def test_output_that_cannot_be_written_is_an_error(kit: Kit) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpc_kit", "list"],
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # Python writes what it has buffered again at exit
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == ["hpc-kit: cannot write the output", "  found  No space left on device"]
    assert "Exception ignored" not in done.stderr


def test_a_closed_pipe_prints_no_error(kit: Kit) -> None:
    words = f"{shlex.quote(sys.executable)} -m hpc_kit list | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


def run_without_reader(kit: Kit, *words: str) -> tuple[int, str]:
    """Run a command whose stdout is a closed pipe. Return its exit status and its errors."""
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "hpc_kit", *words]
    done = subprocess.run(argv, cwd=kit.project, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("own_slurm")
def test_a_closed_pipe_changes_neither_the_jobs_nor_their_exit_status(kit: Kit, project: Path) -> None:
    for name, code in (("first", 0), ("second", 3)):
        (project / "jobs" / f"{name}.toml").write_text(f'command = ["sh", "-c", "exit {code}"]\n')
    assert run_without_reader(kit, "submit", "first", "second", "--chain", "--wait") == (3, "")
    assert [run.parent.name for run in sorted(project.glob("runs/*/[0-9]/"))] == ["first", "second"]
    assert run_without_reader(kit, "status") == (0, "")
    for words in (["logs", "1", "-f"], ["logs", "2", "-f", "--json"], ["watch", "2"]):
        assert run_without_reader(kit, *words) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_an_empty_one(kit: Kit, closed: str) -> None:
    words = f"{shlex.quote(sys.executable)} -m hpc_kit render -j 1x1 --cluster local {closed} -- true"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, cwd=kit.project)
    assert (done.returncode, bool(done.stdout), done.stderr) == (0, closed != ">&-", "")


def test_ctrl_c_while_modules_load_prints_no_traceback(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = kit.process("list", PYTHONPATH=f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_message_after_ctrl_c_in_a_submission_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_interrupted() -> Path:
        raise SubmitInterrupted("12")

    monkeypatch.setattr(search_path, "current_folder", raise_interrupted)
    monkeypatch.setattr(sys, "argv", ["hpc-kit", "list"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert "hpc-kit: job 12 was submitted and continues; to cancel it: scancel 12" in capsys.readouterr().err


def test_a_deeply_nested_file_is_an_error_without_a_traceback(kit: Kit, project: Path) -> None:
    (project / "deep.toml").write_text(f'command = ["true"]\nname = {"[" * 5000}{"]" * 5000}\n')
    (project / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    for words, file in (
        (["render", "./deep.toml"], "deep.toml"),
        (["env", "--environ", "deep.json"], "a file"),
        (["plan", "--model", "deep.json"], "a file"),
    ):
        done = kit(*words)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"hpc-kit: {file} is nested too deeply")
    (project / "deep.toml").rename(project / "jobs" / "deep.toml")
    assert "jobs/deep.toml is nested too deeply" in " ".join(kit("list").stdout.split())


def test_every_command_reports_a_removed_current_folder(kit: Kit, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    words = f"mkdir {gone} && cd {gone} && rmdir {gone} && {shlex.quote(sys.executable)} -m hpc_kit "
    for command in ("plan gpt2-xl", "list"):
        done = subprocess.run(["bash", "-c", words + command], capture_output=True, text=True, timeout=60)
        assert (done.returncode, "the current folder is gone" in done.stderr) == (2, True), done.stderr
