"""Lists the commands of a script in order, with known variables and enclosing blocks. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import ClassVar, NamedTuple

from hpc_kit.check.bash_syntax import (
    Assignment,
    Block,
    Chain,
    Command,
    CompoundCommand,
    Origin,
    Part,
    Piece,
    Pipeline,
    SimpleCommand,
    Statement,
    Word,
    as_assignment,
    nested_block,
    parse,
    program_of,
    simple_commands,
)
from hpc_kit.check.expansion import (
    ExpandedText,
    ShellVariables,
    common_variables,
    expand_value,
    expand_word,
    join_texts,
)

DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_READING = {"read", "mapfile", "readarray", "getopts"}
_SWITCHES = {"e": "errexit", "a": "allexport", "u": "nounset", "x": "xtrace"}
"""Options of `set` by their letter."""
_MAX_NESTING = 8
_MOST_CALLS = 20
"""Calls of one function that are traced. Functions that call each other would take for ever."""


class BlockPosition(NamedTuple):
    """The position of a command: its pipeline, chain, statement and block, and the compound command around them."""

    pipeline: Pipeline
    pipeline_index: int
    chain: Chain
    chain_index: int
    statement: Statement
    block: Block
    role: str
    parent: BlockPosition | None
    compound: CompoundCommand | None

    @property
    def kind(self) -> str:
        """The kind of the compound command around the block; empty at the top of the script."""
        return self.compound.kind if self.compound is not None else ""

    @property
    def is_conditional(self) -> bool:
        """True if the position is behind a `&&` or `||`, or in a branch."""
        return any(place.chain_index > 0 or place.kind in {"if", "case"} for place in self.outward())

    @property
    def piped_to(self) -> tuple[Command, ...]:
        """The commands behind the position in its pipe."""
        return self.pipeline.commands[self.pipeline_index + 1 :]

    @property
    def is_chained(self) -> bool:
        """True if the position, or one around it, is joined to another command by `&&` or `||`."""
        return any(len(place.chain.pipelines) > 1 for place in self.outward())

    def outward(self) -> Iterator[BlockPosition]:
        """Yield this position and those around it, up to the statement of the script itself."""
        place: BlockPosition | None = self
        while place is not None:
            yield place
            place = place.parent


@dataclass(frozen=True, eq=False)
class TracedCommand:
    """One command with expanded words.

    `options` are the options of the shell that are on (`errexit`), with the line of their `set`. `stdin` is the
    here-document.
    """

    syntax: SimpleCommand
    words: tuple[ExpandedText, ...]
    position: BlockPosition
    options: Mapping[str, int]
    in_task: bool
    stdin: ExpandedText | None = None

    @property
    def errexit(self) -> bool:
        """True if the shell ends when the command fails."""
        return "errexit" in self.options

    @property
    def pipefail(self) -> bool:
        """True if a pipe fails when one of its commands fails."""
        return "pipefail" in self.options

    @cached_property
    def name(self) -> str:
        """The program or builtin."""
        return self.words[0].text if self.words else ""

    @property
    def line(self) -> int:
        """Line of the first word."""
        return self.syntax.line

    @property
    def column(self) -> int:
        """Column of the first word."""
        return self.syntax.column

    @cached_property
    def texts(self) -> list[str]:
        """The words as text."""
        return [word.text for word in self.words]

    @cached_property
    def text(self) -> str:
        """The words as one text."""
        return " ".join(self.texts)

    @cached_property
    def written(self) -> str:
        """The words as they are written, as one text."""
        return " ".join(word.raw for word in self.syntax.words)

    @cached_property
    def substitutions(self) -> list[Part]:
        """The `$(...)` in the words and values of the command."""
        return [part for part in self.syntax.parts if part.kind == "command"]

    def reads(self, name: str) -> bool:
        """Tell whether a word or value of the command reads a variable itself, outside of `$(...)`."""
        return any(part.kind == "variable" and part.text == name for part in self.syntax.parts)

    @property
    def receivers(self) -> list[Command]:
        """The command, the blocks around it, and what is behind their pipes: all that may get its output."""
        return [each for place in self.position.outward() for each in place.pipeline.commands[place.pipeline_index :]]

    @property
    def removes_folders(self) -> bool:
        """True for an `rm -r`."""
        return self.name == "rm" and any(re.match(r"-\w*[rR]|--recursive", text) for text in self.texts[1:])

    @cached_property
    def compounds(self) -> list[CompoundCommand]:
        """The compound commands around the command, the innermost first."""
        return [place.compound for place in self.position.outward() if place.compound is not None]

    def around(self, *kinds: str) -> CompoundCommand | None:
        """Return the innermost compound command of one of these kinds around the command."""
        return next((compound for compound in self.compounds if compound.kind in kinds), None)

    def is_inside(self, compound: CompoundCommand) -> bool:
        """Tell whether a compound command is around the command."""
        return any(each is compound for each in self.compounds)

    def in_condition(self, *kinds: str) -> bool:
        """Tell whether the command is in the condition of a compound command, of one of these kinds if given."""
        return any(
            place.role == "condition" and (not kinds or place.kind in kinds) for place in self.position.outward()
        )

    @property
    def is_conditional(self) -> bool:
        """True if the command is behind a `&&` or `||`, or in a branch."""
        return self.position.is_conditional

    @cached_property
    def written_assignments(self) -> list[Assignment]:
        """The assignments of the command as they are written, also those of `export NAME=value`."""
        declared = self.syntax.words[1:] if self.name in DECLARING else ()
        given = (as_assignment(word, declared=True) for word in declared)
        return [*self.syntax.assignments, *filter(None, given)]

    @cached_property
    def _trap(self) -> list[str]:
        """The code and the signals of a `trap`, also of `trap -- CODE SIGNAL`; empty for any other command."""
        texts = self.texts[1:] if self.name == "trap" else []
        return texts[1:] if texts[:1] == ["--"] else texts

    @property
    def trap_code(self) -> str:
        """The code of a `trap`; empty for any other command."""
        return self._trap[0] if len(self._trap) > 1 else ""

    @property
    def trap_signals(self) -> set[str]:
        """The signals of a `trap`, without SIG."""
        return {text.upper().removeprefix("SIG") for text in self._trap[1:]}

    @property
    def in_background(self) -> bool:
        """True if the command, or a block around it, ends in `&`."""
        return any(place.statement.background for place in self.position.outward())


class TracedAssignment(NamedTuple):
    """An assignment to a variable. `is_literal`: the value contains no expansion.

    `position` is the position of the assignment; None if a command line sets the variable for its program.
    """

    name: str
    value: ExpandedText
    is_literal: bool
    is_exported: bool
    in_task: bool
    line: int
    column: int
    number: int
    position: BlockPosition | None = None

    @property
    def is_for_one_command(self) -> bool:
        """True if a command line sets the variable for its own program: `NAME=value program`."""
        command = self.position.pipeline.commands[self.position.pipeline_index] if self.position is not None else None
        words = isinstance(command, SimpleCommand) and command.words
        return command is None or bool(words and program_of(command) not in DECLARING)

    @property
    def is_conditional(self) -> bool:
        """True if the assignment is behind a `&&` or `||`, or in a branch."""
        return self.position is not None and self.position.is_conditional

    def is_alternative_to(self, other: TracedAssignment) -> bool:
        """Tell whether both set the same variable in different branches, of which only one runs."""
        if self.name != other.name or self.position is None or other.position is None:
            return False
        return any(
            here.compound is there.compound and here.block is not there.block
            for here in self.position.outward()
            for there in other.position.outward()
            if here.kind in {"if", "case"}
        )


class TracedExpression(NamedTuple):
    """A `[[ ... ]]` or `((...))`, with the options of the shell as for `TracedCommand`."""

    text: str
    line: int
    position: BlockPosition
    options: Mapping[str, int]
    in_task: bool


class FunctionCalls(NamedTuple):
    """The calls of a shell function: the variables at each call, and whether the function runs its arguments.

    `captured`: all calls are in `$(...)`. Otherwise, only the other calls count.
    """

    variables: list[ShellVariables]
    runs_arguments: bool
    captured: bool = False


class CommandTrace:
    """The commands and assignments of a script, in the order in which they run.

    The commands of a function stand where it is called first. A function that runs its arguments is traced at each
    call.

    Args:
        environment: Variables at the beginning.
        options: Letters of the options with which the shell was started.
        nested: Called with each command, to trace shell code that its words start (`bash -c`).
        calls: The calls of each function, from an earlier trace. A function without a call is traced at its definition.
    """

    def __init__(
        self,
        environment: ShellVariables,
        *,
        options: str = "",
        nested: Callable[[CommandTrace, TracedCommand], None] | None = None,
        calls: Mapping[str, FunctionCalls] | None = None,
    ) -> None:
        self.variables = environment
        self.commands: list[TracedCommand] = []
        self.assignments: list[TracedAssignment] = []
        self.expressions: list[TracedExpression] = []
        self.options = {name: 1 for letter, name in _SWITCHES.items() if letter in options}
        self.files: dict[str, ExpandedText] = {}
        self.depth = 0
        self.calls: dict[str, FunctionCalls] = {}
        self._functions: dict[str, CompoundCommand] = {}
        self._traced: dict[str, set[str]] = {}
        self._known_calls = calls
        self._nested = nested

    @property
    def has_functions(self) -> bool:
        """True if the script defines a function."""
        return bool(self._functions)

    def block(
        self, block: Block, role: str = "", parent: BlockPosition | None = None, compound: CompoundCommand | None = None
    ) -> None:
        """Trace the statements of a block."""
        for statement in block:
            chain = statement.chain
            for link, pipeline in enumerate(chain.pipelines):
                for position, command in enumerate(pipeline.commands):
                    place = BlockPosition(pipeline, position, chain, link, statement, block, role, parent, compound)
                    if isinstance(command, SimpleCommand):
                        self._simple(command, place)
                    elif command.expression:
                        where = (place, self.options, self.variables.task)
                        self.expressions.append(TracedExpression(command.expression, command.line, *where))
                    else:
                        self._compound(command, place)

    def code(
        self,
        text: ExpandedText,
        environment: ShellVariables,
        place: BlockPosition,
        nested: Callable[[CommandTrace, TracedCommand], None] | None = None,
    ) -> None:
        """Trace shell code of a command line. `nested` replaces the callback of the trace meanwhile."""
        if self.depth >= _MAX_NESTING:
            return
        block = parse(text.text, text.pieces).block
        callback, self._nested = self._nested, nested or self._nested
        outer, self.variables = self.variables, environment
        options = self.options
        if environment is not outer:
            self.options = {}
        self.depth += 1
        self.block(block, "code", place)
        self.depth -= 1
        self.variables, self._nested = outer, callback
        if environment is not outer:
            self.options = options

    def _compound(self, command: CompoundCommand, place: BlockPosition) -> None:
        # A group in a pipe runs in a subshell. Any other group changes the variables of the shell itself.
        if command.kind == "group" and len(place.pipeline.commands) == 1:
            self.block(command.bodies[0][1], "body", place, command)
            return
        if command.kind == "function":
            self._functions[command.name] = command
            self.variables.functions[command.name] = command
            # A function that is called is traced at its calls. The rest may be called by a trap or a program.
            if self._known_calls is None or command.name in self._known_calls:
                return
            self._traced.setdefault(command.name, set())
        outer = self.variables
        self.variables = outer.copy()
        if command.kind in {"for", "select"}:
            self.variables.set(command.name, None)
        first, options = len(self.assignments), self.options
        for role, block in command.bodies:
            self.block(block, role, place, command)
        self.options = options
        inside, self.variables = self.variables, outer
        if command.kind != "subshell":
            # Which of the branches runs, and how often, is not known.
            names = {each.name for each in self.assignments[first:] if not each.in_task}
            for name in names:
                # A list to which a branch appends keeps its known elements: mostly options of the program.
                outer.set(name, _extended(name, outer.arrays.get(name), inside.arrays.get(name, ())))
            if command.kind in {"for", "select"}:
                outer.set(command.name, None)

    def _simple(self, command: SimpleCommand, place: BlockPosition) -> None:
        environment = self.variables
        words = tuple(text for word in command.words for text in expand_word(word, environment))
        step = TracedCommand(command, words, place, self.options, environment.task, self._document(command))
        for assignment in command.assignments:
            # An assignment in front of a command is exported to that command, and gone afterwards.
            self._assign(assignment, place, exported="allexport" in self.options or bool(words), keep=not words)
        self._substitutions(command, place)
        self.commands.append(step)
        if not words:
            return
        builtin = self._BUILTINS.get(step.name)
        if builtin is not None:
            builtin(self, step)
        elif step.name in self._functions:
            self._call(step)
        elif self._nested is not None:
            self._nested(self, step)

    def _unset(self, step: TracedCommand) -> None:
        for word in step.words[1:]:
            self.variables.values.pop(word.text, None)

    def _shift(self, step: TracedCommand) -> None:
        count = step.words[1].number if len(step.words) > 1 else 1
        if self.variables.positional is not None:
            self.variables.positional = self.variables.positional[1 if count is None else count :]

    def _eval(self, step: TracedCommand) -> None:
        # With an unknown word, only the launch line in the words of `eval` can be read.
        if not any(word.is_unknown for word in step.words):
            self.code(join_texts(step.words[1:], separator=" "), self.variables, step.position)
        elif self._nested is not None:
            self._nested(self, step)

    def _source(self, step: TracedCommand) -> None:
        """Trace a file that the script wrote before."""
        body = self.files.get(str(PurePath(step.texts[1]))) if len(step.words) > 1 else None
        if body is not None:
            self.code(body, self.variables, step.position)

    def _substitutions(self, command: SimpleCommand, place: BlockPosition) -> None:
        """Trace the functions that `$(NAME ...)` in the words of a command calls, each in a shell of its own."""
        for part in command.parts if self._functions else ():
            name = re.match(r"\s*([\w-]+)", part.text) if part.kind == "command" else None
            if name is None or name[1] not in self._functions or self.depth >= _MAX_NESTING:
                continue
            # A function with calls outside of `$(...)` is traced there, with its real variables.
            calls = (self.calls if self._known_calls is None else self._known_calls).get(name[1])
            if calls is not None and not calls.captured:
                continue
            called = next(simple_commands(nested_block(part)), None)
            if called is not None and program_of(called) == name[1]:
                words = tuple(text for word in called.words for text in expand_word(word, self.variables))
                outer, self.variables = self.variables, self.variables.copy()
                self._call(TracedCommand(called, words, place, self.options, outer.task), captured=True)
                self.variables = outer

    def _call(self, step: TracedCommand, *, captured: bool = False) -> None:
        """Trace the body of a function at its first call, with the variables that are equal at all calls."""
        function, outer = self._functions[step.name], self.variables
        inside = outer.copy()
        calls = self.calls.get(step.name)
        if calls is None or calls.captured != captured:
            calls = FunctionCalls([], any(map(_runs_arguments, _commands_of(function))), captured)
            self.calls[step.name] = calls
        # An unknown word may be several, which matters for `$1` but not for a command in the arguments.
        passed_on = any(word.text in {"$@", "$*"} for word in step.words[1:])
        several = any(word.is_unknown and not word.text.startswith(("$SLURM", "${SLURM")) for word in step.words[1:])
        unknown = several and not calls.runs_arguments
        inside.positional = None if passed_on or unknown else step.words[1:]
        calls.variables.append(inside.copy())
        # The first trace enters each call, to record the variables of all of them. The second one enters the body once,
        # with the common variables, so that each command of the function is listed once.
        known = (self._known_calls or {}).get(step.name)
        again = self._known_calls is None or (known is not None and known.runs_arguments)
        if known is not None and not known.runs_arguments:
            inside = common_variables(known.variables, task=inside.task)
        again = again and len(calls.variables) <= _MOST_CALLS
        if (again or step.name not in self._traced) and self.depth < _MAX_NESTING:
            self._traced[step.name] = set()
            number, self.variables = len(self.assignments), inside
            self.depth += 1
            for role, block in function.bodies:
                self.block(block, role, step.position, function)
            self.depth -= 1
            self.variables = outer
            # Variables that the function sets in the code of tasks do not come back to this shell.
            names = {each.name for each in self.assignments[number:] if each.in_task == outer.task}
            self._traced[step.name] = names - _local_names(function)
        outer.take(inside, self._traced.get(step.name, set()))

    def _read(self, step: TracedCommand) -> None:
        self.variables.forget(text.text for text in step.words[1:] if text.text.isidentifier())
        # `read -r -d '' NAME <<END` takes the whole document.
        if step.stdin is not None and "-d" in {text.text for text in step.words}:
            self.variables.set(step.words[-1].text, step.stdin)

    def _document(self, command: SimpleCommand) -> ExpandedText | None:
        """Return the here-document of a command. If `cat` copies it to a file, remember the content of the file."""
        if command.document is None:
            return None
        word = Word(command.document, "", command.line, command.column)
        body = expand_value(word, self.variables)
        name = expand_value(command.output, self.variables).text if command.output is not None else None
        if name is not None and program_of(command) == "cat":
            self.files[str(PurePath(name))] = body
        return body

    def assign(self, name: str, value: ExpandedText, *, task: bool) -> None:
        """Record a variable that a command line sets for its program, as in `env NAME=value program`."""
        literal = value.is_known and not value.task_variables
        place = (value.line, value.column, len(self.commands))
        self.assignments.append(TracedAssignment(name, value, literal, True, task, *place))  # noqa: FBT003 - a row

    def _assign(self, assignment: Assignment, place: BlockPosition, *, exported: bool, keep: bool) -> None:
        environment, word = self.variables, assignment.value
        value = expand_value(word, environment)
        literal = word.elements is None and all(part.kind == "text" for part in word.parts)
        exported = exported or assignment.name in environment.exported
        where = (word.line, word.column, len(self.commands), place)
        self.assignments.append(TracedAssignment(assignment.name, value, literal, exported, environment.task, *where))
        if not keep:
            return
        if assignment.indexed:
            environment.set(assignment.name, None)
        elif word.elements is not None:
            elements = tuple(text for element in word.elements for text in expand_word(element, environment))
            before = environment.arrays.get(assignment.name, ()) if assignment.append else ()
            environment.set(assignment.name, before + elements)
        elif assignment.append:
            before_text = environment.values.get(assignment.name)
            environment.set(assignment.name, join_texts((before_text, value)) if before_text is not None else None)
        else:
            # Behind a `&&` or `||`, the variable may keep the value that it had before.
            replaces = place.chain_index > 0 and assignment.name in environment.values
            environment.set(assignment.name, None if replaces else value)
        if exported:
            environment.exported.add(assignment.name)

    def _declare(self, step: TracedCommand) -> None:
        exported = step.name == "export" or any(word.text.startswith("-") and "x" in word.text for word in step.words)
        for word in step.syntax.words[1:]:
            assignment = as_assignment(word, declared=True)
            if assignment is not None:
                self._assign(assignment, step.position, exported=exported, keep=True)
            elif exported and word.plain is not None and word.plain.isidentifier():
                self.variables.exported.add(word.plain)

    def _set(self, step: TracedCommand) -> None:
        words = iter(step.texts[1:])
        for text in words:
            if text[:1] not in {"-", "+"} or text == "--":
                break
            names = {_SWITCHES[letter] for letter in text[1:] if letter in _SWITCHES}
            # `set -eo pipefail`: the next word is the name of the option.
            if text.endswith("o"):
                names.add(next(words, ""))
            kept = {name: line for name, line in self.options.items() if name not in names}
            self.options = kept | (dict.fromkeys(names, step.line) if text.startswith("-") else {})

    _BUILTINS: ClassVar[dict[str, Callable[[CommandTrace, TracedCommand], None]]] = {
        **dict.fromkeys(DECLARING, _declare),
        **dict.fromkeys(_READING, _read),
        "unset": _unset,
        "set": _set,
        "shift": _shift,
        "eval": _eval,
        **dict.fromkeys((".", "source"), _source),
    }
    """The commands that change the shell itself."""


def _extended(
    name: str, before: tuple[ExpandedText, ...] | None, after: tuple[ExpandedText, ...]
) -> tuple[ExpandedText, ...] | None:
    """Return a list to which a branch only appended: its elements, which more options may change, and an unknown rest.

    None: the branch replaced it, or it is no list.
    """
    if before is None or [text.text for text in after[: len(before)]] != [text.text for text in before]:
        return None
    rest = ExpandedText(f"${{{name}[@]}}", (Piece(0, Origin(exact=False)),), is_unknown=True)
    return (*(text._replace(has_default=True) for text in before), rest)


def _commands_of(function: CompoundCommand) -> list[SimpleCommand]:
    return [command for _, block in function.bodies for command in simple_commands(block)]


def _runs_arguments(command: SimpleCommand) -> bool:
    return bool(command.words) and any(word.raw.strip('"') in {"$@", "$*", "${@}"} for word in command.words)


def _local_names(function: CompoundCommand) -> set[str]:
    """Return the variables that end with a function."""
    local = [each for each in _commands_of(function) if program_of(each) in {"local", "declare"}]
    return {word.raw.partition("=")[0] for each in local for word in each.words[1:]}


def variables_at(values: dict[str, str], line: int) -> dict[str, ExpandedText | None]:
    """Return known variables, with the line that defines them as position."""
    place = (Piece(0, Origin(line, 1, exact=False)),)
    return {name: ExpandedText(text, place) for name, text in values.items()}
