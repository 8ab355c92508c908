"""`hpc-kit doctor`."""

from __future__ import annotations

import os

import click

from hpc_kit.errors import HpcKitError


@click.command("doctor")
@click.option("--in-job", is_flag=True, help="One table of all ranks of this step: srun hpc-kit doctor --in-job")
@click.option("--timeout", type=float, metavar="SECONDS", help="Maximum wait for all ranks.  [default: 300]")
def command(in_job: bool, timeout: float | None) -> None:
    """Print host, device and UUID, CPUs, memory nodes, interface and versions of each rank, and mark differences.

    Exit status 1 if ranks are missing, 2 if two ranks use one GPU or variables of the launcher
    contradict each other.
    """
    if not in_job:
        raise HpcKitError("doctor looks at the ranks of a step", remedy="srun hpc-kit doctor --in-job")
    from hpc_kit.runtime import devices, placement, process_group, resolve
    from hpc_kit.runtime.rendezvous import node_comparison

    process_group.import_torch_quietly()
    os.environ[node_comparison.COMPARE_VARIABLE] = "0"  # the table shows the differences
    with process_group.joined_ranks(resolve(os.environ), timeout) as meeting:
        placement.report_placement(meeting, devices.select_device("auto", meeting.world), with_table=True)
