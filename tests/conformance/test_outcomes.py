"""The end of jobs: states, exit codes, signals. All jobs are submitted together and run in parallel."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.conformance.engine import Ended, Engine


class Case(NamedTuple):
    """A job, with its expected state and exit code in the accounting."""

    name: str
    body: str
    ended: Ended
    options: tuple[str, ...] = ()
    says: str | None = None
    """Expected text of its log."""


DONE = Ended("COMPLETED", "0:0")

CASES = [
    Case("ends well", "true", DONE),
    Case("a code", "exit 3", Ended("FAILED", "3:0")),
    Case("a code above 128", "exit 137", Ended("FAILED", "137:0")),
    Case("the last command's code", "false; sh -c 'exit 7'", Ended("FAILED", "7:0")),
    Case("what fails before the last command does not count", "false; true", DONE),
    Case("set -e", "set -e; false; true", Ended("FAILED", "1:0")),
    Case("killed by itself", "kill -KILL $$", Ended("FAILED", "0:9")),
    Case("terminated by itself", "kill -TERM $$", Ended("FAILED", "0:15")),
    Case("no such command", "no_such_command", Ended("FAILED", "127:0")),
    Case("another interpreter", "#!/bin/sh\nexit 4", Ended("FAILED", "4:0")),
    Case("an interpreter with words", "#!/usr/bin/env -S python3 -I\nraise SystemExit(5)", Ended("FAILED", "5:0")),
    Case("a step's code", "srun sh -c 'exit 5'", Ended("FAILED", "5:0")),
    Case("a step's code that the script passes over", "srun sh -c 'exit 5'\ntrue", DONE),
    Case(
        "one task of three fails", "srun -n3 sh -c '[ $SLURM_PROCID != 1 ] || exit 6'", Ended("FAILED", "6:0"), ("-n3",)
    ),
    Case(
        "the highest code of the tasks",
        "srun -n3 sh -c 'exit $((SLURM_PROCID == 1 ? 9 : SLURM_PROCID + 1))'",
        Ended("FAILED", "9:0"),
        ("-n3",),
    ),
    Case("a task killed by a signal", "srun sh -c 'kill -KILL $$' 2>/dev/null; echo code $?", DONE, says="code 137\n"),
    Case("a task ended by a signal", "srun sh -c 'kill -USR1 $$' 2>/dev/null; echo code $?", DONE, says="code 138\n"),
    Case("no such program", "srun /no/such/program 2>/dev/null; echo code $?", DONE, says="code 2\n"),
    Case(
        "all ranks are killed after a failed one",
        "srun -n2 --kill-on-bad-exit sh -c '[ $SLURM_PROCID = 0 ] && exit 8; sleep 300'; [ $? -ge 128 ]",
        DONE,
        ("-n2",),
    ),
    Case(
        "all other ranks continue after a failed one",
        "srun -n2 sh -c '[ $SLURM_PROCID = 0 ] && exit 8; sleep 1; echo late' 2>/dev/null; exit 0",
        DONE,
        ("-n2",),
        says="late\n",
    ),
    Case(
        "no time after the first end",
        "srun -n2 --wait=1 sh -c '[ $SLURM_PROCID = 0 ] && exit 0; sleep 300'; [ $? -ge 128 ]",
        DONE,
        ("-n2",),
    ),
    Case("--wrap is a script of sh", "", Ended("FAILED", "2:0"), ("--wrap=exit 2",)),
    Case("no such folder for the log", "true", Ended("FAILED", "0:53"), ("--output=no/such/folder/x.log",)),
    Case("no such folder to start in", "pwd", DONE, ("--chdir=/no/such/folder", "--output=/dev/null")),
    Case("arguments", "printf '%s|' \"$@\"", DONE, says="a b|$c|"),
    Case("its own folder", "[ $PWD = /usr/bin ]", DONE, ("--chdir=/usr/bin", "--output=/dev/null")),
    Case("a script cannot read the terminal", "cat; echo over", DONE, says="over\n"),
    Case("input from a file", "cat", DONE, ("--input=/etc/debian_version",)),
    Case("what it leaves in the background ends with it", "sleep 300 & disown", DONE),
    Case("children of steps end with the step", "srun sh -c 'sleep 300 >/dev/null 2>&1 &'", DONE),
]


@pytest.fixture(scope="module")
def jobs(engine: Engine) -> dict[str, str]:
    """Submit the job of each case, and return the job ids."""
    found = {}
    for case in CASES:
        output = () if any("--output" in option for option in case.options) else ("--output=outcome-%j",)
        if any("--wrap" in option for option in case.options):
            found[case.name] = engine.output_of("sbatch", "--parsable", "--mem=100", *output, *case.options).strip()
            continue
        found[case.name] = engine.submit(case.body, "--mem=100", *output, *case.options, arguments=("a b", "$c"))
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_job_ends_with_its_state_and_exit_code(engine: Engine, jobs: dict[str, str], case: Case) -> None:
    assert engine.await_end(jobs[case.name]) == case.ended
    if case.says is not None:
        assert engine.read_text(f"outcome-{jobs[case.name]}") == case.says


def test_many_jobs_leave_an_empty_queue(engine: Engine, jobs: dict[str, str]) -> None:
    for job_id in jobs.values():
        engine.await_end(job_id)
    assert engine.output_of("squeue", "-h", "-j", ",".join(jobs.values())) == ""


def test_sbatch_waits_and_exits_with_the_code_of_the_job(engine: Engine) -> None:
    done = engine.run("sbatch", "--wait", "--wrap=exit 3")
    assert done.returncode == 3


def test_sbatch_waits_and_exits_with_the_highest_code_of_an_array(engine: Engine) -> None:
    done = engine.run("sbatch", "--wait", "--array=0-2", "--wrap=exit $SLURM_ARRAY_TASK_ID")
    assert done.returncode == 2
