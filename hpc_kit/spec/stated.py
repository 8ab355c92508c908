"""What a program says of its own options: read from its source, which is not run.

The programs of jobs/train, and those copied from them, say each option once, in a field of a class below `Options`:

    pp: int | None = option(None, count, "ranks in a row")
    zero: int = option(1, among(1), "the stage")

So what a job leaves to its program is known before the queue, without torch.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

MARK = "from options import"
"""Who has such options imports them; other programs are not read any further."""


class Option(NamedTuple):
    """What holds where the option is not given, None: nothing; and the numbers that it takes, none: any."""

    default: object
    among: tuple[int, ...] = ()


class Stated(NamedTuple):
    """A program's options, and what its command gives of them; nothing of one that does not say them in this way."""

    file: str
    path: Path
    options: Mapping[str, Option] = {}
    given: Mapping[str, str] = {}


def stated(command: Sequence[str], folder: Path) -> Stated:
    """What the program of a command says of its options.

    Args:
        command: `python FILE WORDS`.
        folder: Where the job runs.
    """
    interpreter, file, *words = [*command, "", ""]
    path = folder / file
    if not PurePath(interpreter).name.startswith("python") or not file.endswith(".py"):
        return Stated(file, path)
    options = options_of(path)
    return Stated(file, path, options, _given(words, options))


def options_of(file: Path) -> dict[str, Option]:
    """The options of a program by field; empty where it has none of this kind, is not there, or some cannot be read."""
    if (module := _module(file)) is not None:
        for node in ast.walk(module):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=kind), attr="parse")):
                    with suppress(_UnreadableError):
                        return _fields(kind, file, frozenset())
    return {}


class _UnreadableError(Exception):
    """A class, or one of its fields, is written in another way: what it has besides is not known."""


def _fields(kind: str, file: Path, seen: frozenset[tuple[str, Path]]) -> dict[str, Option]:
    """The options in a class and in those below it; one that is imported is looked for beside the file.

    Raises:
        _UnreadableError: The class is not there, or some of it is written in another way.
    """
    module = _module(file)
    if module is None or (kind, file) in seen:
        raise _UnreadableError
    seen |= {(kind, file)}
    for node in module.body:
        match node:
            case ast.ImportFrom(module=str(other), names=names):
                for each in names:
                    if kind == (each.asname or each.name):
                        return _fields(each.name, file.with_name(f"{other}.py"), seen)
            case ast.ClassDef(name=name, bases=bases, body=body) if name == kind:
                below = [_fields(base, file, seen) for base in _names(bases)]
                fields = (line for line in body if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call))
                return dict(ChainMap(dict(map(_option, fields)), *below))
    raise _UnreadableError


def _names(bases: Sequence[ast.expr]) -> Iterator[str]:
    for base in bases:
        if not isinstance(base, ast.Name):
            raise _UnreadableError
        yield base.id


def _option(line: ast.AnnAssign) -> tuple[str, Option]:
    """Name and option of a field."""
    match line:
        case ast.AnnAssign(
            target=ast.Name(id=name),
            value=ast.Call(func=ast.Name(id="option"), args=[ast.Constant(default), reader, *_]),
        ):
            match reader:
                case ast.Call(func=ast.Name(id="among"), args=numbers):
                    return name, Option(default, tuple(_numbers(numbers)))
            return name, Option(default)
    raise _UnreadableError


def _numbers(words: Sequence[ast.expr]) -> Iterator[int]:
    for word in words:
        if isinstance(word, ast.Constant) and isinstance(word.value, int):
            yield word.value


def _module(file: Path) -> ast.Module | None:
    """The source, read; None where it cannot be, or has no such options."""
    try:
        text = file.read_text(encoding="utf-8")
        return _parsed(text) if MARK in text or file.name == "options.py" else None
    except (OSError, ValueError, SyntaxError):
        return None


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _given(words: Sequence[str], options: Mapping[str, Option]) -> dict[str, str]:
    """The values behind options, the last one of each, as argparse takes them."""
    found: dict[str, str] = {}
    for word, following in pairwise(words):
        name, equals, value = word.partition("=")
        field = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and field in options:
            found[field] = value if equals else following
    return found
