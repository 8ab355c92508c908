"""`hpc-kit launch`."""

from __future__ import annotations

import os
import sys
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_kit.cli import output as account
from hpc_kit.cli.job_arguments import HOSTFILE, HOSTS, JobCommand, job_arguments, parse_request, resolve_on_hosts
from hpc_kit.cli.output import LineWriter, ignore_closed_pipe, print_line
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.ssh.hosts import Host
    from hpc_kit.ssh.launch import Launch, LaunchResult


class TimeoutRange(click.FloatRange):
    """A range of seconds that also excludes nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value like click, with nan out of range."""
        return super().convert(inf if str(value).strip().lstrip("+-").lower() == "nan" else value, param, ctx)


@click.command("launch", cls=JobCommand)
@job_arguments
@HOSTS
@HOSTFILE
@click.option(
    "--connect-timeout",
    type=TimeoutRange(0.1, 3600),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="For each host.",
)
def command(hosts: str | None, hostfile: Path | None, connect_timeout: float, **_: object) -> int:
    """Start a job over ssh, without a scheduler. Each host runs one agent; all hosts end together.

    hpc-kit launch ddp_4node --hosts a,b,c,d
    hpc-kit launch -j 2x4 --hosts a,b -- python train.py --steps 100

    JOB is the name or path of a job file. Each host is a node. Every output line has the prefix of its rank and host.
    Secrets are passed by name: --export=HF_TOKEN,WANDB_API_KEY.

    The exit status is that of the rank that failed first. Ctrl-C asks all ranks to end; a second Ctrl-C kills them
    (130).
    """
    from hpc_kit.check.preflight import check_program
    from hpc_kit.ssh.hosts import read_hosts
    from hpc_kit.ssh.launch import Launch
    from hpc_kit.ssh.rank_placement import agent_python, exported_variables
    from hpc_kit.ssh.ssh_command import check_ssh

    root = search_path.current_folder().absolute()
    named = read_hosts(hosts, hostfile)
    resolved = resolve_on_hosts(named, parse_request(), root)
    check_program(resolved, root)
    values = exported_variables(resolved, os.environ)
    check_ssh()
    launch = Launch(named, agent_python(resolved, root), connect_timeout)
    try:
        launch.connect()
        return _run(launch, resolved, root, named, values)
    finally:
        launch.close()


def _run(launch: Launch, resolved: Resolved, root: Path, hosts: Sequence[Host], values: Mapping[str, str]) -> int:
    from hpc_kit.ssh.launch import LaunchPlan, RankLogs, begin_record, end_record
    from hpc_kit.ssh.rank_placement import count_ranks, render_host_scripts
    from hpc_kit.submission.staging import unwritable_folder_error

    names, ranks = [host.name for host in hosts], count_ranks(resolved, hosts)
    notes = (*resolved.notes, *launch.placement_warnings(ranks, resolved.job.launch.backend))
    scripts = render_host_scripts(resolved, ranks, root)
    run = begin_record(resolved, root, dict(zip(names, ranks, strict=True)), scripts[0], sys.argv)
    laid = " + ".join(map(str, ranks)) if len(set(ranks)) > 1 else f"{len(hosts)} x {ranks[0]}"
    with ignore_closed_pipe():
        for note in notes:
            print_line("note", note)
        print_line("launch", f"{run.name} {resolved.job.name}: {laid} ranks over ssh", right=account.short_path(run))
    screen = LineWriter(launch.ending)
    logs = RankLogs(run, names, sum(ranks), screen.show)
    began = time.time()
    plan = LaunchPlan(f"{run.name}.{os.urandom(4).hex()}", root, run, scripts, values, ranks)
    try:
        result = launch.run(plan, logs.write)
    finally:
        logs.close()
    unkept = None
    try:
        end_record(run, result, began, names)
    except OSError as error:  # most often the full disk that also ended the job
        unkept = unwritable_folder_error(run, error)
    with ignore_closed_pipe():
        if screen.incomplete:
            print_line("note", "some output was not printed because its reader was blocked; the logs contain it")
        _print_result(run, result)
    if unkept is not None:
        raise unkept
    return result.status


def _print_result(run: Path, result: LaunchResult) -> None:
    """Print the outcome and the paths of the files."""
    from hpc_kit.run_files import RECORD
    from hpc_kit.runs.first_failure import find_failure
    from hpc_kit.runs.run_folders import open_run

    known = open_run(run)
    failure = find_failure(known, None) if result.failure else None
    if failure:
        account.print_failure(failure)
    elif result.problem:
        first, *more = result.problem.splitlines()
        print_line("failed", first)
        for text in more:
            print_line("", text)
    elif result.status == 0:
        print_line("done", account.format_summary(known.summary()) or "all ranks ended well")
    print_line("logs", f"{account.short_path(run)}/rank-*.log")
    print_line("record", account.short_path(run / RECORD))
