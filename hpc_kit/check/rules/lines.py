"""Rules of command lines: do they go on where they were meant to, and does this shell know their commands?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import Script
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.check.shell.csh import CSH
from hpc_kit.check.shell.trace import Step

_DECLARING = frozenset({"export", "declare", "local", "readonly"})


@rule("KIT107")
def broken_lines(subject: Subject) -> Iterator[Fault]:
    r"""A command line that ends too early.

    A line goes on below only where the backslash is its very last character. Without it, or with a space behind it, the
    options below are a command of their own, and the launch line runs without them. A comment between two parts of a
    line ends it too.

    Mend: `\` as the last character of each line but the last, and no comment in between.
    Documented: bash(1), QUOTING.
    """
    script = subject.script
    for step in script.steps:
        name = step.name
        if re.match(r"--?[A-Za-z]", name):
            what = f"{name} begins a command: the line above ends too early"
            remedy = "a backslash as the last character of the line above, and no comment or empty line before this one"
            first = step.words[0]
            yield Fault(first.line, first.column, what, remedy, (first.line - 1,))
        for word in step.command.words[1:] if not step.task else ():
            if word.raw in {"\\ ", "\\\t"} and not script.lines[word.line - 1][word.column + 1 :].strip():
                what = "a space behind the backslash: the line ends here"
                yield Fault(word.line, word.column, what, "remove the space", (word.line, word.line + 1))
    for number, line in enumerate(script.lines[1:], start=2):
        above = script.lines[number - 2]
        going_on = above.endswith("\\") and number - 1 not in script.comments
        if going_on and _is_comment(script, number) and line.endswith("\\") and _meant_to_go_on(script, number):
            what = "this comment ends the command above: what follows is a command of its own"
            yield Fault(number, 1, what, "remove the comment, or move it above the command", (number - 1, number + 1))


def _is_comment(script: Script, number: int) -> bool:
    return number in script.comments and script.lines[number - 1].lstrip().startswith("#")


def _meant_to_go_on(script: Script, number: int) -> bool:
    """The last of the comments from a line on has its backslash, and something follows."""
    while _is_comment(script, number + 1):
        number += 1
    return script.lines[number - 1].endswith("\\") and any(line.strip() for line in script.lines[number : number + 1])


@rule("KIT108")
def foreign_commands(subject: Subject) -> Iterator[Fault]:
    """A command that only another kind of shell has.

    `setenv` is csh's and tcsh's; bash says "command not found", goes on, and the variable is never set. `export` and
    `$(...)` are likewise unknown to csh.

    Mend: `export NAME=value` in bash; in csh `setenv NAME value`, and backquotes.
    Documented: bash(1), export; tcsh(1), setenv.
    """
    script = subject.script
    if script.interpreter in CSH:
        yield from _not_in_csh(script)
        return
    for step in script.steps:
        if step.name in {"setenv", "unsetenv"} and step.name not in script.functions:
            what = f"{step.name} is csh's; this is {script.interpreter or 'sh'}"
            name, *value = [word.text for word in step.words[1:]] or ["NAME"]
            remedy = f"export {name}={' '.join(value)}" if step.name == "setenv" else f"unset {name}"
            severity: Severity | None = "warning" if script.sources_others else None
            yield Fault(step.line, step.command.column, what, remedy, (), severity)


def _not_in_csh(script: Script) -> Iterator[Fault]:
    for step in script.steps:
        command = step.command
        if step.task:
            continue
        if script.lines[step.line - 1][command.column - 1 :].startswith("export "):
            yield Fault(step.line, command.column, "export is bash's; this is csh", "setenv NAME value")
        values = [assignment.value for assignment in command.assignments]
        for part in [part for word in (*command.words, *values) for part in word.parts]:
            if part.kind == "command" and part.raw.startswith("$("):
                what = "$(...) is bash's: csh stops here with 'Illegal variable name'"
                yield Fault(part.origin.line, part.origin.column, what, "backquotes: `command`")


@rule("KIT120")
def spaced_assignments(subject: Subject) -> Iterator[Fault]:
    """Spaces around the `=` of an assignment.

    `NAME = value` runs a command called NAME, which is not there; `export NAME =value` exports an old value, if there
    is one. The script goes on, and what reads the variable finds it empty.

    Mend: `NAME=value`.
    Documented: bash(1), PARAMETERS.
    """
    script = subject.script
    if script.interpreter in CSH:
        return
    for step in script.steps:
        texts = [word.text for word in step.words]
        name, *rest = (texts[1:] if step.name in _DECLARING else texts) or [""]
        if re.fullmatch(r"[A-Za-z_]\w*=?", name) is None or not rest:
            continue
        if step.name not in _DECLARING and not _is_variable(script, step):
            continue
        # `NAME= value` is how a command is given an empty variable.
        if rest[0] == "=" or (re.match(r"=[^=]", rest[0]) and not name.endswith("=")):
            what = f"spaces around the =: {name} is not set"
            yield Fault(step.line, step.command.column, what, f"{name}={rest[0].lstrip('=') or ' '.join(rest[1:2])}")


def _is_variable(script: Script, step: Step) -> bool:
    """Rather than a program or function that is given a `=`: in capitals, or read somewhere."""
    if step.name in script.functions:
        return False
    read = re.compile(rf"\$\{{?{step.name}\b")
    return step.name != step.name.lower() or any(read.search(line) for line in script.lines)


RULES: tuple[Rule, ...] = (broken_lines, foreign_commands, spaced_assignments)
