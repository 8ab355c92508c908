"""The record of a launch, as a submission's: `runs/<job_name>/<id>/`, whose id is the second in which it began."""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import TYPE_CHECKING

from msgspec import structs

from hpc_kit.errors import HostlistError
from hpc_kit.run_files import END, RECORD, SUMMARY, claim_first_failure, write_whole
from hpc_kit.runs.first_failure import find_failure
from hpc_kit.runs.launched import hold
from hpc_kit.runs.record import SSH, RecordedFailure, RecordedOutcome, add_outcomes, encode_record
from hpc_kit.runs.run_folders import open_run
from hpc_kit.slurm.nodelist import fold
from hpc_kit.submission.provenance import GitQuery, new_record
from hpc_kit.submission.staging import LATEST, add_git_state, replace_symlink, unwritable_folder_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.ssh.launch import Ending

SCRIPT = "agent.sh"
"""What each host runs."""


def begin(resolved: Resolved, root: Path, hosts: Mapping[str, int], script: str, command_line: Sequence[str]) -> Path:
    """Make the run's folder with all that is known now; returns it.

    Args:
        resolved: The job.
        root: The user's project.
        hosts: Each host with its ranks.
        script: What each runs.
        command_line: What the user typed.

    Raises:
        RecordError: It cannot be written; nothing has been started.
    """
    folder = root.absolute() / resolved.log_folder
    git = GitQuery(root, resolved.cluster.runs)
    try:
        record = new_record(resolved, root, command_line, os.environ, slurm=SSH)
        run = _fresh(folder)
        hold(run)
        record = structs.replace(add_git_state(record, git.state(), run), job_id=run.name, hosts=dict(hosts))
        write_whole(run / RECORD, encode_record(record))
        write_whole(run / SCRIPT, script.encode())
        replace_symlink(folder / LATEST, run.name)
    except OSError as error:
        git.stop()
        raise unwritable_folder_error(folder, error) from error
    return run


def end(run: Path, ending: Ending, began: float, hosts: Sequence[str]) -> None:
    """Add how it ended, and what hosts that do not share this folder have kept to themselves."""
    failure = ending.failure
    if failure is not None:
        claim_first_failure(run, failure.rank, failure.host, failure.exit_code)
    if ending.summary is not None and not (run / SUMMARY).exists():
        write_whole(run / SUMMARY, ending.summary.encode())
    write_whole(run / END, f"{ending.status} {time.time():.0f}\n".encode())
    told_of = find_failure(open_run(run), None) if failure else None
    first = failure and RecordedFailure(
        rank=failure.rank,
        host=failure.host,
        exit_code=failure.exit_code,
        headline=told_of.headline if told_of else "",
    )
    told = RecordedOutcome(
        state="FAILED" if ending.status else "COMPLETED",
        exit_status=ending.status,
        start=_iso(began),
        end=_iso(time.time()),
        nodes=_folded(hosts),
        first_failure=first,
        problem=ending.problem,
    )
    add_outcomes(run, {None: told})


def _folded(hosts: Sequence[str]) -> str:
    """As Slurm writes them; an address in brackets is no name to it."""
    try:
        return fold(hosts)
    except HostlistError:
        return ",".join(hosts)


def _fresh(folder: Path) -> Path:
    """A folder that no other launch has, named by the time."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        run = folder / time.strftime("%Y%m%d%H%M%S")
        try:
            run.mkdir(0o700)
        except FileExistsError:
            time.sleep(0.2)
        else:
            return run


def _iso(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment).astimezone().isoformat(timespec="seconds")
