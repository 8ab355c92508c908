"""The tree that tree-sitter makes of shell text, without the places where its grammar differs from bash.

The grammar (tree-sitter-bash 0.25) fails on some constructs of real scripts, or reads them in another way than bash
does. `BashGrammar` replaces them in the text that the grammar sees, character by character, so that all offsets stay
valid. The contents of words are always taken from the original text.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, QueryCursor

NAME = r"[A-Za-z_][A-Za-z0-9_]*"

# Characters that bash takes as letters of a word, but the grammar does not: all that are not ASCII, escaped blanks and
# braces, the `$` of `^done$)`, the `=` of `NAME=` at the end of a line. The grammar sees dots in their place. Without
# them the source is ASCII, so that offsets in bytes are offsets in characters.
_LETTERS = lazy_pattern(r"[^\t\n -~]|\\[{} \t]|(?<!\$)\$(?![\w{(\[@*#?$!'\"-])|(?<=\w)=(?=[ \t]*(?:[\n;&|)#]|\Z))")

# Syntax that the grammar does not know, and the text that it sees instead.
_UNKNOWN = {
    re.compile(r"(?<=\W)\d{1,2}#(?=\$)"): "",  # $((10#$n))
    re.compile(r"\\(?=\n?\Z)"): "",  # a backslash at the end of the file
    re.compile(r"<<<"): "<",  # behind a `}` or `)`
    re.compile(r"<>"): "<",
}

# Valid constructs on which the grammar fails, and the character that it sees in place of the first group.
_REPAIRS = (
    # The list of `for NAME do` is empty.
    (re.compile(rf"\bfor\s+{NAME}(\s)\s*do\b"), ";"),
    # An assignment before a redirection.
    (re.compile(rf"(?m)(?:^|[;&|({{]|\b(?:then|do|else))[ \t]*{NAME}\+?(=)(?=[^\n]*[ \t][0-9]*[<>])"), "."),
    # A pattern of `case`.
    (
        re.compile(r"(?:\bin|;;)\s+((?:\\[^\n]|'[^']*'|\"[^\"]*\"|[^\s()'\"\\;&|]|(?:\s|\\\n)*\|(?:\s|\\\n)*)+)(?=\))"),
        ".",
    ),
    # An extended pattern, @(a|b).
    (re.compile(r"([?*+@!]\([^()\s]*\))"), "."),
)

_DELIMITER = lazy_pattern(r"<<(-?)[ \t]*((?:'[^']*'|\"[^\"]*\"|\\.|[^\s;&|<>()'\"\\])+)")
_LINE_END = lazy_pattern(r"(?<!\\)(?:\\\\)*\n")
_BACKQUOTED = lazy_pattern(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_TIME = re.compile(rb"time(\s+-p)?(?=\s)")
_BEHIND_PIPE = re.compile(rb"(?<!\|)\|&?\s*\Z")
_COMMAND_START = re.compile(rb"(?<![^\s;&|(!{])")
_TEST = lazy_pattern(r"\[\[\s(?:\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\\'\"])*?\s\]\](?=[\s;&|)]|\Z)", re.DOTALL)


class HereDocument(NamedTuple):
    """Offsets of the body of a here-document, and of the text after it. `quoted`: bash expands nothing in it."""

    start: int
    end: int
    after: int
    quoted: bool


class BashGrammar:
    """The tree of a text, and the constructs that are hidden from it.

    Attributes:
        root: The root of the tree. Its offsets are offsets in the text.
        source: The text that the grammar sees.
        documents: Here-documents, by the offset of their `<<`.
        tests: Offsets of `[[ ... ]]`. They are plain commands in the tree.
        negations: Offsets of `!` before a pipeline. They are blanks in the tree.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.documents: dict[int, HereDocument] = {}
        self.tests: set[int] = set()
        self.negations: set[int] = set()
        source = bytearray(_mask(text), "ascii")
        root = _parse(source)
        while (
            self._hide_here_documents(root, source)
            or _hide_backquotes(root, source)
            or self._hide_words(root, source)
            or _end_lines(root, source)
        ):
            root = _parse(source)
        for pattern, letter in _REPAIRS if root.has_error else ():
            repaired = bytearray(source)
            for match in pattern.finditer(source.decode()):
                repaired[match.start(1) : match.end(1)] = letter.encode() * len(match[1])
            better = _parse(repaired)
            if _first_error(better) > _first_error(root):
                source, root = repaired, better
        self.source = bytes(source)
        self.root = root

    def _hide_here_documents(self, root: Node, source: bytearray) -> bool:
        """Turn `<<E` into `<E`, and the bodies of here-documents into empty lines.

        The grammar fails on `<<E &`, on two here-documents in one line, and does not see backquotes in a body.
        """
        behind = 0
        for node in marked_nodes(root, "document"):
            start, parent = node.start_byte, node.parent
            match = _DELIMITER.match(self.text, start)
            # In $((1 << 2)), it is an operator.
            if start < behind or match is None or parent is None or parent.type == "binary_expression":
                continue
            document = self._here_document(match)
            self.documents[start] = document
            source[start : match.start(2)] = b"<".ljust(match.start(2) - start)
            body = bytes(source[document.start : document.after])
            source[document.start : document.after] = re.sub(rb"[^\n]", b" ", body)
            behind = document.after
        return behind > 0

    def _here_document(self, match: re.Match[str]) -> HereDocument:
        newline = _LINE_END.search(self.text, match.end())
        start = newline.end() if newline else len(self.text)
        # The body of a second here-document in the line begins behind the body of the first.
        for document in self.documents.values():
            start = document.after if document.start == start else start
        delimiter = re.sub(r"\\(.)|['\"]", r"\1", match[2])
        position = start
        while position < len(self.text):
            end = self.text.find("\n", position)
            end = end if end >= 0 else len(self.text)
            line = self.text[position:end]
            if (line.lstrip("\t") if match[1] else line) == delimiter:
                return HereDocument(start, position, min(end + 1, len(self.text)), delimiter != match[2])
            position = end + 1
        return HereDocument(start, len(self.text), len(self.text), delimiter != match[2])

    def _hide_words(self, root: Node, source: bytearray) -> bool:
        """Turn `[ ... ]` and `[[ ... ]]` into plain commands, and the keywords `time` and `!` into blanks."""
        before = bytes(source)
        for node in marked_nodes(root, "test"):
            start = node.start_byte
            if start in self.tests or not _COMMAND_START.match(before, start):
                continue
            test = _TEST.match(self.text, start)
            if test is not None:
                self.tests.add(start)
                source[start : test.end()] = b":".ljust(test.end() - start, b".")
            elif before[start + 1 : start + 2].isspace():
                source[start : start + 1] = b":"
            elif node.parent is not None and node.parent.type == "test_command":
                # `[$x = 1 ]` runs a program of that name.
                source[start : start + 1] = b"."
        for node in marked_nodes(root, "name"):
            match = _TIME.match(before, node.start_byte)
            # Behind a `|`, bash runs the program `time`.
            if match is not None and not _BEHIND_PIPE.search(before, 0, match.start()):
                source[match.start() : match.end()] = b" " * len(match[0])
        for node in marked_nodes(root, "negation"):
            if node.parent is not None and node.parent.type == "negated_command":
                self.negations.add(node.start_byte)
                source[node.start_byte : node.end_byte] = b" "
        return bytes(source) != before


