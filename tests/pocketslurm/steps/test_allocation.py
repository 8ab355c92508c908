"""srun outside of a job, which makes an allocation first."""

from __future__ import annotations

import os
import pty
import select
import signal
import time

from tests.pocketslurm.conftest import Slurm, wait_for
from tests.pocketslurm.running_job import exits_of_tasks


def test_srun_releases_its_allocation_at_the_end(slurm: Slurm) -> None:
    done = slurm.run(
        "srun", "-N2", "--ntasks-per-node=2", "-l", "bash", "-c", "echo $SLURMD_NODENAME $SLURM_JOB_NAME; exit 3"
    )
    assert sorted(done.stdout.splitlines()) == ["0: n1 bash", "1: n1 bash", "2: n2 bash", "3: n2 bash"]
    expected = {f"n{rank // 2 + 1} {rank}": "Exited with exit code 3" for rank in range(4)}
    assert (done.returncode, exits_of_tasks(done.stderr.splitlines())) == (3, expected)
    job = slurm.ended(1)
    assert (job.state, job.batch, job.name, os.waitstatus_to_exitcode(job.exit_code)) == ("FAILED", False, "bash", 3)


def test_the_variables_of_an_allocation_by_srun(slurm: Slurm) -> None:
    out = slurm.check_output("srun", "-N2", "bash", "-c", "[ $SLURM_PROCID = 0 ] || env")
    environ = dict(line.partition("=")[::2] for line in out.splitlines())
    assert {name: environ.get(name) for name in ("SLURM_JOB_NUM_NODES", "SLURM_SUBMIT_DIR", "SLURM_NODE_ALIASES")} == {
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(slurm.folder),
        "SLURM_NODE_ALIASES": None,
    }


def test_srun_prints_that_it_waits_for_resources(slurm: Slurm) -> None:
    holder = slurm.submit("until [ -e go ]; do sleep 0.02; done", "-N4", "--exclusive", "-o", "/dev/null")
    slurm.until(holder, "RUNNING")
    waiting = slurm.start("srun", "-n1", "echo", "through")
    queued = "srun: job 2 queued and waiting for resources\n"
    wait_for(lambda: waiting.output()[1] == queued)
    (slurm.folder / "go").touch()
    out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out, err) == (0, "through\n", f"{queued}srun: job 2 has been allocated resources\n")


def test_immediate_does_not_wait(slurm: Slurm) -> None:
    slurm.until(slurm.submit("sleep 100", "-N4", "--exclusive", "-o", "/dev/null"), "RUNNING")
    assert slurm.refused("srun", "-I", "-n1", "true") == (
        1,
        "srun: error: Unable to allocate resources: Requested nodes are busy\n",
    )


def test_an_interrupt_withdraws_the_request(slurm: Slurm) -> None:
    slurm.until(slurm.submit("sleep 100", "-N4", "--exclusive", "-o", "/dev/null"), "RUNNING")
    waiting = slurm.start("srun", "-n1", "true")
    queued = wait_for(lambda: waiting.output()[1])
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out, err) == (1, "", f"{queued}srun: Job allocation 2 has been revoked\n")
    wait_for(lambda: not slurm.job(2).active)


def test_srun_prints_the_refusal_of_the_controller(slurm: Slurm) -> None:
    status, words = slurm.refused("srun", "-p", "nosuch", "true")
    assert (status, words.splitlines()[-1]) == (
        1,
        "srun: error: Unable to allocate resources: Invalid partition name specified",
    )


def test_scancel_ends_it(slurm: Slurm) -> None:
    running = slurm.start("srun", "-n2", "bash", "-c", "touch up-$SLURM_PROCID; exec sleep 100")
    wait_for(lambda: (slurm.folder / "up-0").exists() and (slurm.folder / "up-1").exists())
    slurm.check_output("scancel", "1")
    out, err = running.communicate(timeout=20)
    assert (running.returncode, out) == (143, "")
    assert "srun: Job step aborted: Waiting up to " in err
    assert exits_of_tasks(err.splitlines()) == {"n1 0": "Terminated", "n1 1": "Terminated"}
    assert slurm.ended(1).state == "CANCELLED"


def test_a_running_job_can_be_entered_from_outside(slurm: Slurm) -> None:
    job = slurm.submit("sleep 100", "-N2", "-o", "/dev/null")
    slurm.until(job, "RUNNING")
    out = slurm.check_output("srun", f"--jobid={job}", "--overlap", "bash", "-c", "echo $SLURM_JOB_ID $SLURMD_NODENAME")
    assert sorted(out.splitlines()) == [f"{job} n1", f"{job} n2"]


def test_pty_gives_the_first_task_a_terminal_of_its_own(slurm: Slurm) -> None:
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(slurm.folder)
        shell = "[ -t 0 ] || exit 0; trap 'exit 4' INT; read line; echo got $line < /dev/tty; sleep 60"
        os.execve(f"{slurm.directory}/bin/srun", ["srun", "-n2", "--pty", "bash", "-c", shell], slurm.environ)
    os.write(screen, b"hello\n")
    seen, deadline, interrupted = b"", time.monotonic() + 60, False
    while time.monotonic() < deadline:
        if b"got hello" in seen and not interrupted:
            # Ctrl-C reaches the program, not srun.
            interrupted = bool(os.write(screen, b"\x03"))
        if not select.select([screen], [], [], 1)[0]:
            continue
        try:
            seen += os.read(screen, 1024)
        except OSError:  # the other end is closed
            break
    os.close(screen)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert interrupted


def test_pty_without_a_terminal_uses_pipes(slurm: Slurm) -> None:
    done = slurm.run("srun", "--pty", "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "Not using a pseudo-terminal, disregarding --pty option" in done.stderr
