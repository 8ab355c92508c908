"""The runs that a project knows: where each keeps its logs and markers, found again by its job id."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hpc_kit.errors import UnknownJob
from hpc_kit.run_files import END, RECORD, SUMMARY
from hpc_kit.submit import record
from hpc_kit.submit.logs import Logs, expand
from hpc_kit.submit.record import Known, RecordLogs

RECENT = 5

_ID = re.compile(r"\d+(?:_\d+)?")


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

    logs: Logs
    known: Known | None = None
    """The record; an element's is that of its array."""

    @property
    def batch_log(self) -> Path:
        """What the batch script itself and srun say."""
        return Path(expand(self.logs.batch, name=self.name, job_id=self.job_id))

    def rank_log(self, rank: int) -> Path:
        """What one rank says."""
        return Path(expand(self.logs.ranks, name=self.name, job_id=self.job_id, rank=rank))

    def rank_logs(self, rank: int) -> tuple[Path, ...]:
        """The files in which a rank's last words may stand, the likeliest first; torchrun's agents have their own."""
        errors = self.logs.ranks_error
        error = () if errors is None else (Path(expand(errors, name=self.name, job_id=self.job_id, rank=rank)),)
        agent = self.folder / f"node-{rank // self.ranks_per_task}.log"
        return (*error, self.rank_log(rank), agent)

    @property
    def ranks_per_task(self) -> int:
        """One, or what each of torchrun's agents starts."""
        return self.known.resolved.job.launch.nproc_per_node if self.known else 1

    def batch_logs(self) -> tuple[Path, ...]:
        """The files in which srun's and Slurm's messages may stand."""
        error = self.logs.batch_error
        return (*(() if error is None else (Path(expand(error, name=self.name, job_id=self.job_id)),)), self.batch_log)

    def end(self) -> EndMarker | None:
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
        return self.folder.with_name(self.folder.name.partition("_")[0])

    def elements(self) -> list[Run]:
        """The elements of an array that have started."""
        names = [path.name for path in self.folder.parent.glob(f"{self.job_id}_*") if _ID.fullmatch(path.name)]
        return [of_folder(self.folder.with_name(name)) for name in sorted(names, key=_order)]


def of_folder(folder: Path) -> Run:
    """The run of a run folder; without a record, the names that a script has by default are taken."""
    own = folder.with_name(folder.name.partition("_")[0])
    known = record.read(own)
    place = str(folder.parent).replace("%", "%%")
    name = known.job_name if known else folder.parent.name
    if known:
        logs = known.logs
    else:
        patterns = ("%A_%a.log", "%A_%a/rank-%t.log") if "_" in folder.name else ("%j.log", "%j/rank-%t.log")
        logs = RecordLogs(batch=patterns[0], ranks=patterns[1])
    return Run(folder.name, name, folder, _absolute(logs, place), known)


def _absolute(logs: RecordLogs, place: str) -> Logs:
    def whole(text: str) -> str:
        return str(Path(place, text))

    return Logs(
        batch=whole(logs.batch),
        batch_error=logs.batch_error and whole(logs.batch_error),
        ranks=whole(logs.ranks),
        ranks_error=logs.ranks_error and whole(logs.ranks_error),
    )


class Runs:
    """The runs under one `runs` folder, looked through once.

    Args:
        root: The folder that the cluster file names, `runs` by default.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[str, list[Path]] = {}
        for job in _scan(root):
            for entry in _scan(Path(job.path)):
                if _ID.fullmatch(entry.name):
                    self._folders.setdefault(entry.name, []).append(Path(entry.path))

    def find(self, job_id: str) -> Run | None:
        """The run of a job, or of an element of an array; of several with that id, the latest."""
        whole = self._folders.get(job_id.partition("_")[0], ())
        # Submitted by hand, an array has folders of its elements only.
        folders = [folder.with_name(job_id) for folder in whole] or self._folders.get(job_id, [])
        return max(map(of_folder, folders), key=_submitted, default=None)

    def recent(self, most: int | None = None) -> list[Run]:
        """Those that have a record, the latest first."""
        folders = [folder for same in self._folders.values() for folder in same if (folder / RECORD).is_file()]
        return sorted(map(of_folder, folders), key=_submitted, reverse=True)[:most]

    def need(self, job_id: str) -> Run:
        """As `find`.

        Raises:
            UnknownJob: There is none; the latest that there are, are named.
        """
        run = self.find(job_id)
        if run is None:
            raise self.unknown([job_id])
        return run

    def unknown(self, ids: list[str]) -> UnknownJob:
        """The error for ids that nobody knows."""
        recent = ", ".join(f"{run.job_id} {run.name}" for run in self.recent(RECENT))
        return UnknownJob(
            f"no job {', '.join(ids)}",
            found=f"Slurm does not know it, and {self.root}/ has no record of it",
            remedy=f"the latest here: {recent}" if recent else "jobs in the queue: squeue --me",
        )


def find_run(runs: Path, job_id: str) -> Run | None:
    """The run of a job, or of an element of an array; None where `runs` does not know it."""
    return Runs(runs).find(job_id)


def known_runs(runs: Path) -> list[Run]:
    """All runs that have a record, the latest first."""
    return Runs(runs).recent()


def _submitted(run: Run) -> tuple[str, tuple[int, int]]:
    return run.known.submitted if run.known else "", _order(run.job_id)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _order(job_id: str) -> tuple[int, int]:
    number, _, index = job_id.partition("_")
    return int(number), int(index or 0)
