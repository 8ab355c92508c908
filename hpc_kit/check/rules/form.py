"""Rules of form: will sbatch take the file, and does it see every directive as it was meant?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from hpc_kit.check.batch_script import Script
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.slurm.directives import MARK, find_directive_options, suggest_fix
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS

_LOOKS_LIKE_OPTIONS = re.compile(r"(#+\w+)\s+-{1,2}[A-Za-z]")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*")
_SIZES = (
    frozenset({"nodes", "nodelist"}),
    frozenset({"ntasks", "ntasks-per-node", "ntasks-per-gpu"}),
    frozenset({"gres", *GPU_COUNT_OPTIONS}),
)
"""Options that say the same of a job's size."""

_HARMLESS = frozenset({"comment", "job-name", "mail-user", "wckey"})


@rule("KIT101")
def interpreter(subject: Subject) -> Iterator[Fault]:
    """The first line names no interpreter.

    sbatch refuses a script that does not begin with `#!` ("This does not look like a batch script"); an empty line or
    a byte order mark in front of it is enough.

    Mend: make `#!/bin/bash` the very first line.
    Documented: sbatch(1), DESCRIPTION.
    """
    script = subject.script
    if not script.text.strip():
        yield Fault(1, 1, "the script is empty", "write #!/bin/bash in the first line, and a command")
    elif not script.lines[0].startswith("#!"):
        yield Fault(1, 1, "the first line names no interpreter: sbatch refuses it", "begin the file with #!/bin/bash")


@rule("KIT102")
def line_breaks(subject: Subject) -> Iterator[Fault]:
    r"""The file has DOS line breaks, or a NUL byte.

    sbatch refuses a script with \r\n at its line ends, as Windows editors write them.

    Mend: `dos2unix FILE`, or `sed -i 's/\r$//' FILE`.
    Documented: the message of sbatch itself.
    """
    text = subject.script.text
    marks = (("\r\n", "DOS line breaks", "sed -i 's/\\r$//' FILE"), ("\0", "a NUL byte", "tr -d '\\0' <FILE >NEW"))
    for mark, what, remedy in marks:
        if mark in text:
            line = text[: text.index(mark)].count("\n") + 1
            yield Fault(line, 1, f"{what}: sbatch refuses the script", remedy)
    if "\r" in text and "\n" not in text:
        yield Fault(1, 1, "line breaks of old Macs: all of it is one line", "tr '\\r' '\\n' <FILE >NEW")


@rule("KIT103")
def directives(subject: Subject) -> Iterator[Fault]:
    """A directive that sbatch does not take.

    An option that does not exist, one without its value, a value that cannot be read (a time like 2h30), or a word that
    is no option at all. sbatch refuses the script, or stops reading the line. An unknown option that resembles none is
    a warning only: it may belong to a plugin of the site.

    Mend: as the message says. An option and its value stand as `--name=value`, without spaces around the `=`.
    Documented: sbatch(1), OPTIONS.
    """
    script = subject.script
    for problem in script.problems:
        error = problem.error
        remedy, certain = suggest_fix(error)
        severity: Severity | None = None if certain else "warning"
        yield Fault(problem.line, problem.column, error.what, remedy, (), severity, error.found)
    for number, line in enumerate(script.lines, start=1):
        match = _LOOKS_LIKE_OPTIONS.match(line) if number in script.comments else None
        word = match[1] if match else MARK
        # `##SBATCH` (as `# SBATCH`) is how people put a directive aside.
        if word.lstrip("#") != "SBATCH" and get_close_matches(word.lstrip("#").upper(), ["SBATCH"], cutoff=0.8):
            yield Fault(number, 1, f"{word} is a comment to Slurm", f"write {MARK}", severity="warning")
        aside = re.match(r"#\s+SBATCH\s+(-\S.*)", line) if number in script.comments else None
        if aside is not None and (missed := _sizes(aside[1], script)):
            what = f"a comment to Slurm, and no other line gives --{min(missed)}"
            yield Fault(
                number, 1, what, f"{MARK} without a space, or ##SBATCH where it is meant so", severity="warning"
            )


