"""The SQLite file of the queue: opens it, creates its tables, and converts records to rows."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

from pocketslurm.queue.records import Job, Step
from pocketslurm.settings import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

T = TypeVar("T")

NAME = DATABASE
BUSY_SECONDS = 30.0
_JSON = frozenset({"options", "request", "limits", "arguments", "nodes", "cpus", "mem", "gpus", "tasks"})
_BOOL = frozenset({"batch", "requeue", "overlap", "completing"})


def _column(name: str, record: type[Job | Step]) -> str:
    """Return the definition of a column with the default of the record, for rows of other releases."""
    if record is Job and name == "job_id":
        return '"job_id" INTEGER PRIMARY KEY'
    default = record._field_defaults.get(name)
    value = json.dumps(default) if name in _JSON else default
    if isinstance(value, str):
        return f"\"{name}\" DEFAULT '{value}'"
    return f'"{name}" DEFAULT {"NULL" if value is None else +value}'


_JOB_COLUMNS = ", ".join(_column(name, Job) for name in Job._fields)
_STEP_COLUMNS = ", ".join(_column(name, Step) for name in Step._fields)
_STEPS = f"CREATE TABLE IF NOT EXISTS steps ({_STEP_COLUMNS}, PRIMARY KEY (job_id, attempt, step_id))"
_TABLES = f"""
CREATE TABLE IF NOT EXISTS jobs ({_JOB_COLUMNS});
{_STEPS};
CREATE TABLE IF NOT EXISTS scripts (job_id INTEGER PRIMARY KEY, script BLOB, environ BLOB);
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, job_id INTEGER, kind TEXT, value TEXT);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT);
"""
_INDICES = """
CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state);
CREATE INDEX IF NOT EXISTS jobs_completing ON jobs (completing) WHERE completing;
CREATE INDEX IF NOT EXISTS jobs_array ON jobs (array_job_id);
CREATE INDEX IF NOT EXISTS jobs_het ON jobs (het_job_id);
CREATE INDEX IF NOT EXISTS jobs_end ON jobs (end_time);
"""
_RECORDS: tuple[tuple[str, type[Job | Step]], ...] = (("jobs", Job), ("steps", Step))
_VERSION = zlib.crc32((_TABLES + _INDICES).encode()) & 0x7FFFFFFF
"""Kept in the file: a release with other columns adds those that it misses."""


def connect(directory: Path, *, make: bool = True) -> sqlite3.Connection:
    """Open the database, and create it with its tables if it is missing.

    Without `make`, fail if the file is missing: a process that had it open must not create a new one.
    """
    path = str(directory.absolute() / NAME).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    uri = f"file://{path}?mode={'rwc' if make else 'rw'}"
    old = os.umask(0o077)
    try:
        # Without an isolation level, Python begins no transactions of its own: `StateDirectory.transaction` does.
        db = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True)
    finally:
        os.umask(old)
    db.row_factory = sqlite3.Row
    # Committed means on its way to the disk: no process's death loses it, only the machine's may.
    # This reads the schema, so it can meet a lock as every query can.
    retry(lambda: db.execute("PRAGMA synchronous = NORMAL"))
    if not _is_current(db):
        _make(db, directory)
    return db


def _is_current(db: sqlite3.Connection) -> bool:
    return bool(retry(lambda: db.execute("PRAGMA user_version").fetchone())[0] == _VERSION)


def _make(db: sqlite3.Connection, directory: Path) -> None:
    """Create the tables under a lock: the journal mode changes only while no other process has the file open."""
    lock = os.open(directory / "slurm.db.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_current(db):
            retry(lambda: db.execute("PRAGMA journal_mode = WAL"))
            retry(lambda: db.execute("BEGIN IMMEDIATE"))
            _execute_all(db, _TABLES)
            for table, record in _RECORDS:
                _add_columns(db, table, record)
            _execute_all(db, _INDICES)
            db.execute(f"PRAGMA user_version = {_VERSION}")
            retry(lambda: db.execute("COMMIT"))
    finally:
        os.close(lock)


def _execute_all(db: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        db.execute(statement)


def _add_columns(db: sqlite3.Connection, table: str, record: type[Job | Step]) -> None:
    """Give a table of another release the columns that it lacks, old rows with the defaults in them."""
    there = {row["name"] for row in db.execute(f"PRAGMA table_info({table})")}
    for name in record._fields:
        if name not in there:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {_column(name, record)}")


def is_damaged(error: Exception) -> bool:
    """Return whether the error means a damaged file, so that a retry is useless."""
    return type(error) is sqlite3.DatabaseError


def retry(action: Callable[[], T]) -> T:
    """Retry while the file is locked; SQLite does not wait while another process closes the file."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def write_values(values: Mapping[str, object]) -> list[object]:
    """Convert values of a record to values of columns; a path that is not UTF-8 becomes bytes."""
    return [json.dumps(value) if name in _JSON else _storable(value) for name, value in values.items()]


def _storable(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return os.fsencode(value)
    return value


def read_row(row: sqlite3.Row, record: type[Job | Step]) -> dict[str, Any]:
    """Return the values of a record from a row."""
    values: dict[str, Any] = {}
    for name in record._fields:
        value = row[name]
        if isinstance(value, bytes):
            value = os.fsdecode(value)
        if name in _JSON:
            value = json.loads(value)
        values[name] = bool(value) if name in _BOOL else value
    return values
