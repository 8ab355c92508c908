"""The command pocketslurm: sets up a queue, prints the folder of its commands, and describes it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm import installation
from pocketslurm.commands import OWN_COMMANDS
from pocketslurm.errors import StateError, UsageError
from pocketslurm.option_support import NONE, REQUIRED, Table
from pocketslurm.settings import (
    CONF_NAME,
    CONF_VARIABLE,
    SLURM_VERSION,
    STATE_VARIABLE,
    Settings,
    check_private,
    is_full,
    load_settings,
    settings_from_json,
    settings_to_json,
    state_directory,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = Table(
    ("help", "h", NONE), ("json", "", NONE), ("queue", "", REQUIRED), ("settings", "", REQUIRED),
    ("state", "", REQUIRED), ("version", "V", NONE),
)  # fmt: skip

HELP = f"""Usage: pocketslurm COMMAND [OPTIONS]

A Slurm for one machine, without root or a daemon.

  path       set up a queue and print the folder of its commands.
             export PATH=$(pocketslurm path):$PATH
  run CMD... run a command with that folder first on PATH: pocketslurm run sbatch --wait job.sh
  info       print the release, the folders, the settings and the active jobs of a queue
  COMMAND    any command of Slurm: sbatch, srun, salloc, squeue, sacct, scancel, scontrol, sinfo

Options of path, run and info:
  --settings FILE  read the settings (a JSON object) from FILE, or from standard input if FILE is -
  --queue NAME     use another queue beside the default one; ignored if {STATE_VARIABLE} is set
  --state FOLDER   keep the queue in FOLDER
  --json           info only: print a JSON object
"""


class _Target(NamedTuple):
    """The queue that the options name, and its new settings, if the options name some."""

    directory: Path
    settings: Settings | None


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run `pocketslurm COMMAND ...` and return its exit status."""
    if not argv:
        sys.stderr.write(HELP)
        return 2
    command, *words = argv
    if command in {"-h", "--help"}:
        sys.stdout.write(HELP)
        return 0
    if command in {"-V", "--version"}:
        print(f"slurm {SLURM_VERSION}")
        return 0
    if command not in OWN_COMMANDS:
        raise UsageError(f"error: no such command: {command}")
    options, rest = _split_command(words) if command == "run" else (words, [])
    parsed, others = OPTIONS.parse(options)
    flags = {name: value or "" for name, value in parsed}
    if "help" in flags:
        sys.stdout.write(HELP)
        return 0
    if others or (command == "run") != bool(rest):
        raise UsageError(f"error: {f'unexpected argument: {others[0]}' if others else 'no command to run'}")
    return _answer(command, rest, _target(flags, environ), environ, as_json="json" in flags)


def _answer(command: str, words: list[str], target: _Target, environ: Mapping[str, str], *, as_json: bool) -> int:
    if command == "info":
        _print_info(target, environ, as_json=as_json)
        return 0
    found = install(target.settings, target.directory, environ)
    if command == "path":
        print(target.directory / "bin")
        return 0
    try:
        os.execvpe(words[0], words, found)  # noqa: S606 - the user's own command
    except OSError as error:
        raise StateError(f"cannot run {words[0]}", found=str(error), remedy="name a command on PATH") from error


