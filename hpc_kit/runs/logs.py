"""Log files of a job: their names as Slurm's patterns, the folders that they need, and reading a log that grows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, structs

from hpc_kit.errors import RecordError, SpecError
from hpc_kit.run_files import rank_log
from hpc_kit.script.context import directives, literal_pattern, working_folder
from hpc_kit.shared_folders import make_folder, protect_entries, remove_empty_folders
from hpc_kit.slurm.client import user_name
from hpc_kit.slurm.job_ids import array_index, base_id
from hpc_kit.spec.resolve import Resolved

MAX_LINE_BYTES = 1 << 16
"""A longer line is returned in pieces."""

FINGERPRINT_BYTES = 64
READ_BYTES = 1 << 20
"""At most this much of a log is in memory at a time."""

_PATTERN = re.compile(r"%(\d*)([A-Za-z%])")


class LogPatterns(Struct, frozen=True, kw_only=True):
    """Names of logs with Slurm's patterns. Without an error log, errors go to the output's log.

    In a record they are relative to `runs/<job_name>/` if they lie inside it.
    """

    batch: str
    ranks: str
    batch_error: str | None = None
    ranks_error: str | None = None

    def apply(self, function: Callable[[str], str]) -> LogPatterns:
        """Return the names after a function has changed each."""
        names = structs.asdict(self).items()
        return LogPatterns(**{field: function(name) for field, name in names if name is not None})


def log_patterns_of(resolved: Resolved, root: Path) -> LogPatterns:
    """Return the names of a job's log files."""
    job, base = resolved.job, literal_pattern(str(working_folder(resolved, root)))
    is_array = job.resources.array is not None
    batch = next(str(value) for name, value in directives(resolved) if name == "output")
    run = f"{literal_pattern(resolved.log_folder)}/{'%A_%a' if is_array else '%j'}"
    # An absolute second part replaces the first part of a Path.
    return LogPatterns(
        batch=str(Path(base, batch)),
        batch_error=None if job.resources.error is None else str(Path(base, job.resources.error)),
        ranks=str(Path(base, job.launch.output or f"{run}/{rank_log('%t')}")),
        ranks_error=None if job.launch.error is None else str(Path(base, job.launch.error)),
    )


def expand_pattern(text: str, *, name: str, job_id: str | None = None, rank: int | None = None) -> str:
    """Replace Slurm's patterns as Slurm does. A pattern whose value is not known (yet) stays."""
    # Slurm expands nothing in a name with a backslash, and removes the backslash.
    if "\\" in text:
        return text.replace("\\", "")
    array, index = base_id(job_id or ""), array_index(job_id or "")
    # %j of an array's element is a number that only Slurm knows; all other names use `12_3`.
    values = {"%": "%", "A": array, "a": index, "j": "" if index else array, "x": name, "u": user_name()}
    values["t"] = "" if rank is None else str(rank)

    def expand(match: re.Match[str]) -> str:
        value = values.get(match[2])
        return value.zfill(int(match[1] or 0)) if value else match[0]

    return _PATTERN.sub(expand, text)


def make_log_folders(resolved: Resolved, root: Path, *, allow_ids: bool = False) -> list[Path]:
    """Create the folders of the logs. Slurm does not create them, and a job whose log has no folder ends silently.

    Return the created folders, outermost first. `allow_ids`: the caller creates folders whose name contains the job id,
    as soon as the id is known.

    Raises:
        SpecError: The name of a folder contains the job id, which is unknown before sbatch has run.
        RecordError: A folder cannot be created.
    """
    logs, launch = log_patterns_of(resolved, root), resolved.job.launch
    folder = working_folder(resolved, root) / resolved.log_folder
    made = make_folder(folder)
    protect_entries(folder)  # a script that was submitted by hand has created it
    # The script creates the run folder, which is the default folder of rank logs.
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
            f"the log folder {folder} cannot exist when the job starts",
            found=f"the value of {unknown[0]} is known only after sbatch has run, and Slurm creates no folders",
            remedy=f"use {unknown[0]} in the name of the file instead: output = 'logs/%j.log'",
        )
    if unknown:
        return []
    made = make_folder(Path(folder))
    # An existing log, such as /dev/null, can be opened whatever the rights of its folder.
    existing = Path(expand_pattern(log, name=name))
    if existing.is_dir():
        raise SpecError(f"the log {existing} is a folder", remedy=f"name a file in it: {existing.name}/%j.log")
    if not os.access(*((existing, os.W_OK) if existing.exists() else (folder, os.W_OK | os.X_OK))):
        raise RecordError(
            f"the log folder {folder} cannot be written to",
            found="a job whose log cannot be opened ends silently",
            remedy="choose another folder for output, or get the right to write there",
        )
    return made


class LogFollower:
    """Reads new lines of a log. The file may appear late, be truncated or replaced, or end with half a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._fingerprint = b""
        """The bytes before the offset. If they change, this is another file, even with the same inode."""
        self._rest = b""

    def read(self, *, end: bool = False) -> Iterator[str]:
        """Yield the new complete lines. Consume the iterator completely.

        `end`: the log is complete, so also yield a last line without a newline.
        """
        for data in self._read_new():
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > MAX_LINE_BYTES:
                lines.append(self._rest)
                self._rest = b""
            yield from map(decode_line, lines)
        if end and self._rest:
            rest, self._rest = self._rest, b""
            yield decode_line(rest)

    def _read_new(self) -> Iterator[bytes]:
        """Yield the data up to the present end: a log that grows as fast as it is read must not block its reader."""
        try:
            with self.path.open("rb") as file:
                self._seek(file)
                left = os.fstat(file.fileno()).st_size - self._offset
                while left > 0 and (data := file.read(min(left, READ_BYTES))):
                    left -= len(data)
                    self._offset += len(data)
                    self._fingerprint = (self._fingerprint + data)[-FINGERPRINT_BYTES:]
                    yield data
        except OSError:
            return

    def _seek(self, file: BinaryIO) -> None:
        file.seek(self._offset - len(self._fingerprint))
        if file.read(len(self._fingerprint)) != self._fingerprint:
            self._offset, self._fingerprint, self._rest = 0, b"", b""
            file.seek(0)


def read_tail(log: Path, limit: int) -> str:
    """Return the last `limit` bytes of a log, which may be larger than the memory; "" if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


def decode_line(line: bytes) -> str:
    """Return a line as a terminal shows it: the last state of a progress bar."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
