"""Collects the rows of a measurement, keeps its files up to date and reports progress.

A benchmark fills in a `Recorder`: a `FileRecorder` in the process of the command line, or in a rank one that sends each
call as a line of JSON to the `FileRecorder`.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from hpc_kit import __version__
from hpc_kit.bench import machine
from hpc_kit.bench.machine import MeasuredHost
from hpc_kit.bench.results import BenchResult, Column, Plot, ResultRow, Value, summarize

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


class Recorder:
    """Receives the results of a benchmark. Each method is one call of `record`.

    Args:
        record: Called with the name of the method and its argument.
    """

    def __init__(self, record: Callable[[str, Any], None]) -> None:
        self.record = record

    def expect_rows(self, rows: int) -> None:
        """Announce how many times a row will be put."""
        self.record("expect_rows", rows)

    def report_progress(self, what: str) -> None:
        """Report the current measurement."""
        self.record("report_progress", what)

    def put_row(self, row: ResultRow) -> None:
        """Add a row, or replace the row with the same labels."""
        self.record("put_row", row)

    def add_note(self, text: str) -> None:
        """Add a sentence below the table."""
        self.record("add_note", text)

    def note_missing(self, what: str, why: str) -> None:
        """Note something that could not be measured."""
        self.record("note_missing", (what, why))

    def add_plot(self, plot: Plot) -> None:
        """Add a plot."""
        self.record("add_plot", plot)

    def set_hosts(self, hosts: Sequence[MeasuredHost]) -> None:
        """Set the hosts that take part, instead of the host of the command line."""
        self.record("set_hosts", tuple(hosts))

    def set_version(self, name: str, value: str) -> None:
        """Add a version that the command line cannot find, such as NCCL's."""
        self.record("set_version", (name, value))

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
        save: Called with the result after each row; the result is marked as interrupted until the end.
        print_progress: Called with each progress line.
        load_seconds: Seconds to measure the load by other work, before and after.
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
        self._expected: int | None = None
        self._put_count = 0
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

    def _change(self, kind: str, value: Any) -> None:
        """Change the result; save it after a row or a missing part."""
        document = self._document
        match kind:
            case "expect_rows":
                self._expected = value
            case "report_progress":
                total = f"/{self._expected}" if self._expected else ""
                seconds = time.monotonic() - self._begun
                self._print_progress(f"{self._put_count + 1}{total}  {value}  ({seconds:.0f} s)")
            case "put_row":
                rows = document.results
                index = next((index for index, row in enumerate(rows) if row.labels == value.labels), len(rows))
                # Replaces the row, or appends one at the end.
                rows[index : index + 1] = [value]
                self._put_count += 1
                self._save(document)
            case "add_note":
                document.notes.append(value)
            case "note_missing":
                document.missing.append(value[0])
                document.notes.append(": ".join(value))
                self._save(document)
            case "add_plot":
                document.plots.append(value)
            case "set_hosts":
                self._set(machine=structs.replace(document.machine, hosts=value))
            case "set_version":
                document.machine.versions[value[0]] = value[1]

    def close(self, *, interrupted: bool = False) -> BenchResult:
        """Measure the load again and return the finished result."""
        # Only this host can be measured now: the ranks on the other hosts have ended.
        first, *others = self._document.machine.hosts
        self.set_hosts((structs.replace(first, after=machine.measure_load(self._load_seconds)), *others))
        self._set(ended=_now(), interrupted=interrupted)
        self._save(self._document)
        return self._document

    def _set(self, **fields: Any) -> None:
        self._document = structs.replace(self._document, **fields)


def pipe_recorder(write_line: Callable[[str], None]) -> Recorder:
    """Return the recorder of a rank, which writes each call as a line for `apply_line`."""
    return Recorder(lambda kind, value: write_line(msgspec.json.encode([kind, value]).decode()))


def recorder_of_rank(recorder: Recorder, world: Group) -> Recorder:
    """Return the recorder on rank 0. On all other ranks, return one that ignores every call."""
    return recorder if world.is_main else Recorder(lambda _kind, _value: None)


_ARGUMENTS: dict[str, Any] = {
    "expect_rows": int,
    "put_row": ResultRow,
    "note_missing": tuple[str, str],
    "add_plot": Plot,
    "set_hosts": tuple[MeasuredHost, ...],
    "set_version": tuple[str, str],
}
"""Types of the arguments; all other calls have text."""


def apply_line(line: str, recorder: Recorder) -> None:
    """Apply a line of a `pipe_recorder` to a recorder.

    Raises:
        msgspec.MsgspecError: The line is no such call.
    """
    kind, value = msgspec.json.decode(line, type=tuple[str, Any])
    recorder.record(kind, msgspec.convert(value, _ARGUMENTS.get(kind, str)))


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
