"""How a value is written into a script, by place: the filters that every `{{ value }}` of a template must end in.

An #SBATCH line is read by Slurm's parser, which knows quotes and backslashes and expands nothing; everything below
is read by bash. A value quoted for one of them is wrong in the other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from hpc_kit.errors import TemplateError

_PLAIN = re.compile(r"[\w@%+=:,./\[\]*&|()!<>?^~{}-]*\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def directive(value: object) -> str:
    """A value for an #SBATCH line.

    Raises:
        TemplateError: It holds a line break or another control character: no quoting carries that through.
    """
    text = str(value)
    if _CONTROL.search(text):
        raise TemplateError(
            "a directive cannot hold a line break or control character", found=repr(text), remedy="text on one line"
        )
    if text and _PLAIN.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def sh(value: object) -> str:
    """A word for bash that expands to just this text.

    Raises:
        TemplateError: It holds a NUL byte, which no argument and no variable can.
    """
    text = str(value)
    if "\0" in text:
        raise TemplateError("a shell word cannot hold a NUL byte", found=repr(text), remedy="text without it")
    if re.search(r"[$`]", text):
        # Single quotes would do; but there shellcheck takes every `$` for one that was meant to be expanded.
        return '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"'
    return shlex.quote(text)


def pasted(words: Iterable[str]) -> str:
    """A command line that a person copies into bash: on one line, and safe from the history's `!`."""
    return " ".join(_ansi(word) if _CONTROL.search(word) else shlex.quote(word) for word in words)


def _ansi(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "$'" + _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", escaped) + "'"


def comment(value: object) -> str:
    """Text behind a `#`: on one line, whatever it holds."""
    return _CONTROL.sub(" ", str(value))


def verbatim(value: object) -> str:
    """Shell that the user wrote as shell (the `setup` lines), or text that a template made itself."""
    return str(value)


FILTERS = {"directive": directive, "sh": sh, "comment": comment, "verbatim": verbatim}
