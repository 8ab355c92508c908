"""The files of a submission before and after it has a job id.

Before sbatch runs, the script and the record are written to `runs/<job_name>/.submitting-<token>/`: a full disk or an
unwritable folder is found before there is a job. sbatch gets the script in that folder. Slurm shows its path as the
job's command, so the path identifies this submission, even if the answer of sbatch was lost. Then the files move to
`runs/<job_name>/<job_id>/`. If sbatch gave no answer, they stay and get a mark, until a later submission has found out
whether there is a job (`hpc_kit.submission.lost_answers`).

Pickled functions have names of their own until the job has an id. A list of them lies in the folder of the submission,
so they reach the job even if the answer of sbatch is lost and the job is found later.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import RecordError
from hpc_kit.run_files import PATCH, RECORD, SCRIPT, write_whole
from hpc_kit.runs.record import NewRecord, describe_os_error, encode_record
from hpc_kit.shared_folders import belongs_to_user, make_folder
from hpc_kit.submission.provenance import add_git_state

if TYPE_CHECKING:
    from hpc_kit.submission.provenance import GitState

LATEST = "latest"
STAGING = ".submitting-"
PICKLE_LIST = "pickles.json"

UNANSWERED = "answer-lost"
"""Mark in the folder of a submission whose answer was lost."""

IN_FLIGHT_SECONDS = 600.0
"""A submission without an answer for this long was cut off. A younger one may be the work of another process."""


def unwritable_folder_error(folder: Path, error: OSError) -> RecordError:
    """Return the error for a folder in which no run can be recorded."""
    return RecordError(
        f"cannot write to {folder}",
        found=describe_os_error(error),
        remedy="free some space there, or choose another folder: --set cluster.runs=/path",
    )


class Pickles(Struct):
    """The pickled functions of one submission."""

    folder: str
    """The executor's folder, with submitit's patterns."""

    paths: tuple[str, ...]
    array: bool
    """Each belongs to one element of an array."""

    own: str = ""
    """The folder of the submission, after `write`."""

    def write(self, own: Path) -> None:
        """Write the list of the pickles to the folder of a submission."""
        write_whole(own / PICKLE_LIST, msgspec.json.encode(self), lasting=False)
        self.own = str(own)

    def discard(self) -> None:
        """Delete the pickles, unless a submission whose answer was lost still needs them."""
        if self.own and Path(self.own, PICKLE_LIST).exists():
            return
        for path in self.paths:
            Path(path).unlink(missing_ok=True)


def read_pickle_list(own: Path) -> Pickles | None:
    """Return the pickles that wait for the job of a submission, or None."""
    try:
        return msgspec.json.decode((own / PICKLE_LIST).read_bytes(), type=Pickles)
    except FileNotFoundError:
        return None


def name_pickles(own: Path, job_id: str) -> None:
    """Give each pickle of a submission the name that its task expects. A second call does nothing."""
    pickles = read_pickle_list(own)
    if pickles is None:
        return
    from submitit.core.utils import JobPaths

    for index, path in enumerate(pickles.paths):
        paths = JobPaths(pickles.folder, f"{job_id}_{index}" if pickles.array else job_id)
        make_folder(paths.folder, mode=0o700)
        if Path(path).exists():
            paths.move_temporary_file(path, "submitted_pickle")
    (own / PICKLE_LIST).unlink()


class Staging:
    """The files of a submission before it has a job id.

    Raises:
        RecordError: The files cannot be written; none is left behind.
    """

    def __init__(self, folder: Path, script: str, record: NewRecord, pickles: Pickles | None = None) -> None:
        self.folder = folder
        self.own = folder / f"{STAGING}{os.urandom(6).hex()}"
        self.script = self.own / SCRIPT
        self.record = record
        self._started = time.time()
        try:
            self.own.mkdir(0o700)
            # No fsync: after a power cut there is no job either.
            write_whole(self.script, script.encode(), lasting=False)
            write_whole(self.own / RECORD, encode_record(record), lasting=False)
            if pickles is not None:
                pickles.write(self.own)
        except OSError as error:
            self.discard()
            raise unwritable_folder_error(folder, error) from error
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Delete the files."""
        _remove(self.own)

    def commit(self, job_id: str, git: GitState) -> Path:
        """Move the files to the run folder of the job, and return it.

        Raises:
            RecordError: The record cannot be written. The job is in the queue, and the error states so.
        """
        try:
            return _move_to_run_folder(
                self.own, job_id, self._started, encode_record(self._completed_record(git, job_id))
            )
        except (OSError, RecordError) as error:
            raise RecordError(
                f"job {job_id} was submitted, but its record could not be written",
                found=describe_os_error(error) if isinstance(error, OSError) else error.found,
                remedy=f"let the job run, or cancel it with scancel {job_id}\n"
                f"partial record: {self._commit_partial(job_id)}",
            ) from error

    def _commit_partial(self, job_id: str) -> Path:
        """Move the files as they are: a later submission must not take them for one whose answer was lost."""
        run = self.own.with_name(job_id)
        try:
            return _move_to_run_folder(self.own, job_id, self._started, None) if self.own.exists() else run
        except OSError:
            return self.own if self.own.exists() else run

    def mark_unanswered(self, git: GitState) -> None:
        """Keep the files and mark them: it is unknown whether Slurm has the job."""
        try:
            (self.own / UNANSWERED).touch(0o600)
            write_whole(self.own / RECORD, encode_record(self._completed_record(git)))
        except OSError:
            return  # The present files find the job, too, after IN_FLIGHT_SECONDS.

    def _completed_record(self, git: GitState, job_id: str = "") -> NewRecord:
        return structs.replace(add_git_state(self.record, git, self.own), job_id=job_id)


