"""Cuts shell text into operators, newlines and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from hpc_kit.check.shell.scanner import Scanner
from hpc_kit.check.shell.words import NAME, WHOLE_FILE, HereDocument, Part, Piece, Unreadable, Word

_OPERATOR = re.compile(r"&>>|<<<|<<-|;;&|&&|\|\||;;|;&|\|&|&>|<<|>>|<&|>&|<>|>\||[;&|<>()]")
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_PLAIN = re.compile(r"[^ \t\n;&|<>()\\'\"$`]+")
_IN_BODY = re.compile(r"[^\\$`]+")
_ARRAY_HEAD = re.compile(rf"{NAME}(\[[^\]]*\])?\+?=\Z")


class Token(NamedTuple):
    """One token; `word` is there where the kind is `word`."""

    kind: Literal["word", "operator", "newline", "end"]
    text: str
    offset: int
    word: Word | None = None


class Lexer(Scanner):
    """Tokens of a text, one after the other; arguments as those of `Scanner`."""

    def __init__(
        self,
        text: str,
        commands_end: Callable[[Scanner, int], int],
        position: int = 0,
        pieces: Sequence[Piece] = WHOLE_FILE,
    ) -> None:
        super().__init__(text, commands_end, position, pieces)
        self.waiting: list[HereDocument] = []
        self.comments: set[int] = set()

    def next(self) -> Token:
        """The next token; comments and continued lines are passed over."""
        text = self.text
        while True:
            if blank := _BLANK.match(text, self.position):
                self.position = blank.end()
            if not text.startswith("#", self.position):
                break
            self.comments.add(self.place(self.position).line)
            end = text.find("\n", self.position)
            self.position = end if end >= 0 else len(text)
        start = self.position
        if start >= len(text):
            return Token("end", "", start)
        if text[start] == "\n":
            self.position += 1
            self._read_here_documents()
            return Token("newline", "\n", start)
        operator = _OPERATOR.match(text, start)
        if operator and text[start : start + 2] not in {"<(", ">("}:
            self.position = operator.end()
            return Token("operator", operator[0], start)
        return Token("word", "", start, self.word())

    def _read_here_documents(self) -> None:
        for document in self.waiting:
            start = last = self.position
            while self.position < len(self.text):
                last = self.position
                end = self.text.find("\n", self.position)
                end = end if end >= 0 else len(self.text)
                line = self.text[self.position : end]
                self.position = last = min(end + 1, len(self.text))
                line = line.lstrip("\t") if document.strip else line
                if line == document.delimiter:
                    last = end - len(line)
                    break
            behind = self.position
            document.parts = self._here_parts(start, last, quoted=document.quoted)
            self.position = behind
        self.waiting.clear()

    def _here_parts(self, start: int, end: int, *, quoted: bool) -> tuple[Part, ...]:
        """The body of a here-document, as a word: nothing is expanded where its delimiter is quoted."""
        parts: list[Part] = []
        self.position = start
        while self.position < end:
            plain = None if quoted else _IN_BODY.match(self.text, self.position, end)
            if quoted or plain:
                stop = plain.end() if plain else end
                self._add(parts, self.text[self.position : stop], self.position, quoted=True)
                self.position = stop
            elif self.text[self.position] == "\\":
                escaped = self.text[self.position + 1 : self.position + 2]
                kept = "" if escaped == "\n" else escaped if escaped in "$`\\" else "\\" + escaped
                self._add(parts, kept, self.position, quoted=True)
                self.position += 2
            else:
                try:
                    self._expansion(parts, quoted=True)
                except Unreadable:
                    break
        return tuple(parts)

    def word(self) -> Word:
        """The word that begins here."""
        start, parts = self.position, list[Part]()
        elements: tuple[Word, ...] | None = None
        while self.position < len(self.text):
            letter = self.text[self.position]
            if plain := _PLAIN.match(self.text, self.position):
                self._add(parts, plain[0], self.position)
                self.position = plain.end()
            elif letter == "(" and _ARRAY_HEAD.fullmatch(self.text[start : self.position]):
                elements = self._array()
                break
            elif letter == "(" and self.text[self.position - 1 : self.position] in {*"?*+@!"} and parts:
                end = self._parenthesis(self.position + 1)
                self._add(parts, self.text[self.position : end], self.position)
                self.position = end
            elif letter in "\\'\"$`" or self.text[self.position : self.position + 2] in {"<(", ">("}:
                self._special(parts, letter)
            else:
                break
        place = self.place(start)
        return Word(tuple(parts), self.text[start : self.position], place.line, place.column, elements)

    def _array(self) -> tuple[Word, ...]:
        start = self.position
        self.position += 1
        elements: list[Word] = []
        while True:
            token = self.next()
            if token.word is not None:
                elements.append(token.word)
            elif token.text == ")":
                return tuple(elements)
            elif token.kind == "end":
                raise self.fail(start, "an array that is never closed")

    def arithmetic_command(self) -> bool:
        """Pass over a `((...))` whose first parenthesis was just read; False where there is none."""
        if not self.text.startswith("(", self.position):
            return False
        end = self._arithmetic(self.position + 1)
        if end is None:
            return False
        self.position = end
        return True
