"""salloc, and the commands without a function here, such as sacctmgr."""

from __future__ import annotations

import os
import signal

import pytest

from hpc_kit.slurm.getopt import SALLOC
from pocketslurm.commands import UNSUPPORTED
from pocketslurm.commands.salloc import SUPPORT
from pocketslurm.option_support import Support
from tests.pocketslurm.conftest import Slurm, wait_for

NOWHERE = (
    "salloc: error: invalid partition specified: nowhere\n"
    "salloc: error: Job submit/allocate failed: Invalid partition name specified\n"
)
TIMED_OUT = (
    "salloc: Job allocation 1 has been revoked.\nsalloc: error: Unable to allocate resources: Connection timed out\n"
)


def without_waiting_lines(text: str) -> str:
    """Return the output without the lines about waiting, which depend on the time."""
    return "".join(line for line in text.splitlines(keepends=True) if "queued" not in line and "Pending" not in line)


def test_a_command_runs_in_an_allocation_and_ends_it(slurm: Slurm) -> None:
    line = 'srun sh -c "echo \\$SLURMD_NODENAME" | sort; echo $SLURM_JOB_NODELIST $SLURM_NTASKS; exit 4'
    done = slurm.run("salloc", "-N2", "-n2", "-Q", "sh", "-c", line)
    assert (done.returncode, done.stdout, done.stderr) == (4, "n1\nn2\nn[1-2] 2\n", "")
    job = slurm.until(1, "FAILED")
    assert (job.name, job.nodes, job.exit_code) == ("interactive", ["n1", "n2"], 4 << 8)


def test_salloc_reports_the_allocation(slurm: Slurm) -> None:
    done = slurm.run("salloc", "-J", "name", "true")
    assert without_waiting_lines(done.stderr).replace("salloc: job 1 has been allocated resources\n", "") == (
        "salloc: Granted job allocation 1\nsalloc: Relinquishing job allocation 1\n"
    )
    assert slurm.until(1, "COMPLETED").name == "name"


def test_without_a_command_the_users_shell_runs(slurm: Slurm) -> None:
    done = slurm.run(
        "salloc", "-Q", "-n3", stdin="echo shell of $SLURM_JOB_ID, $SLURM_NTASKS\n", env={"SHELL": "/bin/sh"}
    )
    assert (done.returncode, done.stdout) == (0, "shell of 1, 3\n")


def test_an_allocation_without_a_shell_waits_for_steps(slurm: Slurm) -> None:
    slurm.run("salloc", "-N2", "--no-shell")
    assert slurm.check_output("squeue", "-h", "-o", "%j %T %D") == "no-shell RUNNING 2\n"
    assert slurm.check_output("srun", "--jobid=1", "-n2", "-l", "echo", "here") in (
        "0: here\n1: here\n",
        "1: here\n0: here\n",
    )
    assert slurm.job(1).state == "RUNNING"
    slurm.check_output("scancel", "1")
    slurm.until(1, "CANCELLED")


def test_after_scancel_the_command_continues_and_its_steps_end(slurm: Slurm) -> None:
    line = "srun sleep 100 & sleep 1; scancel $SLURM_JOB_ID; wait; sleep 1; echo still"
    done = slurm.run("salloc", "sh", "-c", line)
    assert (done.returncode, done.stdout) == (0, "still\n")
    assert "salloc: Job allocation 1 has been revoked.\n" in done.stderr
    slurm.until(1, "CANCELLED")


def test_killing_salloc_ends_the_job(slurm: Slurm) -> None:
    process = slurm.start("salloc", "bash", "-c", "touch up; exec sleep 100")
    wait_for((slurm.folder / "up").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    slurm.until(1, "COMPLETED", "FAILED", "CANCELLED")
    os.killpg(process.pid, signal.SIGKILL)  # what the killed command has left


@pytest.mark.parametrize(
    ("options", "status", "output"),
    [
        (["--bogus"], 255, "salloc: unrecognized option '--bogus'\nTry \"salloc --help\" for more information\n"),
        (
            ["-p", "nowhere", "true"],
            1,
            NOWHERE,
        ),
        (
            ["-N9", "-Q", "--immediate=1", "true"],
            1,
            TIMED_OUT,
        ),
        (["-Q", "/no/such"], 1, 'salloc: error: _fork_command: Unable to find command "/no/such"\n'),
    ],
)
def test_salloc_refuses_wrong_options(slurm: Slurm, options: list[str], status: int, output: str) -> None:
    assert slurm.refused("salloc", *options) == (status, output)


def test_every_option_has_its_row() -> None:
    assert SUPPORT.keys() == SALLOC.keys()
    assert all(row.note for row in SUPPORT.values() if row.support is not Support.WORKS)


def test_variables_replace_options(slurm: Slurm) -> None:
    done = slurm.run(
        "salloc", "sh", "-c", "echo $SLURM_JOB_NAME", env={"SALLOC_QUIET": "1", "SALLOC_JOB_NAME": "named"}
    )
    assert (done.stdout, done.stderr) == ("named\n", "")


@pytest.mark.parametrize("argv", [("sacctmgr", "-n", "list", "user", "format=account"), ("sshare", "-U")])
def test_there_are_no_accounts(slurm: Slurm, argv: tuple[str, ...]) -> None:
    assert slurm.check_output(*argv) == ""


@pytest.mark.parametrize("command", sorted(UNSUPPORTED.keys() - {"sshare"}))
def test_unsupported_commands_print_the_alternative(slurm: Slurm, command: str) -> None:
    status, output = slurm.refused(command, "add", "-x")
    assert (status, output) == (1, f"{command}: error: not supported by the embedded Slurm: {UNSUPPORTED[command]}\n")


def test_clusters_adds_the_cluster_to_the_answer(slurm: Slurm) -> None:
    assert (
        slurm.check_output("sbatch", "-M", "embedded", "--hold", "--wrap", "true")
        == "Submitted batch job 1 on cluster embedded\n"
    )
    assert slurm.check_output("sbatch", "-M", "all", "--parsable", "--hold", "--wrap", "true") == "2;embedded\n"
