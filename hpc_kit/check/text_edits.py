"""Edits that fix a finding: a text at a place of the script, and the text that replaces it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Replace a text. An edit whose old text does not stand at its place has no effect.

    Args:
        line: Line of the old text, from 1.
        column: Column of its first character, from 1.
        old: The text to replace; empty to insert one. It may contain the line break at the end of the line.
        new: The text that replaces it.
    """

    line: int
    column: int
    old: str
    new: str


def delete_line(lines: list[str], line: int) -> Edit:
    """Return the edit that removes a line."""
    return Edit(line, 1, lines[line - 1] + "\n", "")


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with all edits that apply, from its end to its beginning. Of two that overlap, the later wins.

    The edits are those of a text with line breaks of Unix. A text that keeps other ones gets no edit of a line break.
    """
    edits = list(edits)
    if any(edit.old == "\r\n" for edit in edits):
        text = text.replace("\r\n", "\n")
    elif "\r\n" in text:
        edits = [edit for edit in edits if "\n" not in edit.old + edit.new]
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = ((starts[edit.line - 1] + edit.column - 1, edit.old, edit.new) for edit in edits if edit.line > 0)
    places = sorted(dict.fromkeys(found), key=lambda place: (place[0], place[1] != ""))
    limit = len(text) + 1
    # From the end, so that the positions of earlier edits stay valid. Texts inserted at one place keep their order.
    for start, old, new in reversed(places):
        end = start + len(old)
        if end <= limit and text.startswith(old, start):
            text, limit = text[:start] + new + text[end:], start
    return text


def format_diff(before: str, after: str, name: str) -> str:
    """Return the differences of two texts as a unified diff; an empty string if there are none."""
    old, new = (text.removesuffix("\n").replace("\r", "^M").split("\n") for text in (before, after))
    return "\n".join(difflib.unified_diff(old, new, name, f"{name} (fixed)", lineterm="", n=1))
