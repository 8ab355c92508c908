"""The #SBATCH lines of a batch script, read exactly as sbatch reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.getopt import Options, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "#SBATCH"
FOREIGN_MARKS = ("#PBS", "#BSUB")
_HET_MARKS = (["hetjob"], ["packjob"])

# The characters that C's isspace knows; a no-break space is part of a word.
_SPACE = " \t\n\v\f\r"


class Directive(NamedTuple):
    """One #SBATCH line: its number from 1, the line itself, and its words with quotes taken away."""

    line: int
    text: str
    words: tuple[str, ...]


class Directives(NamedTuple):
    """The directives of a script.

    `lines` are the ones that count. Slurm ignores those below the first command in silence (`late`), and reads PBS's
    and LSF's as well (`foreign`).
    """

    lines: tuple[Directive, ...]
    late: tuple[Directive, ...] = ()
    foreign: tuple[Directive, ...] = ()

    def components(self) -> list[list[Directive]]:
        """The lines of each component: one, unless `#SBATCH hetjob` parts them."""
        parts: list[list[Directive]] = [[]]
        for line in self.lines:
            # Slurm looks for the bare word: a quoted one is no option and an error.
            if line.text[len(MARK) :].split()[:1] in _HET_MARKS:
                parts.append([])
            else:
                parts[-1].append(line)
        return parts

    def options(self, component: int = 0) -> Options:
        """The options that the directives give; Slurm reads all words as one argv, whatever lines they stand on.

        Raises:
            DirectiveError: An option that sbatch does not take, or a word that is none.
        """
        lines = self.components()[component]
        places = [f"line {line.line}" for line in lines for _ in line.words]
        options, rest = parse_options([word for line in lines for word in line.words], places=places)
        if rest:
            place = places[len(places) - len(rest)]
            raise DirectiveError(
                f"a word that is no option, {place}",
                found=f"sbatch: error: Invalid directive found in batch script: {rest[0]}",
                remedy="write an option and its value as one word, --name=value; quote a value with spaces",
            )
        return options


def read_directives(script: str) -> Directives:
    """Read the directives of a batch script: up to its first command, quotes taken away, `#` ending a line.

    Raises:
        DirectiveError: The script is none that sbatch takes, or a quote is never closed.
    """
    _check_script(script)
    lines: list[Directive] = []
    late: list[Directive] = []
    foreign: list[Directive] = []
    commands = False
    for number, text in enumerate(script.split("\n"), start=1):
        bare = text.strip(_SPACE)
        if text.startswith(MARK):
            words = () if commands else tuple(_words(text, number))
            (late if commands else lines).append(Directive(number, text, words))
        elif text.startswith(FOREIGN_MARKS) and not commands:
            foreign.append(Directive(number, text, ()))
        elif bare and not bare.startswith("#"):
            commands = True
    return Directives(tuple(lines), tuple(late), tuple(foreign))


def _check_script(script: str) -> None:
    """What sbatch refuses to read at all."""
    remedy = "begin the first line with #!/bin/bash"
    if not script.strip():
        words = "Batch script contains only whitespace!" if script else "Batch script is empty!"
        raise DirectiveError("the batch script is empty", found=f"sbatch: error: {words}", remedy=remedy)
    if not script.startswith("#!"):
        found = f"{script.splitlines()[0]!r}\nsbatch: error: This does not look like a batch script."
        raise DirectiveError("the batch script names no interpreter", found=found, remedy=remedy)
    for bad, what, words in (
        ("\r\n", "DOS line breaks", "Batch script contains DOS line breaks (\\r\\n)"),
        ("\0", "a NUL byte", "contain a NULL character '\\0'."),
    ):
        if bad in script:
            line = script[: script.index(bad)].count("\n") + 1
            found = f"line {line}\nsbatch: error: {words}"
            raise DirectiveError(f"the batch script holds {what}", found=found, remedy="take them out")


def _words(text: str, number: int) -> Iterator[str]:
    """The words of one line: quotes join, a backslash keeps the next character, an open `#` ends the line."""
    rest = text[len(MARK) :].lstrip(_SPACE)
    while bare := rest.lstrip(_SPACE):
        if bare.startswith("#"):
            return
        if bare.startswith(":"):
            found = f"{text}\nsbatch: fatal: line {number}: Unexpected `:` in [{rest}]"
            raise DirectiveError(
                f"a word that begins with a colon, line {number}",
                found=found,
                remedy="begin a heterogeneous job's next component with #SBATCH hetjob",
            )
        word, end, quote = _word(bare)
        if quote:
            found = f"{text}\nsbatch: fatal: line {number}: Unmatched `{quote}` in [{rest}]"
            raise DirectiveError(
                f"a quote that is never closed, line {number}", found=found, remedy=f"close the {quote}"
            )
        if not word:
            # An empty word, as in `-J ""`, ends the line for Slurm: what follows is lost without a message.
            return
        yield word
        rest = bare[end:]


def _word(text: str) -> tuple[str, int, str]:
    """The word that `text` begins with, where it ends, and a quote that is still open there."""
    letters: list[str] = []
    quote, position = "", 0
    while position < len(text) and (quote or text[position] not in _SPACE):
        letter = text[position]
        if letter == "\\":
            position += 1
            # Outside quotes a space ends the word even behind a backslash.
            if position == len(text) or (not quote and text[position] in _SPACE):
                break
            letters.append(text[position])
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        elif not quote and letter == "#":
            return "".join(letters), len(text), quote
        else:
            letters.append(letter)
        position += 1
    return "".join(letters), position, quote
