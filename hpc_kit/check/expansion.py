"""Evaluates words as far as the variables of a script are known, without running anything."""

from __future__ import annotations

import ast
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.bash_syntax import (
    Block,
    CompoundCommand,
    Origin,
    Part,
    Piece,
    SimpleCommand,
    Word,
    as_assignment,
    nested_block,
    program_of,
)
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.units import is_number

TASK_VARIABLES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
"""Variables with a value per task. In the batch shell they are always 0."""

_MOST_PIECES = 500
"""A value of more pieces, appended to by hundreds of lines, becomes unknown: each reader would go through all of it."""

FIRST_NODE = "FIRST-NODE"
"""Placeholder for the name of the host of the batch shell."""

_MENTION = lazy_pattern(rf"\$\{{?({'|'.join(TASK_VARIABLES)})\b")
_SET_BY_SLURM = ("SLURM_", "CUDA_VISIBLE_", "ROCR_VISIBLE_", "HIP_VISIBLE_")
_BARE_MENTION = lazy_pattern(rf"\b({'|'.join(TASK_VARIABLES)})\b")


class TaskVariableUse(NamedTuple):
    """A variable of tasks that a shell outside the tasks expands: its name and position."""

    name: str
    line: int
    column: int


class ExpandedText(NamedTuple):
    """The expanded text of a word, with the positions of its pieces in the file.

    Unknown expansions stay as written (`$NAME`). `is_unknown`: the word is nothing but an unknown expansion, and so
    several words or none. `has_default`: some of it replaces a variable that may come from outside (`${NAME:-1}`).
    """

    text: str
    pieces: tuple[Piece, ...]
    task_variables: tuple[TaskVariableUse, ...] = ()
    is_unknown: bool = False
    has_default: bool = False

    @property
    def is_known(self) -> bool:
        """True if every expansion is known."""
        return "$" not in self.text and "`" not in self.text

    @property
    def number(self) -> int | None:
        """The value of a text that is a number without a sign; None for any other text."""
        return int(self.text) if is_number(self.text) else None

    @property
    def variable(self) -> str | None:
        """The name of the variable that is the whole text, `$NAME` or `${NAME}`; None for any other text."""
        match = re.fullmatch(rf"\$(?:({NAME})|\{{({NAME})\}})", self.text)
        return (match[1] or match[2]) if match else None

    @property
    def line(self) -> int:
        """Line of the first character."""
        return self.pieces[0].origin.line

    @property
    def column(self) -> int:
        """Column of the first character."""
        return self.pieces[0].origin.column

    def slice_of(self, start: int, end: int) -> ExpandedText:
        """Return a slice of the text with its positions."""
        first = max(0, bisect_right([piece.start for piece in self.pieces], start) - 1)
        pieces: list[Piece] = []
        for piece in self.pieces[first:]:
            if piece.start >= end and pieces:
                break
            skipped = max(0, start - piece.start)
            origin = piece.origin
            if skipped and origin.exact:
                before = self.text[piece.start : start]
                line = origin.line + before.count("\n")
                column = skipped - before.rfind("\n") if "\n" in before else origin.column + skipped
                origin = Origin(line, column)
            pieces.append(Piece(max(0, piece.start - start), origin))
        return ExpandedText(self.text[start:end], tuple(pieces), self.task_variables, has_default=self.has_default)


def plain_path(text: str) -> str:
    """Return text with `$NAME` for each `${NAME}`."""
    return re.sub(r"\$\{(\w+)\}", r"$\1", text)


def join_texts(texts: Iterable[ExpandedText], *, separator: str = "") -> ExpandedText:
    """Join several texts."""
    letters, pieces, reads, default = "", list[Piece](), list[TaskVariableUse](), False
    for text in texts:
        letters += separator if letters and separator else ""
        pieces += [Piece(piece.start + len(letters), piece.origin) for piece in text.pieces]
        letters += text.text
        reads += text.task_variables
        default = default or text.has_default
    return ExpandedText(letters, tuple(pieces) or (Piece(0, Origin(exact=False)),), tuple(reads), has_default=default)


