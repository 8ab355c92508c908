"""`hpc-kit plan calibrate`: a job on the user's cluster measures what the planner reckons with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.spec.cluster import Cluster


def calibrate(cluster: str | None, measurement: Path | None, comm: Path | None) -> int:
    """Submit the job that measures a GPU; with `comm`, take in links that were measured already.

    Raises:
        SpecError: No such cluster, or results that cannot be read.
    """
    from hpc_kit.planner import calibration
    from hpc_kit.planner.target import measured_file
    from hpc_kit.spec.default_cluster import default_cluster_name

    root = Path.cwd()
    name = cluster or default_cluster_name(root, os.environ)
    profile = _profile(name, root)
    path = measurement or measured_file(name, root)
    if comm is not None:
        gpus = profile.node.gpus or profile.node.cpus or 8
        found = calibration.read_comm(comm, gpus)
        if found == calibration.Measured():
            raise SpecError(
                f"{comm} says nothing of links", found="no all-reduce of two sizes", remedy="hpc-kit bench comm --json"
            )
        calibration.write(path, calibration.merge(calibration.read(path), found) if path.exists() else found)
        click.echo(f"links of {name}: {path}")
        return 0
    return _submit(name, path, root)


def _profile(name: str, root: Path) -> Cluster:
    """The cluster file.

    Raises:
        SpecError: There is none; of a machine that is known by name, how to make one.
    """
    from hpc_kit.planner import hardware
    from hpc_kit.spec import load

    try:
        return load.load_cluster(name, root=root)
    except SpecError as error:
        if name not in hardware.machines():
            raise
        there = hardware.machine(name)
        raise SpecError(
            f"{name} is a machine by its data sheet; a job that measures it needs a cluster file",
            found=error.found,
            remedy=f"hpc-kit init copies env/example-gpu.toml; as env/{name}.toml, with\n[node]\n"
            f'gpu = "{there.gpu.name}"\ngpus = {there.gpus_per_node}\n'
            f'network = {there.network * 8 / 1e9 * there.gpus_per_node:g}\nfabric = "{there.fabric}"',
        ) from error


def _submit(cluster: str, path: Path, root: Path) -> int:
    from hpc_kit.cli import output
    from hpc_kit.spec import load
    from hpc_kit.spec.job import Job
    from hpc_kit.spec.resolve import resolve
    from hpc_kit.spec.resources import Resources
    from hpc_kit.submission import submit

    job = Job(
        name="plan_calibrate",
        description="the rate of a matrix product and of the memory of one GPU",
        command=("python", "-m", "hpc_kit.planner.measure", str(path)),
        resources=Resources(nodes=1, ntasks_per_node=1, gpus_per_task="1", time="00:10:00"),
    )
    resolved = resolve(load.load(job, cluster, root=root), root=root)
    submitted = submit.submit_resolved(resolved, root=root, command_line=sys.argv)
    click.echo(f"job     {submitted.job_id} measures one GPU; its numbers go to {path}")
    if resolved.cluster.slurm != "embedded":
        output.next_steps(submitted.job_id, going=True)
        return 0
    return output.follow(submitted.run, submitted.client)
