"""The start of every test: a clean environment, default signals, and visible skips of missing programs."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported; the processes of the tests share few cores

settings.register_profile("any machine", deadline=None)  # a busy machine is slow
settings.load_profile("any machine")

# `nohup` and background jobs of a shell start pytest with these signals ignored, and programs inherit ignored signals.
# Tests of Ctrl-C and of a closed terminal need the default actions.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

LAUNCHER_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "HPC_KIT_")
LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
REMOVED = LAUNCHER_NAMES | {"OMP_NUM_THREADS"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No launcher, no user's cluster, no cache or state outside the test's own folders."""
    for name in list(os.environ):
        if (name.startswith(LAUNCHER_PREFIXES) or name in REMOVED) and name != "HPC_KIT_REQUIRE_ORACLES":
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep modules and tests out of the garbage collection, which takes a third of the time of collecting the tests.

    It would also write to their memory in each process that is forked from this one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that mostly wait between the modules, so that meanwhile other tests use the processors."""
    waiting = [item for item in items if item.get_closest_marker("waits")]
    modules = [list(group) for _, group in itertools.groupby(items, key=lambda item: item.path)]
    modules = [module for module in modules if not module[0].get_closest_marker("waits")]
    if waiting and modules:
        # None is left for the last quarter: at the end there would be nothing else to do.
        share = -(-len(waiting) * 4 // (len(modules) * 3))
        rest = iter(waiting)
        items[:] = [item for module in modules for item in (*itertools.islice(rest, share), *module)]
        items += rest


BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--within`, with which the tests that a time limit leaves out are skipped by name."""
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
"""Packages of shipped jobs that are in neither requirements.txt nor requirements-dev.txt."""

PROGRAMS = {"ddp_mpirun": "mpirun.openmpi"}
"""Programs that shipped jobs start."""


def find_missing(job: str) -> str | None:
    """Return the first missing package or program of a job."""
    program = PROGRAMS.get(job)
    absent = next((name for name in LIBRARIES.get(job, ()) if find_spec(name) is None), None)
    return absent or (program if program and shutil.which(program) is None else None)


def require_installed(job: str) -> None:
    """Skip a test of a job if a package of the job is missing. A missing program is treated like an oracle."""
    missing = find_missing(job)
    if missing and missing == PROGRAMS.get(job):
        oracle(missing, None, "openmpi-bin")
    elif missing:
        pytest.skip(f"{job} needs {missing}, which is not installed here: docs/strategies.md says how")


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
    """Do not count lines: counting takes longer than the measured work."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
