"""Messages about the ends of tasks, and the exit code of srun."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.option_values import fold_indices
from pocketslurm.exit_status import srun_exit_code
from pocketslurm.resources import OUT_OF_MEMORY
from pocketslurm.steps.messages import TaskExits, format_tasks, highest_exit_code


def exited(code: int) -> int:
    return code << 8


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_contain_every_task_once(numbers: set[int]) -> None:
    assert expand(f"t[{fold_indices(numbers, steps=False)}]") == [f"t{number}" for number in sorted(numbers)]


def test_one_task_or_more() -> None:
    assert (format_tasks([3]), format_tasks([4, 3, 7])) == ("task 3", "tasks 3-4,7")


@pytest.mark.parametrize(
    ("status", "line", "code"),
    [
        (exited(0), None, 0),
        (exited(3), "n1: task 0: Exited with exit code 3", 3),
        (exited(255), "n1: task 0: Exited with exit code 255", 255),
        (signal.SIGKILL, "n1: task 0: Killed", 137),
        (signal.SIGTERM, "n1: task 0: Terminated", 143),
        (signal.SIGSEGV | 0x80, "n1: task 0: Segmentation fault (core dumped)", 139),
        (OUT_OF_MEMORY, "n1: task 0: Out Of Memory", 1),
    ],
)
def test_a_task_end_has_a_message_and_an_exit_code(status: int, line: str | None, code: int) -> None:
    report = TaskExits()
    assert report.record("n1", [0], status) == line
    assert (srun_exit_code(highest_exit_code([report])), report.bad) == (code, status != 0)
    assert report.killed == (status in {signal.SIGKILL, signal.SIGTERM})


def test_a_step_without_a_started_task_succeeds() -> None:
    assert highest_exit_code([TaskExits()]) == 0


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([exited(1), exited(5), exited(2)], 5),
        ([exited(200), signal.SIGTERM], 143),
        ([signal.SIGTERM, exited(200)], 143),
        ([signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL], 143),
        ([signal.SIGKILL, OUT_OF_MEMORY, exited(9)], 1),
    ],
)
def test_the_highest_exit_code_of_several_tasks(statuses: list[int], code: int) -> None:
    report = TaskExits()
    for task, status in enumerate(statuses):
        report.record("n1", [task], status)
    assert srun_exit_code(highest_exit_code([report])) == code


def test_after_an_abort_exit_codes_are_reported_and_signals_are_not() -> None:
    report = TaskExits()
    report.cancelled = True
    assert report.record("n1", [0], signal.SIGTERM) is None
    assert report.record("n1", [1], exited(1)) == "n1: task 1: Exited with exit code 1"
