"""Collects the rows of a measurement, keeps its files up to date and reports progress.

A benchmark fills in a `Recorder`: a `FileRecorder` in the process of the command line, or a `PipeRecorder` in a rank,
which sends each call as a line of JSON to the `FileRecorder`.
"""

from __future__ import annotations

import datetime as dt
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from hpc_kit import __version__
from hpc_kit.bench import machine
from hpc_kit.bench.machine import Host
from hpc_kit.bench.results import BenchResult, Column, Plot, ResultRow, Value, summarize


class Recorder(ABC):
    """Interface that a benchmark fills in."""

    @abstractmethod
    def expect_rows(self, rows: int) -> None:
        """Announce how many times a row will be put."""

    @abstractmethod
    def report_progress(self, what: str) -> None:
        """Report the current measurement."""

    @abstractmethod
    def put_row(self, row: ResultRow) -> None:
        """Add a row, or replace the row with the same labels."""

    @abstractmethod
    def add_note(self, text: str) -> None:
        """Add a sentence below the table."""

    @abstractmethod
    def note_missing(self, what: str, why: str) -> None:
        """Note something that could not be measured."""

    @abstractmethod
    def add_plot(self, plot: Plot) -> None:
        """Add a plot."""

    @abstractmethod
    def set_hosts(self, hosts: Sequence[Host]) -> None:
        """Set the hosts that take part, instead of the host of the command line."""

    @abstractmethod
    def set_version(self, name: str, value: str) -> None:
        """Add a version that the command line cannot find, such as NCCL's."""

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
    """Recorder that builds the result.

    Args:
        bench: Name of the benchmark.
        title: One line on the measured quantity.
        columns: Quantities of the rows.
        parameters: Options of the benchmark.
        command: Command line that repeats the measurement.
        keep: Called with the result after each row; the result is marked as interrupted until the end.
        tell: Called with each progress line.
        look: Seconds to measure the load by other work, before and after.
    """

    def __init__(
        self,
        bench: str,
        *,
        title: str,
        columns: Mapping[str, Column],
        parameters: Mapping[str, object],
        command: Sequence[str] = (),
        keep: Callable[[BenchResult], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
        look: float = machine.LOAD_SECONDS,
    ) -> None:
        self._keep, self._tell, self._look = keep, tell, look
        self._expected: int | None = None
        self._puts = 0
        self._begun = time.monotonic()
        self._document = BenchResult(
            bench=bench,
            title=title,
            command=list(command),
            started=_now(),
            machine=machine.describe_machine(machine.describe_this_host(look)),
            columns=dict(columns),
            parameters=dict(parameters),
            hpc_kit=__version__,
        )

    @property
    def rows(self) -> Sequence[ResultRow]:
        """Rows so far."""
        return self._document.results

    def expect_rows(self, rows: int) -> None:
        """Implement `Recorder.expect_rows`."""
        self._expected = rows

    def report_progress(self, what: str) -> None:
        """Implement `Recorder.report_progress`."""
        number = self._puts + 1
        of = f"/{self._expected}" if self._expected else ""
        self._tell(f"{number}{of}  {what}  ({time.monotonic() - self._begun:.0f} s)")

    def put_row(self, row: ResultRow) -> None:
        """Implement `Recorder.put_row` and save the result."""
        rows = self._document.results
        place = next((place for place, each in enumerate(rows) if each.labels == row.labels), len(rows))
        rows[place : place + 1] = [row]
        self._puts += 1
        self._keep(self._document)

    def add_note(self, text: str) -> None:
        """Implement `Recorder.add_note`."""
        self._document.notes.append(text)

    def note_missing(self, what: str, why: str) -> None:
        """Implement `Recorder.note_missing` and save the result."""
        self._document.missing.append(what)
        self._document.notes.append(f"{what}: {why}")
        self._keep(self._document)

    def add_plot(self, plot: Plot) -> None:
        """Implement `Recorder.add_plot`."""
        self._document.plots.append(plot)

    def set_hosts(self, hosts: Sequence[Host]) -> None:
        """Implement `Recorder.set_hosts`."""
        self._set(machine=structs.replace(self._document.machine, hosts=tuple(hosts)))

    def set_version(self, name: str, value: str) -> None:
        """Implement `Recorder.set_version`."""
        self._document.machine.versions[name] = value

    def close(self, *, interrupted: bool = False) -> BenchResult:
        """Measure the load again and return the finished result."""
        first, *others = self._document.machine.hosts
        self.set_hosts((structs.replace(first, after=machine.measure_load(self._look)), *others))
        self._set(ended=_now(), interrupted=interrupted)
        self._keep(self._document)
        return self._document

    def _set(self, **fields: Any) -> None:
        self._document = structs.replace(self._document, **fields)


class PipeRecorder(Recorder):
    """Recorder of a rank that writes each call as a line for `apply_line`.

    Args:
        say: Called with each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say_line = say

    def _say(self, *words: object) -> None:
        self._say_line(msgspec.json.encode(words).decode())

    def expect_rows(self, rows: int) -> None:
        """Implement `Recorder.expect_rows`."""
        self._say("expect_rows", rows)

    def report_progress(self, what: str) -> None:
        """Implement `Recorder.report_progress`."""
        self._say("report_progress", what)

    def put_row(self, row: ResultRow) -> None:
        """Implement `Recorder.put_row`."""
        self._say("put_row", row)

    def add_note(self, text: str) -> None:
        """Implement `Recorder.add_note`."""
        self._say("add_note", text)

    def note_missing(self, what: str, why: str) -> None:
        """Implement `Recorder.note_missing`."""
        self._say("note_missing", what, why)

    def add_plot(self, plot: Plot) -> None:
        """Implement `Recorder.add_plot`."""
        self._say("add_plot", plot)

    def set_hosts(self, hosts: Sequence[Host]) -> None:
        """Implement `Recorder.set_hosts`."""
        self._say("set_hosts", tuple(hosts))

    def set_version(self, name: str, value: str) -> None:
        """Implement `Recorder.set_version`."""
        self._say("set_version", name, value)


_ARGUMENT_TYPES: dict[str, tuple[object, ...]] = {
    "expect_rows": (int,),
    "report_progress": (str,),
    "put_row": (ResultRow,),
    "add_note": (str,),
    "note_missing": (str, str),
    "add_plot": (Plot,),
    "set_hosts": (tuple[Host, ...],),
    "set_version": (str, str),
}


def apply_line(line: str, recorder: Recorder) -> None:
    """Apply a line of a `PipeRecorder` to a recorder.

    Raises:
        msgspec.MsgspecError: It is no line of `Told`.
    """
    name, *values = msgspec.json.decode(line, type=list[Any])
    given = (msgspec.convert(value, kind) for value, kind in zip(values, _ARGUMENT_TYPES[name], strict=True))
    getattr(recorder, name)(*given)


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
