"""The state directory: one SQLite file that every command, the controller and the supervisors read and write.

Nobody sends anybody anything but a byte that says "look": what is to be done stands in the file, so that it survives
whoever was to do it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hpc_kit.embedded.records import Job, Step
from hpc_kit.embedded.settings import CONF_VARIABLE, STATE_VARIABLE, Settings, load, state_directory
from hpc_kit.errors import AnswerNo, HpcKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

BUSY_SECONDS = 30.0
DATABASE = "slurm.db"
_IS_MADE = "SELECT 1 FROM sqlite_master WHERE name = 'meta'"
_JSON = frozenset({"options", "request", "arguments", "nodes", "cpus", "mem", "gpus", "tasks"})
_BOOL = frozenset({"batch", "requeue", "overlap", "completing"})
_JOB_COLUMNS = ", ".join(f'"{name}"' + " INTEGER PRIMARY KEY" * (name == "job_id") for name in Job._fields)
_STEP_COLUMNS = ", ".join(f'"{name}"' for name in Step._fields)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS jobs ({_JOB_COLUMNS});
CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state);
CREATE INDEX IF NOT EXISTS jobs_completing ON jobs (completing) WHERE completing;
CREATE INDEX IF NOT EXISTS jobs_array ON jobs (array_job_id);
CREATE INDEX IF NOT EXISTS jobs_end ON jobs (end_time);
CREATE TABLE IF NOT EXISTS steps ({_STEP_COLUMNS}, PRIMARY KEY (job_id, attempt, step_id));
CREATE TABLE IF NOT EXISTS scripts (job_id INTEGER PRIMARY KEY, script BLOB, environ BLOB);
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, job_id INTEGER, kind TEXT, value TEXT);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT);
"""


class Order(NamedTuple):
    """What a job's supervisor is told to do."""

    number: int
    kind: str
    value: str


