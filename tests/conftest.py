"""What every test starts from: a clean environment, and oracles that are never skipped in silence."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose oracle is missing; where HPC_KIT_REQUIRE_ORACLES is set (CI), fail it."""
    for mark in item.iter_markers("oracle"):
        missing = [name for name in mark.args if shutil.which(name) is None]
        if not missing:
            continue
        text = f"needs {', '.join(missing)} (Debian: apt-get install slurm-client shellcheck)"
        if os.environ.get("HPC_KIT_REQUIRE_ORACLES"):
            pytest.fail(text)
        pytest.skip(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, with jobs/ and env/, as the current one."""
    folder = tmp_path / "project"
    for name in ("jobs", "env", "templates"):
        (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder
