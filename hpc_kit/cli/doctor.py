"""`hpc-kit doctor`."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.job_arguments import JobCommand, job_arguments, parse_request, resolve_request
from hpc_kit.cli.options import JSON_OPTION, NumberRange
from hpc_kit.cli.output import format_table, print_line, print_wrapped, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError
from hpc_kit.slurm.units import format_count

if TYPE_CHECKING:
    from hpc_kit.bench.preflight import PreflightVerdict
    from hpc_kit.submission.submit import Submission


@click.command("doctor", cls=JobCommand)
@job_arguments
@click.option("--in-job", is_flag=True, help="One table of all ranks of this step: srun hpc-kit doctor --in-job")
@click.option(
    "--timeout",
    type=NumberRange(1, 86400),
    metavar="SECONDS",
    help="With --in-job: wait for all ranks.  [default: 300]",
)
@JSON_OPTION
def command(job: str | None, in_job: bool, timeout: float | None, as_json: bool, **_: object) -> int:
    """Show Slurm, torch, GPUs, MPI and containers of this machine, and what is missing for which command.

    With JOB: submit a job with the nodes of JOB that measures each node and its network, usually in less than a
    minute, and print the slow and the broken nodes.

    With --in-job: print host, device and UUID, CPUs, memory nodes, interface and versions of each rank, and mark
    differences.

    Exit status 1 if something does not work, or a node is slow or broken. With --in-job: 1 if ranks are missing, 2 if
    two ranks use one GPU or variables of the launcher contradict each other.
    """
    meta = click.get_current_context().meta
    values = click.get_current_context().params
    # Every argument that describes a job asks about the nodes of that job.
    if job is not None or meta["program"] or meta["sbatch"] or values["shape"] or values["settings"]:
        if in_job:
            raise SpecError("--in-job takes no job", remedy="srun hpc-kit doctor --in-job, or hpc-kit doctor JOB")
        return _measure_nodes(job, as_json=as_json)
    if in_job:
        _compare_ranks(timeout)
        return 0
    return _print_installation(as_json=as_json)


def _print_installation(*, as_json: bool) -> int:
    from hpc_kit.check.installation import inspect_installation

    parts = inspect_installation(os.environ)
    if as_json:
        echo(json.dumps([part._asdict() for part in parts], indent=1))
    else:
        names, states = (max(len(part[number]) for part in parts) for number in (0, 1))
        for part in parts:
            print_wrapped(f"{part[0]:<{names}}  {part[1]:<{states}}  {part[2]}".rstrip(), indent=names + states + 4)
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


def _measure_nodes(name: str | None, *, as_json: bool) -> int:
    """Measure the nodes of a job, and print the verdict."""
    import msgspec

    from hpc_kit.bench.preflight_job import measure_nodes, measuring_job
    from hpc_kit.spec import search_path

    root = search_path.current_folder()
    resolved = measuring_job(resolve_request(parse_request(name), root, require_answer=True))
    submitted: list[Submission] = []

    def announce(new: Submission) -> None:
        submitted.append(new)
        for note in new.notes:
            print_wrapped(f"note    {note}", indent=8, err=True)
        if not as_json:
            text = f"{new.job_id} {resolved.job.name}: {format_count(resolved.nodes, 'node')}"
            print_line("job", text, right=short_path(new.run_folder))

    verdict = measure_nodes(resolved, root, announce, lambda text: echo(f"        {text}", err=True))
    if as_json:
        job = {"job_id": submitted[0].job_id, "run": str(submitted[0].run_folder)}
        echo(json.dumps({**job, **msgspec.to_builtins(verdict)}, indent=1))
    else:
        _print_verdict(verdict, name, resolved.job.resources.exclude)
    return int(bool(verdict.excluded) or not verdict.is_measured)


def _print_verdict(verdict: PreflightVerdict, name: str | None, own_exclude: str | None) -> None:
    from hpc_kit.bench.preflight import NETWORK, UNITS, format_rate

    rates = {report.node: report.all_rates for report in verdict.reports}
    rows = [("node", "state", *UNITS)]
    for node in verdict.nodes:
        own = rates.get(node.node, {})
        rows.append((node.node, node.state, *(format_rate(each, own[each]) if each in own else "-" for each in UNITS)))
    for line in format_table(rows, "left", "left", "right", "right", "right", "right"):
        echo(line)
    totals = [report.all_reduce for report in verdict.reports if report.all_reduce is not None]
    if totals:
        echo(f"all-reduce over {len(totals)} nodes: {format_rate(NETWORK, min(totals))}")
    for node in verdict.excluded:
        print_wrapped(node.sentence)
    for note in verdict.notes:
        print_wrapped(f"note    {note}", indent=8)
    if verdict.excluded:
        _print_commands(verdict, name, own_exclude)


def _print_commands(verdict: PreflightVerdict, name: str | None, own_exclude: str | None) -> None:
    """Print the commands that keep jobs away from the excluded nodes."""
    from hpc_kit.slurm import nodelist
    from hpc_kit.submission.exclusions import expand_option

    by_reason: dict[str, list[str]] = {}
    for node in verdict.excluded:
        by_reason.setdefault(f"{node.state}: {node.reasons[0].partition(',')[0]}", []).append(node.node)
    # The option replaces that of the job.
    names = sorted({*expand_option(own_exclude), *(node.node for node in verdict.excluded)})
    print_line("do", f"hpc-kit submit {name or 'JOB'} --exclude={shlex.quote(nodelist.fold(names))}")
    for reason, nodes in by_reason.items():
        listed = shlex.quote(nodelist.fold(nodes))
        print_line("", f"hpc-kit cluster exclude {listed} --reason {shlex.quote(reason)} --for 7d")
