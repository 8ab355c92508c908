"""Faults on the real cluster: each has a clear message, and no job, log or record is lost or duplicated."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from . import Cluster, Names, Settings
from .fixture import require_cluster
from .project import Project, job_id
from .settings import visible_paths

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def project(faulty: Cluster) -> Iterator[Project]:
    with contextlib.closing(Project(faulty, "faults")) as project:
        yield project


class Munge(NamedTuple):
    """Commands on a cluster whose login host has no munge. Slurm's commands retry for a minute."""

    project: Project
    asked: dict[str, subprocess.Popen[str]]


@pytest.fixture(scope="module", autouse=True)
def munge() -> Iterator[Munge]:
    """Start the commands before the tests of this module, because their answers take a minute."""
    require_cluster()
    cluster = Cluster(Settings(name="munge", nodes=1, accounting=False, carry=visible_paths()))
    cluster.down()
    try:
        cluster.up()
        cluster.stop("ctl", "munged")
        lines = {"submit": ["-j", "1x1", "--", "true"], "status": []}
        with contextlib.closing(Project(cluster, "munge")) as project:
            yield Munge(project, {name: project.start(["hpc-kit", name, *words]) for name, words in lines.items()})
    finally:
        cluster.down()


def wait_until(happened: Callable[[], Any], what: str, patience: float = 120) -> None:
    deadline = time.monotonic() + patience
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.2)


def queued(project: Project) -> list[str]:
    """Return the ids of all jobs of this project."""
    rows = project.cluster.run(["squeue", "--noheader", "--states=all", "--format=%i %o"]).stdout.splitlines()
    return [row.split()[0] for row in rows if str(project.folder) in row]


