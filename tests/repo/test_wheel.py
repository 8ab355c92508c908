"""The wheel contains every module: hatchling leaves out what git ignores."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

import hpc_kit
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


def test_the_conda_recipe_has_the_requirements_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / ".ci/conda/meta.yaml").read_text()
    run = re.findall(r"^    - (.+)$", recipe.partition("  run:\n")[2].partition("\n\n")[0], re.MULTILINE)
    wheel = [re.sub(r"(?=[<>=])", " ", each, count=1) for each in project["dependencies"]]
    assert run == [f"python {project['requires-python']}", *wheel]
    for name, target in project["scripts"].items():
        assert f"- {name} = {target}\n" in recipe
    pattern = re.search(r"regex_pattern='(.+?)'", recipe)
    assert pattern is not None
    found = re.search(pattern[1], (ROOT / "hpc_kit/__init__.py").read_text())
    assert found is not None
    assert found[1] == hpc_kit.__version__
