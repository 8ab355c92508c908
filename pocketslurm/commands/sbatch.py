"""The command sbatch: submits a script, prints the job id, and waits for the job with --wait."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hpc_kit.slurm.command_environment import SBATCH_VARIABLES
from hpc_kit.slurm.components import component_options, split_components
from hpc_kit.slurm.directives import read_directives
from hpc_kit.slurm.errors import DirectiveError
from hpc_kit.slurm.getopt import SBATCH, GetoptError, ParsedOption, ParsedOptions
from hpc_kit.slurm.option_table import ValueUse
from pocketslurm.errors import BAD_OPTION, CommandError, UsageError
from pocketslurm.option_support import SBATCH_SUPPORT, check_options, option_error, print_help
from pocketslurm.queue import controller_start, job_size, nodes, submission
from pocketslurm.queue.scheduler import expected_start
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


# The controller checks these options, not sbatch, or they are checked with the size of the job.
_LATER = frozenset({"array", "dependency", "hostlist"})
_WAIT_SECONDS = 0.25
_PACKJOB = 'sbatch: Warning: the "packjob" component separator is being deprecated. Please, use "hetjob" instead.'


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    strict = load_settings(environ).strict
    parts, words = _parse(argv, strict=strict)
    parsed = ParsedOptions(tuple(each for part in parts for each in part.given))
    if print_help(parsed.names, "sbatch [OPTIONS...] [script [args...]]", SBATCH_SUPPORT, SBATCH):
        return 0
    script, command = read_script(parsed, words, environ)
    name = words[0] if words else "stdin"
    blocks, variables = _directives(script, name, strict=strict), _variables(environ, strict=strict)
    # The name and the script are those of the whole command; options belong to one component.
    components = [
        submission.JobDescription(
            options,
            name=options.get("job-name") or _name(parsed, words),
            command=command,
            arguments=tuple(words[1:]),
            script=script,
            submit_line=" ".join(["sbatch", *argv]),
        )
        for options in component_options(blocks, variables, parts)
    ]
    if len(components) > 1 and any("array" in each.options for each in components):
        raise CommandError(denied="Invalid job array specification")
    state = StateDirectory.open(environ)
    if "test-only" in components[0].options:
        return _test_only(state, components, environ)
    return _submit(state, components, environ)


def _submit(state: StateDirectory, components: list[submission.JobDescription], environ: Mapping[str, str]) -> int:
    options = components[0].options
    quiet = "quiet" in options
    requests = [submission.prepare(state, description, environ)[1] for description in components]
    for note in () if quiet else [note for request in requests for note in request.notes]:
        print(f"sbatch: {note}", file=sys.stderr)
    job = submission.submit_components(state, components, environ)[0]
    for request in requests:
        job_size.note_missing_nodes("sbatch", request, len(nodes.names(state.settings)))
    if not quiet:
        print(_answer(job.job_id, options, environ), flush=True)
    return _wait(state, job.job_id) if "wait" in options else 0


def _answer(job_id: int, options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the answer of --parsable or the usual line; both name the cluster if --clusters was given."""
    cluster = load_settings(environ).cluster if "clusters" in options else ""
    if "parsable" in options:
        return f"{job_id};{cluster}" if cluster else str(job_id)
    return f"Submitted batch job {job_id}" + (f" on cluster {cluster}" if cluster else "")


def _parse(argv: list[str], *, strict: bool) -> tuple[list[ParsedOptions], list[str]]:
    try:
        parts, words = split_components(argv, "sbatch")
    except GetoptError as error:
        raise option_error(error.message) from None
    for parsed in parts:
        _check(parsed, strict=strict)
    return parts, words


def _script_error(error: DirectiveError, script: str) -> CommandError:
    """Return the error for a script that cannot be read, or for its directives."""
    lines = [line.removeprefix("sbatch: ") for line in (error.found or error.what).splitlines()]
    if lines[-1].startswith("fatal: "):
        return CommandError(f"fatal: {script}: {lines[-1].removeprefix('fatal: ')}")
    if complaints := [line for line in lines if line.startswith("error: ")]:
        return CommandError(*complaints, status=BAD_OPTION if "Invalid directive" in complaints[0] else 1)
    return option_error(lines[-1])


