"""Options as GNU's getopt_long reads them, for the commands that have no table in `hpc_kit.slurm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import Usage
from pocketslurm.option_support import Row, Support

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NONE, REQUIRED, OPTIONAL = 0, 1, 2


class Given(NamedTuple):
    """An option by its long name, and its value."""

    name: str
    value: str | None


class Table:
    """The options of one command.

    Args:
        rows: A row an option: its long name, letter (or an empty string), kind of value, and other long names.
        notes: What is made of the options that do not simply work.
    """

    def __init__(
        self, *rows: tuple[str, str, int] | tuple[str, str, int, str], notes: Mapping[str, Row] | None = None
    ) -> None:
        self.support = {row[0]: (notes or {}).get(row[0], Row(Support.DONE)) for row in rows}
        self._spelling = {row[0]: _spelled(row[0], row[1], row[2]) for row in rows}
        self._names = {name: row[0] for row in rows for name in (row[0], *(row[3].split() if len(row) > 3 else ()))}
        self._letters = {row[1]: row[0] for row in rows if row[1]}
        self._kinds = {row[0]: row[2] for row in rows}

    def spelled(self, name: str) -> str:
        """An option as a manual writes it: `-j, --jobs=VALUE`."""
        return self._spelling[name]

    def parse(self, argv: Sequence[str]) -> tuple[list[Given], list[str]]:
        """The options in their order, and the other words, which may stand between them.

        Raises:
            Usage: An option is unknown or ambiguous, or its value is missing or too many.
        """
        given: list[Given] = []
        others: list[str] = []
        words = iter(argv)
        for word in words:
            if word == "--":
                others.extend(words)
            elif word.startswith("--"):
                given.append(self._long(word, words))
            elif len(word) > 1 and word.startswith("-"):
                given.extend(self._short(word, words))
            else:
                others.append(word)
        for name, _ in given:
            if self.support[name].support is Support.REFUSED:
                note = self.support[name].note
                raise Usage(f"option '--{name}' is not supported by the embedded Slurm: {note}")
        return given, others

    def _long(self, word: str, words: Iterator[str]) -> Given:
        typed, equals, text = word[2:].partition("=")
        possible = [typed] if typed in self._names else [name for name in self._names if name.startswith(typed)]
        if not possible:
            raise Usage(f"unrecognized option '{word}'")
        if len({self._names[name] for name in possible}) > 1:
            listed = " ".join(f"'--{name}'" for name in possible)
            raise Usage(f"option '{word}' is ambiguous; possibilities: {listed}")
        name = self._names[possible[0]]
        kind = self._kinds[name]
        if kind == NONE and equals:
            raise Usage(f"option '--{possible[0]}' doesn't allow an argument")
        if kind != REQUIRED or equals:
            return Given(name, text if equals else None)
        value = next(words, None)
        if value is None:
            raise Usage(f"option '--{possible[0]}' requires an argument")
        return Given(name, value)

    def _short(self, word: str, words: Iterator[str]) -> Iterator[Given]:
        for position, letter in enumerate(word[1:], start=2):
            if letter not in self._letters:
                raise Usage(f"invalid option -- '{letter}'")
            name = self._letters[letter]
            rest = word[position:] or None
            if self._kinds[name] == NONE:
                yield Given(name, None)
                continue
            if self._kinds[name] == REQUIRED and rest is None:
                rest = next(words, None)
                if rest is None:
                    raise Usage(f"option requires an argument -- '{letter}'")
            yield Given(name, rest)
            return


def _spelled(name: str, letter: str, kind: int) -> str:
    return f"{f'-{letter}, ' if letter else ''}--{name}{('', '=VALUE', '[=VALUE]')[kind]}"
