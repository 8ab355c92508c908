"""The runs that a project knows: where each keeps its logs and markers, found again by its job id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import UnknownJob
from hpc_kit.run_files import END, RECORD, SUMMARY, rank_log
from hpc_kit.runs.logs import LogPatterns, expand_pattern
from hpc_kit.runs.record import SSH, RecordedLogs, RunRecord, read_record
from hpc_kit.slurm.job_ids import array_index, base_id, is_single_job, sort_key
from hpc_kit.slurm.option_values import parse_array

if TYPE_CHECKING:
    from collections.abc import Callable

RECENT_RUNS = 5


class EndMarker(NamedTuple):
    """What the batch script left as its last act."""

    exit_code: int
    time: float


class Run(NamedTuple):
    """One job, or one element of an array, and its files."""

    job_id: str
    name: str
    folder: Path
    """The run folder; the script or the submission makes it."""

    logs: LogPatterns
    record: RunRecord | None = None
    """The record; an element's is that of its array."""

    @property
    def is_launch(self) -> bool:
        """Whether it was started over ssh: no Slurm knows it, and there is no batch script."""
        return self.record is not None and self.record.slurm == SSH

    @property
    def batch_log(self) -> Path:
        """What the batch script itself and srun say."""
        return Path(expand_pattern(self.logs.batch, name=self.name, job_id=self.job_id))

    def rank_log(self, rank: int) -> Path:
        """What one rank says."""
        return Path(expand_pattern(self.logs.ranks, name=self.name, job_id=self.job_id, rank=rank))

    def rank_logs(self, rank: int) -> tuple[Path, ...]:
        """The files in which a rank's last words may stand, the likeliest first; torchrun's agents have their own."""
        errors = self.logs.ranks_error
        error = () if errors is None else (Path(expand_pattern(errors, name=self.name, job_id=self.job_id, rank=rank)),)
        agent = self.folder / f"node-{rank // self.ranks_per_task}.log"
        return (*error, self.rank_log(rank), agent)

    @property
    def ranks_per_task(self) -> int:
        """One, or what each of torchrun's agents starts."""
        return self.record.resolved.job.launch.nproc_per_node if self.record else 1

    def batch_logs(self) -> tuple[Path, ...]:
        """The files in which srun's and Slurm's messages may stand."""
        if self.is_launch:
            return ()
        error = self.logs.batch_error
        return (
            *(() if error is None else (Path(expand_pattern(error, name=self.name, job_id=self.job_id)),)),
            self.batch_log,
        )

    def end_marker(self) -> EndMarker | None:
        """How the batch script ended; None while it has not, and where it was killed."""
        try:
            code, moment = (self.folder / END).read_text().split()
            return EndMarker(int(code), float(moment))
        except (OSError, ValueError):
            return None

    def summary(self) -> dict[str, object]:
        """What the training said of itself at its end; empty where it said nothing."""
        import json

        try:
            found = json.loads((self.folder / SUMMARY).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def array_folder(self) -> Path:
        """Where the record is: of an element, the folder of its array."""
        return self.folder.with_name(base_id(self.folder.name))

    def ranks(self) -> list[int]:
        """The ranks that it has, or, without a record, those that have written a log."""
        if self.record is not None:
            return list(range(self.record.resolved.world_size))
        found = (path.stem.rpartition("-")[2] for path in self.folder.glob(rank_log("*")))
        return sorted(int(rank) for rank in found if rank.isdigit())

    def elements(self) -> list[Run]:
        """The elements of an array in order, those too that have not started; none where it is no array."""
        array = self.record.resolved.job.resources.array if self.record and not array_index(self.job_id) else None
        indices = () if array is None else parse_array(str(array)).indices
        return [_element(self, f"{self.job_id}_{index}") for index in indices]


def open_run(folder: Path) -> Run:
    """The run of a run folder; without a record, the names that a script has by default are taken."""
    return _run(folder, read_record(folder.with_name(base_id(folder.name))))


def _run(folder: Path, known: RunRecord | None) -> Run:
    place = str(folder.parent).replace("%", "%%")
    name = known.job_name if known else folder.parent.name
    if known:
        logs = known.logs
    else:
        patterns = ("%A_%a.log", "%A_%a/rank-%t.log") if array_index(folder.name) else ("%j.log", "%j/rank-%t.log")
        logs = RecordedLogs(batch=patterns[0], ranks=patterns[1])
    return Run(folder.name, name, folder, _absolute(logs, place), known)


def _element(array: Run, job_id: str) -> Run:
    """An element of an array, of which the array's record tells."""
    folder = array.folder.with_name(job_id)
    return _run(folder, None) if array.record is None else array._replace(job_id=job_id, folder=folder)


def _absolute(logs: RecordedLogs, place: str) -> LogPatterns:
    def whole(text: str) -> str:
        return str(Path(place, text))

    return LogPatterns(
        batch=whole(logs.batch),
        batch_error=logs.batch_error and whole(logs.batch_error),
        ranks=whole(logs.ranks),
        ranks_error=logs.ranks_error and whole(logs.ranks_error),
    )


class RunIndex:
    """The runs under one `runs` folder, looked through once.

    Args:
        root: The folder that the cluster file names, `runs` by default.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: str | None = None
        """Why the folder cannot be looked into, where that is so."""

        self._folders: dict[str, list[Path]] = {}
        self._runs: dict[Path, Run] = {}
        try:
            jobs = _folders_in(root)
        except (FileNotFoundError, NotADirectoryError):
            jobs = []
        except OSError as error:
            jobs, self.unreadable = [], error.strerror
        for job in jobs:
            for entry in _scan(Path(job.path)):
                if is_single_job(entry.name):
                    self._folders.setdefault(entry.name, []).append(Path(entry.path))

    def find(self, job_id: str, belongs_here: Callable[[Run], bool] = lambda _: True) -> Run | None:
        """The run of a job, or of an element of an array.

        Args:
            job_id: Its id.
            belongs_here: Tells whether a run belongs to the Slurm that is asked. Of several runs with this id, they
                come first, then the latest.
        """

        def rank(run: Run) -> tuple[bool, tuple[str, tuple[int, int]]]:
            return belongs_here(run), _submitted(run)

        whole = [self._run(folder) for folder in self._folders.get(base_id(job_id), ())]
        if whole:
            best = max(whole, key=rank) if len(whole) > 1 else whole[0]
            # A component of a heterogeneous job has no files of its own.
            return _element(best, job_id) if array_index(job_id) else best
        # Submitted by hand, an array has folders of its elements only.
        return max(map(self._run, self._folders.get(job_id, [])), key=rank, default=None)

    def _run(self, folder: Path) -> Run:
        """As `of_folder`; a record is read once."""
        if folder not in self._runs:
            self._runs[folder] = open_run(folder)
        return self._runs[folder]

    def recent(self, limit: int | None = None) -> list[Run]:
        """Those that have a record, the latest first."""
        folders = [folder for same in self._folders.values() for folder in same if (folder / RECORD).is_file()]
        return sorted(map(self._run, folders), key=_submitted, reverse=True)[:limit]

    def find_by_name(self, name: str) -> list[Run]:
        """Those of one job that have a record, the latest first."""
        return [run for run in self.recent() if run.name == name]

    def find_unrecorded(self, name: str) -> list[Run]:
        """Those of one job without a record, the latest first: its script was submitted by hand."""
        folders = [folder for same in self._folders.values() for folder in same if folder.parent.name == name]
        return sorted((run for run in map(self._run, folders) if run.record is None), key=_submitted, reverse=True)

    def require(self, job_id: str, belongs_here: Callable[[Run], bool] = lambda _: True) -> Run:
        """As `find`.

        Raises:
            UnknownJob: There is none; the latest that there are, are named.
        """
        run = self.find(job_id, belongs_here)
        if run is None:
            raise self.unknown_job_error([job_id])
        return run

    def unknown_job_error(self, ids: list[str], asked: str = "") -> UnknownJob:
        """The error for ids, or names, of which there is no run.

        Args:
            ids: They.
            asked: What others who were asked have said, as the beginning of a sentence.
        """
        recent = ", ".join(f"{run.job_id} {run.name}" for run in self.recent(RECENT_RUNS))
        here = f"cannot be read: {self.unreadable}" if self.unreadable else "has no record of it"
        by_hand = "squeue --me tells the jobs in the queue, and scontrol show job ID the log of one (StdOut)"
        return UnknownJob(
            f"no {'job' if asked else 'run of'} {', '.join(ids)}",
            found=f"{asked}{self.root}/ {here}",
            remedy=f"the latest here: {recent}" if recent else by_hand,
        )


def _submitted(run: Run) -> tuple[str, tuple[int, int]]:
    return run.record.submitted if run.record else "", sort_key(run.job_id)


def _folders_in(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return _folders_in(folder)
    except OSError:
        return []
