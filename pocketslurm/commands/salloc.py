"""The command salloc: waits for an allocation, and runs a command or a shell in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from hpc_kit.slurm.components import component_options, split_components
from hpc_kit.slurm.getopt import SALLOC, GetoptError, ParsedOption, ParsedOptions
from hpc_kit.slurm.option_table import ValueUse
from pocketslurm import processes
from pocketslurm.errors import CommandError
from pocketslurm.option_support import SBATCH_SUPPORT, OptionNote, Support, check_options, option_error, print_help
from pocketslurm.queue import submission
from pocketslurm.queue.job_environment import salloc_environ
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import load_settings
from pocketslurm.steps import allocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job

_NOT_FOUND = 1
_COMMAND_OPTIONS = frozenset({"bell", "no-bell", "no-shell", "kill-command", "immediate", "chdir", "get-user-env"})
"""Options for the command, and not for the job."""

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
    """Run the command and return its exit status."""
    parts, command = _parse(argv, strict=load_settings(environ).strict)
    names = {name for part in parts for name in part.names}
    if print_help(names, "salloc [OPTIONS...] [command [args...]]", SUPPORT, SALLOC):
        return 0
    if len(parts) > 1:
        raise CommandError("error: the embedded Slurm allocates heterogeneous jobs by sbatch only")
    (options,) = component_options([], _variables(environ), parts)
    state = StateDirectory.open(environ)
    job = _allocate(state, options, argv, environ)
    quiet = "quiet" in options
    _say(f"Granted job allocation {job.job_id}", quiet=quiet)
    if "no-shell" in options:
        return 0
    inside = salloc_environ(job, environ)
    folder = options.get("chdir") or None
    state.close()
    status = _run(command or [environ.get("SHELL") or "/bin/sh"], inside, folder, state, job.job_id, quiet=quiet)
    if _runs(state, job.job_id):
        _say(f"Relinquishing job allocation {job.job_id}", quiet=quiet)
        allocation.release(state, job.job_id, status << 8)
    return status


def _parse(argv: list[str], *, strict: bool) -> tuple[list[ParsedOptions], list[str]]:
    try:
        parts, command = split_components(argv, "salloc")
    except GetoptError as error:
        raise option_error(error.message) from None
    for part in parts:
        check_options(part.given, strict=strict, later=())
    return parts, list(command)


def _variables(environ: Mapping[str, str]) -> ParsedOptions:
    """Return the options in SALLOC_* variables."""
    parts = []
    for variable, value in environ.items():
        if variable.startswith("SALLOC_"):
            word = variable.removeprefix("SALLOC_")
            option = SALLOC.get(_RENAMED.get(word, word.lower().replace("_", "-")))
            if option is not None:
                parts.append(ParsedOption(option, None if option.value is ValueUse.NONE else value, 0))
    return ParsedOptions(tuple(parts))


def _allocate(state: StateDirectory, options: dict[str, str], argv: list[str], environ: Mapping[str, str]) -> Job:
    """Submit the job, wait for its start, and return it."""
    shell = "no-shell" not in options
    description = submission.JobDescription(
        {name: value for name, value in options.items() if name not in _COMMAND_OPTIONS},
        options.get("job-name") or ("interactive" if shell else "no-shell"),
        holder=processes.identity(os.getpid()) if shell else "",
        submit_line=" ".join(["salloc", *argv]),
    )
    job_id = submission.submit_components(state, [description], environ)[0].job_id
    revoked = f"Job allocation {job_id} has been revoked."
    try:
        return allocation.wait_for_allocation(state, job_id, options, lambda text: _say(text, quiet="quiet" in options))
    except allocation.Interrupted:
        allocation.release(state, job_id, 1 << 8)
        raise CommandError(revoked) from None
    except allocation.Busy:
        raise CommandError(revoked, "error: Unable to allocate resources: Connection timed out") from None
    except CommandError:
        raise CommandError(revoked) from None


def _run(
    command: list[str], environ: dict[str, str], folder: str | None, state: StateDirectory, job_id: int, *, quiet: bool
) -> int:
    """Run the command and return its exit status. It gets the signals of the terminal, and survives a cancelled job."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, env=environ, cwd=folder, preexec_fn=_restore_signals)  # noqa: PLW1509
    except OSError:
        _say(f'error: _fork_command: Unable to find command "{command[0]}"', quiet=False)
        return _NOT_FOUND
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    revoked = False
    while True:
        try:
            # While the command runs, look twice a second whether the job still does.
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


def _restore_signals() -> None:
    """Restore in the command the signals that salloc itself ignores."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        sys.stderr.write(f"salloc: {text}\n")
        sys.stderr.flush()
