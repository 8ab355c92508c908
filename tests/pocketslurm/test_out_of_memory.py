"""A job is OUT_OF_MEMORY if the counter of the kernel rose and a process died of SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketslurm import resources
from pocketslurm.queue.records import Job
from pocketslurm.queue.state import StateDirectory
from pocketslurm.queue.supervisor import Supervisor
from pocketslurm.settings import STATE_VARIABLE


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("nr_free_pages 1\n", 0),
    ],
)
def test_the_kernels_counters_are_read(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "events").write_text(text)
    assert resources.kills(tmp_path / "events") == count
    assert resources.kills(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("0::/user.slice/x\n", ["user.slice/x/memory.events"]),
        ("9:memory:/a\n8:cpu:/b\n0::/\n", ["memory/a/memory.oom_control"]),
        ("", []),
    ],
)
def test_the_counter_of_the_own_cgroup_is_found(tmp_path: Path, lines: str, expected: list[str]) -> None:
    for name in ("user.slice/x/memory.events", "memory/a/memory.oom_control"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    found = resources.counters(lines, tmp_path)
    assert found == ([tmp_path / name for name in expected] or [Path("/proc/vmstat")])


@pytest.mark.parametrize(
    ("statuses", "killed"),
    [
        ([signal.SIGKILL], True),
        ([137 << 8], True),
        ([1 << 8], False),
        ([0, 1 << 8, signal.SIGKILL], True),
        ([0], False),
    ],
)
def test_only_a_death_by_sigkill_counts(statuses: list[int], killed: bool) -> None:
    assert resources.is_any_killed(statuses[0], statuses[1:]) == killed


@pytest.mark.parametrize(
    ("rose", "status", "verdict"),
    [
        (True, 137 << 8, ("OUT_OF_MEMORY", "OutOfMemory")),
        (False, 137 << 8, ("FAILED", "NonZeroExitCode")),
        (True, 1 << 8, ("FAILED", "NonZeroExitCode")),
        (True, 0, ("COMPLETED", "None")),
        (False, int(signal.SIGKILL), ("FAILED", "JobLaunchFailure")),
    ],
)
def test_a_job_out_of_memory_ends_in_that_state(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rose: bool,
    status: int,
    verdict: tuple[str, str],
) -> None:
    before: Callable[..., object] = signal.getsignal(signal.SIGCHLD)  # type: ignore[assignment]
    state = StateDirectory.open({STATE_VARIABLE: str(tmp_path)})
    supervisor = Supervisor(state, Job(1, "x", "u", 0, "g", 0, "p"))
    try:
        monkeypatch.setattr(supervisor._oom, "rose", lambda: rose)
        supervisor._status = status
        assert supervisor._final_state() == verdict
        assert (supervisor._status == resources.OUT_OF_MEMORY) == (verdict[0] == "OUT_OF_MEMORY")
    finally:
        supervisor._wakeup_pipe.close()
        signal.signal(signal.SIGCHLD, before)
        state.close()
