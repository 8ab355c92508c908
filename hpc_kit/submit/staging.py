"""A submission's files before and after it has an id.

Before sbatch runs, everything that is known is written to `runs/<job_name>/.submitting-<token>/`: a full disk or a
folder that cannot be written to is met while there is no job yet. sbatch is given the script in that folder, so its
path, which Slurm shows as the job's command, belongs to this submission alone and finds the job again even where
sbatch's answer was lost. Then the files move to `runs/<job_name>/<job_id>/`.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec import structs

from hpc_kit.errors import RecordError
from hpc_kit.run_files import PATCH, RECORD, SCRIPT
from hpc_kit.submit.logs import make_folder
from hpc_kit.submit.record import Record, RecordGit, encode, reason, write

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.submit.provenance import GitState

LATEST = "latest"
STAGING = ".submitting-"


class Staging:
    """A submission's files before it has an id.

    Args:
        folder: `runs/<job_name>`; it exists.
        script: The bytes for sbatch.
        record: What is known so far.

    Raises:
        RecordError: They cannot be written; nothing is left behind.
    """

    def __init__(self, folder: Path, script: str, record: Record) -> None:
        self.folder = folder
        self.own = folder / f"{STAGING}{os.urandom(6).hex()}"
        self.script = self.own / SCRIPT
        self._record = record
        self._started = time.time()
        try:
            self.own.mkdir(0o700)
            write(self.script, script.encode())
            write(self.own / RECORD, encode(record))
        except OSError as error:
            self.drop()
            raise RecordError(
                f"cannot write to {folder}",
                found=reason(error),
                remedy="free some space there, or another folder: --set cluster.runs=/path",
            ) from error

    def drop(self) -> None:
        """Take everything back."""
        for name in (SCRIPT, RECORD):
            (self.own / name).unlink(missing_ok=True)
        if self.own.is_dir():
            self.own.rmdir()

    def keep(self, job_id: str, git: GitState) -> Path:
        """Make it the record of a job; returns the run folder.

        Raises:
            RecordError: It cannot be written. The job is in the queue all the same, and the error says so.
        """
        run = self.folder / job_id
        try:
            self._set_aside(run)
            make_folder(run, mode=0o700)
            run.chmod(0o700)
            self.script.rename(run / SCRIPT)
            if git.patch:
                write(run / PATCH, git.patch)
            kept = RecordGit(
                root=git.root,
                commit=git.commit,
                branch=git.branch,
                dirty=git.dirty,
                patch=PATCH if git.patch else None,
                note=git.note,
            )
            write(run / RECORD, encode(structs.replace(self._record, job_id=job_id, git=kept)))
            point(self.folder / LATEST, job_id)
            self.drop()
        except (OSError, RecordError) as error:
            raise RecordError(
                f"job {job_id} is submitted, but its record could not be written",
                found=reason(error) if isinstance(error, OSError) else error.found,
                remedy=f"the job goes on; to end it: scancel {job_id}\nwhat there is of its record: {self.own}",
            ) from error
        return run

    def _set_aside(self, run: Path) -> None:
        """An earlier job of the same id (a queue that was reset, a second cluster): its files are not this one's."""
        if not (run / RECORD).exists():
            return
        old = [*run.iterdir(), self.folder / f"{run.name}.log"]
        aside = self.folder / f"{run.name}.before-{int(self._started)}"
        aside.mkdir(0o700, exist_ok=True)
        for path in old:
            if path.exists() and path.stat().st_mtime < self._started:
                path.rename(aside / path.name)


def point(link: Path, target: str) -> None:
    """Let a link point elsewhere; nobody ever finds it missing."""
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)