def is_unanswered(own: Path) -> bool:
    """Return whether the folder belongs to a submission of this user whose answer can no longer come."""
    try:
        # A list of pickles that another member of the project has planted would move or delete files.
        if not belongs_to_user(own):
            return False
        return (own / UNANSWERED).exists() or time.time() - own.stat().st_mtime > IN_FLIGHT_SECONDS
    except OSError:
        return False  # Another process removed it.


def commit_found_job(own: Path, job_id: str, cluster: str | None = None) -> Path:
    """Move the files of an unanswered submission to the run folder of the job that was found, and return it.

    `cluster` is Slurm's own name of the cluster, if it is known now.
    """
    try:
        record = msgspec.json.decode((own / RECORD).read_bytes(), type=dict[str, object])
        additions = {"job_id": job_id} | ({"slurm_cluster": cluster} if cluster else {})
        data = msgspec.json.format(msgspec.json.encode({**record, **additions}), indent=2) + b"\n"
        return _move_to_run_folder(own, job_id, own.stat().st_mtime, data)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordError(
            f"job {job_id} was found, but its record could not be written",
            found=describe_os_error(error) if isinstance(error, OSError) else f"{own / RECORD}: {error}",
            remedy=f"let the job run, or cancel it with scancel {job_id}\npartial record: {own}",
        ) from error


def discard_unanswered(own: Path, remembered: float) -> None:
    """Delete a submission that Slurm does not know, or rename its folder if Slurm may have forgotten the job.

    `remembered` is the number of seconds for which Slurm remembers every job.
    """
    try:
        if time.time() - own.stat().st_mtime < remembered:
            if pickles := read_pickle_list(own):
                pickles.discard()
            _remove(own)
        else:
            own.rename(own.with_name(own.name.replace(STAGING, "lost-", 1)))
    except OSError:
        return  # Another submission did it.


def _move_to_run_folder(own: Path, job_id: str, started: float, record: bytes | None) -> Path:
    """Move the files to the run folder of a job; None: with the record as it is."""
    name_pickles(own, job_id)
    run = own.with_name(job_id)
    _set_aside(run, started)
    if record is not None:
        write_whole(own / RECORD, record)
    try:
        own.rename(run)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        # The job has started, and its script has created the folder, perhaps at this very moment.
        run.chmod(0o700)
        for path in sorted(own.iterdir(), key=lambda each: each.name == UNANSWERED):
            path.rename(run / path.name)
        own.rmdir()
    # The mark goes last: with it, the next submission repeats what failed.
    (run / UNANSWERED).unlink(missing_ok=True)
    with suppress(PermissionError):  # a folder with the sticky bit, in which the link belongs to another user
        replace_symlink(run.with_name(LATEST), job_id)
    return run


def _remove(own: Path) -> None:
    for name in (SCRIPT, RECORD, PATCH, UNANSWERED, PICKLE_LIST):
        (own / name).unlink(missing_ok=True)
    if own.is_dir():
        own.rmdir()


def _set_aside(run: Path, started: float) -> None:
    """Move away the files of an earlier job with the same id, from a queue that was reset or from another cluster."""
    if not (run / RECORD).exists():
        return
    old = [*run.iterdir(), run.with_name(f"{run.name}.log")]
    aside = run.with_name(f"{run.name}.before-{int(started)}")
    aside.mkdir(0o700, exist_ok=True)
    for path in old:
        # The job may have started already: its files are younger than the submission.
        if path.exists() and path.stat().st_mtime < started:
            path.rename(aside / path.name)


def replace_symlink(link: Path, target: str) -> None:
    """Let a link point to another target, atomically."""
    # A symlink cannot be changed, but renaming another one over it leaves no moment without a link. Other threads, and
    # processes of other hosts with the same pid, may replace the same link.
    draft = link.with_name(f".{link.name}.{os.urandom(4).hex()}")
    draft.symlink_to(target)
    try:
        draft.replace(link)
    except OSError:
        draft.unlink()
        raise
