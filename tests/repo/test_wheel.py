"""The wheel contains every module: hatchling leaves out what git ignores."""

from __future__ import annotations

import subprocess
import tomllib

import pytest

from tests.conftest import ROOT


def test_git_ignores_no_tracked_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("git lists the tracked files, and this folder is an unpacked source distribution")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert listed.stdout == ""


def test_every_package_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench"}
    assert set(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == packages
