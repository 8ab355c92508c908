"""What the pages promise is true: links lead somewhere, the README's commands run, the Makefile's targets exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit import errors
from hpc_kit.check.rule_docs import explain
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
README = ROOT / "README.md"


def anchor(heading: str) -> str:
    """The fragment that a heading gets on the web."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(line.lstrip("#")) for line in page.read_text().splitlines() if line.startswith("#")}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "pocketslurm" / "README.md"], ids=lambda page: page.name)
def test_links_have_a_target(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        name, _, fragment = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if fragment:
            assert fragment in anchors(linked), target


def test_pages_named_in_messages_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = [path.read_text() for path in (ROOT / "hpc_kit").rglob("*.py") if "share" not in path.parts]
    named = {name for text in sources for name in re.findall(r"""\bpage(?:_of_docs)?\(["']([\w.-]+)["']\)""", text)}
    assert {"templates.md", "planner.md", "embedded-slurm.md"} <= named
    for folder, shown in ((ROOT, "docs/"), (tmp_path, f"{ROOT}/docs/")):
        monkeypatch.chdir(folder)
        assert {errors.page(name) for name in named} == {shown + name for name in named}
        assert all(Path(errors.page(name)).is_file() for name in named)
    assert f"Documented: {ROOT}/docs/jobs-and-clusters.md." in explain("KIT607")


def test_an_installed_package_contains_its_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hpc_kit/share/docs").mkdir(parents=True)
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "hpc_kit/errors.py"))
    assert errors.page("rules.md") == f"{tmp_path}/hpc_kit/share/docs/rules.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_linked(page: Path) -> None:
    """A page that nothing links to is read by nobody."""
    if page.parent == ROOT:
        return
    others = "".join(other.read_text() for other in PAGES if other != page)
    assert page.name in others


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"^ +- .*: ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES if page.parent != ROOT]


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def commands(fence: str) -> list[str]:
    """Lines behind `$ ` in fenced blocks of the README."""
    blocks = re.findall(rf"```{fence}\n(.*?)```", README.read_text(), re.DOTALL)
    return [
        line[2:].partition("  #")[0].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")
    ]


TOGETHER = ("make submit", "make test", "git clone", "cd ", "sbatch ", "srun ")
"""Run by CI as they stand, or on a cluster only."""


MEASURES = "hpc-kit doctor "
"""Starts torch on each of the nodes."""


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.slow if line.startswith(MEASURES) else ())
        for line in commands("console")
        if not line.startswith(TOGETHER)
    ],
)
def test_a_readme_command_runs(line: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("jobs", "env", "templates"):
        shutil.copytree(ROOT / name, project / name)
    (project / "train.py").write_text("print('trained')\n")
    (project / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\nsrun --cpus-per-task=1 true\n")
    (project / ".venv").symlink_to(Path(sys.executable).parents[1])
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ["HPC_KIT_SLURM_STATE"] = str(tmp_path / "slurm")
    done = subprocess.run(["bash", "-c", line], cwd=project, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_getting_started_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text()
    program, failure = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = re.findall(r"^\$ (hpc-kit (?:submit|status) .*|hpc-kit status)$", page, re.MULTILINE)
    loop = "for step in range(1, 101):\n"
    assert len(lines) == 6
    assert loop in program
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ["HPC_KIT_SLURM_STATE"] = str(tmp_path / "slurm")
    (tmp_path / "project").mkdir()
    statuses = []
    for number, line in enumerate(lines):
        text = program.replace(loop, loop + failure) if number == 4 else program
        (tmp_path / "project" / "train.py").write_text(text)
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path / "project", env=environ, capture_output=True, text=True, timeout=120
        )
        statuses.append((line, done.returncode))
        if number == 4:
            assert "failed  rank 3 on 127.0.0.2 failed with ValueError: no more data (train.py:16)" in done.stdout
    assert [status for _, status in statuses] == [0, 0, 0, 2, 1, 0], statuses


def test_make_targets_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for words in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert words in targets, f"{page.name}: make {words}"


def test_changelog_names_this_version() -> None:
    from hpc_kit import __version__

    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
