"""Patterns in the names of log files. The expected names come from a real Slurm 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketslurm.log_paths import NO_VALUE, PatternValues, StreamTarget, batch_path, expand, stream_target

STEP = PatternValues(job_id=94, job_name="msgs2.sh", user="root", node="n3", node_id=2, task_id=5, step_id=10)
ARRAY = PatternValues(job_id=12, job_name="a", user="root", node="n1", array_job_id=10, array_task_id=23)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("f-%j-%J-%s-%t-%n-%N-%u-%x", "f-94-94.10-10-5-2-n3-root-msgs2.sh"),
        ("%3t-%4j-%a-%A-%%t", "005-0094-4294967294-94-%t"),
        ("%j-%%-%q", "94-%-%q"),
        ("%15j.%12t", "0000000094.0000000005"),
        ("plain.log", "plain.log"),
        ("100%", "100%"),
        ("%3N%3x", "n3msgs2.sh"),
    ],
)
def test_patterns_of_a_step(pattern: str, name: str) -> None:
    assert expand(pattern, STEP) == name


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("slurm-%A_%a.out", "slurm-10_23.out"),
        ("%j %4a %b %J %s %t %n", "12 0023 3 12 batch 0 0"),
    ],
)
def test_patterns_of_an_array_task(pattern: str, name: str) -> None:
    assert expand(pattern, ARRAY) == name


def test_outside_of_an_array_the_index_is_the_largest_number() -> None:
    assert expand("%a", STEP) == str(NO_VALUE)


def test_a_backslash_switches_the_patterns_off() -> None:
    assert expand("\\%j-%t", STEP) == "%j-%t"
    assert expand("a\\\\b%j", STEP) == "a\\b%j"


def test_a_batch_log_lies_in_the_jobs_folder_unless_its_path_is_absolute() -> None:
    assert batch_path("logs/%j.log", ARRAY, "/home/ada") == Path("/home/ada/logs/12.log")
    assert batch_path("/var/log/%x", ARRAY, "/home/ada") == Path("/var/log/a")


@given(st.integers(0, 12), st.integers(0, 10**9))
def test_widths_pad_with_zeros_up_to_ten_digits(width: int, number: int) -> None:
    assert expand(f"%{width or ''}j", STEP._replace(job_id=number)) == str(number).zfill(min(width, 10))


@given(st.text(alphabet="abc/._-", max_size=30))
def test_names_without_patterns_stay_as_they_are(name: str) -> None:
    assert expand(name, STEP) == name


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        (None, StreamTarget()),
        ("all", StreamTarget()),
        ("all-of-it.txt", StreamTarget()),  # srun looks at the first three letters only
        ("-", StreamTarget()),
        ("none", StreamTarget(path="/dev/null", per_task=True)),
        ("2", StreamTarget(task=2)),
        ("4", StreamTarget(path="4")),
        ("log", StreamTarget(path="log")),
        ("log-%j-%s", StreamTarget(path="log-%j-%s")),
        ("log-%t", StreamTarget(path="log-%t", per_task=True)),
        ("log-%5n", StreamTarget(path="log-%5n", per_task=True)),
        ("log-%%t", StreamTarget(path="log-%%t")),
        ("log\\-%t", StreamTarget(path="log\\-%t")),
    ],
)
def test_where_a_stream_of_four_tasks_goes(argument: str | None, found: StreamTarget) -> None:
    assert stream_target(argument, 4) == found
