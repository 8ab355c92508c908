"""A submission's files before and after it has an id.

Before sbatch runs, everything that is known is written to `runs/<job_name>/.submitting-<token>/`: a full disk or a
folder that cannot be written to is met while there is no job yet. sbatch is given the script in that folder, so its
path, which Slurm shows as the job's command, belongs to this submission alone and finds the job again even where
sbatch's answer was lost. Then the files move to `runs/<job_name>/<job_id>/`. Where no answer came at all they stay,
with a mark, until a later submission has found out what became of them (`hpc_kit.submission.lost_answers`).
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from hpc_kit.errors import RecordError
from hpc_kit.run_files import PATCH, RECORD, SCRIPT, write_whole
from hpc_kit.runs.record import NewRecord, RecordedGit, describe_os_error, encode_record

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.submission.provenance import GitState


LATEST = "latest"
STAGING = ".submitting-"

MARK = "answer-lost"
"""In the folder of a submission whose answer was lost."""

IN_FLIGHT_SECONDS = 600.0
"""A submission without an answer for that long was cut off; a younger one may be another process's, still at work."""


def unwritable_folder_error(folder: Path, error: OSError) -> RecordError:
    """What is said where no run can be recorded."""
    return RecordError(
        f"cannot write to {folder}",
        found=describe_os_error(error),
        remedy="free some space there, or another folder: --set cluster.runs=/path",
    )


class Staging:
    """A submission's files before it has an id.

    Args:
        folder: `runs/<job_name>`; it exists.
        script: The bytes for sbatch.
        record: What is known so far.
        pickles: Functions that the job is to call.

    Raises:
        RecordError: They cannot be written; nothing is left behind.
    """

    def __init__(self, folder: Path, script: str, record: NewRecord, pickles: Pickles | None = None) -> None:
        self.folder = folder
        self.own = folder / f"{STAGING}{os.urandom(6).hex()}"
        self.script = self.own / SCRIPT
        self.record = record
        self._started = time.time()
        try:
            self.own.mkdir(0o700)
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
        """Take everything back."""
        _remove(self.own)

    def commit(self, job_id: str, git: GitState) -> Path:
        """Make it the record of a job; returns the run folder.

        Raises:
            RecordError: It cannot be written. The job is in the queue all the same, and the error says so.
        """
        try:
            return _move(self.own, job_id, self._started, encode_record(self._complete(git, job_id)))
        except (OSError, RecordError) as error:
            raise RecordError(
                f"job {job_id} is submitted, but its record could not be written",
                found=describe_os_error(error) if isinstance(error, OSError) else error.found,
                remedy=f"the job goes on; to end it: scancel {job_id}\n"
                f"what there is of its record: {self._as_it_is(job_id)}",
            ) from error

    def _as_it_is(self, job_id: str) -> Path:
        """Make what was written before sbatch ran the job's record: it must not be taken for a lost answer later on."""
        run = self.own.with_name(job_id)
        try:
            return _move(self.own, job_id, self._started, None) if self.own.exists() else run
        except OSError:
            return self.own if self.own.exists() else run

    def mark_unanswered(self, git: GitState) -> None:
        """Keep it where it is, marked: whether Slurm has taken the job is not known."""
        try:
            (self.own / MARK).touch(0o600)
            write_whole(self.own / RECORD, encode_record(self._complete(git)))
        except OSError:
            return  # what is there by now finds the job, too, once the submission is known to be cut off

    def _complete(self, git: GitState, job_id: str = "") -> NewRecord:
        return structs.replace(add_git_state(self.record, git, self.own), job_id=job_id)


def add_git_state(record: NewRecord, git: GitState, folder: Path) -> NewRecord:
    """The record with the state of the code, whose patch is written into the folder."""
    if git.patch:
        write_whole(folder / PATCH, git.patch)
    kept = RecordedGit(
        root=git.root,
        commit=git.commit,
        branch=git.branch,
        dirty=git.dirty,
        patch=PATCH if git.patch else None,
        untracked=git.untracked,
        note=git.note,
    )
    return structs.replace(record, git=kept)


def is_unanswered(own: Path) -> bool:
    """Whether the folder is of a submission whose answer will not come any more."""
    try:
        return (own / MARK).exists() or time.time() - own.stat().st_mtime > IN_FLIGHT_SECONDS
    except OSError:
        return False  # gone meanwhile


