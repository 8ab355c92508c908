"""What every test starts from: a clean environment, and oracles that are never skipped in silence."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

settings.register_profile("any machine", deadline=None)  # what is busy with other things is slow, and not wrong
settings.load_profile("any machine")

LAUNCHER_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "HPC_KIT_")
LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No launcher, no user's cluster, no cache or state outside the test's own folders."""
    for name in list(os.environ):
        if (name.startswith(LAUNCHER_PREFIXES) or name in LAUNCHER_NAMES) and name != "HPC_KIT_REQUIRE_ORACLES":
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """A ring that must end in time says which of its tests it did not reach, instead of being cut."""
    parser.addoption("--within", type=float, metavar="MINUTES", help="after MINUTES start no test; skip the rest")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that --within leaves no time for, or whose oracle is missing (HPC_KIT_REQUIRE_ORACLES: fail that)."""
    minutes = item.config.getoption("within")
    if minutes is not None and time.monotonic() - BEGAN > minutes * 60:
        pytest.skip(f"the ring's {minutes:g} minutes are over")
    for mark in item.iter_markers("oracle"):
        for name in mark.args:
            oracle(name, shutil.which(name), "slurm-client shellcheck openmpi-bin chromium")


def oracle(name: str, found: str | None, packages: str) -> None:
    """Skip, or fail where oracles are required, a test that needs a program which was not found."""
    if found is not None:
        return
    text = f"needs {name} (Debian: apt-get install {packages})"
    if os.environ.get("HPC_KIT_REQUIRE_ORACLES"):
        pytest.fail(text)
    pytest.skip(text)


LIBRARIES = {"ray_4node": ("ray", "pydantic"), "horovod_4node": ("horovod",)}
"""What a shipped job needs that neither requirements.txt nor requirements-dev.txt has."""


def absent(job: str) -> str | None:
    """The first of them that is not installed here."""
    return next((name for name in LIBRARIES.get(job, ()) if find_spec(name) is None), None)


def need_library(job: str) -> None:
    """Skip, visibly, a test of a job whose library is not installed here."""
    if library := absent(job):
        pytest.skip(f"{job} needs {library}, which is not installed here: docs/strategies.md")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, with jobs/ and env/, as the current one."""
    folder = tmp_path / "project"
    for name in ("jobs", "env", "templates"):
        (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def untraced() -> Iterator[None]:
    """Nobody counts lines here: that takes longer than the work whose time is taken."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
