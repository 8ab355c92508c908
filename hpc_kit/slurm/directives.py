"""Reads the #SBATCH lines of a batch script exactly as sbatch does.

`read_directives` stops at the first error, as sbatch does. `find_directive_options` goes on after errors and returns
everything with positions, for checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpc_kit.errors import DirectiveError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.getopt import GetoptError, ParsedOption, ParsedOptions, parse_options

MARK = "#SBATCH"
FOREIGN_MARKS = ("#PBS", "#BSUB")
_HET_MARKS = (["hetjob"], ["packjob"])


def is_het_mark(text: str) -> bool:
    """Return whether a directive, `#SBATCH hetjob`, begins the next component of a heterogeneous job."""
    return text[len(MARK) :].split()[:1] in _HET_MARKS


# The characters that C's isspace accepts. A no-break space is part of a word.
_SPACE = " \t\n\v\f\r"
_PLAIN_WORD = lazy_pattern(rf"[^{_SPACE}'\"\\#]+(?=[{_SPACE}]|\Z)")

PLUGIN_OPTION = lazy_pattern(
    r"--(no-)?container-|--(image|imagevolume|module|modules|volume|ccm|environment|uenv|view|auks|ear[a-z-]*)(=|\Z)"
)
"""Options of plugins that many sites add to Slurm: containers (pyxis, Shifter, CSCS), Kerberos, energy."""

LONG_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"
"""Characters that word processors and web pages write in place of `-`."""


class DirectiveWord(NamedTuple):
    """One word of a directive, without its quotes, and the column in which it begins, counted from 1."""

    text: str
    column: int


class Directive(NamedTuple):
    """One #SBATCH line: its number from 1, its text, its words, and the error that ends it, if there is one."""

    line: int
    text: str
    words: tuple[DirectiveWord, ...]
    error: DirectiveError | None = None


class Directives(NamedTuple):
    """The directives of a script.

    Attributes:
        lines: The directives that count.
        late: Directives below the first command, which Slurm silently ignores.
        foreign: Directives of PBS and LSF, which Slurm reads, too.
    """

    lines: tuple[Directive, ...]
    late: tuple[Directive, ...] = ()
    foreign: tuple[Directive, ...] = ()

    def components(self) -> list[list[Directive]]:
        """Return the lines of each component. Without `#SBATCH hetjob` there is one component."""
        components: list[list[Directive]] = [[]]
        for line in self.lines:
            # Slurm looks for the bare word. A quoted one is a word that is no option, and an error.
            if is_het_mark(line.text):
                components.append([])
            else:
                components[-1].append(line)
        return components

    def options(self, component: int = 0) -> ParsedOptions:
        """Return the options of a component. Slurm reads all its words as one command line, across lines."""
        lines = self.components()[component]
        numbers = [line.line for line in lines for _ in line.words]
        try:
            options, rest = parse_options([word.text for line in lines for word in line.words])
        except GetoptError as error:
            what = f"{error.what}, line {numbers[error.word]}"
            raise DirectiveError(what, found=error.found, remedy=error.remedy) from error
        if rest:
            raise _no_option(f"a word that is no option, line {numbers[len(numbers) - len(rest)]}", rest[0])
        return options


def read_directives(script: str) -> Directives:
    """Read the directives of a batch script up to its first command.

    Raises:
        DirectiveError: sbatch refuses the script, or a quote is never closed.
    """
    _check_readable(script)
    directives = _scan(script.split("\n"))
    for line in directives.lines:
        if line.error is not None:
            raise line.error
    return directives


class DirectiveOption(NamedTuple):
    """An option that a directive gives, its position, and its component of a heterogeneous job."""

    parsed: ParsedOption
    line: int
    column: int
    component: int = 0

    @property
    def name(self) -> str:
        """The long name."""
        return self.parsed.option.name

    @property
    def value(self) -> str:
        """The value; the empty string for an option without value."""
        return self.parsed.value or ""


class DirectiveProblem(NamedTuple):
    """A directive that Slurm refuses, and its position."""

    line: int
    column: int
    error: DirectiveError


class DirectiveReport(NamedTuple):
    """The directives of a script as lines and as options, and those that Slurm refuses."""

    directives: Directives
    options: tuple[DirectiveOption, ...]
    problems: tuple[DirectiveProblem, ...]


