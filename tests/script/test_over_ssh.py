"""The plain shell script of a launch, compared with the golden script and checked by bash and shellcheck."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import golden


@pytest.mark.parametrize("case", golden.SHELL_CASES)
def test_a_shell_script_is_the_golden_one(case: str) -> None:
    assert golden.shell(case) == (golden.SCRIPTS / f"{case}.sh").read_text()


def test_every_golden_shell_script_belongs_to_a_job() -> None:
    assert {path.stem for path in golden.SCRIPTS.glob("*.sh")} == set(golden.SHELL_CASES)


@pytest.mark.oracle("shellcheck")
@pytest.mark.parametrize("case", golden.SHELL_CASES)
def test_shellcheck_finds_nothing_in_a_shell_script(case: str) -> None:
    done = subprocess.run(["shellcheck", golden.SCRIPTS / f"{case}.sh"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_script_without_hosts_prints_how_to_set_them(tmp_path: Path) -> None:
    words = ["bash", "-c", golden.shell("ddp_4node"), "job.sh", "a"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (2, b"this job is for 4 hosts: bash job.sh HOST HOST HOST HOST\n")
