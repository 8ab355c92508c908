"""Prints text that programs, exceptions and Slurm may have written: colours reach the terminal, nothing else does.

A terminal obeys escape sequences: they can change its title, overwrite lines, or make it type.
"""

from __future__ import annotations

import os
import re
import sys

import click

READER_GONE = "hpc_kit.reader_gone"
"""Key in click's `meta`: the exit status after the reader of the output (head, less) has closed the pipe, or GO_ON."""

PIPE_CLOSED = 141
"""Exit status of a command that cannot tell how the job ended: 128 + SIGPIPE, as a shell shows it."""

GO_ON = -1
"""The command goes on without output, and has its own exit status."""

_ESCAPES = (
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # other control sequences: cursor, erase; one that was cut
    r"|\x1b[]P^_X][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings up to their end: title, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
_OPEN_COLOUR = r"\x1b\[(?!(?:[0-9];)*0*m)[0-9;:]+m[^\x1b]*\Z"
"""The end of a text from its last colour, if that is no reset."""
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+"
"""Control characters, and those that reverse the order of the text that follows."""


def clean_text(text: str) -> str:
    """Return a text without control characters. Colours, tabs, line breaks and carriage returns stay.

    The text ends in the colour of the terminal: a program may have been stopped, or its line cut, in another one.
    """
    if "\x1b" in text:
        text = re.sub(_ESCAPES, lambda match: match["colour"] or "", text)
        if re.search(_OPEN_COLOUR, text):
            last = len(text.rstrip("\r\n"))
            text = f"{text[:last]}\x1b[0m{text[last:]}"
    return re.sub(_CONTROLS, "", text)


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text to stdout or stderr. Colours are removed if that is no terminal."""
    try:
        click.echo(clean_text(text), nl=nl, err=err)
    except BrokenPipeError:
        context = click.get_current_context(silent=True)
        if err or context is None or context.meta.get(READER_GONE) != GO_ON:
            raise
        discard_output()


def discard_output() -> None:
    """Write later output to /dev/null, after its reader has closed the pipe."""
    # As the documentation of Python's SIGPIPE shows: otherwise the flush at exit fails again.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
