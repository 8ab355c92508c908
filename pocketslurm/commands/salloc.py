"""The command salloc: waits for an allocation, and runs a command or a shell in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from hpc_kit.slurm.components import component_options, split_components
from hpc_kit.slurm.errors import DirectiveError
from hpc_kit.slurm.getopt import SALLOC, ParsedOption, ParsedOptions
from hpc_kit.slurm.option_table import ValueUse
from hpc_kit.slurm.option_values import check_value
from pocketslurm import processes
from pocketslurm.errors import BAD_OPTION, CommandError, UsageError
from pocketslurm.option_support import SBATCH_SUPPORT, OptionNote, Support, options_help
from pocketslurm.queue import submission
from pocketslurm.queue.job_environment import salloc_environ
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import SLURM_VERSION, load_settings
from pocketslurm.steps import allocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job

_NOT_FOUND = 1
_LOOK_SECONDS = 0.05
_QUEUED_SECONDS = 0.3
_OWN = frozenset({"bell", "no-bell", "no-shell", "kill-command", "immediate", "chdir", "get-user-env"})
"""ParsedOptions that are about the command, and not about the job."""

SUPPORT: dict[str, OptionNote] = {
    name: SBATCH_SUPPORT.get(name, OptionNote(Support.NO_EFFECT, "the command outlives a job that is cancelled"))
    for name in SALLOC
} | {
    "bell": OptionNote(Support.NO_EFFECT, "no bell is rung"),
    "no-bell": OptionNote(Support.NO_EFFECT, "no bell is rung"),
    "chdir": OptionNote(Support.WORKS),
    "immediate": OptionNote(Support.WORKS),
    "no-shell": OptionNote(Support.WORKS),
    "x11": OptionNote(Support.NO_EFFECT, "everything runs on this machine and sees its display anyway"),
}
"""The support of each option."""

# The names that sbatch has for an option hold here, too, under salloc's own prefix.
_RENAMED = {"TIMELIMIT": "time", "MEM_PER_NODE": "mem", "NETWORK": "network", "REQ_SWITCH": "switches"}


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, command = _parse(argv, strict=load_settings(environ).strict)
    if any(part.has("version") or part.has("help") or part.has("usage") for part in given):
        print(f"slurm {SLURM_VERSION}" if given[0].has("version") else options_help("salloc", SUPPORT, SALLOC))
        return 0
    components = component_options([], _variables(environ), given)
    options = components[0]
    state = StateDirectory.open(environ)
    job = _allocate(state, components, argv, environ)
    quiet = "quiet" in options
    _say(f"Granted job allocation {job.job_id}", quiet=quiet)
    if "no-shell" in options:
        return 0
    inside = salloc_environ(state.components(job), environ)
    folder = options.get("chdir") or None
    state.close()
    status = _run(command or [environ.get("SHELL") or "/bin/sh"], inside, folder, state, job.job_id, quiet=quiet)
    if _runs(state, job.job_id):
        _say(f"Relinquishing job allocation {job.job_id}", quiet=quiet)
        allocation.release(state, job.job_id, status << 8)
    return status


def _parse(argv: list[str], *, strict: bool) -> tuple[list[ParsedOptions], list[str]]:
    try:
        given, command = split_components(argv, "salloc")
        for each in [each for part in given for each in part.given]:
            if each.option.since and strict:
                raise UsageError(f"unrecognized option '--{each.option.name}'", status=BAD_OPTION)
            check_value(each.option, each.value)
    except DirectiveError as error:
        line = (error.found or error.what).splitlines()[-1].removeprefix("salloc: ")
        raise UsageError(line, status=BAD_OPTION) from None
    return given, list(command)


def _variables(environ: Mapping[str, str]) -> ParsedOptions:
    """Return the options in SALLOC_* variables."""
    given = []
    for variable, value in environ.items():
        if variable.startswith("SALLOC_"):
            word = variable.removeprefix("SALLOC_")
            option = SALLOC.get(_RENAMED.get(word, word.lower().replace("_", "-")))
            if option is not None:
                given.append(ParsedOption(option, None if option.value is ValueUse.NONE else value, 0))
    return ParsedOptions(tuple(given))


def _allocate(
    state: StateDirectory, components: list[dict[str, str]], argv: list[str], environ: Mapping[str, str]
) -> Job:
    """Submit the job, wait for its start, and return it."""
    options = components[0]
    holder = "" if "no-shell" in options else processes.identity(os.getpid())
    otherwise = "no-shell" if "no-shell" in options else "interactive"
    asked = [
        submission.JobDescription(
            {name: value for name, value in each.items() if name not in _OWN},
            each.get("job-name") or otherwise,
            holder=holder,
            submit_line=" ".join(["salloc", *argv]),
        )
        for each in components
    ]
    job_id = submission.submit_components(state, asked, environ)[0].job_id
    patience = max(1, int(options["immediate"] or 1)) if "immediate" in options else None
    with allocation.interruptible():
        try:
            return _wait(state, job_id, patience, quiet="quiet" in options)
        except allocation.Interrupted:
            allocation.release(state, job_id, 1 << 8)
            raise CommandError(f"Job allocation {job_id} has been revoked.") from None


def _wait(state: StateDirectory, job_id: int, patience: int | None, *, quiet: bool) -> Job:
    """Wait until the allocation is granted or refused."""
    began, queued = time.monotonic(), False
    while True:
        job = state.job(job_id)
        if job is not None and job.state == "RUNNING":
            break
        waited = time.monotonic() - began
        if job is None or job.state != "PENDING":
            raise CommandError(f"Job allocation {job_id} has been revoked.")
        if patience is not None and waited > patience:
            allocation.release(state, job_id, 1 << 8)
            revoked = f"Job allocation {job_id} has been revoked."
            raise CommandError(revoked, "error: Unable to allocate resources: Connection timed out")
        if not queued and waited > _QUEUED_SECONDS:
            queued = True
            _say(f"Pending job allocation {job_id}", quiet=quiet)
            _say(f"job {job_id} queued and waiting for resources", quiet=quiet)
        time.sleep(_LOOK_SECONDS)
    if queued:
        _say(f"job {job_id} has been allocated resources", quiet=quiet)
    return job


def _run(
    command: list[str], environ: dict[str, str], folder: str | None, state: StateDirectory, job_id: int, *, quiet: bool
) -> int:
    """Run the command and return its exit status. It gets the signals of the terminal, and survives a cancelled job."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, env=environ, cwd=folder, preexec_fn=_listen)  # noqa: PLW1509
    except OSError:
        _say(f'error: _fork_command: Unable to find command "{command[0]}"', quiet=False)
        return _NOT_FOUND
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    revoked = False
    while True:
        try:
            status = process.wait(timeout=None if revoked else 0.5)
        except subprocess.TimeoutExpired:
            if not _runs(state, job_id):
                revoked = True
                _say(f"Job allocation {job_id} has been revoked.", quiet=quiet)
            state.close()
            continue
        return status if status >= 0 else 128 - status


def _runs(state: StateDirectory, job_id: int) -> bool:
    job = state.job(job_id)
    return job is not None and job.state == "RUNNING"


def _listen() -> None:
    """Ignore the signals that only the command should receive."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        sys.stderr.write(f"salloc: {text}\n")
        sys.stderr.flush()
