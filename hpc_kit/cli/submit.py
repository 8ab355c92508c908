"""`hpc-kit submit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli import account
from hpc_kit.cli.request import JobCommand, job_arguments, job_of, request_of
from hpc_kit.cli.session import line

if TYPE_CHECKING:
    from hpc_kit.spec.resolve import Resolved


@click.command("submit", cls=JobCommand)
@job_arguments
@click.option("--wait/--no-wait", default=None, help="Follow the job to its end [default: on the embedded Slurm only].")
@click.option("--standalone", is_flag=True, help="Submit the script that needs no hpc_kit on the nodes.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Keep the job as a job file, too.")
def command(wait: bool | None, standalone: bool, save: Path | None, **_: object) -> int:
    """Submit a job, or any program.

    hpc-kit submit -j 4x2 --time 2:00:00 -- python train.py --steps 100

    JOB is a job file's name or path. Words behind -- are added to its command. Every long sbatch option is an
    option here, too.

    Followed to its end, the exit status is the job's own; Ctrl-C stops the following, not the job.
    """
    from hpc_kit.script.preflight import check_program
    from hpc_kit.submit import submission

    root = Path.cwd()
    resolved = job_of(request_of(), root)
    check_program(resolved, root)
    embedded = resolved.cluster.slurm == "embedded"
    if embedded:
        line("slurm", f"the embedded one: nodes {resolved.cluster.embedded.nodes} on this machine")
    job = submission.submit_resolved(resolved, root=root, standalone=standalone, command_line=sys.argv)
    if save is not None:
        from hpc_kit.spec.write import save_job

        save_job(resolved.asked, save)
    for note in resolved.notes:
        line("note", note)
    line("job", f"{job.job_id} {describe(resolved)}", right=account.shown(job.run.folder))
    if not (embedded if wait is None else wait):
        account.next_steps(job.job_id, going=True)
        return 0
    return account.follow(job.run, job.access)


def describe(resolved: Resolved) -> str:
    """The job in a few words."""
    job = resolved.job
    ranks = resolved.world_size // resolved.nodes
    each = f"{ranks} rank{'s'[: ranks != 1]}" if resolved.world_size % resolved.nodes == 0 else "ranks uneven"
    nodes = f"{resolved.nodes} node{'s'[: resolved.nodes != 1]}"
    array = f", array {job.resources.array}" if job.resources.array is not None else ""
    return f"{job.name}: {nodes} x {each} by {job.launch.launcher}{array}"
