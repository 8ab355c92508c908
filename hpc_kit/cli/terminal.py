"""Prints text that programs, exceptions and Slurm may have written: colours reach the terminal, nothing else does.

A terminal obeys escape sequences: they can change its title, overwrite lines, or make it type.
"""

from __future__ import annotations

import re

import click

_ESCAPES = (
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences: cursor, erase
    r"|\x1b[]P^_X][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings up to their end: title, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+"
"""Control characters, and those that reverse the order of the text that follows."""


def clean_text(text: str) -> str:
    """Return a text without control characters. Colours, tabs, line breaks and carriage returns stay."""
    if "\x1b" in text:
        text = re.sub(_ESCAPES, lambda match: match["colour"] or "", text)
    return re.sub(_CONTROLS, "", text)


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text to stdout or stderr. Colours are removed if that is no terminal."""
    click.echo(clean_text(text), nl=nl, err=err)