def _split_command(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words after `run`: the options of pocketslurm end where the command begins."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return words[:at], words[at + 1 :]
        # Every other option has its value in the next word.
        at += 1 if "=" in words[at] or words[at] in {"-h", "--help"} else 2
    return words[:at], words[at:]


def _target(flags: Mapping[str, str], environ: Mapping[str, str]) -> _Target:
    settings = None
    if "settings" in flags:
        named = flags["settings"]
        try:
            text = sys.stdin.read() if named == "-" else Path(named).read_text()
        except OSError as error:
            raise UsageError(f"error: cannot read the settings: {error}") from error
        settings = settings_from_json(text, Path("standard input" if named == "-" else named))
    if "state" in flags:
        directory = Path(flags["state"])
    elif settings is not None and settings.state:
        directory = Path(settings.state)
    else:
        directory = queue_directory(flags.get("queue", ""), environ)
    return _Target(directory.expanduser().absolute(), settings)


def queue_directory(name: str, environ: Mapping[str, str]) -> Path:
    """Return the state directory of a queue by name; "" is the default queue."""
    directory = state_directory(environ)
    if not name or environ.get(STATE_VARIABLE):
        return directory
    return directory.with_name(f"{directory.name}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}")


def install(settings: Settings | None, directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the settings and the commands of a queue, and return the environment that uses them.

    Args:
        settings: Its nodes, partitions and limits; None keeps the settings that the queue has.
        directory: Its state directory, an absolute path.
        environ: The environment to start from.

    Raises:
        StateError: The state directory cannot be made, or active jobs need other settings.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(directory)
        if settings is not None:
            _configure(directory, settings_to_json(settings._replace(state=None)), environ)
        folder = str(installation.write_commands(directory))
    except OSError as error:
        raise StateError(
            "the embedded Slurm's state directory cannot be used",
            found=f"{directory}: {error.strerror or error}",
            remedy=f"free some space there, or set {STATE_VARIABLE} to a directory on another disk"
            if is_full(directory, error)
            else f"set {STATE_VARIABLE} to a directory that only you may write",
        ) from error
    paths = [path for path in environ.get("PATH", os.defpath).split(os.pathsep) if path != folder]
    found = {**environ, "PATH": os.pathsep.join([folder, *paths]), STATE_VARIABLE: str(directory)}
    if settings is not None:
        found.pop(CONF_VARIABLE, None)
    return found


def _configure(directory: Path, text: str, environ: Mapping[str, str]) -> None:
    """Write the settings, if they differ from the queue's.

    Raises:
        StateError: Jobs that were submitted under other settings are active.
    """
    path = directory / CONF_NAME
    before = path.read_text() if path.exists() else None
    if before == text:
        return
    # The nodes of active jobs may be missing in other settings.
    if before is not None and (active := _active_job_ids(directory, environ)):
        raise StateError(
            "the embedded Slurm here has other settings, and jobs that are not over",
            found=f"{path}, from another cluster file or before this one was edited; jobs {', '.join(active[:8])}",
            remedy=f"wait for them, or end them: {directory}/bin/scancel --me\n"
            f"or another queue: {STATE_VARIABLE}=FOLDER, or another `name` in the cluster file",
        )
    installation.replace_file(path, text.encode())


def _active_job_ids(directory: Path, environ: Mapping[str, str]) -> list[str]:
    from pocketslurm.queue.state import StateDirectory

    state = StateDirectory.open({**environ, STATE_VARIABLE: str(directory), CONF_VARIABLE: ""})
    try:
        return [str(job.job_id) for job in state.active_jobs()]
    finally:
        state.close()


def _print_info(target: _Target, environ: Mapping[str, str], *, as_json: bool) -> None:
    """Print the facts of a queue, without making its directory."""
    import json

    from pocketslurm import processes
    from pocketslurm.queue.controller_start import META
    from pocketslurm.queue.database import NAME
    from pocketslurm.queue.state import StateDirectory

    directory = target.directory
    named = {**environ, STATE_VARIABLE: str(directory)}
    settings = target.settings or load_settings(named)
    found: dict[str, object] = {
        "slurm_version": SLURM_VERSION,
        "state": str(directory),
        "bin": str(directory / "bin"),
        "settings": {**settings._asdict(), "partitions": [each._asdict() for each in settings.partitions]},
        "next_job_id": None,
        "active_jobs": [],
        "controller_pid": None,
    }
    if (directory / NAME).exists():
        state = StateDirectory.open(named)
        controller = state.meta(META) or ""
        found["next_job_id"] = int(number) if (number := state.meta("next_job_id")) else None
        found["active_jobs"] = [job.job_id for job in state.active_jobs()]
        found["controller_pid"] = processes.pid_of(controller) if processes.is_alive(controller) else None
        state.close()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name}: {json.dumps(value) if isinstance(value, dict | list) else value}")
