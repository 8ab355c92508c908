"""Heterogeneous jobs: components that begin and end together, each with its own size, and steps over several of them.

What is expected here is what Slurm 22.05 was seen to do; tests/conformance asks both for the most telling of it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketslurm import processes
from pocketslurm.commands.scancel import PART_OF_WHOLE
from pocketslurm.errors import CommandError
from pocketslurm.queue.database import connect
from pocketslurm.settings import Partition
from pocketslurm.steps import options as option_parts
from tests.pocketslurm.conftest import Slurm, wait_for
from tests.pocketslurm.running_job import RunningJob, StepOutput, exits_of_tasks, start_job

THREE = ("-N1", "-n2", ":", "-N1", "-n2", "-J", "second", ":", "-N2", "-n2")
BUT = "but the job allocation has maximum value of 2"
TELL = ("bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_NTASKS")


@pytest.fixture(scope="module")
def running_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """A job of three components: two tasks on n1, two on n2, one each on n3 and n4."""
    yield from start_job(tmp_path_factory, *THREE, gpus=0)


def squeue(slurm: Slurm, *words: str, columns: str = "%i %T") -> list[str]:
    """Lines of squeue, sorted."""
    return sorted(slurm.check_output("squeue", "-h", "-o", columns, *words).splitlines())


# Submitting


def test_blocks_of_a_script_are_components(slurm: Slurm) -> None:
    body = "#SBATCH -n1 -J first -t 5 --mem=10\n#SBATCH hetjob\n#SBATCH -n2\ntrue"
    job_id = slurm.submit(body, "--hold")
    assert squeue(slurm, columns="%i %A %j %C %l %m") == [
        f"{job_id}+0 {job_id} first 1 5:00 10M",
        f"{job_id}+1 {job_id + 1} first 2 5:00 10M",
    ]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (("-n3", "-J", "all"), ["0 3 all", "1 3 all"]),
        (("-n3", ":", "-n4"), ["0 3 first", "1 4 first"]),
        (("-n3", ":", "-n4", "-J", "b", ":", "-n5"), ["0 3 first", "1 4 b", "2 5 b"]),
    ],
)
def test_options_of_the_command_line_apply_to_their_component_and_the_last_ones_to_all_later_components(
    slurm: Slurm, options: tuple[str, ...], sizes: list[str]
) -> None:
    job_id = slurm.submit("#SBATCH -n1 -J first\n#SBATCH hetjob\n#SBATCH -n2\ntrue", "--hold", *options)
    printed = squeue(slurm, columns="%i %C %j")
    assert printed == [f"{job_id}+{size}" for size in sizes]


def test_packjob_separates_components_with_a_warning(slurm: Slurm) -> None:
    (slurm.folder / "old.sh").write_text("#!/bin/bash\n#SBATCH -n1\n#SBATCH packjob\n#SBATCH -n2\ntrue\n")
    done = slurm.run("sbatch", "--hold", "old.sh")
    assert done.stderr == (
        'sbatch: Warning: the "packjob" component separator is being deprecated. Please, use "hetjob" instead.\n'
    )
    assert len(squeue(slurm)) == 2


@pytest.mark.parametrize("words", [("-a0-1", "-n1", ":", "-n2"), ("-n1", ":", "-a0-1")])
def test_an_array_has_no_components(slurm: Slurm, words: tuple[str, ...]) -> None:
    status, output = slurm.refused("sbatch", *words, "--wrap=true")
    assert (status, output) == (1, "sbatch: error: Batch job submission failed: Invalid job array specification\n")


def test_if_one_component_is_refused_none_is_queued(slurm: Slurm) -> None:
    status, _ = slurm.refused("sbatch", "-n1", ":", "-p", "nowhere", "--wrap=true")
    assert (status, squeue(slurm)) == (1, [])


# Beginning and ending


def test_components_start_together_or_not_at_all_and_share_no_node(slurm: Slurm) -> None:
    holder = slurm.submit("exec sleep 1000", "-N3", "--exclusive")
    slurm.until(holder, "RUNNING")
    waiting = slurm.submit("true", "-N1", ":", "-N1")
    wait_for(lambda: slurm.job(waiting).reason == "Resources" or None)
    assert [slurm.job(each).nodes for each in (waiting, waiting + 1)] == [[], []]
    slurm.run("scancel", str(holder))
    slurm.ended(waiting)
    first, second = (slurm.job(each) for each in (waiting, waiting + 1))
    assert (first.state, second.state) == ("COMPLETED", "COMPLETED")
    assert first.start_time == second.start_time
    assert not set(first.nodes) & set(second.nodes)


def test_components_that_need_too_many_nodes_wait_with_that_reason(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "-N3", ":", "-N2")
    wait_for(lambda: slurm.job(job_id).reason == "PartitionNodeLimit" or None)
    assert slurm.job(job_id + 1).state == "PENDING"


@pytest.mark.parametrize("components", [("-N1", ":", "-N1", "-w", "n1"), ("-N3", ":", "-N1", "-x", "n[2-4]")])
def test_a_component_avoids_nodes_that_only_another_one_can_use(slurm: Slurm, components: tuple[str, ...]) -> None:
    job_id = slurm.submit("true", *components)
    assert slurm.ended(job_id).state == "COMPLETED"
    assert slurm.job(job_id + 1).nodes == ["n1"]


def test_a_component_avoids_a_small_partition_that_another_one_needs(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(partitions=(Partition("all"), Partition("gpu", nodes="n1")))
    job_id = slurm.submit("true", "-p", "all", ":", "-p", "gpu")
    assert slurm.ended(job_id).state == "COMPLETED"
    assert slurm.job(job_id + 1).nodes == ["n1"]


def test_components_that_never_fit_do_not_block_later_jobs(slurm: Slurm) -> None:
    never = slurm.submit("true", "-N1", "-w", "n1", ":", "-N1", "-w", "n1")
    behind = slurm.submit("true", "-N4")
    assert slurm.ended(behind).state == "COMPLETED"
    assert [(job.state, job.reason) for job in map(slurm.job, (never, never + 1))] == [("PENDING", "Resources")] * 2


def test_all_components_end_with_the_state_of_the_script(slurm: Slurm) -> None:
    done = slurm.run("sbatch", "--wait", "-n1", ":", "-n1", "--wrap=srun --het-group=1 sh -c 'exit 7'; exit 5")
    assert done.returncode == 5
    printed = slurm.check_output("sacct", "-nPo", "jobid,jobidraw,state,exitcode,derivedexitcode")
    assert printed.splitlines() == [
        "1+0|1|FAILED|5:0|0:0",
        "1+0.batch|1.batch|FAILED|5:0|",
        "1+1|2|FAILED|5:0|7:0",
        "1+1.0|2.0|FAILED|7:0|",
    ]


def test_scancel_ends_all_components_or_one_running_component(slurm: Slurm) -> None:
    body = "srun --het-group=0,1 sleep 1000 & touch began; wait; exec sleep 1000"
    job_id = slurm.submit(body, "-n1", ":", "-n1")
    wait_for((slurm.folder / "began").exists)
    wait_for(lambda: slurm.check_output("scontrol", "show", "step").count(".0 UserId") == 2 or None)
    slurm.check_output("scancel", f"{job_id}+1")
    assert [slurm.job(job_id + number).state for number in (0, 1)] == ["RUNNING", "CANCELLED"]
    slurm.check_output("scancel", str(job_id))
    assert slurm.ended(job_id).state == "CANCELLED"


def test_a_waiting_component_is_not_cancelled_alone(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold", "-n1", ":", "-n1")
    status, output = slurm.refused("scancel", str(job_id + 1))
    assert (status, output) == (
        60,
        f"scancel: error: Kill job error on job id {job_id + 1}: {PART_OF_WHOLE}\n",
    )
    slurm.check_output("scancel", str(job_id))
    assert {slurm.job(job_id + number).state for number in (0, 1)} == {"CANCELLED"}


def test_a_component_out_of_time_ends_alone_and_the_first_ends_all(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(minute=0.5)
    job_id = slurm.submit("srun --het-group=1 sleep 1000; exec sleep 1000", "-t3", "-n1", ":", "-t1", "-n1")
    assert slurm.until(job_id + 1, "TIMEOUT").end_time < slurm.ended(job_id).end_time
    assert slurm.job(job_id).state == "TIMEOUT"


def test_a_component_keeps_its_nodes_until_its_steps_are_over(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(kill_wait=1000.0)
    stubborn = 'trap "" TERM; touch began; until [ -e go ]; do sleep 0.05; done'
    body = f"srun --het-group=0 sleep 1000 & srun --het-group=1 bash -c '{stubborn}' & wait; exec sleep 1000"
    job_id = slurm.submit(body, "-N1", ":", "-N1")
    wait_for((slurm.folder / "began").exists)
    slurm.check_output("scancel", f"{job_id}+1")
    waiting = slurm.submit("true", "-w", slurm.job(job_id + 1).nodes[0], "--exclusive")
    assert slurm.check_output("squeue", "-h", "-o", "%T", "-j", str(job_id + 1)) == "COMPLETING\n"
    wait_for(lambda: slurm.job(waiting).reason == "Resources" or None)
    (slurm.folder / "go").touch()
    assert slurm.until(job_id + 1, "CANCELLED").exit_code == 0
    assert slurm.ended(waiting).state == "COMPLETED"
    assert slurm.job(job_id).state == "RUNNING"


def test_a_component_that_is_ending_with_the_job_keeps_its_state(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(kill_wait=1000.0)
    stubborn = 'trap "" TERM; touch began; until [ -e go ]; do sleep 0.05; done'
    body = f"srun --het-group=1 bash -c '{stubborn}' & until [ -e end ]; do sleep 0.05; done"
    job_id = slurm.submit(body, "-N1", ":", "-N1")
    wait_for((slurm.folder / "began").exists)
    slurm.check_output("scancel", f"{job_id}+1")
    (slurm.folder / "end").touch()
    wait_for(lambda: slurm.job(job_id).completing or None)
    (slurm.folder / "go").touch()
    assert [slurm.ended(each).state for each in (job_id, job_id + 1)] == ["COMPLETED", "CANCELLED"]


def test_all_components_are_requeued(slurm: Slurm) -> None:
    body = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; touch began; exec sleep 1000'
    job_id = slurm.submit(body, "--requeue", "-n1", ":", "-n1")
    wait_for((slurm.folder / "began").exists)
    status, output = slurm.refused("scontrol", "requeue", str(job_id + 1))
    assert (status, output) == (1, f"Job not heterogeneous job leader for job {job_id + 1}\n")
    slurm.check_output("scontrol", "requeue", str(job_id))
    slurm.ended(job_id)
    ends_ = [slurm.job(job_id + number) for number in (0, 1)]
    assert [(job.state, job.restart_count, job.attempt) for job in ends_] == [("COMPLETED", 1, 2)] * 2


def test_all_components_are_requeued_after_the_death_of_the_supervisor(slurm: Slurm) -> None:
    body = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; srun --het-group=0,1 sh -c "touch began-$SLURM_PROCID; sleep 1000"'
    job_id = slurm.submit(body, "-n1", ":", "-n1")
    wait_for((slurm.folder / "began-0").exists)
    os.kill(processes.pid_of(slurm.job(job_id).supervisor), signal.SIGKILL)
    slurm.ended(job_id)
    found = [slurm.job(job_id + number) for number in (0, 1)]
    assert [(job.state, job.restart_count) for job in found] == [("COMPLETED", 1)] * 2


def test_an_exclusive_job_does_not_wait_for_its_own_components(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "-d", "singleton", "-n1", ":", "-n1")
    assert slurm.ended(job_id).state == "COMPLETED"


def test_a_held_component_holds_all_components(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold", "-n1", ":", "-n1")
    slurm.check_output("scontrol", "release", str(job_id + 1))
    assert [line.endswith(" 0") for line in squeue(slurm, columns="%i %Q")] == [True, False]
    slurm.check_output("scontrol", "release", str(job_id))
    assert slurm.ended(job_id).state == "COMPLETED"


# Steps


def test_a_step_over_components_is_one_world(running_job: RunningJob) -> None:
    output = running_job.srun("--het-group=0-2", *TELL)
    assert output == StepOutput(0, ["0 n1 6", "1 n1 6", "2 n2 6", "3 n2 6", "4 n3 6", "5 n4 6"], [])


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (TELL, ["0 n1 2", "1 n1 2"]),
        (("--het-group=1", *TELL), ["0 n2 2", "1 n2 2"]),
        (("--het-group=2,0", *TELL), ["0 n1 4", "1 n1 4", "2 n3 4", "3 n4 4"]),
        (("--pack-group=0-1", "-n1", *TELL), ["0 n1 2", "1 n2 2"]),
        (("-n1", "echo", "a", ":", "echo", "b"), ["a", "b", "b"]),
        (("--het-group=1", "-n1", "echo", "a", ":", "--het-group=0", "-n2", "echo", "b"), ["a", "b", "b"]),
        (("-l", "-n1", ":", "-n1", "echo", "x"), ["0: x", "1: x"]),
    ],
)
def test_parts_of_a_step(running_job: RunningJob, words: tuple[str, ...], out: list[str]) -> None:
    assert running_job.srun(*words) == StepOutput(0, out, [])


def test_messages_number_tasks_within_their_component(running_job: RunningJob) -> None:
    output = running_job.srun("--het-group=0-2", "bash", "-c", "exit $SLURM_PROCID")
    expected = {"n1 1": 1, "n2 0": 2, "n2 1": 3, "n3 0": 4, "n4 1": 5}
    assert (output.status, exits_of_tasks(output.err)) == (
        5,
        {task: f"Exited with exit code {n}" for task, n in expected.items()},
    )


def test_a_bad_exit_ends_all_components(running_job: RunningJob) -> None:
    output = running_job.srun(
        "-K1", "--het-group=0,1", "bash", "-c", "[ $SLURM_PROCID = 3 ] && exit 7; exec sleep 1000"
    )
    assert output.status == 143
    assert sum("_step_signal: Terminating StepId=" in line for line in output.err) == 2
    assert "srun: error: n2: task 1: Exited with exit code 7" in output.err
    assert "srun: error: n1: tasks 0-1: Terminated" in output.err


def test_file_names_count_as_slurm_counts_them(running_job: RunningJob) -> None:
    running_job.srun("--het-group=0,1", "-o", "f-%t-%j-%n", "true")
    job_id = running_job.job_id
    expected = [f"f-0-{job_id}-0", f"f-1-{job_id}-0", f"f-3-{job_id + 1}-0", f"f-4-{job_id + 1}-0"]
    assert sorted(path.name for path in running_job.folder.glob("f-*")) == expected


def test_a_file_is_shared_by_all_components(running_job: RunningJob) -> None:
    running_job.srun("--het-group=0,1", "-o", "shared", "bash", "-c", "echo $SLURM_PROCID")
    assert sorted(running_job.text("shared").split()) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("--het-group=5",), ["error: Requested het-group offset exceeds highest hetjob index (5 > 2)"]),
        (
            ("--het-group=0,5",),
            [f"error: Attempt to run a job step with het group value of 5, {BUT}"],
        ),
        (
            ("--het-group=x",),
            ["error: Invalid --het-group value: x", "error: _parse_single_range: Invalid range: `x'"],
        ),
        (
            ("--het-group=0", "true", ":", "--het-group=0"),
            ["fatal: Duplicate het groups in single srun not supported"],
        ),
        (
            ("-n1", "true", ":", "-n9"),
            ["error: Unable to create step for job {}: More processors requested than permitted"],
        ),
    ],
)
def test_a_missing_component_is_refused(running_job: RunningJob, words: tuple[str, ...], lines: list[str]) -> None:
    expected = [f"srun: {line.format(running_job.job_id + 1)}" for line in lines]
    assert running_job.srun(*words, "true") == StepOutput(1, [], sorted(expected))


def test_srun_accepts_only_the_id_of_the_first_component(running_job: RunningJob) -> None:
    number = running_job.job_id + 1
    output = running_job.srun(f"--jobid={number}", "true")
    assert (output.status, output.err[0]) == (
        1,
        f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {number}",
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ("srun", "-n1", "true", ":", "-n2", "true"),
            "srun: error: `srun a : b` is supported",
        ),
        (
            ("salloc", "-n1", ":", "-n2", "true"),
            "salloc: error: the embedded Slurm allocates",
        ),
    ],
)
def test_several_parts_need_a_heterogeneous_job(slurm: Slurm, command: tuple[str, ...], message: str) -> None:
    status, complaint = slurm.refused(*command)
    assert (status, complaint.startswith(message)) == (1, True), complaint


def test_het_group_needs_a_heterogeneous_job(slurm: Slurm) -> None:
    job_id = slurm.submit("srun --het-group=0 true", "--output=log")
    slurm.ended(job_id)
    assert slurm.log("log") == "srun: error: No directives to start application on any available hetjob components\n"


# Listings


def test_the_id_of_the_first_component_selects_all_and_other_ids_select_one(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold", "-n1", ":", "-n1")
    both = [f"{job_id}+0", f"{job_id}+1"]
    assert squeue(slurm, "-j", str(job_id), columns="%i") == both
    for name in (str(job_id + 1), f"{job_id}+1"):
        assert squeue(slurm, "-j", name, columns="%i") == both[1:]
        assert slurm.check_output("sacct", "-nXPo", "jobid,jobidraw", "-j", name) == f"{job_id}+1|{job_id + 1}\n"
    assert slurm.check_output("sacct", "-nXPo", "jobid", "-j", str(job_id)).split() == both


def test_columns_of_components(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold", "-n1", ":", "-n1")
    printed = slurm.check_output("squeue", "-h", "-O", "jobid:9,hetjobid:9,hetjobidset:9,hetjoboffset:9").splitlines()
    assert sorted(line.split() for line in printed) == [
        [str(job_id + number), str(job_id), f"{job_id}-{job_id + 1}", str(number)] for number in (0, 1)
    ]
    shown = slurm.check_output("scontrol", "show", "job", str(job_id)).splitlines()
    assert [line for line in shown if "Het" in line] == [
        f"JobId={job_id} HetJobId={job_id} HetJobOffset=0 JobName=job.sh",
        f"   HetJobIdSet={job_id}-{job_id + 1}",
        f"JobId={job_id + 1} HetJobId={job_id} HetJobOffset=1 JobName=job.sh",
        f"   HetJobIdSet={job_id}-{job_id + 1}",
    ]


def test_an_update_changes_all_components_or_one(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold", "-n1", ":", "-n1")
    slurm.check_output("scontrol", "update", f"jobid={job_id}", "timelimit=4", "name=both")
    slurm.check_output("scontrol", "update", f"jobid={job_id}+1", "name=one")
    assert squeue(slurm, columns="%i %j %l") == [f"{job_id}+0 both 4:00", f"{job_id}+1 one 4:00"]


# The parts


def test_variables_of_a_component_precede_the_plain_ones() -> None:
    environ = {
        "SLURM_NTASKS": "2", "SLURM_NTASKS_HET_GROUP_1": "4", "SLURM_MEM_PER_NODE": "10",
        "SLURM_MEM_PER_CPU_HET_GROUP_1": "5", "SLURM_JOB_ID": "7", "SLURM_JOB_ID_HET_GROUP_1": "8",
    }  # fmt: skip
    found = option_parts.group_variables(environ, 1)
    plain = {name: value for name, value in found.items() if "GROUP" not in name}
    assert plain == {"SLURM_NTASKS": "4", "SLURM_MEM_PER_CPU": "5", "SLURM_JOB_ID": "7"}
    assert option_parts.group_variables(environ, 0) == environ


def test_a_part_without_a_program_runs_the_next_one() -> None:
    parts = option_parts.read_parts(["-n2", ":", "-n1", "hostname"], {})
    assert [part.options.command for part in option_parts.assign_groups(parts, {}, 2)] == [("hostname",)] * 2
    with pytest.raises(CommandError, match="Duplicate"):
        option_parts.assign_groups(option_parts.read_parts(["--het-group=1", ":", "x"], {}), {}, 2)


def test_a_queue_of_an_older_release_gets_the_columns_of_components(tmp_path: Path) -> None:
    connect(tmp_path).close()
    db = sqlite3.connect(tmp_path / "slurm.db")
    columns = [row[1] for row in db.execute("PRAGMA table_info(steps)") if row[1] != "peak_memory"]
    for statement in (
        "DROP TABLE steps",
        f"CREATE TABLE steps ({', '.join(columns)}, PRIMARY KEY (job_id, attempt, step_id))",
        "DROP INDEX jobs_het",
        "ALTER TABLE jobs DROP COLUMN het_job_id",
        "ALTER TABLE jobs DROP COLUMN het_offset",
        "INSERT INTO steps (job_id, attempt, step_id, nodes) VALUES (1, 1, 0, '[]')",
        "PRAGMA user_version = 7",
    ):
        db.execute(statement)
    db.commit()
    db.close()
    again = connect(tmp_path)
    row = again.execute("SELECT job_id, step_id, peak_memory FROM steps").fetchone()
    assert tuple(row) == (1, 0, 0)
    assert again.execute("SELECT job_id FROM jobs WHERE het_job_id = 1").fetchall() == []


def test_one_mpi_world_spans_all_components(running_job: RunningJob) -> None:
    output = running_job.srun("--het-group=0-2", "--mpi=pmi2", "bash", "-c", "echo $PMI_RANK $PMI_SIZE")
    assert output == StepOutput(0, [f"{rank} 6" for rank in range(6)], [])


def test_a_range_beyond_all_components_is_refused() -> None:
    with pytest.raises(CommandError, match="group value of 99999, but the job allocation has maximum value of 2"):
        option_parts._groups("0-99999", 0, 3)
    with pytest.raises(CommandError, match="Invalid range: `2-1'"):
        option_parts._groups("2-1", 0, 3)
