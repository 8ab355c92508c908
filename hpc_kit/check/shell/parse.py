"""Makes the tree of a shell text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpc_kit.check.shell.grammar import Parser
from hpc_kit.check.shell.lexer import Lexer
from hpc_kit.check.shell.scanner import Scanner
from hpc_kit.check.shell.tree import Block, Statement
from hpc_kit.check.shell.words import WHOLE_FILE, Piece, Unreadable


class Parsed(NamedTuple):
    """The tree of a text, the lines of its comments, and where and why reading stopped half-way, if it did."""

    block: Block
    comments: frozenset[int]
    trouble: Unreadable | None = None


def parse(text: str, pieces: Sequence[Piece] = WHOLE_FILE) -> Parsed:
    """The tree of a text, as far as it can be read.

    Args:
        text: Shell text.
        pieces: Where it stands in the file (default: it is the file).
    """
    lexer = Lexer(text, _commands_end, pieces=pieces)
    statements: list[Statement] = []
    trouble: Unreadable | None = None
    try:
        parser = Parser(lexer, statements)
        parser.block(set())
        parser.expect_end()
    except Unreadable as stop:
        trouble = stop
    except RecursionError:
        trouble = Unreadable(1, "commands nested too deep")
    return Parsed(tuple(statements), frozenset(lexer.comments), trouble)


def _commands_end(lexer: Scanner, offset: int) -> int:
    """The offset of the `)` that closes the commands which begin at `offset`."""
    parser = Parser(Lexer(lexer.text, _commands_end, offset, lexer.pieces))
    parser.block({")"})
    if parser.token.text != ")":
        raise lexer.fail(offset, "a $( that is never closed")
    return parser.token.offset
