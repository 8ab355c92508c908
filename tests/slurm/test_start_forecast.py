"""What a job may expect, in plain words."""

from __future__ import annotations

import datetime as dt

import pytest

from hpc_kit.slurm.job_status import JobStatus, parse_queue
from hpc_kit.slurm.partitions import ListedPartition, NodeKind
from hpc_kit.slurm.start_forecast import PendingQueue, describe_wait, find_limit, format_duration, format_start

NOW = dt.datetime.fromisoformat("2026-11-20T13:00")  # a Friday


def row(job_id: str, reason: str = "Priority", priority: int = 100, **fields: str) -> JobStatus:
    values = {"state": "PENDING", "user": "ada", "partition": "main", "start": "N/A", "elapsed": "0:00"} | fields
    text = (
        f"{job_id}|{job_id.partition('_')[0]}|{values['state']}|{values['user']}|{values['partition']}|N/A"
        f"|{values['start']}|N/A|1:00:00|{values['elapsed']}|{values.get('nodes', '')}|{reason}|{priority}"
        f"|{values.get('size', '|||')}|x|y\n"
    )
    return parse_queue(text)[0]


def describe(status: JobStatus, *others: JobStatus, user: str = "ada") -> str:
    return describe_wait(status, PendingQueue([status, *others], user), NOW)[0]


def test_jobs_ahead_are_waiting_jobs_with_a_higher_priority() -> None:
    others = [
        row("1", priority=300, user="bob"),
        row("2", priority=100, user="bob"),  # as high, and older
        row("9", priority=100, user="bob"),  # as high, and younger
        row("3", priority=900, reason="Dependency", user="bob"),  # in no line
        row("4", priority=900, partition="gpu", user="bob"),
        row("5", priority=900, state="RUNNING", reason="None", user="bob"),
        row("6", priority=900, partition="gpu,main", user="bob"),
    ]
    assert describe(row("7"), *others) == "3 jobs ahead"
    assert describe(row("7", start="2026-11-20T14:20:00"), *others) == "3 jobs ahead, starts about 14:20"
    assert describe(row("7", partition="main,gpu"), *others) == "2 jobs ahead"


def test_each_waiting_task_of_an_array_counts_as_a_job_ahead() -> None:
    array = parse_queue("3_[0-9%2]|3|PENDING|bob|main|N/A|N/A|N/A|5|0:00||Priority|900|1|1|N/A|normal|x\n")
    assert describe(row("7"), *array) == "10 jobs ahead"


def test_a_queue_that_shows_only_own_jobs_is_noted() -> None:
    assert describe(row("7"), row("1")) == "1 of your own job ahead"
    assert describe(row("7", reason="Resources")) == "It is next in line and waits for nodes to become free."


def test_a_job_that_waits_for_another_reason_names_it() -> None:
    held = describe_wait(row("7", reason="JobHeldUser", priority=0), PendingQueue([], "ada"), NOW)
    assert held == ("It is held by its user.", "Release it: scontrol release 7")
    begin = row("7", reason="BeginTime", start="2026-11-21T08:00:00")
    assert describe(begin) == "Its earliest start time has not come. Starts at tomorrow 08:00."


SHORT = ListedPartition("short", is_default=True, kinds=(NodeKind(4, 8, gpus=2),), time=1800, most_nodes=2)
LONG = ListedPartition("long", is_default=False, kinds=(NodeKind(2, 64, gpus=0), NodeKind(2, 8, gpus=4)), time=None,
                       most_nodes=None)  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "reason", "size", "found", "option"),
    [
        (
            "short",
            "PartitionTimeLimit",
            "1|1|N/A|",
            "--time=01:00:00; the partition allows 00:30:00",
            "--time=00:30:00",
        ),
        ("short", "PartitionTimeLimit", "1|1|N/A|long", "--time=01:00:00; the partition allows 00:30:00", "--time="),
        ("short", "PartitionNodeLimit", "3|3|N/A|", "3 nodes; a job may have 2", "--nodes=2"),
        ("long", "PartitionConfig", "5|5|N/A|", "5 nodes; the partition has 4", "--nodes=4"),
        (
            "short",
            "BadConstraints",
            "2|18|N/A|",
            "9 CPUs on each of 2 nodes; the largest nodes have 8",
            "--cpus-per-task",
        ),
        (
            "short",
            "Resources",
            "1|1|gres:gpu:a100:3|x",
            "3 GPUs on each node; the largest nodes have 2",
            "--gpus-per-node=2",
        ),
        ("short,long", "Priority", "5|5|gres/gpu:1|", "5 nodes; the partition has 4", "--nodes=4"),
    ],
)
def test_a_limit_of_the_partition_that_keeps_a_job_waiting_is_named(
    partition: str, reason: str, size: str, found: str, option: str
) -> None:
    status = row("7", reason, partition=partition, size=size)
    sentence, step = describe_wait(status, PendingQueue([status], "ada", [SHORT, LONG]), NOW)
    assert sentence == f"It can never start in partition {partition.partition(',')[0]}: {found}."
    assert step is not None
    assert step.startswith("Cancel it and submit it again: ask for ")
    assert option in step


@pytest.mark.parametrize(
    ("partition", "reason", "size"),
    [
        ("long", "Priority", "4|4|N/A|"),
        ("short,long", "Priority", "1|64|N/A|"),  # the second one may start it
        ("short", "Priority", "1|1|N/A|express"),  # a QOS may lift the limit of time
        ("short", "Dependency", "9|9|N/A|"),  # another reason comes first
        ("other", "PartitionTimeLimit", "9|9|N/A|"),
    ],
)
def test_a_job_that_may_start_has_no_limit(partition: str, reason: str, size: str) -> None:
    assert find_limit(row("7", reason, partition=partition, size=size), [SHORT, LONG]) is None


def test_a_state_of_a_newer_slurm_is_named() -> None:
    assert (
        describe(row("7", state="MELTING"))
        == "Slurm prints the state MELTING, which this version of hpc_kit does not know."
    )


@pytest.mark.parametrize(
    ("elapsed", "limit", "expected"),
    [
        ("1:50:00", "5:00:00", "3 h 10 min left of 5 h on n[1-2]"),
        ("0:10", "10:00", "9 min 50 s left of 10 min on n[1-2]"),
        ("2-03:00:00", "UNLIMITED", "2 d 3 h so far, no limit on n[1-2]"),
        ("1:00:30", "1:00:00", "1 h so far, over its limit of 1 h on n[1-2]"),
        ("INVALID", "1:00:00", "It is running on n[1-2]."),
    ],
)
def test_a_running_job_shows_its_remaining_time(elapsed: str, limit: str, expected: str) -> None:
    text = f"7|7|RUNNING|ada|main|N/A|N/A|N/A|{limit}|{elapsed}|n[1-2]|None|1|1|1|N/A|normal|x\n"
    assert describe(parse_queue(text)[0]) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (599, "9 min 59 s"), (600, "10 min"), (3600, "1 h"), (90061, "1 d 1 h")],
)
def test_durations_are_printed(seconds: int, expected: str) -> None:
    assert format_duration(seconds) == expected


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-20T14:20", "14:20"),
        ("2026-11-21T00:10", "tomorrow 00:10"),
        ("2026-11-25T09:00", "Wed 09:00"),
        ("2026-12-24T09:00", "24 Dec 09:00"),
        ("2027-01-02T09:00", "2 Jan 2027 09:00"),
    ],
)
def test_times_are_printed(moment: str, expected: str) -> None:
    assert format_start(dt.datetime.fromisoformat(moment), NOW) == expected