def _check(options: ParsedOptions, *, strict: bool) -> None:
    if strict and any(each.option.name == "requeue" and each.value is not None for each in options.given):
        raise UsageError("option '--requeue' doesn't allow an argument", status=BAD_OPTION)  # newer releases take one
    check_options(options.given, strict=strict, later=_LATER)


def _directives(script: bytes, name: str, *, strict: bool) -> list[ParsedOptions]:
    """Return the options of each component's block of directives."""
    try:
        directives = read_directives(script.decode(errors="surrogateescape"))
        blocks = [directives.options(component) for component in range(len(directives.components()))]
    except DirectiveError as error:
        raise _script_error(error, name) from None
    for line in directives.lines:
        if [word.text for word in line.words[:1]] == ["packjob"]:
            print(_PACKJOB, file=sys.stderr)
    for options in blocks:
        _check(options, strict=strict)
    return blocks


def _variables(environ: Mapping[str, str], *, strict: bool) -> ParsedOptions:
    """Return the options in SBATCH_* variables; a variable of a flag counts with any value."""
    parsed = []
    for variable, name in SBATCH_VARIABLES.items():
        if variable in environ:
            option = SBATCH[name]
            parsed.append(ParsedOption(option, None if option.value is ValueUse.NONE else environ[variable], 0))
    options = ParsedOptions(tuple(parsed))
    _check(options, strict=strict)
    return options


def _name(parsed: ParsedOptions, words: list[str]) -> str:
    if parsed.has("wrap"):
        return "wrap"
    return os.path.basename(words[0]) if words else "sbatch"  # noqa: PTH119


def _test_only(state: StateDirectory, components: list[submission.JobDescription], environ: Mapping[str, str]) -> int:
    try:
        jobs = [submission.prepare(state, description, environ) for description in components]
        found = [expected_start(state, job, request) for job, request in jobs]
    except CommandError as refusal:
        sys.stderr.write("".join(f"sbatch: {line}\n" for line in refusal.lines))
        sys.stderr.write(f"allocation failure: {refusal.denied}\n" if refusal.denied else "")
        return 1
    from hpc_kit.slurm.nodelist import fold

    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(max(moment for moment, _ in found)))
    shares = [share for _, shares in found for share in shares]
    cpus = sum(share.cpus for share in shares)
    hosts = fold(dict.fromkeys(share.node for share in shares))
    where = f"nodes {hosts} in partition {jobs[0][0].partition}" if len(jobs) == 1 else hosts
    # The test uses up ids, as with slurmctld.
    with state.transaction():
        job_id, *_ = [state.next_job_id() for _ in jobs]
    print(f"sbatch: Job {job_id} to start at {stamp} using {cpus} processors on {where}", file=sys.stderr)
    return 0


def _wait(state: StateDirectory, job_id: int) -> int:
    """Wait for the end of the job or the array, and return the highest exit code."""
    while True:
        jobs = state.jobs("job_id = ? OR array_job_id = ?", (job_id, job_id))
        if not any(job.active for job in jobs):
            codes = (job.exit_code for job in jobs)
            return max((os.waitstatus_to_exitcode(code) if os.WIFEXITED(code) else 1 for code in codes), default=1)
        state.close()
        time.sleep(_WAIT_SECONDS)
        # Without a controller, for example after a reboot, the job would never end.
        controller_start.wait_until_ready(state)


def read_script(parsed: ParsedOptions, words: list[str], environ: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the text of the batch script, and its path for `scontrol show job`."""
    if parsed.has("wrap"):
        if words:
            raise CommandError("error: Script arguments not permitted with --wrap option")
        text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{parsed.get('wrap')}\n"
        return text.encode(errors="surrogateescape"), ""
    if not words:
        script, command = sys.stdin.buffer.read(), ""
    else:
        command = _find(words[0], environ)
        try:
            with open(command, "rb") as file:  # noqa: PTH123
                script = file.read()
        except IsADirectoryError:
            script = b""
        except OSError:
            raise CommandError(f"error: Unable to open file {words[0]}") from None
    return script, command


def _find(name: str, environ: Mapping[str, str]) -> str:
    """Find a script in the current folder, else on PATH."""
    folders = [""] if "/" in name else ["", *environ.get("PATH", "").split(os.pathsep)]
    for folder in folders:
        path = os.path.join(folder, name)  # noqa: PTH118
        if os.path.isfile(path) and os.access(path, os.R_OK):  # noqa: PTH113
            return os.path.abspath(path)  # noqa: PTH100
    return name