def record(project: Project, job: str, runs: Path | None = None) -> dict[str, Any]:
    [path] = (runs or project.folder / "runs").glob(f"*/{job}/record.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def await_exit(process: subprocess.Popen[str], patience: float = 150) -> tuple[int, str]:
    out, _ = process.communicate(timeout=patience)
    return process.returncode, out


def sbatch_runs(project: Project) -> bool:
    return any(member.name == "sbatch" for member in project.cluster.alive())


def test_a_controller_outage_loses_no_job_and_ends_no_following(project: Project) -> None:
    job = project.submit("-j", "1x1", "--", "bash", "-c", "until [ -e go ]; do sleep 0.5; done; echo after")
    project.await_state(job, "RUNNING")
    following = project.start(["hpc-kit", "logs", "-f", job])
    watching = project.start(["hpc-kit", "watch", job, "--interval", "1"])
    first = read_until(watching, f"{job}  bash")
    # After SIGTERM, as from an administrator, the controller saves its state.
    project.cluster.send_signal("ctl", "slurmctld", signal.SIGTERM)
    wait_until(lambda: not any(member.name == "slurmctld" for member in project.cluster.alive()), "slurmctld goes on")
    submitting = project.start(["hpc-kit", "submit", "-j", "1x1", "--", "true"])
    asking = project.start(["hpc-kit", "status", job])
    refused, answered = await_exit(submitting), await_exit(asking)
    away = read_until(watching, "Slurm does not answer"), read_until(following, "slurm ")
    project.cluster.repair_daemons()
    read_until(watching, "Slurm answers again")
    (project.folder / "go").touch()
    status, rest = await_exit(following)
    watched = await_exit(watching)
    assert "RUNNING" in first
    assert refused[0] == answered[0] == 1
    assert "the job was not submitted" in refused[1]
    assert "Unable to contact slurm controller" in answered[1]
    assert "Traceback" not in refused[1] + answered[1] + rest + watched[1]
    assert "asking on, the jobs go on" in away[0]
    assert "the job goes on, and hpc-kit keeps asking" in away[1]
    assert status == 0, rest
    assert "rank 0  after" in away[1] + rest
    assert "RUNNING -> COMPLETED" in rest
    assert watched[0] == 0, watched
    assert "COMPLETED" in watched[1]
    assert queued(project) == [job]
    assert sorted(path.name for path in (project.folder / "runs").iterdir()) == [".shell", "bash"]


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return the output up to the line with this text."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            return "".join(seen)
    raise AssertionError(f"no {words!r} in {''.join(seen)}")


def test_a_job_with_a_lost_answer_is_found_and_not_submitted_twice(project: Project) -> None:
    project.cluster.send_signal("ctl", "slurmctld", signal.SIGSTOP)
    submitting = project.start(["hpc-kit", "submit", "-j", "1x1", "--", "true"])
    wait_until(lambda: sbatch_runs(project), "no sbatch")
    wait_until(lambda: not sbatch_runs(project), "sbatch waits for ever")
    project.cluster.send_signal("ctl", "slurmctld", signal.SIGCONT)
    status, output = await_exit(submitting)
    assert status == 0, output
    assert queued(project) == [job_id(output)]
    assert record(project, job_id(output))["job_id"] == job_id(output)


def test_an_interrupted_submission_with_a_lost_answer_is_found_when_repeated(project: Project) -> None:
    command = ["hpc-kit", "submit", "-j", "1x1", "--", "sleep", "60"]
    project.cluster.send_signal("ctl", "slurmctld", signal.SIGSTOP)
    submitting = project.start(command)
    wait_until(lambda: sbatch_runs(project), "no sbatch")
    wait_until(lambda: not sbatch_runs(project), "sbatch waits for ever")
    submitting.send_signal(signal.SIGINT)
    status, output = await_exit(submitting)
    assert status == 1
    assert "hpc-kit: sbatch did not report whether it accepted sleep" in output.splitlines()
    project.cluster.send_signal("ctl", "slurmctld", signal.SIGCONT)
    wait_until(lambda: queued(project), "Slurm did not take it")
    again = project.run(command)
    assert "it is not submitted a second time" in again.stdout, again.stdout + again.stderr
    assert queued(project) == [job_id(again.stdout)]
    assert record(project, job_id(again.stdout))["job_id"] == job_id(again.stdout)
    assert project.status(job_id(again.stdout))[0]["state"] in {"PENDING", "RUNNING"}


def test_a_lost_node_ends_the_job_and_keeps_its_logs(project: Project) -> None:
    shell = "echo rank $SLURM_PROCID is there; sleep 300"
    job = project.submit("-j", "2x1", "-w", "n1,n2", "--no-requeue", "--", "bash", "-c", shell)
    project.await_state(job, "RUNNING")
    run = project.folder / "runs/bash" / job
    wait_until(
        lambda: len([*run.glob("rank-*.log")]) == 2 and all(map(Path.read_text, run.glob("rank-*.log"))), "no logs"
    )
    project.cluster.lose("n2")
    project.await_state(job, "NODE_FAIL", patience=60)
    [line] = project.status(job)
    assert (line["state"], line["sentence"]) == ("NODE_FAIL", "One of its nodes failed.")
    told = project.kit("logs", job, "--all").stdout
    assert "rank 0 is there" in told
    assert "rank 1 is there" in told
    assert "NODE_FAIL" in told
    assert record(project, job)["end"]["state"] == "NODE_FAIL"


def test_a_job_requeued_by_the_administrator_keeps_its_record_and_all_its_output(project: Project) -> None:
    shell = "echo attempt ${SLURM_RESTART_COUNT:-0}; if [ -z ${SLURM_RESTART_COUNT:-} ]; then sleep 300; fi"
    job = project.submit("-j", "2x1", "--", "bash", "-c", shell)
    log = project.folder / "runs/bash" / job / "rank-0.log"
    wait_until(lambda: log.exists() and "attempt 0" in log.read_text(), "it did not start")
    project.cluster.run(["scontrol", "requeue", job], check=True)
    wait_until(lambda: "attempt 1" in log.read_text(), "it did not start again")
    assert project.await_end(job) == "COMPLETED"
    told = project.kit("logs", job)
    assert told.returncode == 0
    assert [line for line in told.stdout.splitlines() if line.startswith("attempt")] == ["attempt 0", "attempt 1"]
    assert "failed" not in told.stdout
    end = record(project, job)["end"]
    assert (end["state"], end["exit_status"], end["first_failure"]) == ("COMPLETED", 0, None)
    assert queued(project) == [job]


def test_the_reason_of_a_job_that_never_starts_is_explained(project: Project) -> None:
    def scontrol(*words: str) -> None:
        project.cluster.run(["scontrol", *words], check=True)

    scontrol("update", "nodename=n3", "state=drain", "reason=memory")
    scontrol("update", "partitionname=high", "state=down")
    reasons = {
        "ReqNodeNotAvail": ("-w", "n3"),
        "PartitionDown": ("-p", "high"),
        "JobHeldUser": ("--hold",),
        "JobHeldAdmin": ("--begin=now+1hour",),
        "BeginTime": ("--begin=now+1hour",),
        "DependencyNeverSatisfied": (),
    }
    failed = project.submit("-j", "1x1", "--", "false")
    project.await_end(failed)
    reasons["DependencyNeverSatisfied"] = (f"--dependency=afterok:{failed}",)
    ids = {name: project.submit("-j", "1x1", *options, "--", "true") for name, options in reasons.items()}
    scontrol("hold", ids["JobHeldAdmin"])
    wait_until(lambda: all(_reason(project, job) != "None" for job in ids.values()), "no reasons")
    lines = {line["job_id"]: line for line in project.status(*ids.values())}
    shown = project.kit("status", *ids.values()).stdout
    for name, job in ids.items():
        line = lines[job]
        assert line["state"] == "PENDING"
        assert line["reason"].startswith(name), (name, line)
        assert line["sentence"].endswith("."), line
        assert line["sentence"] in shown
    assert "n3" in lines[ids["ReqNodeNotAvail"]]["sentence"]


def _reason(project: Project, job: str) -> str:
    return project.cluster.run(["squeue", "--noheader", f"--jobs={job}", "--format=%r"]).stdout.strip()


@pytest.fixture
def small_runs(project: Project) -> Iterator[Path]:
    """A folder for runs on an almost full disk. The file that fills the disk is removed at the end."""
    runs = project.cluster.settings.small_disk / "runs"
    yield runs
    project.run(["bash", "-c", f"rm -rf {project.cluster.settings.small_disk}/*"])


def fill_disk(project: Project) -> None:
    disk = project.cluster.settings.small_disk
    project.run(["bash", "-c", f"cat /dev/zero >{disk}/ballast 2>{disk.parent}/full"])
    assert "No space left on device" in (disk.parent / "full").read_text()


def test_a_full_disk_is_reported_before_submission(project: Project, small_runs: Path) -> None:
    fill_disk(project)
    refused = project.kit("submit", "-j", "1x1", "--set", f"cluster.runs={small_runs}", "--", "true")
    assert refused.returncode == 1, refused.stderr
    assert "No space left on device" in refused.stderr
    assert "--set cluster.runs=" in refused.stderr
    assert queued(project) == []
    left = project.run(["find", str(project.cluster.settings.small_disk), "-name", ".submitting*"])
    assert left.stdout == ""


def test_a_disk_that_fills_up_in_the_job_keeps_the_record(project: Project, small_runs: Path) -> None:
    setting = ("--set", f"cluster.runs={small_runs}")
    filling = f"echo begun; cat /dev/zero >{project.cluster.settings.small_disk}/ballast; echo never; exit 9"
    job = project.submit("-j", "1x1", *setting, "--", "bash", "-euc", filling)
    state = project.await_end(job)
    cluster = project.folder / "env.toml"
    cluster.write_text(f'slurm = "system"\nruns = "{small_runs}"\n')
    full = project.kit("logs", job, "--cluster", str(cluster))
    assert "Traceback" not in full.stderr
    project.run(["rm", f"{project.cluster.settings.small_disk}/ballast"])
    told = project.kit("logs", job, "--cluster", str(cluster))
    assert (state, told.returncode) == ("FAILED", 0), told.stderr
    assert "begun" in told.stdout
    found = json.loads(project.run(["cat", f"{small_runs}/bash/{job}/record.json"]).stdout)
    assert (found["job_id"], found["end"]["state"]) == (job, "FAILED")


MEETING = """
import hpc_kit, torch
from torch import distributed as dist

with hpc_kit.distributed(timeout=60) as world:
    total = torch.ones(1)
    dist.all_reduce(total)
    print(total.item(), world.master_addr, flush=True)
"""


@pytest.fixture
def other() -> Iterator[Callable[[Names], Project]]:
    """A project on a cluster with unusual host names, which is stopped at the end."""
    require_cluster()
    built: list[Cluster] = []

    def make(names: Names) -> Project:
        built.append(Cluster(Settings(name="other", accounting=False, names=names, carry=visible_paths())))
        built[0].down()
        built[0].up()
        project = Project(built[0], "names")
        project.program("train.py", MEETING)
        return project

    yield make
    for cluster in built:
        cluster.down()


def run_training(project: Project, environ: dict[str, str] | None = None) -> tuple[str, str]:
    """Return the final state of a training on two hosts, and the output of `logs`."""
    job = project.submit("-j", "2x1", "--", "python", "train.py", environ=environ)
    return project.await_end(job), project.kit("logs", job).stdout


def test_without_host_names_ranks_meet_at_slurms_address(
    other: Callable[[Names], Project],
) -> None:
    state, told = run_training(other(Names.ADDRESSES))
    assert (state, told.splitlines()[0]) == ("COMPLETED", "2.0 n1"), told


def test_a_host_name_that_is_a_loopback_address_does_no_harm(other: Callable[[Names], Project]) -> None:
    state, told = run_training(other(Names.LOOPBACK))
    assert (state, told.splitlines()[0].split()[0]) == ("COMPLETED", "2.0"), told


@pytest.mark.parametrize("skew", ["+7m", "-7m"])
def test_clocks_of_login_and_nodes_may_differ_by_minutes(project: Project, skew: str) -> None:
    [library] = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    late = {"LD_PRELOAD": str(library), "FAKETIME": skew}
    on_nodes = [f"--set=env.{name}={value}" for name, value in late.items()]
    shell = "date +%s >clock-$SLURM_PROCID; if [ $SLURM_PROCID = 1 ]; then echo mine; exit 7; fi; sleep 100"
    program = ["-j", "2x1", "--", "bash", "-c", shell]
    clock = project.folder / "clock-1"
    # First the clock of the job's processes is wrong, then the clock of hpc-kit and of Slurm's commands.
    nodes = await_exit(project.start(["hpc-kit", "submit", "--wait", *on_nodes, *program]))
    skewed = abs(time.time() - int(clock.read_text()))
    kit = ["hpc-kit", "submit", "--wait", "--set=env.LD_PRELOAD=", *program]
    login = await_exit(project.start(kit, environ=late))
    right = abs(time.time() - int(clock.read_text()))
    assert right < 120 < 300 < skewed
    for status, output in (nodes, login):
        assert status == 7, output
        assert "rank 1 on n2 ended with exit code 7" in output
        assert "mine" in output
    assert [line["state"] for line in project.status(*queued(project))] == ["FAILED", "FAILED"]
    for job in queued(project):
        assert record(project, job)["end"]["first_failure"]["rank"] == 1


def test_without_munge_nothing_is_submitted_and_the_error_names_it(munge: Munge) -> None:
    for name, beginning in (
        ("submit", "hpc-kit: Slurm does not answer, and the job was not submitted\n"),
        ("status", "hpc-kit: squeue does not show the state of the jobs\n"),
    ):
        status, output = await_exit(munge.asked[name])
        assert (status, beginning in output) == (1, True), output
        assert "Munge encode failed" in output
        assert "tell the administrators that munge, which authenticates users, does not run on this host" in output
        assert "Traceback" not in output
    assert [path.name for path in (munge.project.folder / "runs").iterdir()] == [".shell"]
    munge.project.cluster.repair_daemons()
    assert queued(munge.project) == []
