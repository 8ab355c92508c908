"""The tree of a shell text: statements, chains, pipelines, commands; of redirections here-documents and `>` alone."""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.check.shell.words import Assignment, HereDocument, Word


class Simple(NamedTuple):
    """`NAME=value program word ... <<document >output`."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    line: int
    column: int
    document: HereDocument | None = None
    output: Word | None = None


class Compound(NamedTuple):
    """`if`, `for`, `while`, `until`, `case`, `select`, `group`, `subshell`, `function`, `test` or `arithmetic`.

    `bodies` are its blocks with their parts in it: `condition`, `then`, `else`, `body`.
    """

    kind: str
    bodies: tuple[tuple[str, Block], ...]
    line: int
    name: str = ""


Command = Simple | Compound


class Pipeline(NamedTuple):
    """Commands with `|` between them."""

    commands: tuple[Command, ...]
    negated: bool


class Chain(NamedTuple):
    """Pipelines with `&&` or `||` between them."""

    pipelines: tuple[Pipeline, ...]
    operators: tuple[str, ...]


class Statement(NamedTuple):
    """A chain up to its `;`, `&` or line end."""

    chain: Chain
    background: bool
    line: int


Block = tuple[Statement, ...]
