"""The state directory: one SQLite file that all commands, the controller and the supervisors read and write.

Processes send each other only a byte to wake up. Everything to do is in the file, so that it survives a process that
is killed.
"""

# ruff: noqa: S608 - the names in the statements are those of the records, never a user's words
from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.slurm.errors import HpcKitError
from pocketslurm.errors import StateError
from pocketslurm.queue.database import NAME, connect, is_damaged, read_row, retry, write_values
from pocketslurm.queue.messages import encode_order
from pocketslurm.queue.records import Job, Step
from pocketslurm.settings import (
    CONF_VARIABLE,
    STATE_VARIABLE,
    Settings,
    check_private,
    first_job_id,
    is_full,
    load_settings,
    state_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pocketslurm.queue.messages import JobOrder


class StateDirectory:
    """An open state directory."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        self.conf = ""
        self._db: sqlite3.Connection | None = None

    def reload(self) -> None:
        """Read the settings again. A file that cannot be used changes nothing."""
        with contextlib.suppress(HpcKitError):
            self.settings = load_settings({STATE_VARIABLE: str(self.directory), CONF_VARIABLE: self.conf})

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> StateDirectory:
        """Open the state directory of an environment, and create it if it is missing.

        Raises:
            StateError: It cannot be made or written.
        """
        settings = load_settings(environ)
        directory = _directory(settings, environ)
        state = cls(directory, settings)
        if conf := environ.get(CONF_VARIABLE):
            state.conf = os.path.abspath(conf)  # noqa: PTH100
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)  # noqa: PTH103
            check_private(directory)
            state._db = connect(directory)
        except (OSError, sqlite3.Error) as error:
            raise state_error(directory, error) from error
        return state

    def _connect(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect(self.directory, make=False)
        return self._db

    def exists(self) -> bool:
        """Return whether the file still exists: a user may delete the directory of a running queue."""
        return (self.directory / NAME).exists()

    def close(self) -> None:
        """Close the file; the next access opens it again. A connection must not live through a fork."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction that excludes other writers."""
        db = self._connect()
        retry(lambda: db.execute("BEGIN IMMEDIATE"))
        try:
            yield
            retry(lambda: db.execute("COMMIT"))
        except BaseException:
            # On a full disk, SQLite may have rolled it back already.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        db = self._connect()
        return retry(lambda: db.execute(sql, values))

    # Jobs

    def add_job(self, job: Job) -> None:
        """Enter a new job; its id comes from `next_job_id` in the same transaction."""
        self._insert("jobs", job._asdict())

    def next_job_id(self, at_least: int = 0) -> int:
        """Return an unused job id."""
        number = max(int(self.meta("next_job_id") or first_job_id(self.directory)), at_least)
        self.set_meta("next_job_id", str(number + 1))
        return number

    def job(self, job_id: int) -> Job | None:
        """Return a job or the pending tasks of an array by id."""
        return next(iter(self.jobs("job_id = ?", (job_id,))), None)

    def jobs(self, where: str = "1", values: Sequence[object] = (), order: str = "job_id") -> list[Job]:
        """Return the jobs that match a condition, ordered by id or another column."""
        rows = self.execute(f"SELECT * FROM jobs WHERE {where} ORDER BY {order}", values)
        return [Job(**read_row(row, Job)) for row in rows]

    def components(self, job: Job) -> list[Job]:
        """Return all components of the heterogeneous job of this job; an ordinary job alone."""
        return [job] if job.het_job_id is None else self.jobs("het_job_id = ?", (job.het_job_id,), "het_offset")

    def active_jobs(self) -> list[Job]:
        """Return all jobs that have not ended."""
        return self.jobs("state IN ('PENDING', 'RUNNING') OR completing")

    def update_job(self, job_id: int, **changes: object) -> None:
        """Change some columns of a job."""
        self._update("jobs", changes, "job_id = ?", (job_id,))

    def update_components(self, job_id: int, **changes: object) -> None:
        """Change some columns of a job, and of all components that it leads and that are not over by themselves.

        One whose processes are still being ended keeps the state that it has.
        """
        led = "het_job_id = ? AND (state IN ('PENDING', 'RUNNING')"
        led += ")" if "state" in changes else " OR completing)"
        self._update("jobs", changes, f"job_id = ? OR ({led})", (job_id, job_id))

    # Steps

    def steps(self, job_id: int) -> list[Step]:
        """Return the steps of the current attempt by number; the batch script is -1."""
        current = "SELECT attempt FROM jobs WHERE jobs.job_id = steps.job_id"
        sql = f"SELECT * FROM steps WHERE job_id = ? AND attempt = ({current}) ORDER BY step_id"
        rows = self.execute(sql, (job_id,))
        return [Step(**read_row(row, Step)) for row in rows]

    def next_step_id(self, job_id: int) -> int:
        """Return the number of a job's next step, in one transaction with `add_step`."""
        number = int(self.execute("SELECT next_step FROM jobs WHERE job_id = ?", (job_id,)).fetchone()[0])
        self.update_job(job_id, next_step=number + 1)
        return number

    def add_step(self, step: Step) -> None:
        """Enter a step."""
        self._insert("steps", step._asdict())

    def update_step(self, step: Step, **changes: object) -> None:
        """Change some columns of a step."""
        key = (step.job_id, step.attempt, step.step_id)
        self._update("steps", changes, "job_id = ? AND attempt = ? AND step_id = ?", key)

    # Scripts, orders and single values

    def script(self, job_id: int) -> tuple[bytes, bytes]:
        """Return the batch script and the encoded environment of a job or an array."""
        row = self.execute("SELECT script, environ FROM scripts WHERE job_id = ?", (job_id,)).fetchone()
        return (row["script"], row["environ"]) if row else (b"", b"")

    def add_script(self, job_id: int, script: bytes, environ: bytes) -> None:
        """Store the script and the environment of a job."""
        self.execute("INSERT OR REPLACE INTO scripts VALUES (?, ?, ?)", (job_id, script, environ))

    def add_order(self, job_id: int, order: JobOrder) -> None:
        """Leave an order for a job's supervisor; `wake` makes it read the order."""
        self.execute("INSERT INTO orders (job_id, kind, value) VALUES (?, ?, ?)", (job_id, *encode_order(order)))

    def take_orders(self, job_id: int) -> list[tuple[str, str]]:
        """Return kind and value of the orders for a job, and delete the orders."""
        with self.transaction():
            rows = self.execute("SELECT kind, value FROM orders WHERE job_id = ? ORDER BY number", (job_id,)).fetchall()
            self.delete_orders(job_id)
        return [(row["kind"], row["value"]) for row in rows]

    def delete_orders(self, job_id: int) -> None:
        """Delete the orders for a job."""
        self.execute("DELETE FROM orders WHERE job_id = ?", (job_id,))

    def meta(self, name: str) -> str | None:
        """Return a stored value by name."""
        row = self.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        """Store a value by name."""
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def purge(self, moment: float) -> None:
        """Delete scripts of jobs that ended long ago, and the oldest finished jobs."""
        # Tasks of an array share its script, so the script stays until the last task is forgotten.
        over = "state NOT IN ('PENDING', 'RUNNING') AND NOT completing"
        forgotten = moment - self.settings.min_job_age
        live = f"SELECT coalesce(array_job_id, job_id) FROM jobs WHERE NOT ({over} AND end_time < ?)"
        self.execute(f"DELETE FROM scripts WHERE job_id NOT IN ({live})", (forgotten,))
        oldest = f"SELECT job_id FROM jobs WHERE {over} ORDER BY end_time DESC LIMIT -1 OFFSET ?"
        self.execute(f"DELETE FROM jobs WHERE job_id IN ({oldest})", (self.settings.max_jobs,))
        for table in ("steps", "orders"):
            self.execute(f"DELETE FROM {table} WHERE job_id NOT IN (SELECT job_id FROM jobs)")

    def _insert(self, table: str, values: Mapping[str, object]) -> None:
        names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", write_values(values))

    def _update(self, table: str, changes: Mapping[str, object], where: str, key: Iterable[object]) -> None:
        names = ", ".join(f'"{name}" = ?' for name in changes)
        self.execute(f"UPDATE {table} SET {names} WHERE {where}", [*write_values(changes), *key])


def _directory(settings: Settings, environ: Mapping[str, str]) -> Path:
    return (Path(settings.state) if settings.state else state_directory(environ)).absolute()


def queue_error(environ: Mapping[str, str], error: sqlite3.Error) -> StateError:
    """Return the error for a queue that cannot be read or written any more."""
    return state_error(_directory(load_settings(environ), environ), error)


def state_error(directory: Path, error: OSError | sqlite3.Error) -> StateError:
    """Return the error for a state directory that cannot be used."""
    if is_damaged(error):
        file = shlex.quote(str(directory / NAME))
        return StateError(
            "the queue of the embedded Slurm is damaged: no job starts and no command works until it is moved away",
            found=f"{directory / NAME}: {error}",
            remedy=f"jobs that run go on; when they are over: mv {file} {file}.damaged; rm -f {file}-wal {file}-shm\n"
            "then the queue is empty; files of runs, and logs, are elsewhere and stay",
        )
    if "locked" in str(error) or "busy" in str(error):
        return StateError(
            "the queue of the embedded Slurm is busy",
            found=f"{directory / NAME}: {error}",
            remedy="try it again; jobs that run go on",
        )
    what, found = "the embedded Slurm cannot use its state directory", f"{directory}: {error}"
    if is_full(directory, error):
        remedy = "free some space there: jobs that run go on"
        return StateError(what, found=f"{found}, no space left there", remedy=remedy)
    return StateError(what, found=found, remedy=f"set {STATE_VARIABLE} to a directory that only you may write")


def now() -> float:
    """Return the current time."""
    return time.time()
