"""Log files of a job: their names as Slurm's patterns, what becomes of them for one job, and the folders they need."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hpc_kit.errors import RecordError, SpecError
from hpc_kit.run_files import rank_log
from hpc_kit.script.context import directives, pattern
from hpc_kit.slurm.job_ids import array_index, base_id
from hpc_kit.slurm.user import user_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved


_PATTERN = re.compile(r"%(\d*)([A-Za-z%])")


class LogPatterns(NamedTuple):
    """Absolute names with Slurm's patterns; where no `error` is named, it goes with the output."""

    batch: str
    batch_error: str | None
    ranks: str
    ranks_error: str | None


def working_folder(resolved: Resolved, root: Path) -> Path:
    """The folder that the script runs in, and that relative names of logs and runs begin at."""
    return root.absolute() / (resolved.job.resources.chdir or "")


def log_patterns_of(resolved: Resolved, root: Path) -> LogPatterns:
    """The log files of a job."""
    job, base = resolved.job, pattern(str(working_folder(resolved, root)))
    array = job.resources.array is not None
    batch = next(str(value) for name, value in directives(resolved) if name == "output")
    run = f"{pattern(resolved.log_folder)}/{'%A_%a' if array else '%j'}"
    # A name that begins with a slash replaces what stands before it.
    return LogPatterns(
        batch=str(Path(base, batch)),
        batch_error=None if job.resources.error is None else str(Path(base, job.resources.error)),
        ranks=str(Path(base, job.launch.output or f"{run}/{rank_log('%t')}")),
        ranks_error=None if job.launch.error is None else str(Path(base, job.launch.error)),
    )


def expand_pattern(text: str, *, name: str, job_id: str | None = None, rank: int | None = None) -> str:
    """What Slurm makes of a pattern; what is not known (yet) is left as it is."""
    if "\\" in text:
        return text.replace("\\", "")
    array, index = base_id(job_id or ""), array_index(job_id or "")
    # An element's own %j is a number that only Slurm knows; its name everywhere else is `12_3`.
    values = {"%": "%", "A": array, "a": index, "j": "" if index else array, "x": name, "u": user_name()}
    values["t"] = "" if rank is None else str(rank)

    def value(match: re.Match[str]) -> str:
        known = values.get(match[2])
        return known.zfill(int(match[1] or 0)) if known else match[0]

    return _PATTERN.sub(value, text)


def make_log_folders(resolved: Resolved, root: Path, *, allow_ids: bool = False) -> list[Path]:
    """Make the folders that the logs go to: Slurm does not, and a job whose log has none ends without a word.

    Args:
        resolved: The job.
        root: The user's project.
        allow_ids: Whether the caller makes folders named by the job's id itself, as soon as it is known.

    Returns:
        What was made, outermost first.

    Raises:
        SpecError: A folder's name holds the job's id, which is not known before sbatch has run.
        RecordError: A folder cannot be made.
    """
    logs, launch = log_patterns_of(resolved, root), resolved.job.launch
    made = make_folder(working_folder(resolved, root) / resolved.log_folder, mode=0o700)
    # The run folder, where rank logs go by default, is made by the script.
    named = [logs.batch, logs.batch_error, logs.ranks if launch.output else None, logs.ranks_error]
    try:
        for text in filter(None, named):
            made += _make_log_folder(text, resolved.job.name, allow_ids=allow_ids)
    except (SpecError, RecordError):
        remove_empty_folders(made)
        raise
    return made


def _make_log_folder(log: str, name: str, *, allow_ids: bool) -> list[Path]:
    parent = str(Path(log).parent)
    folder = expand_pattern(parent, name=name)
    unknown = [match[0] for match in _PATTERN.finditer(parent) if match[2] not in "xu%"]
    if unknown and not allow_ids:
        raise SpecError(
            f"the log folder {folder} cannot be there when the job starts",
            found=f"{unknown[0]} is known only once Slurm has the job, and Slurm makes no folders",
            remedy=f"{unknown[0]} in the name of the file instead: output = 'logs/%j.log'",
        )
    if unknown:
        return []
    made = make_folder(Path(folder))
    # A log that exists, /dev/null above all, is opened whatever its folder allows.
    existing = Path(expand_pattern(log, name=name))
    if existing.is_dir():
        raise SpecError(f"the log {existing} is a folder", remedy=f"a file in it: {existing.name}/%j.log")
    if not os.access(*((existing, os.W_OK) if existing.exists() else (folder, os.W_OK | os.X_OK))):
        raise RecordError(
            f"the log folder {folder} cannot be written to",
            found="a job whose log cannot be opened ends without a word",
            remedy="another folder for output, or the right to write there",
        )
    return made


def make_folder(folder: Path, mode: int = 0o777) -> list[Path]:
    """Make a folder and those above it; returns what was made, outermost first.

    Raises:
        RecordError: It cannot be made.
    """
    made: list[Path] = []
    try:
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        for each in reversed(missing):
            each.mkdir(mode, exist_ok=True)
            made.append(each)
    except OSError as error:
        remove_empty_folders(made)
        raise RecordError(
            f"cannot make the folder {folder}",
            found=error.strerror or str(error),
            remedy="one that you may write to: runs = '/path' in the cluster file, or --set cluster.runs=/path",
        ) from error
    return made


def remove_empty_folders(made: list[Path]) -> None:
    """Take back what `make_folder` has made, as far as it is still empty."""
    for folder in reversed(made):
        try:
            folder.rmdir()
        except OSError:
            continue


CHUNK = 1 << 16
"""A line longer than this is given in pieces."""

KEPT = 64
_PORTION = 1 << 20
"""So much is in memory at once, however long the log is."""


class LogReader:
    """Reads on from where it was: of a file that comes late, is cut, replaced, or ends in half a line.

    Args:
        path: The log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._before = b""
        """The last bytes that were read: where they are gone, the file is another one, whatever its inode says."""
        self._rest = b""

    def read(self, *, end: bool = False) -> Iterator[str]:
        """The lines that are complete by now, to be taken to the last.

        Args:
            end: Nothing more will come: half a line counts as one.
        """
        for data in self._portions():
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > CHUNK:
                lines.append(self._rest)
                self._rest = b""
            yield from map(_shown, lines)
        if end and self._rest:
            rest, self._rest = self._rest, b""
            yield _shown(rest)

    def _portions(self) -> Iterator[bytes]:
        """What is new up to the present end: a log that grows as fast as it is read must not hold up all else."""
        try:
            with self.path.open("rb") as file:
                self._find_place(file)
                left = os.fstat(file.fileno()).st_size - self._offset
                while left > 0 and (data := file.read(min(left, _PORTION))):
                    left -= len(data)
                    self._offset += len(data)
                    self._before = (self._before + data)[-KEPT:]
                    yield data
        except OSError:
            return

    def _find_place(self, file: BinaryIO) -> None:
        file.seek(self._offset - len(self._before))
        if file.read(len(self._before)) != self._before:
            self._offset, self._before, self._rest = 0, b"", b""
            file.seek(0)


def _shown(line: bytes) -> str:
    """A line as a terminal would leave it: of a progress bar, what it showed last."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
