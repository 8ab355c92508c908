"""What squeue, sacct and scontrol of a real Slurm 22.05 printed, read back."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.slurm.job_ids import base_id
from hpc_kit.slurm.job_status import JobStatus, parse_sacct, parse_scontrol_job, parse_squeue
from hpc_kit.slurm.states import JobState
from hpc_kit.slurm.units import UNLIMITED

RECORDED = Path(__file__).parent / "recorded"


def read_recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def time_at(hour: int, minute: int, second: int, day: int = 21) -> dt.datetime:
    return dt.datetime.fromisoformat(f"2026-11-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}")


SQUEUE = {status.job_id: status for status in parse_squeue(read_recorded("squeue"))}
SACCT = {status.job_id: status for status in parse_sacct(read_recorded("sacct"))}
STEPS = {status.job_id: status for status in parse_sacct(read_recorded("sacct-steps"))}
SCONTROL = {status.job_id: status for status in parse_scontrol_job(read_recorded("scontrol"))}

JOBS = {
    *("273", "274", "275", "276", "277", "281", "282", "283", "284+0", "284+1", "286", "287", "288"),
    *("278_0", "278_2", "278_4", "278_6", "278_9"),
}


def test_each_command_lists_every_job_and_task() -> None:
    assert SQUEUE.keys() == SACCT.keys() == SCONTROL.keys() == JOBS


def test_the_heading_of_a_cluster_is_not_part_of_a_name() -> None:
    rows = [row for row in read_recorded("squeue").splitlines(keepends=True) if row.startswith(("273|", "275|"))]
    output = parse_squeue(f"CLUSTER: alpha\n{rows[0]}\nCLUSTER: beta\n{rows[1]}")
    assert output == parse_squeue("".join(rows))


def test_a_failed_job_is_read_from_each_command() -> None:
    by_scontrol = JobStatus(
        job_id="275",
        name="fails",
        state=JobState.FAILED,
        raw_state="FAILED",
        reason="NonZeroExitCode",
        exit_code=3,
        signal=0,
        nodelist="n1",
        submit=time_at(9, 48, 17),
        start=time_at(9, 48, 17),
        end=time_at(9, 48, 17),
        time_limit=300,
        elapsed=0,
        user="root",
        partition="main",
        raw_id="275",
    )
    assert SCONTROL["275"] == by_scontrol
    assert SQUEUE["275"] == by_scontrol._replace(exit_code=None, signal=None)
    assert SACCT["275"] == by_scontrol._replace(reason=None)


def test_a_job_that_was_killed_by_a_signal() -> None:
    assert (SACCT["276"].state, SACCT["276"].exit_code, SACCT["276"].signal) == (JobState.FAILED, 0, 9)
    assert (SCONTROL["276"].exit_code, SCONTROL["276"].signal) == (0, 9)
    assert SQUEUE["276"].reason == "JobLaunchFailure"


def test_a_completed_job_has_exit_code_0_from_squeue_too() -> None:
    assert (SQUEUE["273"].exit_code, SQUEUE["273"].signal) == (0, 0)


def test_bars_and_line_breaks_in_a_name_are_read() -> None:
    for found in (SQUEUE, SACCT, SCONTROL):
        assert (found["274"].name, found["274"].state) == ("ok | job", JobState.COMPLETED)
        assert (found["277"].name, found["277"].state) == ("two\nlines", JobState.RUNNING)
        assert found["277"].user == "root"


def test_a_running_job_has_no_exit_status_yet() -> None:
    for found in (SQUEUE, SACCT, SCONTROL):
        assert (found["277"].exit_code, found["277"].signal) == (None, None)
        assert found["277"].nodelist == "n1"


def test_a_waiting_job_has_a_reason_and_no_nodes() -> None:
    assert SQUEUE["282"][3:-2] == (
        *(
            "PENDING",
            "BeginTime",
            None,
            None,
            "",
            time_at(9, 48, 17),
            time_at(9, 48, 17, 22),
            time_at(9, 53, 17, 22),
            300,
            0,
        ),
        *("root", "main", "282"),
    )
    for found in (SQUEUE, SACCT, SCONTROL):
        assert (found["281"].reason, found["281"].nodelist, found["281"].start) == ("JobHeldUser", "", None)


def test_waiting_tasks_of_an_array_are_listed_one_by_one() -> None:
    for found in (SQUEUE, SACCT, SCONTROL):
        waiting = [each for each in JOBS if found[each].state is JobState.PENDING and base_id(each) == "278"]
        assert sorted(waiting) == ["278_4", "278_6", "278_9"]
        assert {found[each].reason for each in waiting} == {"JobArrayTaskLimit"}
    assert (SQUEUE["278_0"].raw_id, SACCT["278_0"].raw_id, SCONTROL["278_0"].raw_id) == ("279", "279", "279")


def test_components_of_a_heterogeneous_job_are_read() -> None:
    for found in (SQUEUE, SACCT, SCONTROL):
        assert [(found[each].nodelist, found[each].raw_id) for each in ("284+0", "284+1")] == [
            ("n1", "284"),
            ("n3", "285"),
        ]


def test_a_cancelled_job_keeps_the_user_who_cancelled_it() -> None:
    assert (SACCT["286"].state, SACCT["286"].raw_state) == (JobState.CANCELLED, "CANCELLED by 0")
    assert (SCONTROL["286"].exit_code, SCONTROL["286"].signal) == (0, 15)
    assert (SACCT["287"].start, SACCT["287"].nodelist, SACCT["287"].time_limit) == (None, "", UNLIMITED)


def test_a_time_limit_of_days_is_read() -> None:
    for found in (SQUEUE, SACCT, SCONTROL):
        assert found["288"].time_limit == 131460


def test_steps_are_listed_with_their_jobs_on_request() -> None:
    assert STEPS.keys() - JOBS == {
        *("273.batch", "273.0", "274.batch", "275.batch", "275.0", "276.batch", "277.batch", "278_0.batch"),
        *("278_2.batch", "283.batch", "284+0.batch", "286.batch"),
    }
    assert (STEPS["275.0"].name, STEPS["275.0"].exit_code, STEPS["275.0"].user) == ("bash", 3, "")
    assert (STEPS["286.batch"].state, STEPS["286.batch"].signal) == (JobState.CANCELLED, 15)
    assert STEPS["278_0.batch"].raw_id == "279"


def test_scontrol_output_on_one_line_is_read_too() -> None:
    lines = [" ".join(record.split()) for record in read_recorded("scontrol").split("\n\n")]
    joined = "\n".join(line for line in lines if line)
    for status in parse_scontrol_job(joined):
        assert status == SCONTROL[status.job_id]._replace(name=status.name)


def test_an_unknown_state_is_kept_unchanged() -> None:
    row = read_recorded("squeue").splitlines()[0].replace("CANCELLED", "HIBERNATING")
    assert [(each.state, each.raw_state) for each in parse_squeue(row)] == [(JobState.UNKNOWN, "HIBERNATING")]


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [("NOT_SET", "time_limit", None), ("Partition_Limit", "time_limit", None), ("UNLIMITED", "time_limit", UNLIMITED)],
)
def test_words_in_place_of_a_limit_are_read(word: str, field: str, value: int | None) -> None:
    row = read_recorded("squeue").splitlines()[1].replace("|UNLIMITED|", f"|{word}|")
    assert getattr(parse_squeue(row)[0], field) == value


def test_abbreviated_indices_stay_one_row() -> None:
    line = next(line for line in read_recorded("sacct").splitlines() if line.startswith("278_["))
    cut = line.replace("4,6,9%2", "1,3,5,7,9,11,13,...")
    assert [each.job_id for each in parse_sacct(cut)] == ["278_[1,3,5,7,9,11,13,...]"]


def test_a_truncated_row_is_read_as_far_as_possible() -> None:
    line = next(line for line in read_recorded("sacct").splitlines() if "|COMPLETED|" in line and "|0:0|" in line)
    (status,) = parse_sacct(line.replace("|0:0|", "|x:|"))
    assert (status.state, status.exit_code, status.signal) == (JobState.COMPLETED, None, None)


@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error: Invalid job id specified\n", "no jobs in the system"]
)
def test_no_rows_are_no_jobs(text: str) -> None:
    assert parse_squeue(text) == parse_sacct(text) == parse_scontrol_job(text) == []


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_name_is_read_back_from_squeue(name: str) -> None:
    fields = "ada|main|N/A|N/A|N/A|5:00|0:01|n1|None"
    rows = f"7|7|RUNNING|{fields}|{name}\n8|8|PENDING|{fields}|x\n"
    assert [(each.job_id, each.name) for each in parse_squeue(rows)] == [("7", name), ("8", "x")]