def find_directive_options(lines: Sequence[str]) -> DirectiveReport:
    """Read all directives of a script's lines; at most one problem is returned for each line."""
    from hpc_kit.slurm.option_values import check_value

    # A check reads scripts that sbatch refuses: without interpreter, with NUL bytes, with DOS line breaks.
    directives = _scan([line.replace("\0", "").rstrip("\r") for line in lines])
    problems = [DirectiveProblem(line.line, 1, line.error) for line in directives.lines if line.error is not None]
    options: list[DirectiveOption] = []
    for number, component in enumerate(directives.components()):
        words = [(word, line.line) for line in component if line.error is None for word in line.words]
        while words:
            parsed, problem, words = _parse_until_error(words)
            options += [each._replace(component=number) for each in parsed]
            problems += [problem] if problem else []
    sound: list[DirectiveOption] = []
    for option in options:
        try:
            check_value(option.parsed.option, option.parsed.value)
            sound.append(option)
        except DirectiveError as error:
            problems.append(DirectiveProblem(option.line, option.column, error))
    first = {problem.line: problem for problem in reversed(problems)}
    return DirectiveReport(directives, tuple(sound), tuple(first[line] for line in sorted(first)))


def _parse_until_error(
    words: list[tuple[DirectiveWord, int]],
) -> tuple[list[DirectiveOption], DirectiveProblem | None, list[tuple[DirectiveWord, int]]]:
    """Return the options before the first wrong word, the problem with that word, and the words behind it."""
    error: DirectiveError | None = None
    texts = [word.text for word, _ in words]
    try:
        options, rest = parse_options(texts)
        wrong = len(words) - len(rest)
        if rest:
            error = _no_option(f"'{rest[0]}' is no option", rest[0])
    except GetoptError as refused:
        options, wrong = refused.parsed, refused.word
        # Options of plugins are unknown here, but the site's sbatch accepts them.
        error = None if PLUGIN_OPTION.match(texts[wrong]) else refused
    found = [DirectiveOption(each, words[each.word][1], words[each.word][0].column) for each in options.given]
    problem = None if error is None else DirectiveProblem(words[wrong][1], words[wrong][0].column, error)
    after = wrong + 1
    # Words that follow an unknown option on its line may be its value.
    while after < len(words) and words[after][1] == words[wrong][1] and not texts[after].startswith("-"):
        after += 1
    return found, problem, words[after:]


def _no_option(what: str, word: str) -> DirectiveError:
    return DirectiveError(
        what,
        found=f"sbatch: error: Invalid directive found in batch script: {word}",
        remedy="write an option and its value as one word, --name=value; quote a value with spaces",
    )


class SuggestedFix(NamedTuple):
    """Advice about a refused option. `certain`: no site's plugin can define the option."""

    remedy: str
    certain: bool


_OTHER_NAMES = {
    "cores": "cpus-per-task", "cpus": "cpus-per-task", "email": "mail-user", "err": "error", "gpu": "gpus",
    "log": "output", "memory": "mem", "name": "job-name", "out": "output", "project": "account", "queue": "partition",
    "tasks": "ntasks", "walltime": "time", "workdir": "chdir",
}  # fmt: skip
"""Names that other schedulers, or older releases of Slurm, use for an option."""


def suggest_fix(error: DirectiveError, command: str = "sbatch") -> SuggestedFix:
    """Suggest how to fix an option that Slurm refuses.

    An unknown option that resembles no option of Slurm may belong to a plugin of the site.
    """
    if any(dash in (error.found or "") + error.what for dash in LONG_DASHES):
        remedy = "replace the long dash of a word processor: write -N for a letter, and --nodes for a name"
        return SuggestedFix(remedy, certain=True)
    typed = re.search(r"unrecognized option '--([\w-]+)", error.found or "")
    if typed is None:
        return SuggestedFix(error.remedy or f"{command} --help lists the options", certain=True)
    name = typed[1].lower().replace("_", "-")
    if name in _OTHER_NAMES:
        return SuggestedFix(f"write --{_OTHER_NAMES[name]}, Slurm's name for it", certain=True)
    from difflib import SequenceMatcher

    near = re.search(r"did you mean --([\w-]+)", error.remedy or "")
    if near is not None and SequenceMatcher(None, name, near[1]).ratio() >= 0.75:
        return SuggestedFix(error.remedy or "", certain=True)
    return SuggestedFix(f"{command} --help lists the options, also those of the site's plugins", certain=False)


