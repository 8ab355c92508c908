"""`hpc-kit launch`."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.job_arguments import HOSTFILE, HOSTS, JobCommand, job_arguments, parse_request, resolve_on_hosts
from hpc_kit.cli.options import NumberRange
from hpc_kit.cli.outcomes import format_summary, print_failure
from hpc_kit.cli.output import print_line, short_path
from hpc_kit.cli.terminal import GO_ON, READER_GONE, clean_text, discard_output
from hpc_kit.errors import RecordError
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    import threading

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.ssh.hosts import LaunchHost
    from hpc_kit.ssh.launch import LaunchResult, SshLaunch


_POLL_SECONDS = 0.2
_GIVE_UP_SECONDS = 2.0
"""Seconds without progress after which an ending launch stops printing."""


class LineWriter:
    """Writes lines to standard output without blocking the end of a launch.

    After `ending` is set, the writer no longer waits for a blocked reader.
    """

    def __init__(self, ending: threading.Event) -> None:
        self.incomplete = sys.stdout is None  # started with >&-
        """True if some lines were not written."""
        self._ending = ending

    def show(self, text: str) -> None:
        """Write a line when the reader accepts it. Return immediately if an earlier line was not accepted."""
        if self.incomplete:
            return
        text = clean_text(text) if sys.stdout.isatty() else click.unstyle(clean_text(text))
        data = f"{text}\n".encode(sys.stdout.encoding, "replace")
        accepted_at = time.monotonic()
        try:
            while data and not self.incomplete:
                if select.select([], [sys.stdout], [], _POLL_SECONDS)[1]:
                    # A pipe that is ready accepts PIPE_BUF bytes without blocking.
                    data = data[os.write(sys.stdout.fileno(), data[: select.PIPE_BUF]) :]
                    accepted_at = time.monotonic()
                elif self._ending.is_set() and time.monotonic() - accepted_at > _GIVE_UP_SECONDS:
                    self.incomplete = True
        except BrokenPipeError:
            discard_output()


@click.command("launch", cls=JobCommand)
@job_arguments
@HOSTS
@HOSTFILE
@click.option(
    "--connect-timeout",
    type=NumberRange(0.1, 3600),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="For each host.",
)
def command(job: str | None, hosts: str | None, hostfile: Path | None, connect_timeout: float, **_: object) -> int:
    """Start a job over ssh, without a scheduler. Each host runs one agent; all hosts end together.

    hpc-kit launch -j 2x4 --hosts a,b -- python train.py --steps 100

    JOB is the name or path of a job file. Each host is a node. Every output line has the prefix of its rank and host.
    Secrets are passed by name: --export=HF_TOKEN,WANDB_API_KEY.

    The exit status is that of the rank that failed first. Ctrl-C asks all ranks to end; a second Ctrl-C kills them
    (130).
    """
    from hpc_kit.check.prerequisites import check_program
    from hpc_kit.ssh.hosts import read_hosts
    from hpc_kit.ssh.launch import SshLaunch
    from hpc_kit.ssh.rank_placement import agent_python, exported_variables
    from hpc_kit.ssh.ssh_command import check_ssh

    click.get_current_context().meta[READER_GONE] = GO_ON
    root = search_path.current_folder().absolute()
    all_hosts = read_hosts(hosts, hostfile)
    resolved = resolve_on_hosts(all_hosts, parse_request(job), root)
    check_program(resolved, root)
    values = exported_variables(resolved, os.environ)
    check_ssh()
    launch = SshLaunch(all_hosts, agent_python(resolved, root), connect_timeout)
    try:
        launch.connect()
        return _run_launch(launch, resolved, root, all_hosts, values)
    finally:
        launch.close()


def _run_launch(
    launch: SshLaunch, resolved: Resolved, root: Path, hosts: Sequence[LaunchHost], values: Mapping[str, str]
) -> int:
    from hpc_kit.ssh.launch import LaunchPlan, RankLogs, begin_record, end_record
    from hpc_kit.ssh.rank_placement import count_ranks, render_host_scripts

    names, ranks = [host.name for host in hosts], count_ranks(resolved, hosts)
    notes = (*resolved.notes, *launch.placement_warnings(ranks, resolved.job.launch.backend))
    scripts = render_host_scripts(resolved, ranks, root)
    run = begin_record(resolved, root, dict(zip(names, ranks, strict=True)), scripts[0], sys.argv)
    layout = " + ".join(map(str, ranks)) if len(set(ranks)) > 1 else f"{len(hosts)} x {ranks[0]}"
    for note in notes:
        print_line("note", note)
    print_line("launch", f"{run.name} {resolved.job.name}: {layout} ranks over ssh", right=short_path(run))
    screen = LineWriter(launch.ending)
    logs = RankLogs(run, names, sum(ranks), screen.show)
    began = time.time()
    # Run folders of two projects may have the same name.
    plan = LaunchPlan(f"{run.name}.{os.urandom(4).hex()}", root, run, scripts, values, ranks)
    try:
        result = launch.run(plan, logs.write)
    finally:
        logs.close()
    # The outcome is printed even if the record cannot be written.
    record_error = None
    try:
        end_record(run, result, began, names)
    except RecordError as error:
        record_error = error
    if screen.incomplete:
        print_line("note", "some output was not printed because its reader was blocked; the logs contain it")
    _print_outcome(run, result)
    if record_error is not None:
        raise record_error
    return result.status


def _print_outcome(run: Path, result: LaunchResult) -> None:
    """Print the outcome and the paths of the files."""
    from hpc_kit.run_files import RECORD
    from hpc_kit.runs.first_failure import find_failure
    from hpc_kit.runs.run_folders import open_run

    failure = find_failure(open_run(run), None) if result.failure else None
    if failure:
        print_failure(failure)
    elif result.problem:
        for number, text in enumerate(result.problem.splitlines()):
            print_line("" if number else "failed", text)
    elif result.status == 0:
        print_line("done", format_summary(open_run(run).summary()) or "all ranks ended well")
    print_line("logs", f"{short_path(run)}/rank-*.log")
    print_line("record", short_path(run / RECORD))
