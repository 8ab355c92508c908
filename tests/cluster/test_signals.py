"""Slurm's signals to a step reach each program once, through the shell of the task."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import pytest

from hpc_kit.run_files import read_first_failure
from hpc_kit.slurm.option_values import SIGNALS

from . import Cluster, Settings, cgroups
from .fixture import raised
from .project import Project
from .settings import visible_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STOPS = ["TSTP", "TTIN", "TTOU"]
CAUGHT = [name for name, number in SIGNALS.items() if name not in {"KILL", "STOP"}]

CATCH = f"""
import os, signal, sys, time
from pathlib import Path

class note:
    rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
    file = os.open(f"signals-{{rank}}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    write = lambda text: os.write(note.file, text.encode())

for name in ("SIGINT", "SIGQUIT"):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        note.write(f"ignores {{name}}\\n")
if os.path.samefile("/proc/self/fd/0", os.devnull):
    note.write("no stdin\\n")
for name in {CAUGHT!r}:
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: note.write(signal.Signals(number).name[3:] + "\\n"))
note.write("up\\n")
while not Path("over").exists():
    time.sleep(0.05)
sys.exit(int(Path("over").read_text() or 0))
"""
"""Records each signal until the file `over` contains the exit code."""


def by_cgroup(cluster: Cluster) -> Cluster:
    if not cgroups.available():
        pytest.skip("proctrack/cgroup needs the freezer of cgroup v1, which this machine does not have")
    return cluster


@pytest.fixture(scope="module")
def linuxproc() -> Iterator[Cluster]:
    """A cluster that sends signals to all processes of a step."""
    parents = {"ProctrackType": "proctrack/linuxproc"}
    with raised(Settings(name="linuxproc", nodes=2, accounting=False, carry=visible_paths(), slurm=parents)) as built:
        yield built


@pytest.fixture
def project(request: pytest.FixtureRequest, tracked: str) -> Iterator[Project]:
    """A project on the cluster that the test selects, which tracks processes by cgroups or by their parents."""
    cluster = request.getfixturevalue(tracked)
    made = Project(by_cgroup(cluster) if tracked == "cluster" else cluster, "signals")
    made.program("catch.py", CATCH)
    try:
        yield made
    finally:
        made.cluster.run(["scancel", "--full", "--signal=KILL", "--me"])


def wait_until(true: Callable[[], bool], patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_notes(project: Project) -> list[list[str]]:
    """Return the signals that each of two ranks has recorded."""
    files = [project.folder / f"signals-{rank}" for rank in (0, 1)]
    return [file.read_text().split("\n")[:-1] if file.exists() else [] for file in files]


def have_noted(project: Project, count: int) -> bool:
    """Return whether each rank has recorded this number of lines."""
    return all(len(lines) >= count for lines in read_notes(project))


def start(project: Project, launcher: str, *, standalone: bool) -> str:
    """Start a job of two ranks on two nodes, and wait until both run."""
    words = ["-j", "2x1", "--set", f"launch.launcher={launcher}", "--time", "5"]
    job = project.submit(*words, *["--standalone"] * standalone, "--", "python", "catch.py")
    wait_until(lambda: all("up" in lines for lines in read_notes(project)))
    return job


@pytest.mark.parametrize("tracked", ["cluster", "linuxproc"])
@pytest.mark.parametrize("standalone", [False, True], ids=["kit", "standalone"])
def test_each_signal_reaches_the_program_once(project: Project, standalone: bool) -> None:
    job = start(project, "srun", standalone=standalone)
    assert read_notes(project) == [["up"], ["up"]]
    sent = [word for name in CAUGHT if name != "CONT" for word in ([name, "CONT"] if name in STOPS else [name])]
    for number, name in enumerate(sent, 2):
        project.cluster.run(["scancel", f"--signal={name}", job], check=True)
        wait_until(functools.partial(have_noted, project, number))
    time.sleep(0.5)
    assert read_notes(project) == [["up", *sent]] * 2
    (project.folder / "over").write_text("7")
    assert project.await_state(job, "FAILED", "COMPLETED") == "FAILED"
    first = read_first_failure(next(project.folder.glob(f"runs/*/{job}")))
    assert first is not None
    assert first.exit_code == 7


@pytest.mark.parametrize("tracked", ["cluster", "linuxproc"])
@pytest.mark.parametrize("standalone", [False, True], ids=["kit", "standalone"])
def test_user_signals_reach_the_workers_of_torchrun_once(project: Project, standalone: bool) -> None:
    job = start(project, "torchrun", standalone=standalone)
    for number, name in enumerate(("USR1", "USR2", "USR1"), 2):
        project.cluster.run(["scancel", f"--signal={name}", job], check=True)
        wait_until(functools.partial(have_noted, project, number))
    time.sleep(0.5)
    assert read_notes(project) == [["up", "USR1", "USR2", "USR1"]] * 2
    (project.folder / "over").write_text("7")
    assert project.await_state(job, "FAILED", "COMPLETED") == "FAILED"
    assert project.cluster.run(["scontrol", "show", "job", job]).stdout.count("ExitCode=7:0") == 1


@pytest.mark.parametrize("tracked", ["cluster"])
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_cancelled_job_has_time_for_a_checkpoint(project: Project, launcher: str) -> None:
    job = start(project, launcher, standalone=False)
    project.cluster.run(["scancel", job], check=True)
    wait_until(lambda: all("TERM" in lines for lines in read_notes(project)))
    (project.folder / "over").write_text("0")
    assert project.await_state(job, "CANCELLED") == "CANCELLED"
