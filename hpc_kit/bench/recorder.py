"""One measurement on its way: rows come in, files are kept up to date, the reader is told how far it is.

A bench fills in a `Sheet` and need not know which: `Kept` where the command line runs, `Told` in a rank that it has
started, whose every word goes to the `Kept` over there, a line of JSON each.
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
from hpc_kit.bench.results import Column, Document, Plot, Row, Value
from hpc_kit.bench.sample import summary


class Sheet(ABC):
    """What a bench fills in."""

    @abstractmethod
    def expect(self, rows: int) -> None:
        """Say how many times a row will be put."""

    @abstractmethod
    def doing(self, what: str) -> None:
        """Tell what is measured now."""

    @abstractmethod
    def put(self, row: Row) -> None:
        """Add a row, or put it in place of the one with the same labels: with a repeat more."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Add a sentence below the table."""

    @abstractmethod
    def miss(self, what: str, why: str) -> None:
        """Mark the document: something that was asked for could not be measured."""

    @abstractmethod
    def plot(self, plot: Plot) -> None:
        """Add a picture."""

    @abstractmethod
    def hosts(self, hosts: Sequence[Host]) -> None:
        """The hosts that take part, in place of the one where the command line runs."""

    @abstractmethod
    def version(self, name: str, value: str) -> None:
        """A version that the command line does not know: NCCL's."""

    def add(self, labels: Mapping[str, Value], *, warmup: int = 0, **values: float | Sequence[float]) -> Row:
        """Add a row; of a list of repeats the median is taken, with its spread, and a number stays as it is."""
        row = Row(labels=dict(labels), values={}, spread={})
        for name, value in values.items():
            if isinstance(value, Sequence):
                row.values[name], row.spread[name] = summary(value, warmup)
            else:
                row.values[name] = float(value)
        self.put(row)
        return row


class Kept(Sheet):
    """The sheet that becomes the document.

    Args:
        bench: The bench's name.
        title: What it measures, in a line.
        columns: The quantities that its rows will have.
        parameters: What was asked for.
        command: The command line, to make it again.
        keep: Is handed the document after each row; it is marked as interrupted until the end.
        tell: Is handed a line on how far it is.
        look: Seconds to look how busy the host is with other things, before and after.
    """

    def __init__(
        self,
        bench: str,
        *,
        title: str,
        columns: Mapping[str, Column],
        parameters: Mapping[str, object],
        command: Sequence[str] = (),
        keep: Callable[[Document], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
        look: float = machine.LOOK_SECONDS,
    ) -> None:
        self._keep, self._tell, self._look = keep, tell, look
        self._expected: int | None = None
        self._puts = 0
        self._begun = time.monotonic()
        self._document = Document(
            bench=bench,
            title=title,
            command=list(command),
            started=_now(),
            machine=machine.of_hosts(machine.this_host(look)),
            columns=dict(columns),
            parameters=dict(parameters),
            hpc_kit=__version__,
        )

    @property
    def rows(self) -> Sequence[Row]:
        """The rows until now."""
        return self._document.results

    def expect(self, rows: int) -> None:
        """As in `Sheet`."""
        self._expected = rows

    def doing(self, what: str) -> None:
        """As in `Sheet`."""
        number = self._puts + 1
        of = f"/{self._expected}" if self._expected else ""
        self._tell(f"{number}{of}  {what}  ({time.monotonic() - self._begun:.0f} s)")

    def put(self, row: Row) -> None:
        """As in `Sheet`; what is there is kept at once."""
        rows = self._document.results
        place = next((place for place, each in enumerate(rows) if each.labels == row.labels), len(rows))
        rows[place : place + 1] = [row]
        self._puts += 1
        self._keep(self._document)

    def note(self, text: str) -> None:
        """As in `Sheet`."""
        self._document.notes.append(text)

    def miss(self, what: str, why: str) -> None:
        """As in `Sheet`; kept at once."""
        self._document.missing.append(what)
        self._document.notes.append(f"{what}: {why}")
        self._keep(self._document)

    def plot(self, plot: Plot) -> None:
        """As in `Sheet`."""
        self._document.plots.append(plot)

    def hosts(self, hosts: Sequence[Host]) -> None:
        """As in `Sheet`."""
        self._set(machine=structs.replace(self._document.machine, hosts=tuple(hosts)))

    def version(self, name: str, value: str) -> None:
        """As in `Sheet`."""
        self._document.machine.versions[name] = value

    def close(self, *, interrupted: bool = False) -> Document:
        """The whole, with how busy this host is afterwards."""
        first, *others = self._document.machine.hosts
        self.hosts((structs.replace(first, after=machine.load(self._look)), *others))
        self._set(ended=_now(), interrupted=interrupted)
        self._keep(self._document)
        return self._document

    def _set(self, **fields: Any) -> None:
        self._document = structs.replace(self._document, **fields)


class Told(Sheet):
    """The sheet of a rank: whatever is filled in is said as a line, which `hear` reads.

    Args:
        say: Is handed each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say_line = say

    def _say(self, *words: object) -> None:
        self._say_line(msgspec.json.encode(words).decode())

    def expect(self, rows: int) -> None:
        """As in `Sheet`."""
        self._say("expect", rows)

    def doing(self, what: str) -> None:
        """As in `Sheet`."""
        self._say("doing", what)

    def put(self, row: Row) -> None:
        """As in `Sheet`."""
        self._say("put", row)

    def note(self, text: str) -> None:
        """As in `Sheet`."""
        self._say("note", text)

    def miss(self, what: str, why: str) -> None:
        """As in `Sheet`."""
        self._say("miss", what, why)

    def plot(self, plot: Plot) -> None:
        """As in `Sheet`."""
        self._say("plot", plot)

    def hosts(self, hosts: Sequence[Host]) -> None:
        """As in `Sheet`."""
        self._say("hosts", tuple(hosts))

    def version(self, name: str, value: str) -> None:
        """As in `Sheet`."""
        self._say("version", name, value)


_HEARD: dict[str, tuple[object, ...]] = {
    "expect": (int,),
    "doing": (str,),
    "put": (Row,),
    "note": (str,),
    "miss": (str, str),
    "plot": (Plot,),
    "hosts": (tuple[Host, ...],),
    "version": (str, str),
}


def hear(line: str, sheet: Sheet) -> None:
    """Fill in what a rank has said.

    Raises:
        msgspec.MsgspecError: It is no line of `Told`.
    """
    name, *values = msgspec.json.decode(line, type=list[Any])
    given = (msgspec.convert(value, kind) for value, kind in zip(values, _HEARD[name], strict=True))
    getattr(sheet, name)(*given)


def _now() -> str:
    return dt.datetime.now().astimezone().isoformat(timespec="seconds")
