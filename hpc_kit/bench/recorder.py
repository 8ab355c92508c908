"""Collects the rows of a measurement, keeps its files up to date and reports progress.

A benchmark fills in a `Recorder`: a `FileRecorder` in the process of the command line, or in a rank one that sends each
change as a line of JSON to the `FileRecorder`.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from hpc_kit import __version__
from hpc_kit.bench import machine
from hpc_kit.bench.machine import MeasuredHost
from hpc_kit.bench.results import BenchResult, Column, Plot, ResultRow, Value, summarize
from hpc_kit.errors import JobFailed

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a result: the fields that are given."""

    expected_rows: int = 0
    progress: str = ""
    row: ResultRow | None = None
    note: str = ""
    missing: str = ""
    plot: Plot | None = None
    hosts: tuple[MeasuredHost, ...] = ()
    versions: dict[str, str] = {}


class Recorder:
    """Receives the results of a benchmark, and calls `record` with each change."""

    def __init__(self, record: Callable[[Change], None]) -> None:
        self.record = record

    def expect_rows(self, rows: int) -> None:
        """Announce how many more times a row will be put."""
        self.record(Change(expected_rows=rows))

    def report_progress(self, what: str) -> None:
        """Report the current measurement."""
        self.record(Change(progress=what))

    def put_row(self, row: ResultRow) -> None:
        """Add a row, or replace the row with the same labels."""
        self.record(Change(row=row))

    def add_note(self, text: str) -> None:
        """Add a sentence below the table."""
        self.record(Change(note=text))

    def note_missing(self, what: str, why: str) -> None:
        """Note something that could not be measured."""
        self.record(Change(missing=what, note=f"{what}: {why}"))

    def add_plot(self, plot: Plot) -> None:
        """Add a plot."""
        self.record(Change(plot=plot))

    def set_hosts(self, hosts: Sequence[MeasuredHost]) -> None:
        """Set the hosts that take part, instead of the host of the command line."""
        self.record(Change(hosts=tuple(hosts)))

    def set_version(self, name: str, value: str) -> None:
        """Add a version that the command line cannot find, such as NCCL's."""
        self.record(Change(versions={name: value}))

    def add_row(self, labels: Mapping[str, Value], *, warmup: int = 0, **values: float | Sequence[float]) -> ResultRow:
        """Add a row; a list of repeats becomes its median and spread, a number stays as it is."""
        row = ResultRow(labels=dict(labels), values={}, spread={})
        for name, value in values.items():
            if isinstance(value, Sequence):
                row.values[name], row.spread[name] = summarize(value, warmup)
            else:
                row.values[name] = float(value)
        self.put_row(row)
        return row


class FileRecorder(Recorder):
    """Recorder that builds the result. `command` is the command line that repeats the measurement.

    `save` is called with the result after each row; the result is marked as interrupted until the end. The load by
    other work is measured for `load_seconds`, before and after.
    """

    def __init__(
        self,
        bench: str,
        *,
        title: str,
        columns: Mapping[str, Column],
        parameters: Mapping[str, object],
        command: Sequence[str] = (),
        save: Callable[[BenchResult], None] = lambda _: None,
        print_progress: Callable[[str], None] = lambda _: None,
        load_seconds: float = machine.LOAD_SECONDS,
    ) -> None:
        super().__init__(self._change)
        self._save, self._print_progress, self._load_seconds = save, print_progress, load_seconds
        self._expected = self._put_count = 0
        self._begun = time.monotonic()
        self._document = BenchResult(
            bench=bench,
            title=title,
            command=list(command),
            started=_now(),
            machine=machine.describe_machine(machine.describe_this_host(load_seconds)),
            columns=dict(columns),
            parameters=dict(parameters),
            hpc_kit=__version__,
        )

    @property
    def rows(self) -> Sequence[ResultRow]:
        """Rows so far."""
        return self._document.results

    def _change(self, change: Change) -> None:
        """Change the result; save it after a row or a missing part."""
        document = self._document
        self._expected += change.expected_rows
        if change.progress:
            total, seconds = f"/{self._expected}" if self._expected else "", time.monotonic() - self._begun
            self._print_progress(f"{self._put_count + 1}{total}  {change.progress}  ({seconds:.0f} s)")
        if change.row:
            rows = document.results
            index = next((index for index, row in enumerate(rows) if row.labels == change.row.labels), len(rows))
            # Replaces the row, or appends one at the end.
            rows[index : index + 1] = [change.row]
            self._put_count += 1
        document.notes += [change.note] if change.note else []
        document.missing += [change.missing] if change.missing else []
        document.plots += [change.plot] if change.plot else []
        document.machine.versions.update(change.versions)
        if change.hosts:
            document.machine = structs.replace(document.machine, hosts=change.hosts)
        if change.row or change.missing:
            self._save(document)

    def close(self, *, interrupted: bool = False) -> BenchResult:
        """Measure the load again and return the finished result."""
        document = self._document
        # Only this host can be measured now: the ranks on the other hosts have ended.
        first, *others = document.machine.hosts
        self.set_hosts((structs.replace(first, after=machine.measure_load(self._load_seconds)), *others))
        document.ended, document.interrupted = _now(), interrupted
        self._save(document)
        return document


def pipe_recorder(write_line: Callable[[str], None]) -> Recorder:
    """Return the recorder of a rank, which writes each change as a line for `apply_line`."""
    return Recorder(lambda change: write_line(msgspec.json.encode(change).decode()))


def recorder_of_rank(recorder: Recorder, world: Group) -> tuple[Recorder, list[str]]:
    """Return the recorder of this rank, and the host of each rank. Every rank must call this collective.

    The recorder of rank 0 gets the hosts. That of all other ranks ignores every change.
    """
    hosts, names = machine.gather_hosts(world)
    recorder = recorder if world.is_main else Recorder(lambda _change: None)
    recorder.set_hosts(hosts)
    return recorder, names


def measure_in_turns(recorder: Recorder, names: Iterable[str], repeats: int, measure: Callable[[str], None]) -> None:
    """Measure each name several times, in turns, so that a drift of the machine's speed affects all alike.

    A name for which `measure` raises JobFailed is noted as missing and not measured again.
    """
    remaining = list(names)
    for number in range(repeats):
        for name in tuple(remaining):
            recorder.report_progress(f"{name}, {number + 1} of {repeats}")
            try:
                measure(name)
            except JobFailed as error:
                recorder.note_missing(name, str(error))
                remaining.remove(name)


def apply_line(line: str, recorder: Recorder) -> None:
    """Apply a line of a `pipe_recorder` to a recorder.

    Raises:
        msgspec.MsgspecError: The line is no change.
    """
    recorder.record(msgspec.json.decode(line, type=Change))


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
