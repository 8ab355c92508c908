"""Killed daemons, reboots and removed directories: no job is lost, and no process remains."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pocketslurm import installation, processes
from pocketslurm.queue import batch_step
from pocketslurm.queue.controller import recover_lost_job
from pocketslurm.queue.records import Job
from pocketslurm.queue.state import StateDirectory, state_error
from pocketslurm.queue.supervisor import Supervisor
from pocketslurm.settings import STATE_VARIABLE
from tests.conftest import ROOT
from tests.pocketslurm.conftest import Slurm, wait_for

pytestmark = pytest.mark.waits

WAITS = "echo $$ > pid; echo run ${SLURM_RESTART_COUNT-0}; while [ ! -e go ]; do sleep 0.05; done"


def controller(slurm: Slurm) -> int:
    """Return the pid of the controller when it has registered."""

    def registered() -> str:
        state = slurm.state()
        name = state.meta("controller") or ""
        state.close()
        return name if processes.is_alive(name) else ""

    return processes.pid_of(wait_for(registered))


def supervisor(slurm: Slurm, job_id: int) -> int:
    wait_for(lambda: slurm.job(job_id).supervisor and slurm.log("pid"))
    return processes.pid_of(slurm.job(job_id).supervisor)


def kill_everything(slurm: Slurm) -> None:
    def left() -> list[int]:
        pids = slurm.processes()
        processes.kill(pids, signal.SIGKILL)
        return pids

    wait_for(lambda: not left())


def test_a_disk_that_is_full_for_some_time_ends_no_job(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    job = slurm.submit("true")
    slurm.until(job, "COMPLETED")
    monkeypatch.setattr(
        "pocketslurm.queue.supervisor.messages.WakeupPipe", Mock()
    )  # signals of this process stay its own
    supervised = Supervisor(slurm.state(), slurm.job(job))
    looks: list[Exception | bool] = [
        sqlite3.OperationalError("disk I/O error"),
        OSError(errno.ENOSPC, "full"),
        False,
        True,
    ]

    def look() -> bool:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    booked: list[Exception | None] = [sqlite3.OperationalError("database or disk is full"), None]

    def book() -> None:
        looks.append(True)
        if error := booked.pop(0):
            raise error

    monkeypatch.setattr(supervised, "_check", look)
    monkeypatch.setattr(supervised, "_record_end", book)
    monkeypatch.setattr(supervised, "_seconds_to_sleep", lambda: 0.0)
    monkeypatch.setattr("pocketslurm.queue.supervisor._LOOK_SECONDS", 0.01)
    assert [supervised._is_done() for _ in range(5)] == [False, False, False, False, True]


def test_the_time_to_sigkill_does_not_depend_on_the_clock(
    make_slurm: Callable[..., Slurm], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = make_slurm(kill_wait=0)
    job = slurm.submit("true")
    slurm.until(job, "COMPLETED")
    monkeypatch.setattr("pocketslurm.queue.supervisor.messages.WakeupPipe", Mock())
    supervised = Supervisor(slurm.state(), slurm.job(job))
    kill = Mock()
    monkeypatch.setattr(supervised, "_kill", kill)
    monkeypatch.setattr("pocketslurm.processes.kill", Mock())  # the children of this process are not the job's
    supervised._end("")
    monkeypatch.setattr("time.time", lambda: 0.0)
    supervised._has_ended()
    kill.assert_called_once_with()


def test_a_transaction_that_cannot_be_committed_is_rolled_back(tmp_path: Path) -> None:
    state = StateDirectory.open({STATE_VARIABLE: str(tmp_path)})
    state.execute("PRAGMA foreign_keys = ON")
    state.execute("CREATE TABLE child (parent INTEGER REFERENCES jobs (job_id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), state.transaction():
        state.execute("INSERT INTO child VALUES (1)")
    with state.transaction():
        assert state.next_job_id() == 1


def test_an_error_that_ends_a_transaction_is_the_one_that_is_reported(tmp_path: Path) -> None:
    state = StateDirectory.open({STATE_VARIABLE: str(tmp_path)})

    def fill_the_disk() -> None:
        with state.transaction():
            state.execute("ROLLBACK")  # as SQLite itself does then
            raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        fill_the_disk()


def test_jobs_run_on_without_their_controller(slurm: Slurm) -> None:
    first = slurm.submit(WAITS)
    supervisor(slurm, first)
    second = slurm.submit("true", f"--dependency=afterok:{first}")
    os.kill(controller(slurm), signal.SIGKILL)
    (slurm.folder / "go").touch()
    slurm.until(second, "COMPLETED")
    assert slurm.job(first).state == "COMPLETED"


def test_the_next_command_starts_a_new_controller(slurm: Slurm) -> None:
    first = slurm.submit(WAITS)
    supervisor(slurm, first)
    old = controller(slurm)
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: processes.read_process(old) is None)
    assert slurm.check_output("squeue", "-h", "-o", "%i %T") == f"{first} RUNNING\n"
    assert controller(slurm) != old


def test_a_job_without_its_supervisor_is_requeued(slurm: Slurm) -> None:
    job_id = slurm.submit(WAITS)
    watcher = supervisor(slurm, job_id)
    script = int(slurm.log("pid"))
    os.kill(watcher, signal.SIGKILL)
    wait_for(lambda: slurm.job(job_id).restart_count == 1)
    assert processes.read_process(script) is None
    (slurm.folder / "go").touch()
    slurm.until(job_id, "COMPLETED")
    assert slurm.log(f"slurm-{job_id}.out") == "run 1\n"


def test_a_job_without_its_supervisor_that_must_not_be_requeued_is_a_node_failure(slurm: Slurm) -> None:
    job_id = slurm.submit(WAITS, "--no-requeue")
    os.kill(supervisor(slurm, job_id), signal.SIGKILL)
    job = slurm.until(job_id, "NODE_FAIL")
    assert job.end_time > 0
    assert "DUE TO NODE FAILURE" in slurm.log(f"slurm-{job_id}.out")
    assert slurm.check_output("sacct", "-nPX", "-o", "State", "-j", str(job_id)) == "NODE_FAIL\n"
    assert list((slurm.directory / "jobs").iterdir()) == []
    wait_for(lambda: not slurm.processes())


def test_an_order_to_a_killed_supervisor_does_not_reach_the_next_start(slurm: Slurm) -> None:
    job_id = slurm.submit(WAITS)
    watcher = supervisor(slurm, job_id)
    os.kill(watcher, signal.SIGSTOP)
    slurm.check_output("scontrol", "requeue", str(job_id))
    os.kill(watcher, signal.SIGKILL)
    wait_for(lambda: "run 1" in slurm.log(f"slurm-{job_id}.out"))
    (slurm.folder / "go").touch()
    assert slurm.until(job_id, "COMPLETED").restart_count == 1


def test_the_shell_of_salloc_survives_the_supervisor(slurm: Slurm) -> None:
    salloc = slurm.start("salloc", "-n1", "bash", "-c", f"{WAITS} >/dev/null; exit 7")
    job_id = wait_for(lambda: next((job.job_id for job in slurm.jobs() if job.supervisor and slurm.log("pid")), 0))
    os.kill(supervisor(slurm, job_id), signal.SIGKILL)
    slurm.until(job_id, "NODE_FAIL")
    (slurm.folder / "go").touch()
    salloc.communicate(timeout=20)
    assert salloc.returncode == 7


@pytest.mark.parametrize("command", [["sbatch", "--wait", "--wrap=true"], ["srun", "true"]])
def test_a_command_that_waits_for_its_job_restarts_a_killed_controller(slurm: Slurm, command: list[str]) -> None:
    waiting = slurm.start(command[0], "--begin=now+2", *command[1:])
    wait_for(slurm.jobs)
    os.kill(controller(slurm), signal.SIGKILL)
    waiting.communicate(timeout=20)
    assert waiting.returncode == 0


def test_the_next_command_recovers_after_all_processes_were_killed(slurm: Slurm) -> None:
    again = slurm.submit(WAITS)
    supervisor(slurm, again)
    lost = slurm.submit("sleep 600", "--no-requeue")
    waiting = slurm.submit("true", "--hold")
    slurm.until(lost, "RUNNING")
    wait_for(lambda: slurm.job(lost).supervisor)
    kill_everything(slurm)
    output = slurm.check_output("squeue", "-h", "-t", "all", "-S", "i", "-o", "%i %T").splitlines()
    assert output[1:] == [f"{lost} NODE_FAIL", f"{waiting} PENDING"]
    assert output[0] in {f"{again} PENDING", f"{again} RUNNING"}
    (slurm.folder / "go").touch()
    assert slurm.until(again, "COMPLETED").restart_count == 1


def test_a_restart_of_the_machine_ends_running_jobs(slurm: Slurm) -> None:
    """The same processes still live, but under another boot's name they are somebody else's."""
    job_id = slurm.submit("sleep 600", "--no-requeue")
    slurm.until(job_id, "RUNNING")
    wait_for(lambda: slurm.job(job_id).supervisor)
    kill_everything(slurm)
    db = sqlite3.connect(slurm.directory / "slurm.db")
    other = f"{os.getpid()}:{processes.identity(os.getpid()).split(':')[1]}:another-boot"
    with db:
        db.execute("UPDATE jobs SET supervisor = ?", (other,))
        db.execute("UPDATE meta SET value = ? WHERE name = 'controller'", (other,))
    db.close()
    assert slurm.check_output("squeue", "-h") == ""
    assert slurm.job(job_id).state == "NODE_FAIL"


def test_processes_end_when_their_directory_is_removed(slurm: Slurm) -> None:
    job_id = slurm.submit(WAITS)
    supervisor(slurm, job_id)

    def remove() -> bool:
        shutil.rmtree(slurm.directory, ignore_errors=True)  # a daemon may write a file meanwhile
        return not slurm.directory.exists()

    wait_for(remove)
    wait_for(lambda: not slurm.processes())


def test_a_starting_job_does_not_recreate_its_removed_directory(tmp_path: Path) -> None:
    state = StateDirectory.open({STATE_VARIABLE: str(tmp_path / "state")})
    job = Job(1, "a", "ada", 1000, "users", 1000, "local", nodes=["n1"], cpus=[1], mem=[1], gpus=[[]], tasks=[1])
    shutil.rmtree(state.directory)
    with pytest.raises(OSError, match="No such file"):
        batch_step.start_script(state, job)
    with pytest.raises(FileNotFoundError):
        installation.commands_folder(state.directory)
    assert not state.directory.exists()


def test_open_connections_do_not_recreate_a_deleted_database(tmp_path: Path) -> None:
    state = StateDirectory.open({STATE_VARIABLE: str(tmp_path / os.fsdecode(b"100% ? # \xff"))})
    state.close()
    assert state.jobs() == []
    state.close()
    (state.directory / "slurm.db").unlink()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        state.jobs()
    assert not state.exists()


def test_a_recreated_directory_is_a_new_slurm(slurm: Slurm) -> None:
    supervisor(slurm, slurm.submit(WAITS))
    commands = slurm.directory.parent / "commands"
    shutil.copytree(slurm.directory / "bin", commands)
    shutil.rmtree(slurm.directory)
    shutil.copytree(commands, slurm.directory / "bin")
    assert slurm.submit("true") == 1
    slurm.until(1, "COMPLETED")
    wait_for(lambda: not slurm.processes())


def test_old_jobs_are_forgotten_by_squeue_first_and_then_by_sacct(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(min_job_age=0, max_jobs=2)
    for _ in range(4):
        slurm.ended(slurm.submit("true"))
    assert slurm.refused("squeue", "-j", "4") == (1, "slurm_load_jobs error: Invalid job id specified\n")
    state = slurm.state()
    with state.transaction():
        state.purge(10**10)
    assert [job.job_id for job in state.jobs()] == [3, 4]
    assert state.script(4) == (b"", b"")
    state.close()
    assert slurm.check_output("sacct", "-nPX", "-o", "JobID").split() == ["3", "4"]


def test_a_relative_path_of_the_settings_holds_in_every_folder(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(slurm.folder)
    (slurm.folder / "own.json").write_text('{"nodes": "own[1-2]", "kill_wait": 1}')
    slurm.environ["HPC_KIT_SLURM_CONF"] = "own.json"
    (slurm.folder / "elsewhere").mkdir()
    job = slurm.submit("sinfo -h -o %N", "--chdir=elsewhere", "--output=out")
    slurm.until(job, "COMPLETED")
    assert slurm.log("elsewhere/out") == "own[1-2]\n"


def test_the_controller_reads_changed_settings(slurm: Slurm) -> None:
    slurm.submit(WAITS, "-N4", "--exclusive")
    supervisor(slurm, 1)
    waiting = slurm.submit("true", "-N4")
    path = slurm.directory / "slurm.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "nodes": "n[1-8]"}))
    slurm.until(waiting, "COMPLETED")


def test_a_job_that_keeps_killing_its_supervisor_is_finally_held(slurm: Slurm) -> None:
    job_id = slurm.submit("kill -9 $PPID; sleep 600")
    wait_for(lambda: slurm.check_output("squeue", "-h", "-o", "%i %R") == f"{job_id} (launch failed requeued held)\n")
    assert slurm.job(job_id).restart_count == 4
    wait_for(lambda: len(slurm.processes()) == 1)


def test_a_job_without_a_supervisor_is_finally_held(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--hold")
    os.kill(controller(slurm), signal.SIGKILL)  # it would recover the job itself
    state = slurm.state()
    for attempt in range(1, 5):
        state.update_job(job_id, state="RUNNING", priority=1, attempt=attempt, supervisor="", nodes=["n1"])
        output = recover_lost_job(state, slurm.job(job_id))
        held = attempt == 4
        assert output == f"JobId={job_id} was not started, requeued{' and held' * held}"
        job = slurm.job(job_id)
        assert (job.state, job.nodes, job.priority) == ("PENDING", [], 0 if held else 1)
    assert job.reason == "launch failed requeued held"
    state.close()


def test_a_queue_continues_while_the_code_changes(slurm: Slurm) -> None:
    """As by a checkout: controller and supervisors have what they need; new commands say what is the matter."""
    code = slurm.folder / "code"
    for package in ("hpc_kit", "pocketslurm"):
        shutil.copytree(ROOT / package, code / package, ignore=shutil.ignore_patterns("__pycache__", "share"))
    sbatch = slurm.directory / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace(f" {ROOT} ", f" {code} "))

    def submit() -> subprocess.CompletedProcess[str]:
        command = [str(sbatch), "-N4", "--exclusive", "--array=0-1", "--wrap", f"cd {slurm.folder}; {WAITS}"]
        return subprocess.run(command, cwd=slurm.folder, env=slurm.environ, capture_output=True, text=True)

    assert submit().returncode == 0
    wait_for(lambda: slurm.log("pid"))
    for path in (code / "pocketslurm").rglob("*.py"):
        if path.name not in {"__init__.py", "__main__.py", "errors.py", "installation.py", "settings.py"}:
            path.write_text("<<<<<<< HEAD\n")
    done = submit()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sbatch: error: the code of the embedded Slurm (sbatch) cannot be loaded\n")
    assert "SyntaxError" in done.stderr
    assert "Traceback" not in done.stderr
    (slurm.folder / "go").touch()
    wait_for(lambda: not slurm.processes())
    states = slurm.check_output("sacct", "-nPX", "-o", "JobID,State").split()
    assert states == ["1_0|COMPLETED", "1_1|COMPLETED"]


def test_the_state_of_another_release_is_adopted(slurm: Slurm) -> None:
    held = slurm.submit("echo done", "--hold")
    kill_everything(slurm)
    db = sqlite3.connect(slurm.directory / "slurm.db")
    with db:
        db.execute("ALTER TABLE jobs DROP COLUMN requeue")
        db.execute("ALTER TABLE jobs DROP COLUMN arguments")
        db.execute("ALTER TABLE jobs ADD COLUMN of_the_future TEXT")
        db.execute("PRAGMA user_version = 7")
    db.close()
    slurm.check_output("scontrol", "release", str(held))
    job = slurm.until(held, "COMPLETED")
    assert (job.requeue, job.arguments) == (True, [])


def test_a_damaged_database_is_reported_and_not_changed(slurm: Slurm) -> None:
    path = slurm.directory / "slurm.db"
    path.write_bytes(b"this is no database, but long enough to be taken for one " * 100)
    status, complaint = slurm.refused("squeue")
    assert status == 1
    assert complaint.startswith("squeue: error: the queue of the embedded Slurm is damaged: ")
    assert str(slurm.directory) in complaint
    assert path.read_bytes().startswith(b"this is no database")
    path.unlink()


def test_a_state_directory_that_cannot_be_created_is_reported(slurm: Slurm) -> None:
    (slurm.folder / "file").touch()
    done = slurm.run("squeue")
    assert done.returncode == 0
    environ = {**slurm.environ, "HPC_KIT_SLURM_STATE": str(slurm.folder / "file" / "state")}
    command = [sys.executable, "-m", "pocketslurm", "sbatch", "--wrap", "true"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "set HPC_KIT_SLURM_STATE to a directory that only you may write" in done.stderr


@pytest.mark.slow
def test_a_job_survives_damage_to_the_queue(slurm: Slurm) -> None:
    job = slurm.submit(f"{WAITS}; echo end")
    supervisor(slurm, job)
    watching = controller(slurm)
    database = slurm.directory / "slurm.db"
    with database.open("r+b") as file:
        file.write(b"\xff" * 4096)
    for command in (["squeue"], ["sbatch", "--wrap=true"], ["sinfo"]):
        assert slurm.refused(*command)[1].splitlines() == [
            (
                f"{command[0]}: error: the queue of the embedded Slurm is damaged: no job starts and no command works "
                "until it is moved away"
            ),
            f"  found  {database}: file is not a database",
            (
                f"  do     jobs that run go on; when they are over: mv {database} {database}.damaged; "
                f"rm -f {database}-wal {database}-shm"
            ),
            "         then the queue is empty; files of runs, and logs, are elsewhere and stay",
        ]
    wait_for(lambda: not os.path.exists(f"/proc/{watching}"))
    assert (slurm.directory / "controller.log").read_text().count("error:") == 1
    (slurm.folder / "go").touch()
    wait_for(lambda: not slurm.processes())
    assert slurm.log(f"slurm-{job}.out").split() == ["run", "0", "end"]
    database.rename(f"{database}.damaged")
    for name in ("slurm.db-wal", "slurm.db-shm"):
        (slurm.directory / name).unlink(missing_ok=True)
    slurm.until(slurm.submit("true"), "COMPLETED")


def test_a_full_disk_is_reported(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    assert "a directory that only you may write" in str(state_error(slurm.directory, error))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
    assert str(state_error(slurm.directory, error)).splitlines()[1:] == [
        f"  found  {slurm.directory}: disk I/O error, no space left there",
        "  do     free some space there: jobs that run go on",
    ]
