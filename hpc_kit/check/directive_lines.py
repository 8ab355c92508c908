"""All that can be read of a script's directives, and every one that Slurm would not take: sbatch stops at the first."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.directives import MARK, Directive, Directives, read_directives
from hpc_kit.slurm.getopt import Given, check_value, parse_options

PLUGIN_OPTION = re.compile(
    r"--(no-)?container-|--(image|imagevolume|module|modules|volume|ccm|environment|uenv|view|auks|ear[a-z-]*)(=|\Z)"
)
"""Options of plugins that many sites add to Slurm: containers (pyxis, Shifter, CSCS), Kerberos, energy."""


LONG_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"
"""What word processors and web pages make of a `-`."""


class Placed(NamedTuple):
    """An option that a directive gives, with its place, and the component of a heterogeneous job that it is for."""

    given: Given
    line: int
    column: int
    component: int = 0

    @property
    def name(self) -> str:
        """The long name."""
        return self.given.option.name

    @property
    def value(self) -> str:
        """The value; the empty string for an option without."""
        return self.given.value or ""


class Problem(NamedTuple):
    """A directive that Slurm would not take, and its place."""

    line: int
    column: int
    error: DirectiveError


_OTHER_WORDS = {
    "cores": "cpus-per-task", "cpus": "cpus-per-task", "email": "mail-user", "err": "error", "gpu": "gpus",
    "log": "output", "memory": "mem", "name": "job-name", "out": "output", "project": "account", "queue": "partition",
    "tasks": "ntasks", "walltime": "time", "workdir": "chdir",
}  # fmt: skip
"""What other schedulers, or older Slurms, call an option."""


class Mending(NamedTuple):
    """What to do about an option; `certain`: no Slurm takes it as it is."""

    remedy: str
    certain: bool


def mending(error: DirectiveError, command: str = "sbatch") -> Mending:
    """How to mend what Slurm does not take; an unknown option that resembles none may be one of the site's plugins."""
    if any(dash in (error.found or "") + error.what for dash in LONG_DASHES):
        return Mending("a long dash, as word processors set it: type - anew", certain=True)
    typed = re.search(r"unrecognized option '--([\w-]+)", error.found or "")
    if typed is None:
        return Mending(error.remedy or f"{command} --help lists the options", certain=True)
    name = typed[1].lower().replace("_", "-")
    if name in _OTHER_WORDS:
        return Mending(f"--{_OTHER_WORDS[name]}, as Slurm calls it", certain=True)
    near = re.search(r"did you mean --([\w-]+)", error.remedy or "")
    if near is not None and SequenceMatcher(None, name, near[1]).ratio() >= 0.75:
        return Mending(error.remedy or "", certain=True)
    return Mending(f"{command} --help lists the options, those of the site's plugins too", certain=False)


class Read(NamedTuple):
    """The directives of a script: as lines, as options, and those that are wrong."""

    directives: Directives
    options: tuple[Placed, ...]
    problems: tuple[Problem, ...]


class _Word(NamedTuple):
    text: str
    line: int
    column: int


def read_all(lines: list[str]) -> Read:
    """Read the directives of a script's lines."""
    directives, problems = _lines(lines)
    options: list[Placed] = []
    for number, component in enumerate(directives.components()):
        words = [word for line in component for word in _words(line)]
        while words:
            some, problem, words = _some(words)
            options += [each._replace(component=number) for each in some]
            problems += [problem] if problem else []
    options = [each for each in options if _sound(each, problems)]
    first = {problem.line: problem for problem in reversed(problems)}
    return Read(directives, tuple(options), tuple(first[line] for line in sorted(first)))


def _lines(lines: list[str]) -> tuple[Directives, list[Problem]]:
    """The lines, without those that have no end (a quote that is never closed)."""
    problems: list[Problem] = []
    lines = [line.replace("\0", "").rstrip("\r") for line in lines]
    shift = 0 if lines[0].startswith("#!") else 1
    lines = [*["#!"] * shift, *lines]
    while True:
        try:
            found = read_directives("\n".join(lines) + "\n#")
            break
        except DirectiveError as error:
            place = re.search(r"line (\d+)", error.what)
            if place is None or not 1 <= int(place[1]) <= len(lines):
                raise
            problems.append(Problem(int(place[1]) - shift, 1, error))
            lines[int(place[1]) - 1] = "#"
    moved = (tuple(line._replace(line=line.line - shift) for line in group) for group in found)
    return Directives(*moved), problems


def _words(line: Directive) -> list[_Word]:
    found, position = [], len(MARK)
    for text in line.words:
        word = text
        start = line.text.find(word, position)
        if start < 0:
            # Its value is quoted.
            word = word.partition("=")[0]
            start = line.text.find(word, position)
        if start >= 0:
            position = start + len(word)
        found.append(_Word(text, line.line, max(start, 0) + 1))
    return found


def _some(words: list[_Word]) -> tuple[list[Placed], Problem | None, list[_Word]]:
    """The options up to the first word that is wrong, that word, and the words behind it."""
    texts, places = [word.text for word in words], [f"<{index}>" for index in range(len(words))]
    problem: Problem | None = None
    try:
        options, rest = parse_options(texts, places=places)
        bad = len(words) - len(rest)
        if rest:
            error = DirectiveError(
                f"'{rest[0]}' is no option",
                found=f"sbatch: error: Invalid directive found in batch script: {rest[0]}",
                remedy="write an option and its value as one word, --name=value; quote a value with spaces",
            )
            problem = Problem(words[bad].line, words[bad].column, error)
    except DirectiveError as error:
        place = re.search(r"(?:,| in)? <(\d+)>", error.what)
        if place is None:
            raise
        bad = int(place[1])
        options, _ = parse_options(texts[:bad])
        if not PLUGIN_OPTION.match(texts[bad]):
            stripped = DirectiveError(error.what.replace(place[0], ""), found=error.found, remedy=error.remedy)
            problem = Problem(words[bad].line, words[bad].column, stripped)
    placed = [Placed(each, words[each.word].line, words[each.word].column) for each in options.given]
    after = bad + 1
    # What follows an unknown option on its line may be its value.
    while after < len(words) and words[after].line == words[bad].line and not words[after].text.startswith("-"):
        after += 1
    return placed, problem, words[after:]


def _sound(placed: Placed, problems: list[Problem]) -> bool:
    try:
        check_value(placed.given.option, placed.given.value)
    except DirectiveError as error:
        problems.append(Problem(placed.line, placed.column, error))
        return False
    return True
