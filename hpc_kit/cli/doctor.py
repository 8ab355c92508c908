"""`hpc-kit doctor`."""

from __future__ import annotations

import os

import click

from hpc_kit.cli.options import JSON_OPTION
from hpc_kit.cli.output import format_table
from hpc_kit.cli.terminal import echo


@click.command("doctor")
@click.option("--in-job", is_flag=True, help="One table of all ranks of this step: srun hpc-kit doctor --in-job")
@click.option("--timeout", type=float, metavar="SECONDS", help="With --in-job: wait for all ranks.  [default: 300]")
@JSON_OPTION
def command(in_job: bool, timeout: float | None, as_json: bool) -> int:
    """Show Slurm, torch, GPUs, MPI and containers of this machine, and what is missing for which command.

    With --in-job: print host, device and UUID, CPUs, memory nodes, interface and versions of each rank, and mark
    differences.

    Exit status 1 if something does not work. With --in-job: 1 if ranks are missing, 2 if two ranks use one GPU or
    variables of the launcher contradict each other.
    """
    if in_job:
        _compare_ranks(timeout)
        return 0
    from hpc_kit.check.installation import inspect_installation

    parts = inspect_installation(os.environ)
    if as_json:
        import json

        echo(json.dumps([part._asdict() for part in parts], indent=1))
    else:
        for line in format_table([part[:3] for part in parts], "left", "left", "left"):
            echo(line)
        for part in parts:
            if part.state in {"missing", "broken"}:
                echo(f"\n{part.name} is {part.state}; used by {part.used_by}\n  do     {part.remedy}")
    return int(any(part.state == "broken" for part in parts))


def _compare_ranks(timeout: float | None) -> None:
    """Print the table of all ranks of this step."""
    from hpc_kit.runtime import devices, placement, resolve
    from hpc_kit.runtime.joined_ranks import joined_ranks
    from hpc_kit.runtime.rendezvous import node_comparison
    from hpc_kit.runtime.torch_import import import_torch_quietly

    import_torch_quietly()
    os.environ[node_comparison.COMPARE_VARIABLE] = "0"  # the table shows the differences
    with joined_ranks(resolve(os.environ), timeout) as meeting:
        placement.report_placement(meeting, devices.select_device("auto", meeting.world), with_table=True)
