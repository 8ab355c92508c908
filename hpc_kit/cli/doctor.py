"""`hpc-kit doctor`."""

from __future__ import annotations

import os

import click

from hpc_kit.errors import HpcKitError


@click.command("doctor")
@click.option("--in-job", is_flag=True, help="One table of all ranks of this step: srun hpc-kit doctor --in-job")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long to wait for all ranks.  [default: 300]")
def command(in_job: bool, timeout: float | None) -> None:
    """Where each rank runs: host, device and UUID, CPUs, memory nodes, interface, versions; what differs is marked.

    Exit status 1 where ranks do not come, 2 where two use one GPU or the launcher's variables contradict one another.
    """
    if not in_job:
        raise HpcKitError("doctor looks at the ranks of a step", remedy="srun hpc-kit doctor --in-job")
    from hpc_kit.runtime import devices, placement, process_group, resolve
    from hpc_kit.runtime.rendezvous import node_comparison

    process_group.quiet_torch()
    os.environ[node_comparison.COMPARE_VARIABLE] = "0"  # what differs is what the table is to show
    with process_group.joined_ranks(resolve(os.environ), timeout) as meeting:
        placement.report_placement(meeting, devices.select_device("auto", meeting.world), wanted=True)