class ShellVariables:
    """The known variables of a shell.

    Args:
        values: Variables by name; None for a variable with an unknown value.
        arrays: Array variables by name.
        exported: Names that programs see.
        positional: `$1`, `$2`, ... if they are known.
        functions: The functions that are defined.
        task: The shell runs as a task, so that it knows its own rank.
    """

    def __init__(
        self,
        values: Mapping[str, ExpandedText | None],
        *,
        arrays: Mapping[str, tuple[ExpandedText, ...]] | None = None,
        exported: Iterable[str] = (),
        positional: Sequence[ExpandedText] | None = None,
        functions: dict[str, CompoundCommand] | None = None,
        task: bool = False,
    ) -> None:
        self.values = dict(values)
        self.arrays = dict(arrays or {})
        self.exported = set(exported)
        self.positional = positional
        self.functions = {} if functions is None else functions
        self.task = task

    def copy(self) -> ShellVariables:
        """Return an independent copy, for a subshell or a block that may not run."""
        return ShellVariables(
            self.values,
            arrays=self.arrays,
            exported=self.exported,
            positional=self.positional,
            functions=self.functions,
            task=self.task,
        )

    def child(self, positional: Sequence[ExpandedText], *, task: bool) -> ShellVariables:
        """Return the variables of a program: exported ones only."""
        values = {name: value for name, value in self.values.items() if name in self.exported}
        return ShellVariables(values, exported=self.exported, positional=positional, task=task or self.task)

    def set(self, name: str, value: ExpandedText | tuple[ExpandedText, ...] | None) -> None:
        """Set a variable, or make it unknown."""
        self.arrays.pop(name, None)
        if isinstance(value, ExpandedText) and len(value.pieces) > _MOST_PIECES:
            value = None
        if isinstance(value, ExpandedText) or value is None:
            self.values[name] = value
        else:
            self.values.pop(name, None)
            self.arrays[name] = value

    def take(self, other: ShellVariables, names: Iterable[str]) -> None:
        """Take the values of some variables from another shell."""
        for name in names:
            self.set(name, other.arrays.get(name) or other.values.get(name))
            self.exported |= {name} & other.exported

    def forget(self, names: Iterable[str]) -> None:
        """Make variables unknown."""
        for name in names:
            self.set(name, None)


def common_variables(shells: Sequence[ShellVariables], *, task: bool) -> ShellVariables:
    """Return the variables that have the same value in all shells. The others are unknown."""
    first, *others = shells
    common = first.copy()
    common.task = task
    for other in others:
        for name, value in first.values.items():
            if _text(other.values.get(name)) != _text(value):
                common.values[name] = None
        for name, elements in first.arrays.items():
            if [*map(_text, other.arrays.get(name, ()))] != [*map(_text, elements)]:
                common.set(name, None)
        common.exported &= other.exported
        mine, theirs = common.positional, other.positional
        if mine is None or theirs is None or [*map(_text, mine)] != [*map(_text, theirs)]:
            common.positional = None
    return common


def _text(value: ExpandedText | None) -> str | None:
    return value.text if value is not None else None


def expand_value(word: Word, environment: ShellVariables) -> ExpandedText:
    """Expand a word without splitting it, as in an assignment."""
    pieces = [piece for part in word.parts for piece in _pieces(part, environment)]
    return join_texts(pieces) if pieces else ExpandedText("", (Piece(0, Origin(word.line, word.column, exact=False)),))


def expand_word(word: Word, environment: ShellVariables) -> list[ExpandedText]:
    """Expand a word to a list of words: bash splits unquoted variables, and an array gives one word per element."""
    if len(word.parts) == 1 and word.parts[0].kind == "text":
        return [ExpandedText(word.parts[0].text, (Piece(0, word.parts[0].origin),))]
    return _expand_parts(word, environment)


def _expand_parts(word: Word, environment: ShellVariables) -> list[ExpandedText]:
    fields: list[list[ExpandedText]] = [[]]
    for part in word.parts:
        # `a"$@"b` joins the first element to `a` and the last one to `b`, as bash does.
        several = _several(part, environment)
        if several is not None:
            for index, text in enumerate(several):
                if index:
                    fields.append([])
                fields[-1].append(text)
            continue
        for text in _pieces(part, environment):
            if part.quoted or part.kind not in {"variable", "command"} or text.is_unknown:
                fields[-1].append(text)
                continue
            for index, match in enumerate(re.finditer(r"\S+", text.text)):
                if index:
                    fields.append([])
                fields[-1].append(text.slice_of(match.start(), match.end()))
    # An unquoted unknown word keeps the mark `is_unknown`, which a join would lose.
    one = len(fields) == 1 and len(fields[0]) == 1
    if one and fields[0][0].is_unknown and not word.parts[0].quoted:
        return [fields[0][0]]
    return [join_texts(field) for field in fields if field]


