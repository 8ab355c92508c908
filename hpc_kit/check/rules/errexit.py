"""Rules for `set -e`: commands that return another status than 0 although nothing is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.bash_syntax import Command, Origin, SimpleCommand, nested_block, program_of
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import BlockPosition, TracedCommand
from hpc_kit.check.rules.arrays import ArrayIndex, array_of
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.text_edits import Edit


@rule("KIT406")
def harmless_status(script: BatchScript) -> Iterator[Problem]:
    """A command like `((i++))` or `let i=0` ends the script under `set -e`, although nothing is wrong.

    An arithmetic command returns 1 if its value is 0, and so does `expr`. The value of `i++` is the one before the
    increment, so that the first count ends the script, after the first step of a loop. `let n=SLURM_ARRAY_TASK_ID-1`
    ends one element of an array. `read -d ''` reads to the end of its input, and returns 1 there. `n=$(grep -c PATTERN
    FILE)` returns 1 if the count is 0 (a warning), and with pipefail so does `n=$(grep PATTERN FILE | wc -l)`. With
    pipefail, `last=$(ls *.pt | tail -n 1)` fails at the first start, when there is no file yet.

    Fix: `i=$((i + 1))`, or `((++i))`; `read -r -d '' ARGS <<END || true`; `n=$(grep -c PATTERN FILE || true)`.
    Documented: bash(1), Compound Commands, let, read and set -e; expr(1) and grep(1), Exit Status.
    """
    yield from _nothing_found(script)
    yield from _zero(script)
    for step in script.batch_commands:
        whole = step.name == "read" and re.search(r"\s-\w*d (''|\"\")(\s|\Z)", step.written)
        # A list of `find -print0` or in /proc has the end that `read -d ''` looks for.
        read = step.syntax.input
        text = step.syntax.document is not None or (read is not None and not read.raw.startswith(("<(", "/proc/")))
        if whole and step.errexit and text and not _is_used(step.position):
            what = "read -d '' returns 1 at the end of its input, and set -e ends the script"
            yield Problem(step, what, "write || true behind it", (step.options["errexit"],))


def _is_used(position: BlockPosition) -> bool:
    """Tell whether the status of a command ends no script: something such as `||` uses it, or a pipe loses it."""
    places = list(position.outward())
    used = any(place.role == "condition" or place.pipeline.negated or place.piped_to for place in places)
    return used or position.is_chained


class _Expression(NamedTuple):
    """An expression whose value is the status of its command: `((...))`, `let` or `expr`."""

    text: str
    name: str
    place: Place
    position: BlockPosition
    options: Mapping[str, int]


def _expressions(script: BatchScript) -> Iterator[_Expression]:
    """Yield the arithmetic commands of the batch shell."""
    for each in script.expressions:
        if each.text.startswith("((") and not each.in_task:
            line = script.lines[each.line - 1]
            place = Origin(each.line, max(0, line.find(each.text.partition("\n")[0])) + 1)
            yield _Expression(each.text[2:-2], "((...))", place, each.position, each.options)
    for step in script.batch_commands:
        if step.name == "let" and len(step.words) > 1:
            text = step.syntax.words[-1].unquoted
            yield _Expression(text, "let", step, step.position, step.options)
        # In `n=$(expr ...)`, the status of the assignment is that of expr.
        called = step.substitutions[-1:] if not step.words else []
        for command in (nested_block(part)[0].chain.pipelines[0].commands[0] for part in called if nested_block(part)):
            if isinstance(command, SimpleCommand) and program_of(command) == "expr" and len(called) == 1:
                text = " ".join(re.sub(r"\\\*|[\"']\*[\"']", "*", word.raw).strip('"') for word in command.words[1:])
                yield _Expression(text, "expr", command, step.position, step.options)


_COUNTED = re.compile(rf"\s*({NAME})(\+\+|--)\s*")
_ASSIGNED = re.compile(rf"\s*{NAME}\s*=(?!=)(.*)", re.DOTALL)


def _zero(script: BatchScript) -> Iterator[Problem]:
    """Find arithmetic commands with the value 0."""
    index, array = ArrayIndex(script), array_of(script)
    elements = array.indexes if array is not None else ()
    expressions = list(_expressions(script))
    for each in expressions:
        if "errexit" not in each.options or _is_used(each.position):
            continue
        counted, assigned = _COUNTED.fullmatch(each.text), _ASSIGNED.fullmatch(each.text)
        if counted is not None:
            name, line = counted[1], each.place.line
            before = [other for other in script.assignments_of(name) if other.line < line]
            # Another expression may have changed the variable since.
            changed = any(
                re.search(rf"\b{name}\b", other.text) and before and before[-1].line < other.place.line < line
                for other in expressions
            )
            if before and before[-1].value.text == "0" and not changed:
                what = f"the first time, this returns 1, and set -e ends the script: {name} is 0"
                column = script.lines[line - 1].find(counted[0].strip()) + 1
                edits = (Edit(line, column, counted[0].strip(), f"{counted[2]}{name}"),) if column else ()
                yield Problem(each.place, what, f"write {name}=$(({name} + 1))", (before[-1].line,), edits=edits)
            continue
        text = assigned[1] if assigned is not None else each.text if each.name == "expr" else ""
        remedy = "write NAME=$((...)) instead, which returns 0"
        if index.compute(text, -1) == 0 and not index.depends(text):
            what = f"the value is 0, so that {each.name} returns 1, and set -e ends the script"
            yield Problem(each.place, what, remedy, (each.options["errexit"],))
        zero = [number for number in elements if index.depends(text) and index.compute(text, number) == 0]
        if zero:
            what = (
                f"in element {zero[0]} of the array the value is 0: {each.name} returns 1, and set -e ends the script"
            )
            yield Problem(each.place, what, remedy, (each.options["errexit"], script.line_of("array")))


def _nothing_found(script: BatchScript) -> Iterator[Problem]:
    """Find `n=$(grep -c ...)` and `last=$(ls *.pt | tail -n 1)`, which fail if there is nothing to count or to list."""
    for step in script.batch_commands:
        if step.words or not step.errexit or _is_used(step.position):
            continue
        for part in step.substitutions:
            block = nested_block(part)
            # The status of the pipe is that of its last command, and with pipefail that of any.
            plain = len(block) == 1 and len(block[0].chain.pipelines) == 1
            commands = block[0].chain.pipelines[0].commands if plain else ()
            for command in commands if step.pipefail else commands[-1:]:
                fails, counts = _may_find_nothing(command, commands)
                if fails and (counts or (_allows_nothing(script, step) and "nullglob" not in script.code)):
                    what, lines = f"{fails}, and set -e ends the script without a message", (step.options["errexit"],)
                    yield Problem(part.origin, what, "write || true behind it", lines, certain=not counts)


_ALWAYS_LISTS = frozenset({"lscpu", "numactl", "nvidia-smi", "rocm-smi", "scontrol", "sinfo"})
"""Programs that print the same lines each time."""


def _may_find_nothing(command: Command, pipe: Sequence[Command]) -> tuple[str, bool]:
    """Return the reason for which a command fails if there is nothing, or "", and whether the pipe counts lines."""
    name = program_of(command)
    words = [word.raw for word in command.words[1:]]
    behind = [program_of(each) for each in pipe[pipe.index(command) + 1 :]]
    if name == "grep" and program_of(pipe[0]) not in _ALWAYS_LISTS:
        if any(re.match(r"-\w*c|--count", word) for word in words):
            return "grep -c returns 1 if no line matches", True
        if behind == ["wc"]:
            return "with pipefail, the pipe returns 1 if no line matches", True
    # `ls *.yaml | sed -n "${N}p"` selects one of many.
    selects = [each for each in pipe if program_of(each) in {"awk", "head", "sed", "tail"}]
    if any(part.text.isidentifier() for each in selects for part in each.parts if part.kind == "variable"):
        return "", False
    if name == "grep":
        return "grep returns 1 if no line matches", False
    finds = name == "ls" and any(re.search(r"[*?]", word) for word in words)
    return ("ls returns 2 if there is no file yet" if finds else ""), False


def _allows_nothing(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether a script allows for a `$(...)` that prints nothing."""
    # A condition around it may have found the files, and a training before it has written them.
    sure = step.is_conditional or any(script.is_before(launch.command, step) for launch in script.training)
    return not sure and any(_goes_on_without(script.code, each.name) for each in step.syntax.assignments)


def _goes_on_without(code: str, name: str) -> bool:
    """Tell whether a script allows for an empty variable: it has a default, or a test that ends nothing."""
    value = rf"\"?\$\{{?{name}(?::?-)?\}}?\"?"
    test = rf"(?m)^.*(?:\[|\btest)\s+(?:!\s+)?(?:-[zndefrs]\s+{value}|{value}\s*(?:\]|[!=]=?\s*\"\"))"
    for found in re.finditer(test, code):
        # What depends on the test ends with `fi`, with `}` or with its line.
        line = code[found.start() :].partition("\n")[0]
        last = r"\bfi\b" if re.search(r"\bif\b", line) else r"\n\s*\}" if line.endswith("{") else "\n"
        text = re.split(last, code[found.start() :])[0]
        if not re.search(r"\b(exit|return|die|fail\w*|abort|err\w*|fatal|bail|usage|panic)\b", text):
            return True
    return re.search(rf"\$\{{{name}:?(\+|[-=][^}}])", code) is not None
