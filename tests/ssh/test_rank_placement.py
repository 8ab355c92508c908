"""Placement of the ranks of a job on hosts."""

from __future__ import annotations

import pytest
from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.spec import load
from hpc_kit.spec.job import Component, Job, Launch
from hpc_kit.spec.resolve import Resolved
from hpc_kit.spec.resolve import resolve as fit
from hpc_kit.spec.resources import Resources
from hpc_kit.ssh.hosts import LaunchHost
from hpc_kit.ssh.rank_placement import exported_variables, place_job, render_host_scripts
from tests.conftest import ROOT


def place_ranks(job: Job, *hosts: LaunchHost) -> tuple[object, ...]:
    """Return nodes, tasks per node, tasks and CPUs per task of a job on these hosts."""
    resources = place_job(job, hosts).resources
    return resources.nodes, resources.ntasks_per_node, resources.ntasks, resources.cpus_per_task


def test_each_host_is_a_node_and_each_rank_a_task() -> None:
    by_srun = Job(name="a", resources=Resources(nodes=4, ntasks_per_node=2, cpus_per_task=3, gpus_per_task=1))
    agents = Job(
        name="b",
        launch=Launch(launcher="torchrun", nproc_per_node=4),
        resources=Resources(ntasks_per_node=1, cpus_per_task=8),
    )
    assert place_ranks(by_srun, LaunchHost("a"), LaunchHost("b")) == (2, 2, None, 3)
    assert place_ranks(by_srun, LaunchHost("a", 5), LaunchHost("b", 5)) == (2, 5, None, 3)
    assert place_ranks(by_srun, LaunchHost("a", 1), LaunchHost("b", 2)) == (2, None, 3, 3)
    assert place_ranks(agents, LaunchHost("a")) == (1, 4, None, 2)
    assert place_job(by_srun, [LaunchHost("a")]).resources.gpus_per_task is None


@pytest.mark.parametrize(
    ("job", "what"),
    [
        (Job(name="x", resources=Resources(array="0-3")), "only Slurm can run an array"),
        (Job(name="x", component=(Component(), Component())), "only Slurm can run a heterogeneous job"),
        (Job(name="x", launch=Launch(launcher="torchrun", options=("--role=a",))), "torchrun has options of its own"),
        (Job(name="x", launch=Launch(backend="mpi")), "backend = 'mpi' needs ranks that mpirun or srun has started"),
    ],
)
def test_jobs_that_only_slurm_can_start_are_refused(job: Job, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        place_job(job, [LaunchHost("a")])


def resolved(**resources: object) -> Resolved:
    """A job on two hosts with different numbers of slots."""
    loaded = load.load("ddp_1node", "hosts", set={f"resources.{name}": value for name, value in resources.items()})
    return fit(structs.replace(loaded, job=place_job(loaded.job, [LaunchHost("a", 1), LaunchHost("b", 3)])), root=ROOT)


def test_each_host_runs_one_agent_with_its_own_number_of_ranks() -> None:
    first, second = render_host_scripts(resolved(), (1, 3), ROOT)
    assert first.splitlines()[:2] == ["set -euo pipefail", f"cd {ROOT}"]
    command = first.replace(" \\\n  ", " ")  # Line breaks depend on the length of the interpreter's path.
    assert "-P -m hpc_kit.runtime.torchrun --nnodes=2 --nproc-per-node=1 jobs/train/ddp.py" in command
    assert first.replace("node=1", "node=3") == second


def test_named_variables_are_forwarded() -> None:
    job = resolved(export="ALL,HF_TOKEN,MODE=fast")
    assert exported_variables(job, {"HF_TOKEN": "x", "OTHER": "y"}) == {"HF_TOKEN": "x", "MODE": "fast"}
    with pytest.raises(SpecError, match="HF_TOKEN is not set here"):
        exported_variables(job, {})
