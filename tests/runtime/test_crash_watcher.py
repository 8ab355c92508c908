"""A killed or crashed rank is recorded, although it cannot record itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_kit.run_files import RUN_VARIABLE, FirstFailure, read_first_failure
from hpc_kit.runtime import crash_watcher

RANK = """
import ctypes, os, signal, sys
from hpc_kit.runtime import crash_watcher, first_failure
with first_failure.recording_failures(3), crash_watcher.record_crash_of(3):
    {end}
"""


def _first(folder: Path, end: str) -> FirstFailure | None:
    environ = {**os.environ, RUN_VARIABLE: str(folder), "SLURMD_NODENAME": "n7"}
    subprocess.run([sys.executable, "-c", RANK.format(end=end)], env=environ, check=False, capture_output=True)
    deadline = time.monotonic() + 10
    while not (found := read_first_failure(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    ("end", "codes"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", {137}),
        # The parent may have reaped the rank before the watcher reads its status.
        ("ctypes.string_at(0)", {139, 137}),
        ("os._exit(5)", {5, 137}),
        ("raise RuntimeError", {1}),
    ],
)
def test_a_rank_that_ends_silently_is_named(end: str, codes: set[int], tmp_path: Path) -> None:
    found = _first(tmp_path, end)
    assert found is not None
    assert (found.rank, found.host) == (3, "n7")
    assert found.exit_code in codes


@pytest.mark.parametrize("environ", [{RUN_VARIABLE: "here"}, {}])
def test_a_successful_rank_is_not_named(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    if environ:
        monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    with crash_watcher.record_crash_of(0):
        pass
    assert read_first_failure(tmp_path) is None


def test_the_exit_code_of_a_zombie_is_read() -> None:
    with subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 6)"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert crash_watcher.exit_code_of(process.pid) == 134
    assert crash_watcher.exit_code_of(process.pid) == 137


def test_a_remaining_child_does_not_delay_the_end_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    began = time.monotonic()
    with crash_watcher.record_crash_of(0):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    assert time.monotonic() - began < 50
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert read_first_failure(tmp_path) is None
