"""`hpc-kit check`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.job_arguments import JobCommand, JobRequest, complete_job, job_options, parse_request, resolve_request
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError, explain_file_errors
from hpc_kit.slurm.units import format_count
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from hpc_kit.check.report_formats import CheckReport
    from hpc_kit.check.rules import Finding
    from hpc_kit.slurm.versions import SlurmVersion
    from hpc_kit.spec.cluster import Cluster

SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".sl", ".batch")
"""Suffixes of batch scripts. Other files are scripts, too, unless they are job files."""
FORMATS = ("text", "json", "sarif", "github")
_WIDTH = 150
"""Maximum number of letters of a printed line of a script."""
_MOST_PASSES = 5
"""Times that --fix checks the edited script again."""
_SEVERAL = "several scripts; name one to run it"
_MANY = 24
"""From this number of scripts, several processes take less time than one, and their start."""
_MOST_PROCESSES = 4
"""Other people also work on a login node."""


@click.command("check", cls=JobCommand)
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_job)
@job_options
@click.option("--standalone", is_flag=True, help="Check the script that needs no hpc_kit on the nodes.")
@click.option("--strict", is_flag=True, help="Exit status 1 for warnings, too.")
@click.option("--format", "form", type=click.Choice(FORMATS), default=None, help="Form of the report [default: text].")
@click.option("--json", "as_json", is_flag=True, help="A JSON document, as --format json.")
@click.option("--diff", "show_diff", is_flag=True, help="Print the edits that --fix would make; write nothing.")
@click.option("--fix", is_flag=True, help="Print the mechanical edits as a diff, and write them to the scripts.")
@click.option("--explain", "code", metavar="CODE", help="Explain a code such as KIT203, and how to fix it.")
def command(
    jobs: tuple[str, ...],
    standalone: bool,
    strict: bool,
    form: str | None,
    as_json: bool,
    show_diff: bool,
    fix: bool,
    code: str | None,
    **_: object,
) -> int:
    """Find faults in a job or in any sbatch script before submission.

    hpc-kit check old.sbatch  or  hpc-kit check --format github scripts/*.sbatch

    JOB is the name or path of a job file, the path of a batch script, or - for a script on standard input. Several
    are checked in one call, by the rules alone. Each finding has a code that --explain describes. A comment
    `# kit: ignore[KIT302] the reason` in the line silences a rule.

    Exit status: 0 nothing found, or only warnings; 1 an error (with --strict, also a warning); 2 wrong use.
    """
    if code is not None:
        from hpc_kit.check.rule_docs import explain

        echo(explain(code), nl=False)
        return 0
    form = form or ("json" if as_json else "text")
    checks: list[Callable[[], CheckReport]] = []
    cluster_of = cache(_cluster_of_scripts)  # the file is read once for all scripts
    only_scripts = True
    # Without a name, the job is the program behind --.
    for job in jobs or (None,):
        request = parse_request(job)
        file = _script_path(request)
        if file is None:
            if fix or show_diff:
                raise SpecError("--fix edits batch scripts", found=f"a job: {job}", remedy="edit the job file")
            checks.append(partial(_check_job, request, standalone=standalone))
            only_scripts = False
            continue
        text, check_text = _read_script(file, cluster_of(request.cluster), alone=len(jobs) == 1)
        if fix or show_diff:
            checks.append(partial(_fix_script, text, file, check_text, write=fix, form=form))
        else:
            checks.append(partial(check_text, text))
    reports = _run_in_processes(checks) if only_scripts and not (fix or show_diff) else [check() for check in checks]
    _print_reports(reports, form)
    return int(any(strict or finding.severity == "error" for report in reports for finding in report.findings))


def _run_in_processes(checks: list[Callable[[], CheckReport]]) -> list[CheckReport]:
    """Run the checks, those of many scripts in several processes."""
    count = min(_MOST_PROCESSES, os.cpu_count() or 1)
    if len(checks) < _MANY or count == 1:
        return [check() for check in checks]
    import multiprocessing

    first, rest = checks[0](), checks[1:]  # the processes have what this one has imported
    context = multiprocessing.get_context("fork")
    shares = [rest[number::count] for number in range(count)]
    started = []
    for share in shares:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_reports, args=(sender, share), daemon=True)
        process.start()
        sender.close()
        started.append((process, receiver))
    reports = []
    for share, (process, receiver) in zip(shares, started, strict=True):
        try:
            reports.append(receiver.recv())
        except EOFError:  # the process has failed, or was killed
            reports.append([check() for check in share])
        process.join()
    return [first, *(reports[number % count][number // count] for number in range(len(rest)))]


def _send_reports(sender: Connection, checks: list[Callable[[], CheckReport]]) -> None:
    """Run some of the checks, in a process of their own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the process that started this one says that it was interrupted
    with suppress(Exception):  # that process repeats the checks, and shows the error
        sender.send([check() for check in checks])


def _print_reports(reports: list[CheckReport], form: str) -> None:
    if form == "text":
        echo("\n".join(map(_format_report, reports)))
        return
    from hpc_kit.check import report_formats

    if form == "sarif":
        from hpc_kit import __version__

        echo(report_formats.format_sarif(reports, __version__))
    elif form == "github":
        echo(report_formats.format_github(reports), nl=any(report.findings for report in reports))
    else:
        echo(report_formats.format_json(reports))


def _fix_script(
    text: str, file: str, check_text: Callable[[str], CheckReport], *, write: bool, form: str
) -> CheckReport:
    """Print the edits of a script as a diff. `write` writes them; the report is then on the edited script."""
    from hpc_kit.check.text_edits import apply_edits, format_diff

    report = first = check_text(text)
    fixed = text
    # An edit may show a further fault: a port without spaces around its `=` is not exported.
    for _ in range(_MOST_PASSES):
        edited = apply_edits(fixed, (edit for finding in report.findings for edit in finding.edits))
        if edited == fixed:
            break
        fixed, report = edited, check_text(edited)
    diff = format_diff(text, fixed, report.name)
    if diff:
        # Programs read the other forms from stdout.
        echo(diff, err=form != "text")
    if not write or file == "-":
        return first
    if diff:
        # Bytes that are no UTF-8 would be lost.
        Path(file).write_bytes(fixed.encode("utf-8", errors="surrogateescape"))
    return report


def _script_path(request: JobRequest) -> str | None:
    """Return the path of the batch script; None if the request is a job."""
    name = request.job
    if name is None or request.program or request.shape:
        return None
    path = Path(name)
    if path.suffix == ".ipynb" and path.is_file():
        raise search_path.notebook_error(name)
    if name != "-" and path.suffix not in SUFFIXES and (path.suffix == ".toml" or not path.is_file()):
        return None
    if path.suffix == ".py" and search_path.is_program(name, search_path.current_folder()):
        raise SpecError(
            f"'{name}' is a program, and no batch script",
            remedy=f"check the job that runs it:  hpc-kit check -j 4x2 -- python {shlex.quote(name)}",
        )
    if request.settings or request.options:
        raise SpecError(
            "a script's options are in the script",
            found="--set and sbatch's options are for jobs",
            remedy=f"edit {name}, or hpc-kit check JOB --set ...",
        )
    return name


def _read_script(name: str, cluster: Cluster | None, *, alone: bool) -> tuple[str, Callable[[str], CheckReport]]:
    """Return the text of a script, and the check of such a text. `alone`: other programs check it, too."""
    shown = "stdin" if name == "-" else name
    with explain_file_errors(SpecError, f"cannot read {name}", "write the path of a batch script"):
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    text = data.decode("utf-8", errors="surrogateescape")
    return text, partial(_check_script, name=shown, job=False, cluster=cluster, alone=alone)


def _cluster_of_scripts(name: str | None) -> Cluster | None:
    """Return the cluster of all scripts: the named one, else the one that the project or the user has chosen, or None.

    The embedded Slurm also runs scripts of other clusters, so that it counts only if it is named.
    """
    from hpc_kit.spec.default_cluster import configured_name
    from hpc_kit.spec.load import load_cluster

    root = search_path.current_folder()
    chosen = name or configured_name(root, os.environ)
    cluster = load_cluster(chosen, root=root) if chosen else None
    return cluster if cluster is None or name or cluster.slurm == "system" else None


def _check_job(request: JobRequest, *, standalone: bool) -> CheckReport:
    from hpc_kit.check import external_checkers, prerequisites
    from hpc_kit.script.render import render_resolved

    root = search_path.current_folder()
    resolved = resolve_request(request, root)
    setup = {
        line: f"line {number} of `setup` in {place}"
        for place, lines in (("the cluster file", resolved.cluster.setup), ("the job file", resolved.job.setup))
        for number, line in enumerate(lines, 1)
    }
    for note in resolved.notes:
        echo(f"hpc-kit: {note}", err=True)
    text = render_resolved(resolved, standalone=standalone, root=root)
    report = _check_script(text, resolved.job.name, job=True, cluster=resolved.cluster, alone=True)
    missing = prerequisites.find_missing(
        resolved, root, elsewhere=external_checkers.NO_SLURM in report.not_checked.values()
    )
    # The user knows the lines of the job file, and not those of the script.
    found = [
        each._replace(found=setup[each.evidence[0].text])
        if each.found is None and each.evidence and each.evidence[0].text in setup
        else each
        for each in report.findings
    ]
    return report._replace(findings=[*missing, *found], checked=[*report.checked, "what must exist here"])


@cache
def _local_version() -> SlurmVersion | None:
    """Return the release of the Slurm on this machine, which is asked once for all scripts."""
    from hpc_kit.spec.cluster_client import slurm_version_of

    return slurm_version_of(None, os.environ)


@cache
def _has_sbatch() -> bool:
    from hpc_kit.slurm.cluster_identity import find_command

    return find_command("sbatch", os.environ) is not None


def _check_script(text: str, name: str, *, job: bool, cluster: Cluster | None, alone: bool) -> CheckReport:
    from hpc_kit.check import external_checkers
    from hpc_kit.check.batch_script import BatchScript, Site
    from hpc_kit.check.report_formats import CheckReport
    from hpc_kit.check.rules import RULES, check
    from hpc_kit.slurm.client import run_command
    from hpc_kit.slurm.command_environment import drop_overriding_variables, submit_environment
    from hpc_kit.spec.cluster_client import slurm_version_of

    embedded = cluster is not None and cluster.slurm == "embedded"
    version = slurm_version_of(cluster, os.environ) if cluster is not None else _local_version()
    # submit creates the log folder of a job. A foreign script is submitted here only if there is an sbatch.
    submits_here = not job and _has_sbatch()
    script = BatchScript(text, name, Site(os.path.exists if submits_here else None, version, cluster))
    found = check(script)
    checked, not_checked = [f"{len(RULES)} rules" + (f" for Slurm {version}" if version else "")], {}
    if script.unread_part:
        subject, _, reason = script.unread_part.partition(": ")
        not_checked[subject] = reason
    if not alone and script.unread_part is None:
        return CheckReport(name, found, checked, {**not_checked, "bash, shellcheck, sbatch's parser": _SEVERAL})
    # Like submit: drop the variables that would override the directives of the script.
    environ = drop_overriding_variables(submit_environment(os.environ), text)[0] if job else os.environ
    for outcome in external_checkers.run_checkers(script, run_command, environ, real_slurm=not embedded):
        found += outcome.findings
        if outcome.skipped:
            not_checked[outcome.name] = outcome.skipped
        else:
            checked.append(outcome.name)
    found.sort(key=lambda finding: (finding.line, finding.column, finding.code))
    return CheckReport(name, found, checked, not_checked)


def _format_report(report: CheckReport) -> str:
    lines = [line for finding in report.findings for line in _format_finding(finding, report.name)]
    errors = sum(finding.severity == "error" for finding in report.findings)
    severities = (("error", errors), ("warning", len(report.findings) - errors))
    counts = ", ".join(format_count(count, severity) for severity, count in severities if count)
    not_checked = ", ".join(f"{name} ({reason})" for name, reason in report.not_checked.items())
    checked = ", ".join(report.checked) + (f"; not checked: {not_checked}" if not_checked else "")
    lines.append(f"{report.name}: {counts or 'no fault found'} ({checked})")
    return "\n".join(lines)


def _format_finding(finding: Finding, name: str) -> list[str]:
    place = f"{name}:{finding.line}:{finding.column}" if finding.line else name
    lines = [f"{place}  {finding.severity} {finding.code}  {finding.what}"]
    lines += [f"  {number:>2} | {_shorten(text)}" for number, text in finding.evidence]
    if finding.found:
        first, *rest = finding.found.splitlines()
        lines += [f"  found: {first}", *(f"         {line}" for line in rest)]
    hint = f"hpc-kit check --explain {finding.code}"
    return [*lines, f"  do: {finding.remedy:<60}  {hint}".rstrip()]


def _shorten(text: str) -> str:
    text = "".join(letter if letter.isprintable() or letter == "\t" else "?" for letter in text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
