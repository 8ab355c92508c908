"""Reads quotes and expansions: what makes the parts of a word."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache

from hpc_kit.check.shell.words import NAME, WHOLE_FILE, Origin, Part, Piece, Unreadable

_VARIABLE = re.compile(rf"\$({NAME}|[0-9@*#?$!-])")
_BRACED = re.compile(rf"({NAME}|[0-9]+|[@*#?$!-])")
_IN_DOUBLE = re.compile(r'[^\\"$`]+')
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "a": "\a", "r": "\r", "e": "\x1b"}


@lru_cache(maxsize=8)
def _newlines(text: str) -> tuple[int, ...]:
    """Offsets of the ends of lines; kept, because each `$(` opens a scanner of the same text."""
    return tuple(match.start() for match in re.finditer("\n", text))


class Scanner:
    """A place in a text, and what can be read from there on.

    Args:
        text: The shell text.
        commands_end: Gives the offset of the `)` that closes commands which begin at an offset.
        position: The offset to begin at.
        pieces: Where the text stands in the file (default: it is the file).
    """

    def __init__(
        self,
        text: str,
        commands_end: Callable[[Scanner, int], int],
        position: int = 0,
        pieces: Sequence[Piece] = WHOLE_FILE,
    ) -> None:
        self.text = text
        self.position = position
        self.pieces = pieces
        self._commands_end = commands_end
        self._starts = [piece.start for piece in pieces]
        self._newlines = _newlines(text)

    def place(self, offset: int) -> Origin:
        """Line and column of an offset, in the file."""
        piece = self.pieces[max(0, bisect_right(self._starts, offset) - 1)]
        if not piece.origin.exact:
            return piece.origin
        first, row = bisect_left(self._newlines, piece.start), bisect_left(self._newlines, offset)
        if row == first:
            return Origin(piece.origin.line, piece.origin.column + offset - piece.start)
        return Origin(piece.origin.line + row - first, offset - self._newlines[row - 1])

    def fail(self, offset: int, what: str) -> Unreadable:
        """The error for an offset."""
        return Unreadable(self.place(offset).line, what)

    def _add(self, parts: list[Part], text: str, offset: int, *, quoted: bool = False) -> None:
        """Append literal text, to the part before where that is of the same quoting and place."""
        if parts and parts[-1].kind == "text" and parts[-1].quoted == quoted and not quoted:
            last = parts.pop()
            parts.append(last._replace(text=last.text + text, raw=last.raw + text))
        else:
            parts.append(Part("text", text, text, quoted, "", self.place(offset)))

    def _special(self, parts: list[Part], letter: str) -> None:
        start = self.position
        if letter == "\\":
            escaped = self.text[start + 1 : start + 2]
            self.position = min(start + 2, len(self.text))
            if escaped != "\n":
                self._add(parts, escaped, start, quoted=True)
        elif letter == "'":
            end = self._find("'", start + 1)
            self._add(parts, self.text[start + 1 : end], start + 1, quoted=True)
            self.position = end + 1
        elif letter == '"' or self.text.startswith('$"', start):
            self.position = start + (1 if letter == '"' else 2)
            self._double(parts, start)
        elif self.text.startswith("$'", start):
            self._ansi(parts)
        elif letter in "<>":
            end = self._parenthesis(start + 2)
            raw = self.text[start:end]
            parts.append(Part("process", raw[2:-1], raw, quoted=True, origin=self.place(start)))
            self.position = end
        else:
            self._expansion(parts, quoted=False)

    def _find(self, mark: str, start: int) -> int:
        end = self.text.find(mark, start)
        if end < 0:
            raise self.fail(start, f"a {mark} that is never closed")
        return end

    def _ansi(self, parts: list[Part]) -> None:
        start = self.position
        self.position += 2
        letters: list[str] = []
        while not self.text.startswith("'", self.position):
            if self.position >= len(self.text):
                raise self.fail(start, "a ' that is never closed")
            letter = self.text[self.position]
            if letter == "\\":
                self.position += 1
                escaped = self.text[self.position : self.position + 1]
                letter = _ANSI.get(escaped, "\\" + escaped)
            letters.append(letter)
            self.position += 1
        self.position += 1
        self._add(parts, "".join(letters), start, quoted=True)

    def _double(self, parts: list[Part], start: int) -> None:
        before, opened = len(parts), self.position
        while True:
            if self.position >= len(self.text):
                raise self.fail(start, 'a " that is never closed')
            letter = self.text[self.position]
            if plain := _IN_DOUBLE.match(self.text, self.position):
                self._add(parts, plain[0], self.position, quoted=True)
                self.position = plain.end()
            elif letter == '"':
                break
            elif letter == "\\":
                escaped = self.text[self.position + 1 : self.position + 2]
                kept = "" if escaped == "\n" else escaped if escaped in '$`"\\' else "\\" + escaped
                self._add(parts, kept, self.position, quoted=True)
                self.position += 2
            else:
                self._expansion(parts, quoted=True)
        if len(parts) == before:
            self._add(parts, "", opened, quoted=True)
        self.position += 1

    def _expansion(self, parts: list[Part], *, quoted: bool) -> None:
        """What begins with `$` or a backquote."""
        text, start = self.text, self.position
        place = self.place(start)
        if text[start] == "`":
            end = start + 1
            while not text.startswith("`", end):
                if end >= len(text):
                    raise self.fail(start, "a ` that is never closed")
                end += 2 if text[end] == "\\" else 1
            self.position = end + 1
            parts.append(Part("command", text[start + 1 : end], text[start : end + 1], quoted, "", place))
        elif text.startswith("$((", start) and (behind := self._arithmetic(start + 3)):
            self.position = behind
            parts.append(Part("arithmetic", text[start + 3 : behind - 2], text[start:behind], quoted, "", place))
        elif text.startswith("$(", start):
            self.position = end = self._commands_end(self, start + 2) + 1
            parts.append(Part("command", text[start + 2 : end - 1], text[start:end], quoted, "", place))
        elif text.startswith("${", start):
            self.position = end = self._brace(start + 2)
            name = _BRACED.match(text, start + 2)
            inner = text[start + 2 : end - 1]
            known = name[0] if name else ""
            parts.append(Part("variable", known, text[start:end], quoted, inner[len(known) :], place))
        elif variable := _VARIABLE.match(text, start):
            self.position = variable.end()
            parts.append(Part("variable", variable[1], variable[0], quoted, "", place))
        else:
            self._add(parts, "$", start, quoted=quoted)
            self.position += 1

    def _balanced(self, start: int, opening: str, closing: str, what: str) -> int:
        """The offset behind the mark that closes what began before `start`; quotes and escapes are passed over."""
        depth, offset = 1, start
        while offset < len(self.text):
            letter = self.text[offset]
            if letter == "\\":
                offset += 1
            elif letter == "'" and opening != "{":
                offset = self._find("'", offset + 1)
            elif letter == '"':
                offset = self._quoted_end(offset)
            elif letter == opening:
                depth += 1
            elif letter == closing:
                depth -= 1
                if depth == 0:
                    return offset + 1
            offset += 1
        raise self.fail(start, f"a {what} that is never closed")

    def _quoted_end(self, start: int) -> int:
        aside, self.position = self.position, start + 1
        self._double([], start)
        end, self.position = self.position - 1, aside
        return end

    def _brace(self, start: int) -> int:
        return self._balanced(start, "{", "}", "${")

    def _parenthesis(self, start: int) -> int:
        return self._balanced(start, "(", ")", "(")

    def _arithmetic(self, start: int) -> int | None:
        """The offset behind `))`; None where it is a command substitution that begins with a subshell."""
        end = self._parenthesis(start)
        return end + 1 if self.text.startswith(")", end) else None
