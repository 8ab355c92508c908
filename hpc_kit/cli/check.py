"""`hpc-kit check`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from hpc_kit.cli.job_arguments import JobCommand, JobRequest, job_arguments, parse_request, resolve_request
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    from hpc_kit.check.rules import Finding
    from hpc_kit.spec.cluster import Cluster

SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".sl", ".batch")
_WIDTH = 150


class CheckReport(NamedTuple):
    """The findings for one script, and the checks that ran."""

    name: str
    findings: list[Finding]
    checked: list[str]
    not_checked: dict[str, str]


@click.command("check", cls=JobCommand)
@job_arguments
@click.option("--standalone", is_flag=True, help="Check the script that needs no hpc_kit on the nodes.")
@click.option("--strict", is_flag=True, help="Exit status 1 for warnings, too.")
@click.option("--json", "as_json", is_flag=True, help="A JSON document.")
@click.option("--explain", "code", metavar="CODE", help="Explain a code such as KIT203, and how to fix it.")
def command(job: str | None, standalone: bool, strict: bool, as_json: bool, code: str | None, **_: object) -> int:
    """Find faults in a job or in any sbatch script before submission.

    JOB is the name or path of a job file, the path of a batch script, or - for a script on standard input.
    Each finding has a code that --explain describes.

    Exit status: 0 nothing found, or only warnings; 1 an error (with --strict, also a warning); 2 wrong use.
    """
    if code is not None:
        from hpc_kit.check.rule_docs import explain

        echo(explain(code), nl=False)
        return 0
    request = parse_request(job)
    file = _script_path(request)
    report = _check_job(request, standalone=standalone) if file is None else _check_file(request, file)
    if as_json:
        echo(_report_json(report))
    else:
        echo(_format_report(report))
    return int(any(strict or finding.severity == "error" for finding in report.findings))


def _script_path(request: JobRequest) -> str | None:
    """Return the path of the batch script; None if the request is a job."""
    name = request.job
    if name is None or request.program or request.shape:
        return None
    path = Path(name)
    script = name == "-" or path.suffix in SUFFIXES or (path.suffix != ".toml" and "/" in name and path.is_file())
    if not script and not (path.suffix != ".toml" and path.is_file()):
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


def _check_file(request: JobRequest, name: str) -> CheckReport:
    shown = "stdin" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read {name}", found=error.strerror, remedy="the path of a batch script") from error
    cluster = None
    if request.cluster is not None:
        from hpc_kit.spec.load import load_cluster

        cluster = load_cluster(request.cluster, root=search_path.current_folder())
    return _check_script(data.decode("utf-8", errors="replace"), shown, job=False, cluster=cluster)


def _check_job(request: JobRequest, *, standalone: bool) -> CheckReport:
    from hpc_kit.check import external_checkers, preflight
    from hpc_kit.script.render import render_resolved

    root = search_path.current_folder()
    resolved = resolve_request(request, root)
    text = render_resolved(resolved, standalone=standalone, root=root)
    report = _check_script(text, resolved.job.name, job=True, cluster=resolved.cluster)
    missing = preflight.find_missing(
        resolved, root, elsewhere=external_checkers.NO_SLURM in report.not_checked.values()
    )
    return report._replace(findings=[*missing, *report.findings], checked=[*report.checked, "what must exist here"])


def _check_script(text: str, name: str, *, job: bool, cluster: Cluster | None) -> CheckReport:
    from hpc_kit.check import external_checkers
    from hpc_kit.check.batch_script import BatchScript, Site
    from hpc_kit.check.rules import RULES, check
    from hpc_kit.slurm.client import run_command
    from hpc_kit.slurm.command_environment import drop_overriding_variables, submit_environment
    from hpc_kit.spec.cluster_client import slurm_version_of

    embedded = cluster is not None and cluster.slurm == "embedded"
    version = slurm_version_of(cluster, os.environ)
    # submit creates the log folder of a job. Another check finds out whether that is possible.
    script = BatchScript(text, name, Site(None if job else os.path.isdir, version))
    found = check(script)
    checked, not_checked = [f"{len(RULES)} rules" + (f" for Slurm {version}" if version else "")], {}
    if script.unread_part:
        subject, _, reason = script.unread_part.partition(": ")
        not_checked[subject] = reason
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
    counted = (("error", errors), ("warning", len(report.findings) - errors))
    counts = ", ".join(f"{count} {word}{'s'[: count != 1]}" for word, count in counted if count)
    left = ", ".join(f"{name} ({reason})" for name, reason in report.not_checked.items())
    looked = ", ".join(report.checked) + (f"; not checked: {left}" if left else "")
    lines.append(f"{report.name}: {counts or 'no fault found'} ({looked})")
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


def _report_json(report: CheckReport) -> str:
    import json

    findings = [
        {**finding._asdict(), "evidence": [line._asdict() for line in finding.evidence]} for finding in report.findings
    ]
    return json.dumps({**report._asdict(), "findings": findings}, indent=2)