def _several(part: Part, environment: ShellVariables) -> Sequence[ExpandedText] | None:
    """Return the words of an array or of the positional parameters; None for any other part."""
    if part.kind != "variable":
        return None
    several: Sequence[ExpandedText] | None = None
    if part.text in {"@", "*"} and (match := re.fullmatch(r"(?::\s*([1-9]))?", part.detail)):
        several = environment.positional
        several = several[int(match[1] or 1) - 1 :] if several is not None else None
    elif part.detail in {"[@]", "[*]"}:
        several = environment.arrays.get(part.text)
    if several is None or (part.quoted and "@" in part.text + part.detail):
        return several
    if part.quoted:
        return [join_texts(several, separator=" ")]
    return [text.slice_of(*match.span()) for text in several for match in re.finditer(r"\S+", text.text)]


def _pieces(part: Part, environment: ShellVariables) -> list[ExpandedText]:
    place = (Piece(0, part.origin),)
    if part.kind == "text":
        return [ExpandedText(part.text, place)]
    read = _reads(part, environment)
    if part.kind == "variable" and (value := _lookup(part, environment)) is not None:
        return [value._replace(task_variables=value.task_variables + read)]
    # The text is not that of the file: a fix must not replace it.
    fixed = (Piece(0, part.origin._replace(exact=False)),)
    if not environment.task and _is_this_host(part):
        return [ExpandedText(FIRST_NODE, fixed)]
    printed = _output_of(part, environment) if part.kind == "command" else None
    if printed is not None:
        return [printed]
    if part.kind == "arithmetic":
        text = _arithmetic(part.text, environment)
        values = [value for name in re.findall(NAME, part.text) if (value := environment.values.get(name)) is not None]
        return [ExpandedText(text, fixed, read, has_default=any(value.has_default for value in values))]
    # Callers split messages and options at spaces, so that a long `$(...)` is shown without them.
    shown = re.sub(r"\s+", "", part.raw) if part.kind == "variable" else part.raw
    if re.search(r"\s", shown):
        program = re.match(r"\s*[\w./-]*", part.text)
        shown = f"$({program[0].strip() if program else ''}...)"
    return [ExpandedText(shown, fixed, read, is_unknown=not part.quoted)]


def _output_of(part: Part, environment: ShellVariables) -> ExpandedText | None:
    """Return the output of `$(echo ...)`, or of `$(NAME ...)` with a function that prints one line; None if unknown."""
    name = re.match(r"\s*([\w-]+)", part.text)
    if name is None or re.search(r"[|;&<>`()\n]", part.text) or name[1] not in {"echo", *environment.functions}:
        return None
    return _printed(nested_block(part), environment)


def _printed(block: Block, environment: ShellVariables) -> ExpandedText | None:
    """Return the output of commands that set variables and print once at the end; None if there are others."""
    inside, printed = environment.copy(), None
    for statement in block:
        pipelines = statement.chain.pipelines
        command = pipelines[0].commands[0]
        several = len(pipelines) > 1 or len(pipelines[0].commands) > 1
        if isinstance(command, CompoundCommand) and command.kind == "group" and len(block) == 1 and not several:
            return _printed(command.bodies[0][1], inside)
        if printed is not None or several or not isinstance(command, SimpleCommand) or command.output is not None:
            return None
        name, words = program_of(command), [text for word in command.words for text in expand_word(word, inside)]
        if name == "echo" and not any(word.raw.startswith("-") for word in command.words[1:2]):
            printed = join_texts(words[1:], separator=" ")
        elif name in inside.functions:
            called = inside.copy()
            # Functions that call each other would take for ever.
            called.positional, called.functions = words[1:], {}
            printed = _printed(inside.functions[name].bodies[0][1], called)
        elif name in {None, "local"} and (name or not words):
            for each in (*command.assignments, *filter(None, map(as_assignment, command.words[1:]))):
                plain = each.value.elements is None and not (each.append or each.indexed)
                inside.set(each.name, expand_value(each.value, inside) if plain else None)
            continue
        if printed is None:
            return None
    return printed


def _is_this_host(part: Part) -> bool:
    if part.kind == "variable":
        return part.text in {"HOSTNAME", "SLURMD_NODENAME"} and not part.detail
    return part.kind == "command" and bool(re.match(r"\s*(/\S*/)?hostname\b", part.text))