def _sizes(text: str, script: Script) -> set[str]:
    """What a line that was put aside says of a job's size, and no other says in its place."""
    named = {each.name for each in find_directive_options(["#!", f"{MARK} {text}"]).options}
    return {name for same in _SIZES if same.isdisjoint(script.options) for name in same & named}


@rule("KIT104")
def unseen_directives(subject: Subject) -> Iterator[Fault]:
    """A directive that Slurm does not see.

    sbatch reads directives up to the first line that is neither a comment nor empty, and only where `#SBATCH` begins
    the line. What comes later, or is indented, is a comment: ignored in silence, and the defaults hold.

    Mend: move all #SBATCH lines to the top, above `set`, `module` and variables.
    Documented: sbatch(1), DESCRIPTION.
    """
    script = subject.script
    first = next((step.line for step in script.steps), None)
    for late in script.directives.late:
        options = late.text[len(MARK) :].lstrip().startswith("-")
        if options and (late.line in script.comments or not script.is_shell):
            what = "ignored in silence: a command stands above it"
            yield Fault(late.line, 1, what, "move it above the first command", (first,))
    for number, line in enumerate(script.lines, start=1):
        if number in script.comments and re.match(rf"\s+{MARK}\s+-", line):
            yield Fault(number, 1, f"ignored in silence: {MARK} does not begin the line", "remove the spaces before it")
    for step in script.steps:
        name = step.words[0].text if step.words and not step.task else ""
        if re.fullmatch(r"[^\w/.]?#?SBATCH", name) and len(step.words) > 1 and step.words[1].text.startswith("-"):
            yield Fault(
                step.line, step.command.column, f"{name} is a command to the shell", f"write {MARK}, at the top"
            )


@rule("KIT105")
def cut_values(subject: Subject) -> Iterator[Fault]:
    """A value that is cut at an unquoted `#`.

    In a directive, `#` begins a comment wherever it stands outside quotes, also inside a word: `--job-name=a#b` is the
    job name `a`.

    Mend: quote the value, `--job-name="a#b"`; put a space before a comment.
    Documented: seen with sbatch 22.05; `sbatch -v --test-only FILE` prints the options as read.
    """
    for directive in subject.script.directives.lines:
        cut = _cut_at(directive.text)
        if cut is not None:
            # `--time=60# one hour` loses nothing but looks.
            loses = not directive.text[cut + 1 : cut + 2].isspace() and cut + 1 < len(directive.text)
            kept = directive.text[:cut].split()[-1]
            yield Fault(
                directive.line,
                cut + 1,
                f"the unquoted # cuts the value: Slurm reads {kept}",
                f'quote it: {kept.partition("=")[0]}="..."; or put a space before a comment',
                severity="error" if loses else "warning",
            )


def _cut_at(text: str) -> int | None:
    """Where a `#` inside a word ends the line."""
    quote, index = "", len(MARK)
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            index += 1
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        elif not quote and letter == "#":
            return index if not text[index - 1].isspace() and index > len(MARK) else None
        index += 1
    return None


@rule("KIT106")
def variables(subject: Subject) -> Iterator[Fault]:
    """A variable in a directive.

    Slurm expands nothing in a directive: neither `$HOME` nor `$(date)` nor `~`. A log file then goes into a folder
    that is really called `$HOME`, mostly one that does not exist, and the job ends without a trace.

    Mend: Slurm's own patterns in file names (%u user, %x job name, %j job id); else options on the command line,
    `sbatch --output="$HOME/logs/%j.log" FILE`, which the shell does expand.
    Documented: sbatch(1), "filename pattern".
    """
    for each in subject.script.given:
        if each.value.startswith("~/") or _VARIABLE.search(each.value):
            yield Fault(
                each.line,
                each.column,
                f"--{each.name}={each.value}: Slurm expands no variables here",
                f'sbatch --{each.name}="{each.value}" FILE, or Slurm\'s own patterns (%u, %x, %j)',
                severity="warning" if each.name in _HARMLESS else None,
            )


RULES: tuple[Rule, ...] = (interpreter, line_breaks, directives, unseen_directives, cut_values, variables)
