"""Submits a job again: the same script, in the same project, from the last checkpoint of its run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hpc_kit.errors import RecordError, SpecError
from hpc_kit.run_files import RECORD, SCRIPT
from hpc_kit.script.render import render_resolved
from hpc_kit.shared_folders import belongs_to_user
from hpc_kit.slurm.job_ids import array_index, base_id
from hpc_kit.spec import load
from hpc_kit.spec.resolve import Resolved, resolve
from hpc_kit.submission.submit import submit_script

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpc_kit.runs.run_folders import Run
    from hpc_kit.submission.submit import Submission

CONTINUES_VARIABLE = "SLURM_HPC_KIT_CONTINUES"
"""Environment variable of the submission: the id of the run whose history and checkpoints the job goes on from.

--export=NONE passes on only variables that begin with SLURM_.
"""

GIT_SECONDS = 5.0


class Resubmission(NamedTuple):
    """A job that is to be submitted again."""

    job_id: str
    resolved: Resolved
    text: str
    """The script."""

    changes: str
    """The difference between the code of the run and the present code, as `git diff --stat`; empty: none."""


def prepare_resubmission(run: Run, settings: Mapping[str, object], root: Path) -> Resubmission:
    """Return the job of a run, with its recorded script, or rendered again with other values.

    Raises:
        SpecError: The run is an element of an array, or a value is wrong.
        RecordError: The run has no complete record.
    """
    if index := array_index(run.job_id):
        raise SpecError(
            "an element of an array cannot be submitted again alone",
            found=run.job_id,
            remedy=f"submit a part of the array: hpc-kit resubmit {base_id(run.job_id)} --set resources.array={index}",
        )
    folder = run.array_folder
    require_own_run(folder)
    try:
        record = json.loads((folder / RECORD).read_bytes())
        resolved = msgspec.convert(record["resolved"], Resolved)
        text = (folder / SCRIPT).read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"job {run.job_id} cannot be submitted again",
            found=f"its record in {folder} is missing, or another version of hpc-kit wrote it: {error}",
            remedy="submit the job by its name: hpc-kit submit JOB",
        ) from error
    if settings:
        loaded = load.load(resolved.requested_job, resolved.cluster, set=settings, root=root)
        resolved = resolve(loaded, root=root)
        text = render_resolved(resolved, root=root)
    return Resubmission(run.job_id, resolved, text, describe_changes(record.get("git") or {}, root))


def require_own_run(folder: Path) -> None:
    """Raise an error if another user could have written the script or the record in a run folder.

    Raises:
        RecordError: One of them belongs to another user.
    """
    for path in (folder, folder / RECORD, folder / SCRIPT):
        with suppress(FileNotFoundError):
            if not belongs_to_user(path):
                raise RecordError(
                    f"job {folder.name} cannot be submitted again by you",
                    found=f"{path} belongs to user {path.lstat().st_uid}: its script would run in your name",
                    remedy="submit the job by its name: hpc-kit submit JOB",
                )


def describe_changes(git: Mapping[str, object], root: Path) -> str:
    """Return the files that differ from the recorded commit; a sentence if they cannot be compared."""
    commit = git.get("commit")
    if not isinstance(commit, str):
        return ""
    try:
        done = subprocess.run(
            ["git", "diff", "--stat=100", commit, "--"],
            cwd=root, capture_output=True, encoding="utf-8", errors="replace", timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return f"git does not answer; the job ran with commit {commit}"
    if done.returncode:
        return f"commit {commit} of the job is not in this repository"
    return done.stdout.rstrip()


def resubmit(again: Resubmission, root: Path) -> Submission:
    """Submit the job. Its first attempt goes on from the history and the checkpoints of the earlier run."""
    environ = {**os.environ, CONTINUES_VARIABLE: again.job_id}
    return submit_script(again.resolved, again.text, root=root, command_line=sys.argv, environ=environ)
