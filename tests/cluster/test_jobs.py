"""Every shipped job on the real Slurm, as `make submit` starts it."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import tomllib
from typing import NamedTuple

import pytest

from tests.conftest import find_missing, require_installed

from . import Cluster
from .project import ROOT, Project, interpreter, job_id

JOBS = sorted((path.stem for path in (ROOT / "jobs").glob("*.toml")), key=lambda job: (job == "bench_start", job))
"""The shipped jobs. The jobs that bench_start submits wait for the other ones, so it is the last to end."""
ABSENT = set(filter(find_missing, JOBS))

SMALL = ("--steps", "2")
"""Arguments of a short training, added to the command of a job that trains."""

SMALL_BENCH = {
    "bench_comm": ("--sizes", "4KiB,64KiB"),
    "bench_dp": ("--steps", "2", "--repeats", "1"),
    "bench_memory": ("--layers", "8", "--width", "64", "--steps", "1"),
    "bench_start": ("--ranks", "2", "--repeats", "1"),
    "bench_strategies": ("--only", "ddp,zero3", "--steps", "2", "--repeats", "1"),
    "bench_pipeline": ("--image", "33", "--batch", "4", "--splits", "2", "--repeats", "1", "--micro-batches", "2"),
}
"""Arguments of a short measurement."""


def command(job: str) -> list[str]:
    """Return the command of a shipped job, or of the job that it extends."""
    values = tomllib.loads((ROOT / "jobs" / f"{job}.toml").read_text())
    own: list[str] | None = values.get("command")
    return own if own is not None else command(values["extends"])


@pytest.fixture(scope="module")
def checkout(cluster: Cluster) -> Project:
    return Project(cluster, "one job")


class Sent(NamedTuple):
    """The result of `make submit`."""

    status: int
    output: str


@pytest.fixture(scope="session")
def sent(cluster: Cluster) -> tuple[Project, dict[str, Sent]]:
    """Submit all shipped jobs together. They run while other tests wait."""
    project = Project(cluster, "all jobs")
    found = {}
    for job in (job for job in JOBS if job not in ABSENT):
        small = SMALL_BENCH.get(job, SMALL if "--steps" in command(job) else ())
        done = project.make("submit", JOB=job, ARGS=" ".join(["--", *small]) if small else "")
        found[job] = Sent(done.returncode, done.stdout + done.stderr)
    return project, found


@pytest.mark.timeout(600)
def test_every_shipped_job_is_accepted(sent: tuple[Project, dict[str, Sent]]) -> None:
    assert {job: each.output for job, each in sent[1].items() if each.status} == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("job", JOBS)
def test_a_shipped_job_succeeds(sent: tuple[Project, dict[str, Sent]], job: str) -> None:
    require_installed(job)
    project, jobs = sent
    assert jobs[job].status == 0, jobs[job].output
    number = job_id(jobs[job].output)
    state = project.await_end(number, patience=590)
    told = project.kit("logs", number)
    assert state == "COMPLETED", told.stdout + told.stderr
    assert "\ndone    " in told.stdout
    run = project.folder / "runs" / job / number
    record = json.loads((run / "record.json").read_text())
    assert (record["slurm"], record["host"], record["end"]["state"]) == ("system", "ctl", "COMPLETED")
    for path in run.glob("bench_*.json"):  # a benchmark continues after a measurement that fails
        assert [note for note in json.loads(path.read_text())["notes"] if " failed" in note] == []


def test_the_scheduler_estimates_the_start_of_a_job(checkout: Project) -> None:
    before = checkout.cluster.run(["squeue", "--noheader", "--states=all", "--format=%i"]).stdout
    told = checkout.kit("submit", "ddp_4node", "--test-only", "--json", "--begin=now+2hours")
    start = json.loads(told.stdout)
    wait = dt.datetime.fromisoformat(start["start"]).timestamp() - time.time()
    assert 1.9 < wait / 3600 < 3
    assert (start["nodes"], start["partition"], start["cpus"]) == ("n[1-4]", "main", 8)
    output = checkout.kit("submit", "ddp_4node", "--test-only").stdout
    assert re.search(r"^start   about .*\d\d:\d\d, on n\[1-4\], partition main: 8 CPUs$", output, re.MULTILINE), output
    refused = checkout.kit("submit", "ddp_4node", "--test-only", "--nodes=8")
    assert (refused.returncode, "asks for 8 nodes" in refused.stderr) == (1, True), refused.stderr
    after = checkout.cluster.run(["squeue", "--noheader", "--states=all", "--format=%i"]).stdout
    assert set(after.split()) == set(before.split())


@pytest.mark.timeout(300)
def test_mpirun_reaches_all_nodes_with_export_none(checkout: Project) -> None:
    require_installed("ddp_mpirun")
    shown = ["bash", "-c", 'echo "$RANK on $(uname -n)"']
    as_root = [word for name in checkout.environ for word in ("--set", f"env.{name}=1")]
    changes = ["--set", "launch.launcher=mpirun", "--export", "NONE", *as_root]
    job = checkout.submit("-j", "2x1", "--time", "5", *changes, "--standalone", "--", *shown)
    state = checkout.await_end(job, patience=250)
    run = next(checkout.folder.glob(f"runs/*/{job}"))
    logs = [(run / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    assert (state, logs) == ("COMPLETED", ["0 on n1\n", "1 on n2\n"]), (run.parent / f"{job}.log").read_text()


@pytest.mark.timeout(600)
def test_a_standalone_script_trains_without_hpc_kit_from_any_folder_on_fewer_nodes(checkout: Project) -> None:
    python = str(interpreter(checkout.folder / "other python"))
    absent = checkout.run([python, "-c", "import torch, hpc_kit.runtime"])
    assert "ModuleNotFoundError: No module named 'hpc_kit" in absent.stderr
    words = ["render", "plain_ddp_4node", "--standalone", "--set", f"cluster.python={python}", "--", *SMALL]
    script = checkout.kit(*words)
    assert script.returncode == 0, script.stderr
    checkout.program("by hand.sbatch", script.stdout)
    # In another folder, on half of the nodes.
    sbatch = ["env", "--chdir=/", "sbatch", "--parsable", "--nodes=2", str(checkout.folder / "by hand.sbatch")]
    job = checkout.run(sbatch, environ={"PATH": "/usr/bin:/bin"}).stdout.strip()
    state = checkout.await_end(job, patience=590)
    run = checkout.folder / "runs" / "plain_ddp_4node"
    output = (run / f"{job}.log").read_text()
    ranks = [(run / job / f"rank-{rank}.log").read_text().splitlines() for rank in range(4)]
    assert state == "COMPLETED", (output, ranks)
    for rank, lines in enumerate(ranks):  # before this line, torch may warn that a name has no reverse entry
        assert f"rank {rank} of 4 on cpu" in lines
    assert ranks[0][-1].startswith("step 2/2   loss ")


WORLD = """import sys
import torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
dist.barrier()
sys.exit(7 if len(sys.argv) > 1 and dist.get_rank() == 2 else 0)
"""


@pytest.mark.parametrize("shape", ["2x2", "1x4"])
def test_torchrun_in_the_command_is_one_world_of_the_size_of_the_job(checkout: Project, shape: str) -> None:
    checkout.program("world.py", WORLD)
    job = checkout.submit("-j", shape, "--", "torchrun", "world.py")
    assert checkout.await_end(job) == "COMPLETED"
    shown = checkout.kit("logs", job, "--all").stdout
    assert all(f"rank {rank} of 4" in shown for rank in range(4))


def test_torchrun_in_the_command_keeps_the_exit_status_of_the_training(checkout: Project) -> None:
    checkout.program("world.py", WORLD)
    job = checkout.submit("-j", "2x2", "--", "torchrun", "world.py", "fail")
    assert checkout.await_end(job) == "FAILED"
    assert "rank 2" in checkout.kit("logs", job).stdout


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("-j", "5x2"), "5 nodes; the partition has 4"),
        (("-j", "4x9"), "9 CPUs on each of 4 nodes; the largest nodes have 8"),
        (("-j", "1x1", "--time=2-0"), "--time=2-00:00:00; the partition allows 1-00:00:00"),
    ],
)
def test_a_job_that_can_never_start_is_refused(checkout: Project, options: tuple[str, ...], found: str) -> None:
    refused = checkout.kit("submit", *options, "--", "hostname")
    assert refused.returncode == 2
    assert found in refused.stderr


def test_without_the_check_a_job_that_can_never_start_is_submitted_and_waits(checkout: Project) -> None:
    job = checkout.submit("--no-check", "-j", "1x1", "--time=2-0", "--", "hostname")
    assert checkout.await_state(job, "PENDING") == "PENDING"
    checkout.kit("cancel", job)


def test_a_script_for_administrators_is_short_and_runs(checkout: Project) -> None:
    checkout.program("world.py", WORLD)
    script = checkout.kit("render", "-j", "2x2", "--standalone", "--simple", "--", "python", "world.py").stdout
    assert len(script.splitlines()) < 45
    checkout.program("simple.sbatch", script)
    (checkout.folder / "runs/world").mkdir(parents=True, exist_ok=True)  # as the head of the script says
    job = checkout.run(["sbatch", "--parsable", "simple.sbatch"]).stdout.strip()
    assert checkout.await_end(job, patience=250) == "COMPLETED"
    logs = [(checkout.folder / f"runs/world/{job}/rank-{rank}.log").read_text() for rank in range(4)]
    assert all(f"rank {rank} of 4" in log for rank, log in enumerate(logs))


def test_the_plan_compares_the_whole_order_of_the_table(checkout: Project) -> None:
    machine = ("--gpu", "a100-80g", "--gpus-per-node", "4", "--nodes", "1")
    plan = checkout.kit("plan", "--model", "llama3-8b", *machine, "--global-batch", "64", "--seq-len", "2048")
    told = " ".join(plan.stdout.split())
    assert "the model does not fit one GPU: PP, then ZeRO, then TP" in told
    assert "the numbers disagree: by time TP, then ZeRO, then PP" in told