def commit_found_job(own: Path, job_id: str, cluster: str | None = None) -> Path:
    """Make the files of a lost submission the record of the job that was found; returns the run folder.

    Args:
        own: Its staging folder.
        job_id: The job.
        cluster: Slurm's own name for its cluster, where that was not known before.

    Raises:
        RecordError: They cannot be moved.
    """
    try:
        found = msgspec.json.decode((own / RECORD).read_bytes(), type=dict[str, object])
        news = {"job_id": job_id} | ({"slurm_cluster": cluster} if cluster else {})
        data = msgspec.json.format(msgspec.json.encode({**found, **news}), indent=2) + b"\n"
        return _move(own, job_id, own.stat().st_mtime, data)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordError(
            f"job {job_id} is found again, but its record could not be written",
            found=describe_os_error(error) if isinstance(error, OSError) else f"{own / RECORD}: {error}",
            remedy=f"the job goes on; what there is of its record: {own}",
        ) from error


def discard_unanswered(own: Path, remembered: float) -> None:
    """Take back a submission that Slurm does not know; one so old that Slurm may have forgotten it is kept aside.

    Args:
        own: Its staging folder.
        remembered: Seconds that Slurm remembers every job.
    """
    try:
        young = time.time() - own.stat().st_mtime < remembered
        if young:
            if pickles := read_pickle_list(own):
                pickles.drop()
            _remove(own)
        else:
            own.rename(own.with_name(own.name.replace(STAGING, "lost-", 1)))
    except OSError:
        return  # another submission was quicker


def _move(own: Path, job_id: str, started: float, record: bytes | None) -> Path:
    """Its files become those of a job; None: with the record as it is."""
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
        # The job has started by now: its script has made the folder, perhaps this very moment.
        run.chmod(0o700)
        for path in sorted(own.iterdir(), key=lambda each: each.name == MARK):
            path.rename(run / path.name)
        own.rmdir()
    # Last: what fails before can be found again.
    (run / MARK).unlink(missing_ok=True)
    replace_symlink(run.with_name(LATEST), job_id)
    return run


def _remove(own: Path) -> None:
    for name in (SCRIPT, RECORD, PATCH, MARK, LIST):
        (own / name).unlink(missing_ok=True)
    if own.is_dir():
        own.rmdir()


def _set_aside(run: Path, started: float) -> None:
    """An earlier job of the same id (a queue that was reset, a second cluster): its files are not this one's."""
    if not (run / RECORD).exists():
        return
    old = [*run.iterdir(), run.with_name(f"{run.name}.log")]
    aside = run.with_name(f"{run.name}.before-{int(started)}")
    aside.mkdir(0o700, exist_ok=True)
    for path in old:
        if path.exists() and path.stat().st_mtime < started:
            path.rename(aside / path.name)


def replace_symlink(link: Path, target: str) -> None:
    """Let a link point elsewhere; nobody ever finds it missing."""
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)


LIST = "pickles.json"


class Pickles(Struct):
    """The pickles of one submission."""

    folder: str
    """The executor's, with submitit's patterns."""

    paths: tuple[str, ...]
    array: bool
    """Whether each is of an element of an array."""

    own: str = ""
    """The folder of the submission, once the list is there."""

    def write(self, own: Path) -> None:
        """Leave the list of them in the folder of a submission."""
        write_whole(own / LIST, msgspec.json.encode(self), lasting=False)
        self.own = str(own)

    def drop(self) -> None:
        """Delete those that no job has, unless a submission whose answer was lost goes on waiting with them."""
        if self.own and Path(self.own, LIST).exists():
            return
        for path in self.paths:
            Path(path).unlink(missing_ok=True)


def read_pickle_list(own: Path) -> Pickles | None:
    """The pickles that wait for the job of a submission; None: it has none, or has got them."""
    try:
        return msgspec.json.decode((own / LIST).read_bytes(), type=Pickles)
    except FileNotFoundError:
        return None


def name_pickles(own: Path, job_id: str) -> None:
    """Give each pickle of a submission the name under which its task looks for it; a second time does nothing."""
    pickles = read_pickle_list(own)
    if pickles is None:
        return
    from submitit.core.utils import JobPaths

    from hpc_kit.runs.logs import make_folder

    for index, path in enumerate(pickles.paths):
        paths = JobPaths(pickles.folder, f"{job_id}_{index}" if pickles.array else job_id)
        make_folder(paths.folder, mode=0o700)
        if Path(path).exists():
            paths.move_temporary_file(path, "submitted_pickle")
    (own / LIST).unlink()
