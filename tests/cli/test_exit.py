"""How the process of a command ends: exit status, Ctrl-C, and output that nobody reads or that cannot be written."""

from __future__ import annotations

import os
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
            [sys.executable, "-m", "hpc_kit", "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode != 0
    assert "No space left on device" in done.stderr


def test_a_reader_that_has_gone_is_no_complaint(kit: Kit) -> None:
    words = f"{sys.executable} -m hpc_kit list | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


def test_ctrl_c_before_the_command_line_is_there_is_no_complaint(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = kit("list", PYTHONPATH=f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_a_submission_says_of_ctrl_c_reaches_the_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Path:
        raise SubmitInterrupted("12")

    monkeypatch.setattr(search_path, "current_folder", interrupted)
    monkeypatch.setattr(sys, "argv", ["hpc-kit", "list"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert "hpc-kit: job 12 is submitted and goes on; to end it: scancel 12" in capsys.readouterr().err


def test_a_current_folder_that_is_gone_is_told_by_every_command(kit: Kit, tmp_path: Path) -> None:
    words = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && {sys.executable} -m hpc_kit "
    for command in ("plan gpt2-xl", "list"):
        done = subprocess.run(["bash", "-c", words + command], capture_output=True, text=True, timeout=60)
        assert (done.returncode, "the current folder is gone" in done.stderr) == (2, True), done.stderr
