"""What a report says of one run or one bench."""

from __future__ import annotations

from typing import NamedTuple


class Table(NamedTuple):
    """Rows of text; all but the `left` first columns are numbers."""

    caption: str
    heads: list[str]
    rows: list[list[str]]
    left: int = 1


class Text(NamedTuple):
    """A file, or what was printed; shown at once, or behind its title."""

    title: str
    text: str
    shown: bool = False


class Picture(NamedTuple):
    """A plot as an `<svg>` element, already escaped."""

    title: str
    svg: str


class Section(NamedTuple):
    """One run or one bench."""

    name: str
    title: str
    source: str
    """What tells it from another one of its title: its folder, its file."""

    headline: str
    """How it ended, in a sentence."""

    bad: bool
    """Whether it did not end well."""

    failure: Text | None
    """The rank that failed first, in its own words."""

    facts: list[tuple[str, str]]
    pictures: list[Picture]
    tables: list[Table]
    notes: list[str]
    texts: list[Text]