class State:
    """An open state directory."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        self.conf = ""
        self._db: sqlite3.Connection | None = None

    def reload(self) -> None:
        """Take over settings that were changed since; a file that cannot be used changes nothing."""
        with contextlib.suppress(HpcKitError):
            self.settings = load({STATE_VARIABLE: str(self.directory), CONF_VARIABLE: self.conf})

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> State:
        """The state directory that the environment names, made where there is none.

        Raises:
            AnswerNo: It cannot be made or written.
        """
        settings = load(environ)
        directory = Path(settings.state) if settings.state else state_directory(environ)
        state = cls(directory.absolute(), settings)
        state.conf = environ.get(CONF_VARIABLE, "")
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)  # noqa: PTH103
            state._connect()
        except (OSError, sqlite3.Error) as error:
            raise AnswerNo(
                "the embedded Slurm cannot use its state directory",
                found=f"{directory}: {error}",
                remedy="set HPC_KIT_SLURM_STATE to a directory that you may write",
            ) from error
        return state

    def _connect(self) -> sqlite3.Connection:
        if self._db is None:
            path = self.directory / DATABASE
            old = os.umask(0o077)
            try:
                db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            finally:
                os.umask(old)
            db.row_factory = sqlite3.Row
            # Committed means on its way to the disk: no process's death loses it, only the machine's may.
            db.execute("PRAGMA synchronous = NORMAL")
            if not _retry(lambda: db.execute(_IS_MADE).fetchone()):
                _make(db, self.directory)
            self._db = db
        return self._db

    def is_cluster(self, names: str) -> bool:
        """Whether what --clusters names is this one."""
        return all(name in {self.settings.cluster, "all"} for name in names.split(","))

    def exists(self) -> bool:
        """Whether the file is still there; a directory may be taken away under our feet."""
        return (self.directory / DATABASE).exists()

    def close(self) -> None:
        """Let go of the file; it opens again by itself. A connection must not live through a fork."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else writes meanwhile."""
        db = self._connect()
        _retry(lambda: db.execute("BEGIN IMMEDIATE"))
        try:
            yield
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def execute(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        db = self._connect()
        return _retry(lambda: db.execute(sql, values))

    # Jobs

    def add_job(self, job: Job) -> None:
        """Enter a new job; its id comes from `next_job_id` in the same transaction."""
        self._insert("jobs", job._asdict())

    def next_job_id(self) -> int:
        """A number that no job had before."""
        number = int(self.meta("next_job_id") or "1")
        self.set_meta("next_job_id", str(number + 1))
        return number

    def job(self, job_id: int) -> Job | None:
        """One job, or an array's waiting tasks, by its own id."""
        return next(iter(self.jobs("job_id = ?", (job_id,))), None)

    def jobs(self, where: str = "1", values: Sequence[object] = (), order: str = "job_id") -> list[Job]:
        """The jobs that a condition holds for, by id or in another order."""
        rows = self.execute(f"SELECT * FROM jobs WHERE {where} ORDER BY {order}", values)  # noqa: S608
        return [Job(**_decode(row)) for row in rows]

    def active_jobs(self) -> list[Job]:
        """Every job that is not over."""
        return self.jobs("state IN ('PENDING', 'RUNNING') OR completing")

    def update_job(self, job_id: int, **changes: object) -> None:
        """Change some columns of a job."""
        self._update("jobs", changes, "job_id = ?", (job_id,))

    # Steps

    def steps(self, job_id: int, *, attempt: int | None = None) -> list[Step]:
        """The steps of a job's present (or another) attempt, by number; the batch script is -1."""
        sql = "SELECT * FROM steps WHERE job_id = ?1 AND attempt = coalesce(?2, (SELECT attempt FROM jobs WHERE job_id = ?1))"
        rows = self.execute(f"{sql} ORDER BY step_id", (job_id, attempt))
        return [Step(**_decode(row)) for row in rows]

    def next_step_id(self, job_id: int) -> int:
        """The number of a job's next step; in one transaction with `add_step`."""
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

    # Scripts, orders and odds and ends

    def script(self, job_id: int) -> tuple[bytes, bytes]:
        """The batch script and the environment (`NAME=value\\0`...) that a job, or an array by its id, came with."""
        row = self.execute("SELECT script, environ FROM scripts WHERE job_id = ?", (job_id,)).fetchone()
        return (row["script"], row["environ"]) if row else (b"", b"")

    def add_script(self, job_id: int, script: bytes, environ: bytes) -> None:
        """Keep what a job came with."""
        self.execute("INSERT OR REPLACE INTO scripts VALUES (?, ?, ?)", (job_id, script, environ))

    def order(self, job_id: int, kind: str, value: str = "") -> None:
        """Leave an order for a job's supervisor; it looks when `wake.supervisor` is called."""
        self.execute("INSERT INTO orders (job_id, kind, value) VALUES (?, ?, ?)", (job_id, kind, value))

    def take_orders(self, job_id: int) -> list[Order]:
        """The orders for a job, each given out once."""
        with self.transaction():
            rows = self.execute("SELECT * FROM orders WHERE job_id = ? ORDER BY number", (job_id,)).fetchall()
            self.execute("DELETE FROM orders WHERE job_id = ?", (job_id,))
        return [Order(row["number"], row["kind"], row["value"]) for row in rows]

    def meta(self, name: str) -> str | None:
        """A value kept by name."""
        row = self.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        """Keep a value by name."""
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def purge(self, moment: float) -> None:
        """Forget scripts of jobs long over, and the oldest finished jobs."""
        over = "state NOT IN ('PENDING', 'RUNNING') AND NOT completing"
        forgotten = moment - self.settings.min_job_age
        live = f"SELECT job_id FROM jobs WHERE NOT ({over} AND end_time < ?1) UNION SELECT array_job_id FROM jobs WHERE NOT ({over} AND end_time < ?1) AND array_job_id"
        self.execute(f"DELETE FROM scripts WHERE job_id NOT IN ({live})", (forgotten,))
        oldest = f"SELECT job_id FROM jobs WHERE {over} ORDER BY end_time DESC LIMIT -1 OFFSET ?"
        self.execute(f"DELETE FROM jobs WHERE job_id IN ({oldest})", (self.settings.max_jobs,))
        self.execute("DELETE FROM steps WHERE job_id NOT IN (SELECT job_id FROM jobs)")

    def _insert(self, table: str, values: Mapping[str, object]) -> None:
        names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", _encode(values))  # noqa: S608

    def _update(self, table: str, changes: Mapping[str, object], where: str, key: Iterable[object]) -> None:
        names = ", ".join(f'"{name}" = ?' for name in changes)
        self.execute(f"UPDATE {table} SET {names} WHERE {where}", [*_encode(changes), *key])  # noqa: S608


def now() -> float:
    """The time, as records have it."""
    return time.time()


def _make(db: sqlite3.Connection, directory: Path) -> None:
    """Make the tables; under a lock, for the journal's mode can only be changed while nobody else is there."""
    lock = os.open(directory / "slurm.db.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _retry(lambda: db.execute(_IS_MADE).fetchone()):
            _retry(lambda: db.execute("PRAGMA journal_mode = WAL"))
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    finally:
        os.close(lock)


def _retry(action: Callable[[], T]) -> T:
    """Again while the file is locked: SQLite does not wait by itself where the last one to leave clears up."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _encode(values: Mapping[str, object]) -> list[object]:
    return [json.dumps(value) if name in _JSON else value for name, value in values.items()]


def _decode(row: sqlite3.Row) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in row.keys():  # noqa: SIM118 - a Row is no mapping
        value = row[name]
        values[name] = json.loads(value) if name in _JSON else bool(value) if name in _BOOL else value
    return values