def _check_readable(script: str) -> None:
    """Refuse a script that sbatch does not read at all."""
    remedy, place = "begin the first line with #!/bin/bash", []
    if not script.strip():
        what, message = "is empty", f"Batch script {'contains only whitespace' if script else 'is empty'}!"
    elif not script.startswith("#!"):
        what, message, place = "names no interpreter", _NO_INTERPRETER, [repr(script.partition("\n")[0])]
    elif (breaks := script.find("\r\n")) >= 0:
        what, message, place = "contains DOS line breaks", _DOS_BREAKS, [f"line {script.count(chr(10), 0, breaks) + 1}"]
        remedy = "run dos2unix on the script"
    elif (nul := script.find("\0")) >= 0:
        what, message, place = "contains a NUL byte", _NUL_BYTE, [f"line {script.count(chr(10), 0, nul) + 1}"]
        remedy = "remove the NUL byte"
    else:
        return
    found = "\n".join([*place, *(f"sbatch: error: {line}" for line in message.split("\n"))])
    raise DirectiveError(f"the batch script {what}", found=found, remedy=remedy)


_NO_INTERPRETER = (
    "This does not look like a batch script.  The first\n"
    "line must start with #! followed by the path to an interpreter.\nFor instance: #!/bin/sh"
)
_DOS_BREAKS = "Batch script contains DOS line breaks (\\r\\n)\ninstead of expected UNIX line breaks (\\n)."
_NUL_BYTE = "The Slurm controller does not allow scripts that\ncontain a NULL character '\\0'."


def _scan(lines: Sequence[str]) -> Directives:
    counted: list[Directive] = []
    late: list[Directive] = []
    foreign: list[Directive] = []
    has_commands = False
    for number, text in enumerate(lines, start=1):
        bare = text.strip(_SPACE)
        if text.startswith(MARK):
            if has_commands:
                late.append(Directive(number, text, ()))
            else:
                counted.append(_split_directive(text, number))
        elif text.startswith(FOREIGN_MARKS) and not has_commands:
            foreign.append(Directive(number, text, ()))
        elif bare and not bare.startswith("#"):
            has_commands = True
    return Directives(tuple(counted), tuple(late), tuple(foreign))


def _split_directive(text: str, number: int) -> Directive:
    try:
        return Directive(number, text, tuple(_words(text, number)))
    except DirectiveError as error:
        return Directive(number, text, (), error)


def _words(text: str, number: int) -> Iterator[DirectiveWord]:
    """Yield the words of one line. Quotes join words, a backslash keeps the next character, `#` ends the line."""
    # The message of Slurm quotes the line from the end of the previous word on, at first without its spaces.
    rest = text[len(MARK) :].lstrip(_SPACE)
    while bare := rest.lstrip(_SPACE):
        if bare.startswith("#"):
            return
        if bare.startswith(":"):
            raise DirectiveError(
                f"a word that begins with a colon, line {number}",
                found=f"{text}\nsbatch: fatal: line {number}: Unexpected `:` in [{rest}]",
                remedy="begin the next component of a heterogeneous job with #SBATCH hetjob",
            )
        word, end, quote = _word(bare)
        if quote:
            raise DirectiveError(
                f"a quote that is never closed, line {number}",
                found=f"{text}\nsbatch: fatal: line {number}: Unmatched `{quote}` in [{rest}]",
                remedy=f"close the {quote}",
            )
        if not word:
            # An empty word, as in `-J ""`, ends the line for Slurm. What follows is lost without a message.
            return
        yield DirectiveWord(word, len(text) - len(bare) + 1)
        rest = bare[end:]


def _word(text: str) -> tuple[str, int, str]:
    """Return the first word of a text, the index of its end, and a quote that is still open there."""
    if plain := _PLAIN_WORD.match(text):
        return plain[0], plain.end(), ""
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
