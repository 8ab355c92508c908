"""Finds the runs of a project by job id or name, and the files of each run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpc_kit.errors import UnknownJob
from hpc_kit.run_files import RECORD, SUMMARY, EndMarker, rank_log, read_end
from hpc_kit.runs.backend import Backend, backend_of
from hpc_kit.runs.logs import LogPatterns, expand_pattern
from hpc_kit.runs.record import RunRecord, read_record
from hpc_kit.slurm.job_ids import array_index, base_id, is_single_job, parse_job_ids, sort_key
from hpc_kit.slurm.option_values import parse_array

RECENT_RUNS = 5


class Run(NamedTuple):
    """One job, or one element of an array, and its files."""

    job_id: str
    name: str
    folder: Path
    """The run folder. The script or the submission creates it."""

    logs: LogPatterns
    record: RunRecord | None = None
    """The record; for an element, the record of its array."""

    @property
    def backend(self) -> Backend:
        """The backend that the record names."""
        return backend_of(self.record)

    @property
    def batch_log(self) -> Path:
        """The log of the batch script and of srun."""
        return self._expand(self.logs.batch)

    def rank_log(self, rank: int) -> Path:
        """Return the log of one rank."""
        return self._expand(self.logs.ranks, rank)

    def rank_logs(self, rank: int) -> tuple[Path, ...]:
        """Return the files that may contain the last output of a rank, the most likely first."""
        errors = self.logs.ranks_error
        error = () if errors is None else (self._expand(errors, rank),)
        # Each of torchrun's agents has a log of its own.
        agent = self.folder / f"node-{rank // self.ranks_per_task}.log"
        return (*error, self.rank_log(rank), agent)

    def batch_logs(self) -> tuple[Path, ...]:
        """Return the files that may contain messages of srun and of Slurm."""
        if not self.backend.has_batch_script:
            return ()
        error = self.logs.batch_error
        return (*(() if error is None else (self._expand(error),)), self.batch_log)

    def _expand(self, pattern: str, rank: int | None = None) -> Path:
        return Path(expand_pattern(pattern, name=self.name, job_id=self.job_id, rank=rank))

    @property
    def ranks_per_task(self) -> int:
        """Ranks that each task starts: one without an agent such as torchrun."""
        return self.record.resolved.job.launch.nproc_per_node if self.record else 1

    def end_marker(self) -> EndMarker | None:
        """Return how the batch script ended; None if it has not ended or was killed."""
        return read_end(self.folder)

    def summary(self) -> dict[str, object]:
        """Return the summary that the training wrote at its end; empty if it wrote none."""
        import json

        try:
            found = json.loads((self.folder / SUMMARY).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def array_folder(self) -> Path:
        """Folder of the record: for an element, the folder of its array."""
        return self.folder.with_name(base_id(self.folder.name))

    def ranks(self) -> list[int]:
        """Return the ranks of the job, or, without a record, those with a log."""
        if self.record is not None:
            return list(range(self.record.resolved.world_size))
        # The name of a log is rank-3.log.
        found = (path.stem.rpartition("-")[2] for path in self.folder.glob(rank_log("*")))
        return sorted(int(rank) for rank in found if rank.isdigit())

    def elements(self) -> list[Run]:
        """Return the elements of an array in order, started or not; nothing if this is no array."""
        array = self.record.resolved.job.resources.array if self.record and not array_index(self.job_id) else None
        indices = () if array is None else parse_array(str(array)).indices
        return [_element_of(self, f"{self.job_id}_{index}") for index in indices]


def open_run(folder: Path) -> Run:
    """Return the run of a run folder. Without a record, its logs have the default names of a script."""
    return _make_run(folder, read_record(folder.with_name(base_id(folder.name))))


def _make_run(folder: Path, record: RunRecord | None) -> Run:
    # The folder becomes part of a pattern, in which a percent sign is written twice.
    parent = str(folder.parent).replace("%", "%%")
    name = record.job_name if record else folder.parent.name
    if record:
        logs = record.logs
    else:
        patterns = ("%A_%a.log", "%A_%a/rank-%t.log") if array_index(folder.name) else ("%j.log", "%j/rank-%t.log")
        logs = LogPatterns(batch=patterns[0], ranks=patterns[1])
    return Run(folder.name, name, folder, logs.apply(lambda text: str(Path(parent, text))), record)


def _element_of(array: Run, job_id: str) -> Run:
    folder = array.folder.with_name(job_id)
    return _make_run(folder, None) if array.record is None else array._replace(job_id=job_id, folder=folder)


class RunIndex:
    """The runs in one `runs` folder. The folder is scanned once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: str | None = None
        """The system's message if the folder cannot be read."""

        self._folders: dict[str, list[Path]] = {}
        self._runs: dict[Path, Run] = {}
        try:
            jobs = _folders_in(root)
        except (FileNotFoundError, NotADirectoryError):
            jobs = []
        except OSError as error:
            jobs, self.unreadable = [], error.strerror
        for job in jobs:
            with suppress(OSError):
                for entry in _folders_in(job.path):
                    # In a project of several users, the runs of the others are private.
                    if is_single_job(entry.name) and os.access(entry.path, os.R_OK | os.X_OK):
                        self._folders.setdefault(entry.name, []).append(Path(entry.path))

    def find(self, job_id: str, belongs_here: Callable[[Run], bool] = lambda _: True) -> Run | None:
        """Return the run of a job, or of an element of an array.

        If several runs have the id, those that `belongs_here` are preferred, and among them the latest.
        """

        def rank(run: Run) -> tuple[bool, tuple[float, tuple[int, int]]]:
            return belongs_here(run), _submit_order(run)

        if jobs := self.find_all(job_id):
            best = max(jobs, key=rank) if len(jobs) > 1 else jobs[0]
            # A component of a heterogeneous job has no files of its own.
            return _element_of(best, job_id) if array_index(job_id) else best
        # An array that was submitted by hand has folders of its elements only.
        return max(map(self._open, self._folders.get(job_id, [])), key=rank, default=None)

    def find_all(self, job_id: str) -> list[Run]:
        """Return the runs of all clusters with the id of a job, the latest first."""
        return self._latest_first(self._folders.get(base_id(job_id), ()))

    def _open(self, folder: Path) -> Run:
        """Like `open_run`, but reads each record once."""
        if folder not in self._runs:
            self._runs[folder] = open_run(folder)
        return self._runs[folder]

    def recent(self, limit: int | None = None) -> list[Run]:
        """Return the runs that have a record, the latest first."""
        folders = [folder for same in self._folders.values() for folder in same if (folder / RECORD).is_file()]
        return self._latest_first(folders)[:limit]

    def all_runs(self) -> list[Run]:
        """Return all runs, with or without a record, the latest first. An array is one run."""
        folders = [folder for same in self._folders.values() for folder in same if not array_index(folder.name)]
        return self._latest_first(folders)

    def find_by_name(self, name: str) -> list[Run]:
        """Return the runs of one job name that have a record, the latest first."""
        return [run for run in self.recent() if run.name == name]

    def find_unrecorded(self, name: str) -> list[Run]:
        """Return the runs of one job name without a record, the latest first: their script was submitted by hand."""
        folders = [folder for same in self._folders.values() for folder in same if folder.parent.name == name]
        return [run for run in self._latest_first(folders) if run.record is None]

    def _latest_first(self, folders: Iterable[Path]) -> list[Run]:
        return sorted(map(self._open, folders), key=_submit_order, reverse=True)

    def require(self, job_id: str, belongs_here: Callable[[Run], bool] = lambda _: True) -> Run:
        """Like `find`, but raises if there is no such run."""
        run = self.find(job_id, belongs_here)
        if run is None:
            raise self.unknown_job_error([job_id])
        return run

    def unknown_job_error(self, ids: list[str], prefix: str = "") -> UnknownJob:
        """Return the error for ids or names without a run.

        `prefix` begins the line of findings, for example with Slurm's answer.
        """
        recent = ", ".join(f"{run.job_id} {run.name}" for run in self.recent(RECENT_RUNS))
        finding = f"cannot be read: {self.unreadable}" if self.unreadable else "has no record of it"
        remedy = f"name one of the latest runs: {recent}" if recent else "list your jobs: hpc-kit status --all"
        if all(map(parse_job_ids, ids)):
            remedy += "; for the log of another job (StdOut of scontrol show job ID): hpc-kit why --log FILE"
        return UnknownJob(
            f"no {'job' if prefix else 'run of'} {', '.join(ids)}",
            found=f"{prefix}{self.root}/ {finding}",
            remedy=remedy,
        )


def _submit_order(run: Run) -> tuple[float, tuple[int, int]]:
    return (run.record and run.record.submit_time) or 0.0, sort_key(run.job_id)


def _folders_in(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        # Also links: to a folder on another disk, and from a job that was submitted again to the run of the first.
        return [entry for entry in entries if entry.is_dir()]