def parse_quoted(text: str) -> Node:
    """Return the tree of text in double quotes. Its offsets are larger by one."""
    source = _BACKQUOTED.sub(_dots, _mask(text)).replace('"', ".")
    return _parse(f'"{source}"'.encode())


def marked_nodes(root: Node, mark: str) -> list[Node]:
    """Return the nodes with a mark of the query, in the order of the text."""
    return sorted(_captures(root).get(mark, []), key=lambda node: node.start_byte)


@lru_cache(maxsize=1)
def _captures(root: Node) -> dict[str, list[Node]]:
    return _grammar()[1].captures(root)


@cache
def _grammar() -> tuple[Parser, QueryCursor]:
    import tree_sitter_bash
    from tree_sitter import Language, Parser, Query, QueryCursor

    language = Language(tree_sitter_bash.language())
    marks = """
        ["<<" "<<-"] @document
        ["[" "[["] @test
        "!" @negation
        "`" @backquote
        (comment) @comment
        (command . (command_name (word) @name))
        [(command) (declaration_command) (unset_command) (variable_assignments) (redirected_statement)] @command
    """
    return Parser(language), QueryCursor(Query(language, marks))


def _parse(source: bytes | bytearray) -> Node:
    return _grammar()[0].parse(bytes(source)).root_node


def _mask(text: str) -> str:
    text = _LETTERS.sub(_dots, text)
    for pattern, known in _UNKNOWN.items():
        text = pattern.sub(lambda match, known=known: known.ljust(len(match[0])), text)  # type: ignore[misc]
    return text


def _dots(match: re.Match[str]) -> str:
    return "." * len(match[0])


def _end_lines(root: Node, source: bytearray) -> bool:
    """Put a `;` where a line ends a command, but the grammar continues with the next line.

    The grammar reads `a | b | c` and a next line `d > e` as one pipeline. Returns True if there was such a place.
    """
    changed = False
    for node in marked_nodes(root, "command"):
        if node.start_point.row == node.end_point.row:
            continue
        nodes = [
            inner
            for child in node.children
            for inner in (child.children if child.type in {"file_redirect", "variable_assignment"} else [child])
            if inner.type != "comment"
        ]
        for left, right in pairwise(nodes):
            between = bytes(source[left.end_byte : right.start_byte])
            if b"\n" in between.replace(b"\\\n", b"") and left.type not in {"|", "|&", "&&", "||"}:
                source[left.end_byte] = ord(";")
                changed = True
    return changed


def _hide_backquotes(root: Node, source: bytearray) -> bool:
    """Turn `...` in backquotes into letters: the grammar confuses the end of one with the beginning of the next."""
    behind = 0
    for node in marked_nodes(root, "backquote"):
        match = _BACKQUOTED.search(source.decode(), node.start_byte) if node.start_byte >= behind else None
        if match is None or match.start() >= node.end_byte:
            continue
        source[match.start() : match.end()] = _dots(match).encode()
        behind = match.end()
        if node.parent is None or node.parent.end_byte != behind:
            break
    return behind > 0


def _first_error(root: Node) -> int:
    """Return the offset of the first error; the end of the text if there is none."""
    node = root
    inner: Node | None = root
    # A node may have an error that none of its children has.
    while inner is not None:
        node = inner
        stops = not node.has_error or node.is_error or node.is_missing
        inner = None if stops else next((child for child in node.children if child.has_error or child.is_missing), None)
    return node.start_byte if root.has_error else root.end_byte + 1