def _lookup(part: Part, environment: ShellVariables) -> ExpandedText | None:
    name, detail = part.text, part.detail
    if name.isdigit() and environment.positional is not None and not detail:
        index = int(name) - 1
        return environment.positional[index] if 0 <= index < len(environment.positional) else None
    value = environment.values.get(name)
    # `${NAME:?message}` is the value, or the end of the script.
    if not detail or detail.startswith(("?", ":?")):
        return value
    default = re.fullmatch(r":?-([\w./:,@%+=-]*)", detail)
    if default and value is not None:
        return value
    # A job needs no default for a variable of Slurm. The default serves runs outside a job.
    if default and name not in environment.values and not name.startswith(_SET_BY_SLURM):
        return ExpandedText(default[1], (Piece(0, part.origin._replace(exact=False)),), has_default=True)
    return None


def _reads(part: Part, environment: ShellVariables) -> tuple[TaskVariableUse, ...]:
    if environment.task or part.kind == "process":
        return ()
    # In `$(srun ...)` or behind quotes, the shell of a task may be the one that expands the name.
    if part.kind == "command" and ("srun" in part.text or "'" in part.text):
        return ()
    pattern = _BARE_MENTION if part.kind == "arithmetic" else _MENTION
    names = dict.fromkeys(match[1] for match in pattern.finditer(part.raw))
    return tuple(TaskVariableUse(name, part.origin.line, part.origin.column) for name in names)


def _arithmetic(source: str, environment: ShellVariables) -> str:
    """Return the value of `$((...))`; if some of it is unknown, the expression with the known values."""

    def known(match: re.Match[str]) -> str:
        value = environment.values.get(match[1]) if match[1] else None
        if match[2] and environment.positional is not None and int(match[2]) <= len(environment.positional):
            value = environment.positional[int(match[2]) - 1]
        if value is None:
            return match[0]
        # The value may be a number that only the job knows.
        inner = re.fullmatch(r"\$\(\((.*)\)\)", value.text)
        if inner is not None:
            return f"({inner[1]})"
        return value.text if value.number is not None or value.variable is not None else match[0]

    filled = re.sub(rf"\$?\{{?\b({NAME})\b\}}?|\$\{{?([1-9])\b\}}?", known, source)
    result = evaluate_sum(filled)
    return str(result) if result is not None else "$((" + re.sub(r"\s+", "", filled) + "))"


Bounds = tuple[int, int]
"""The smallest and the largest value of a number; both are the same if it is known."""


def _remainder(left: Bounds, right: Bounds) -> Bounds:
    (low, high), (divisor, _) = left, right
    # Of a negative number, bash gives a negative remainder, and Python a positive one.
    if low < 0 or right[0] != right[1] or divisor <= 0:
        raise ValueError
    return (low % divisor, high % divisor) if low // divisor == high // divisor else (0, divisor - 1)


def _quotient(left: int, right: int) -> int:
    """Divide as bash does: towards zero, where Python rounds down."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _corners(function: Callable[[int, int], int]) -> Callable[[Bounds, Bounds], Bounds]:
    """Return the bounds of a function that grows or falls with each operand."""

    def bounds(left: Bounds, right: Bounds) -> Bounds:
        values = [function(one, other) for one in left for other in right]
        return min(values), max(values)

    return bounds


_OPERATORS: dict[type[ast.operator], Callable[[Bounds, Bounds], Bounds]] = {
    ast.Add: _corners(operator.add),
    ast.Sub: _corners(operator.sub),
    ast.Mult: _corners(operator.mul),
    ast.Div: _corners(_quotient),
    ast.FloorDiv: _corners(_quotient),
    ast.Mod: _remainder,
}


def evaluate_sum(source: str) -> int | None:
    """Return the value of an integer expression; None if it contains anything else."""
    if is_number(source):
        return int(source)
    bounds = bounds_of_sum(source, {}) if _SUM.fullmatch(source) else None
    return bounds[0] if bounds is not None else None


def bounds_of_sum(source: str, names: Mapping[str, Bounds]) -> Bounds | None:
    """Return the bounds of an integer expression with numbers of which the bounds are known; None for any other."""
    try:
        return _evaluate(_parsed(source.strip()), names)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
        return None


_SUM = lazy_pattern(r"[\s\d()+*/%-]+")


@lru_cache(maxsize=64)
def _parsed(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _evaluate(node: ast.expr, names: Mapping[str, Bounds]) -> Bounds | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value, node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left, names), _evaluate(node.right, names)
        return _OPERATORS[type(node.op)](left, right) if left is not None and right is not None else None
    return names.get(node.id) if isinstance(node, ast.Name) else None
