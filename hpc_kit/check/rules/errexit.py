"""Rules for commands that return another status than 0 although nothing is wrong, under `set -e` or as the last one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.bash_syntax import (
    Chain,
    Command,
    CompoundCommand,
    Origin,
    SimpleCommand,
    Word,
    nested_block,
    parse,
    program_of,
)
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import BlockPosition, TracedCommand, TracedExpression
from hpc_kit.check.launch_lines import LOOPS
from hpc_kit.check.programs import COPIES, HELPER_PROGRAMS
from hpc_kit.check.rules.arrays import ArrayIndex, array_of
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern


@rule("KIT406")
def harmless_status(script: BatchScript) -> Iterator[Problem]:
    """A command like `((i++))` or `let i=0` ends the script under `set -e`, although nothing is wrong.

    An arithmetic command returns 1 if its value is 0, and so does `expr`. The value of `i++` is the one before the
    increment, so that the first count ends the script, after the first step of a loop. `let n=SLURM_ARRAY_TASK_ID-1`
    ends one element of an array. `read -d ''` reads to the end of its input, and returns 1 there. `n=$(grep -c PATTERN
    FILE)` returns 1 if the count is 0 (a warning), and with pipefail so does `n=$(grep PATTERN FILE | wc -l)`. With
    pipefail, `last=$(ls *.pt | tail -n 1)` fails at the first start, when there is no file yet. `[ -f last.pt ] &&
    args=--resume` as the last command of a function or subshell gives it the status 1 if the test is false (a warning).

    Fix: `i=$((i + 1))`, or `((++i))`; `read -r -d '' ARGS <<END || true`; `n=$(grep -c PATTERN FILE || true)`; `if
    [ -f last.pt ]; then args=--resume; fi`, which returns 0.
    Documented: bash(1), Compound Commands, let, read and set -e; expr(1) and grep(1), Exit Status.
    """
    watched = any(step.errexit for step in script.commands)
    if not watched and not any("errexit" in each.options for each in script.expressions):
        return
    yield from _nothing_found(script)
    yield from _zero(script)
    yield from _false_at_end_of_function(script)
    yield from _false_in_substitution(script)
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


def _place_of(script: BatchScript, expression: TracedExpression) -> Origin:
    column = script.lines[expression.line - 1].find(expression.text.partition("\n")[0])
    return Origin(expression.line, max(0, column) + 1)


def _expressions(script: BatchScript) -> Iterator[_Expression]:
    """Yield the arithmetic commands of the batch shell."""
    for each in script.expressions:
        if each.text.startswith("((") and not each.in_task:
            place = _place_of(script, each)
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


_COUNTED = lazy_pattern(rf"\s*({NAME})(\+\+|--)\s*")
_ASSIGNED = lazy_pattern(rf"\s*{NAME}\s*=(?!=)(.*)", re.DOTALL)


def _zero(script: BatchScript) -> Iterator[Problem]:
    """Find arithmetic commands with the value 0."""
    index, array = ArrayIndex(script), array_of(script)
    elements = array.indexes if array is not None else ()
    expressions = list(_expressions(script))
    uses: dict[str, list[int]] = {}
    for each in expressions:
        for name in set(re.findall(NAME, each.text)):
            uses.setdefault(name, []).append(each.place.line)
    for each in expressions:
        if "errexit" not in each.options or _is_used(each.position):
            continue
        counted, assigned = _COUNTED.fullmatch(each.text), _ASSIGNED.fullmatch(each.text)
        if counted is not None:
            name, line = counted[1], each.place.line
            before = [other for other in script.assignments_of(name) if other.line < line]
            # Another expression may have changed the variable since.
            changed = any(before and before[-1].line < other < line for other in uses[name])
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


_QUESTIONS = lazy_pattern(
    r"\[|test|command -[vV]|type|hash|which|(?:e|f|z)?grep -\w*q|pgrep|mountpoint -q|cmp -s|diff -q"
)
_ALWAYS_SET = lazy_pattern(
    r"\$\{?(SLURM_(?!ARRAY|RESTART|HET|TMPDIR|EXPORT)\w+|HOME|USER|HOSTNAME|PWD|BASH_\w+|#|@|\*|[0-9?])"
)
"""Variables of Slurm and arguments: a test of one may always be true."""
_FILE_OF_ARGUMENT = lazy_pattern(r"-[defrsx]\s+\"?\$\{?\d")


def _false_at_end_of_function(script: BatchScript) -> Iterator[Problem]:
    """Find `TEST && COMMAND` as the last command of a function or subshell, whose status ends the script."""
    tests = [
        _Test(_between_brackets(step.syntax.words), step.written, step, step.position)
        for step in script.batch_commands
        if "errexit" in step.options and _QUESTIONS.match(step.written)
    ]
    tests += [
        _Test(_operands(each.text), each.text, _place_of(script, each), each.position)
        for each in script.expressions
        if "errexit" in each.options and not each.in_task
    ]
    seen: set[int] = set()
    for test in tests:
        chain = test.position.chain
        ends = _ending_place(test.position) if {*chain.operators} == {"&&"} and id(chain) not in seen else None
        if ends is None or not _acts(chain) or _is_known(script, test):
            continue
        seen.add(id(chain))
        what = "if this test is false, the function returns 1, and set -e ends the script without a message"
        if ends.kind == "subshell":
            what = what.replace("function", "subshell")
        call = ends.parent
        lines = (call.statement.line if call is not None else None,)
        yield Problem(test.place, what, "write if ...; then ...; fi, which returns 0", lines, certain=False)


def _false_in_substitution(script: BatchScript) -> Iterator[Problem]:
    """Find `args=$([ -f last.pt ] && echo --resume)`, which has the status of the test."""
    for step in script.batch_commands:
        parts = step.substitutions[-1:] if not step.words and step.errexit and not _is_used(step.position) else []
        for part in parts:
            block = nested_block(part)
            chain = block[-1].chain if block else None
            if chain is None or {*chain.operators} != {"&&"} or not _acts(chain):
                continue
            first = chain.pipelines[0].commands[0]
            words = _between_brackets(first.words) if isinstance(first, SimpleCommand) else ()
            test = _Test(words, part.text, part.origin, step.position)
            if _asks(first) and not _is_known(script, test):
                what = "if this test is false, the assignment returns 1, and set -e ends the script without a message"
                yield Problem(part.origin, what, "write || true behind it", (step.options["errexit"],), certain=False)


def _acts(chain: Chain) -> bool:
    """Tell whether the last command of `TEST && COMMAND` does something. `[ -f a ] && [ -f b ]` is an answer."""
    last = chain.pipelines[-1].commands[-1]
    return not _asks(last) and program_of(last) not in {"break", "continue", "return", "true", ":"}


def _asks(command: Command) -> bool:
    """Tell whether a command is a test."""
    written = " ".join(word.raw for word in command.words) if isinstance(command, SimpleCommand) else ""
    return bool(_QUESTIONS.match(written)) or (not isinstance(command, SimpleCommand) and bool(command.expression))


def _ending_place(position: BlockPosition) -> BlockPosition | None:
    """Return the place in the function or subshell whose status is that of a command, and ends the script."""
    for place in position.outward():
        alone = len(place.pipeline.commands) == 1 and not place.pipeline.negated and not place.statement.background
        last = place.statement is place.block[-1] and (place is position or len(place.chain.pipelines) == 1)
        if not alone or not last or place.role in {"code", "condition"}:
            return None
        if place.kind in {"function", "subshell"}:
            call = place.parent
            return place if call is not None and _ends_script(call, place.compound) else None
    return None


def _ends_script(call: BlockPosition, compound: CompoundCommand | None) -> bool:
    """Tell whether set -e ends the script if the function or subshell at a position returns 1."""
    if _is_used(call) or any(place.statement.background for place in call.outward()):
        return False
    command = call.pipeline.commands[call.pipeline_index]
    if compound is None or compound.kind == "subshell":
        return command is compound
    # `args=$(find_checkpoint)` has the status of the function, but `echo "$(find_checkpoint)"` has its own.
    return isinstance(command, SimpleCommand) and program_of(command) in {None, compound.name}


def _is_known(script: BatchScript, test: _Test) -> bool:
    """Tell whether a test may be true each time: of a value that the script or Slurm sets, or of a folder it makes."""
    if _ALWAYS_SET.search(_FILE_OF_ARGUMENT.sub("", test.text)):
        return True
    made = {word.unquoted for step in script.commands if step.name in {"mkdir", "touch"} for word in step.syntax.words}
    if any(word.unquoted in made for word in test.operands):
        return True
    values = [_text_of(script, word, test) for word in test.operands]
    return _result_of([each[0] if each is not None else None for each in values]) is True


@rule("KIT409", "warning")
def suspended_errexit(script: BatchScript) -> Iterator[Problem]:
    """`set -e` or `exit` has no effect outside of its function or subshell.

    bash ignores `set -e` in all commands of a function that stands in front of `||` or `&&`, or in the condition of an
    `if`. After `prepare || exit 1`, a program in the middle of the function may fail: the lines below it run all the
    same, and the function returns the status of its last one. `( set -e; ... ) || exit 1` does not help. The rule finds
    a program or a copy in front of an `rm`, of a next program, or of a message that succeeds in any case.

    `exit` in parentheses, or in a part of a pipe, ends that subshell alone: after `test -d data || (echo missing; exit
    1)`, the job goes on.

    Fix: `|| return 1` behind each program, `&&` between them; or call the function alone, as `prepare`. Braces for a
    group that ends the job: `|| { echo missing; exit 1; }`.
    Documented: bash(1), SHELL BUILTIN COMMANDS, set -e; bash(1), Compound Commands.
    """
    yield from _exit_of_subshell(script)
    found: set[int] = set()
    for step in script.batch_commands:
        user = _user_of_status(step) if step.errexit and _part_of_work(script, step) else None
        call = user.parent if user is not None else None
        if user is None or call is None or user.compound is None or id(call) in found:
            continue
        # The call of a function stands before the commands of its body.
        inside = [each for each in script.commands_in(user.compound) if script.is_before(step, each)]
        later = [each for each in inside if (body := each.around("function")) is None or step.is_inside(body)]
        last = _runs_anyway(script, step, later)
        if last is None or _checks_itself(script, user.compound, later) or not _relies_on(script, call):
            continue
        found.add(id(call))
        operators, index = call.chain.operators, call.chain_index
        where = f"in front of {operators[index]}" if index < len(operators) else "in a condition"
        what = f"set -e has no effect in {user.compound.name or f'this {user.kind}'}, {where}: after a failure in line"
        what = f"{what} {step.line}, '{last.name or 'the assignment'}' in line {last.line} runs anyway"
        command = call.pipeline.commands[call.pipeline_index]
        place = command if isinstance(command, SimpleCommand) else Origin(command.line)
        leave = "return" if user.kind == "function" else "exit"
        yield Problem(place, what, f"write || {leave} 1 behind line {step.line}", (step.line, last.line))


def _exit_of_subshell(script: BatchScript) -> Iterator[Problem]:
    """Find an `exit` that leaves only a subshell with a message, or a loop in a pipe, in front of a training."""
    keeps_last = script.interpreter in {"ksh", "zsh"} or "lastpipe" in script.code
    for step in script.batch_commands:
        places = list(step.position.outward()) if step.name == "exit" else []
        place = next((each for each in places if each.parent is not None and _is_subshell(each, keeps_last)), None)
        outer = place.parent if place is not None else None
        if place is None or outer is None or place.compound is None or any(each.role == "code" for each in places):
            continue
        inside, last = script.commands_in(place.compound), not outer.piped_to
        # In a pipe, `exit 0` may be meant to leave the loop.
        if place.kind != "subshell" and step.texts[1:2] in ([], ["0"]):
            continue
        messages = place.kind != "subshell" or all(each.name in _MESSAGES | script.functions.keys() for each in inside)
        # The status of the subshell, and the shell around it, may end the job.
        used = outer.chain_index + 1 < len(outer.chain.pipelines) or outer.pipeline.negated or outer.role == "condition"
        ends = step.errexit and (last or step.pipefail)
        around = any(each.kind in {"function", "subshell"} or each.statement.background for each in outer.outward())
        after = [each for each in script.commands_after(step) if not each.is_inside(place.compound)]
        later = next((each for each in after if script.launch_at(each) and _part_of_work(script, each)), None)
        checks = after and (after[0].reads("?") or after[0].reads("PIPESTATUS"))
        # `[ ! -s missing.txt ] || exit 1`
        checks = checks or [each.name for each in after[:2]] in (["[", "exit"], ["test", "exit"])
        if messages and later is not None and not (used or ends or around or checks):
            cause = "in parentheses" if place.kind == "subshell" else "in a pipe"
            what = f"exit {cause} ends this subshell alone: line {later.line} runs anyway"
            remedy = "write { ...; exit 1; } instead of ( ... )"
            remedy = remedy if place.kind == "subshell" else "write ... || exit behind the pipe, or done < <(COMMAND)"
            yield Problem(step, what, remedy, (outer.statement.line, later.line))
            return


_MESSAGES = frozenset({"date", "echo", "exit", "logger", "mail", "printf", "rm", "touch"})


def _is_subshell(place: BlockPosition, keeps_last: bool) -> bool:
    """Tell whether a block runs in a subshell that is no background: in parentheses, or as a loop in a pipe."""
    outer = place.parent
    if outer is None or place.kind == "subshell":
        return place.kind == "subshell"
    in_pipe = len(outer.pipeline.commands) > 1 and bool(outer.piped_to or not keeps_last)
    return in_pipe and place.kind in {"group", *LOOPS}


_FETCHES = frozenset({"curl", "unzip", "wget"})
_FOR_THE_RECORD = lazy_pattern(r"\$\{?(0|BASH_SOURCE)\b|\.(cfg|csv|json|log|md|out|py|sh|sbatch|toml|txt|ya?ml)\Z")
"""A small file that a job copies beside its results."""
_SUCCEEDS = frozenset({
    "", ":", "cd", "date", "df", "echo", "export", "mkdir", "printf", "rm", "set", "sleep", "touch", "true", "unset",
})  # fmt: skip
"""Commands that succeed whatever a program before them has done."""
_NOTICES = frozenset({"[", "test", "return", "exit", "false"})
_HANDLES = frozenset({"", "break", "continue", "exit", "false", "kill", "return", "scancel"})
"""Commands that act on a failure; an assignment, which has no name, keeps the status."""


def _part_of_work(script: BatchScript, step: TracedCommand) -> str:
    """Return "program" for a program of the user, "copy" for a copy of data, and "" for any other command."""
    launch = script.launch_at(step)
    texts = launch.program.texts if launch is not None else step.texts or [""]
    if texts[0] in COPIES | _FETCHES:
        return "" if any(map(_FOR_THE_RECORD.search, texts[1:])) else "copy"
    if launch is None or launch.program.name in HELPER_PROGRAMS:
        return ""
    started = launch.is_training or launch.program.kind == "python" or launch.agent or launch.multiplier
    return "program" if started else ""


def _user_of_status(step: TracedCommand) -> BlockPosition | None:
    """Return the place in the function or block whose status something uses, if nothing handles the command itself."""
    for place in step.position.outward():
        handled = place.chain_index + 1 < len(place.chain.pipelines) or place.role in {"code", "condition"}
        if handled or place.pipeline.negated or place.piped_to or place.statement.background:
            return None
        outer = place.parent if place.kind in {"function", "group", "subshell"} else None
        if outer is None or outer.piped_to:
            continue
        if outer.chain_index + 1 < len(outer.chain.pipelines) or outer.role == "condition":
            return place
    return None


def _runs_anyway(script: BatchScript, step: TracedCommand, later: list[TracedCommand]) -> TracedCommand | None:
    """Return the command below a failed one that does harm, or hides the failure; None if there is none."""
    is_program = _part_of_work(script, step) == "program"
    for each in later:
        if each.removes_folders or (is_program and _part_of_work(script, each) == "program"):
            return each
    last = later[-1] if later else None
    # A function such as `log` only prints.
    names = {last.name, *(each.name for each in script.functions.get(last.name, ()))} if last is not None else {"?"}
    return last if names <= _SUCCEEDS | script.functions.keys() else None


def _checks_itself(script: BatchScript, compound: CompoundCommand, later: list[TracedCommand]) -> bool:
    """Tell whether commands below a failed one may notice the failure: a test, or one that reads its status."""
    tests = any(each.name in _NOTICES or each.reads("?") for each in later)
    expressions = (each.position for each in script.expressions if later and each.line >= later[0].line)
    return tests or any(place.compound is compound for each in expressions for place in each.outward())


def _relies_on(script: BatchScript, call: BlockPosition) -> bool:
    """Tell whether a script acts on the failure of a function or block, rather than prints a message and goes on."""
    chain, index = call.chain, call.chain_index
    if index + 1 >= len(chain.pipelines) or chain.operators[index] == "&&":
        return True
    names = {
        step.name
        for step in script.batch_commands
        if any(place.chain is chain and place.chain_index > index for place in step.position.outward())
    }
    return not _HANDLES.isdisjoint(names | {step.name for name in names for step in script.functions.get(name, ())})


@rule("KIT408", "warning", needs=("&&",))
def false_at_end(script: BatchScript) -> Iterator[Problem]:
    """The last command is a test that is false, so that the job fails although nothing failed.

    The status of `[ "$KEEP" = 1 ] && echo kept` is 1 if the test is false, and the status of the last command is that
    of the job: Slurm records FAILED, and jobs with `afterok` never start. `[ $rc -ne 0 ] && exit $rc` as the last line
    fails after each success. The rule finds tests of values that the script itself sets, of a default such as
    `${KEEP:-0}`, and of the status of a successful training.

    Fix: `if [ ... ]; then ...; fi`, which returns 0; or `exit 0` as the last line.
    Documented: bash(1), Lists; slurm.schedmd.com/job_exit_code.html.
    """
    if (
        script.unread_part
        or script.sources_files
        or not script.training
        or any("exit" in step.trap_code for step in script.batch_commands)
    ):
        return
    if any("EXIT" in step.trap_signals and step.trap_code in script.functions for step in script.batch_commands):
        return
    commands = (step for step in script.batch_commands if step.name in {"[", "test"})
    tests = [_Test(_between_brackets(step.syntax.words), step.written, step, step.position) for step in commands]
    expressions = (each for each in script.expressions if not each.in_task)
    tests += [_Test(_operands(each.text), each.text, _place_of(script, each), each.position) for each in expressions]
    for test in tests:
        if _is_last_link(test.position) and (lines := _why_false(script, test)) is not None:
            relied = re.search(r"afterok:\S*SLURM_JOB_?ID", script.code) is not None
            what = "this test is false: the last command returns 1, and the job is FAILED although nothing failed"
            yield Problem(test.place, what, "write if ...; then ...; fi, or exit 0 as the last line", lines, relied)


class _Test(NamedTuple):
    """A `[ ... ]`, `test ...`, `[[ ... ]]` or `((...))`: its words, none if it has operators of its own."""

    operands: tuple[Word, ...]
    text: str
    place: Place
    position: BlockPosition


def _between_brackets(words: tuple[Word, ...]) -> tuple[Word, ...]:
    return words[1:-1] if words[-1].raw == "]" else words[1:]


def _operands(text: str) -> tuple[Word, ...]:
    """Return the words of a `[[ ... ]]` that `test` would read in the same way; none for any other expression."""
    if not text.startswith("[[") or re.search(r"&&|\|\||[<>()]|=~", text):
        return ()
    block = parse(f"test {text[2:-2]}").block
    command = block[0].chain.pipelines[0].commands[0] if len(block) == 1 else None
    return command.words[1:] if isinstance(command, SimpleCommand) else ()


def _is_last_link(position: BlockPosition) -> bool:
    """Tell whether a command is in front of a `&&` in the last statement of the script, or of a function at its end."""
    chain = position.chain
    if position.chain_index + 1 >= len(chain.pipelines) or {*chain.operators} != {"&&"}:
        return False
    for place in position.outward():
        alone = len(place.pipeline.commands) == 1 and not place.pipeline.negated and not place.statement.background
        outer = place is position or len(place.chain.pipelines) == 1
        if not (alone and outer) or place.statement is not place.block[-1] or place.role == "code":
            return False
        if place.kind not in {"", "function", "group", "subshell"}:
            return False
        # The parent of a function that nothing calls is its definition.
        if place.kind == "function" and (place.parent is None or not _is_call(place.parent)):
            return False
    return True


def _is_call(place: BlockPosition) -> bool:
    return isinstance(place.pipeline.commands[place.pipeline_index], SimpleCommand)


_COMPARED = lazy_pattern(r"(?:\$\{?)?([A-Za-z_]\w*)\}?(?:(==|!=|>=|<=|>|<)(\d+))?")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-lt": "<", "-ge": ">=", "-le": "<="}


def _why_false(script: BatchScript, test: _Test) -> tuple[int, ...] | None:
    """Return the lines of the values for which a test is false; None if it may be true."""
    if test.text.startswith("(("):
        match = _COMPARED.fullmatch(re.sub(r"\s", "", test.text[2:-2]))
        value = _value_of(script, match[1], test) if match is not None else None
        if match is None or value is None or not value[0].isdigit():
            return None
        return None if _compares(int(value[0]), match[2] or "!=", int(match[3] or 0)) else value[1]
    values = [_text_of(script, word, test) for word in test.operands]
    lines = tuple(line for each in values if each is not None for line in each[1])
    result = _result_of([each[0] if each is not None else None for each in values])
    # A test of two literals is no test of a setting.
    return lines if lines and result is False else None


def _result_of(words: list[str | None]) -> bool | None:
    """Return the result of a test of known words; None if it is unknown."""
    if words[:1] == ["!"]:
        inner = _result_of(words[1:])
        return None if inner is None else not inner
    if len(words) == 1 and words[0] is not None:
        return words[0] != ""
    if len(words) == 2 and words[0] in {"-z", "-n"} and words[1] is not None:
        return (words[1] == "") == (words[0] == "-z")
    if len(words) != 3 or None in words:
        return None
    left, operator, right = (word or "" for word in words)
    if operator in {"=", "==", "!="}:
        return (left == right) != (operator == "!=")
    if operator in _NUMBERS and left.isdigit() and right.isdigit():
        return _compares(int(left), _NUMBERS[operator], int(right))
    return None


def _compares(left: int, operator: str, right: int) -> bool:
    order = (left > right) - (left < right)
    return {"==": order == 0, "!=": order != 0, ">": order > 0, "<": order < 0, ">=": order >= 0, "<=": order <= 0}[
        operator
    ]


_Known = tuple[str, tuple[int, ...]]
"""A value, and the lines that set it."""


def _text_of(script: BatchScript, word: Word, test: _Test) -> _Known | None:
    """Return the value of a word of a test; None if it is unknown, or a pattern."""
    if any(part.kind == "text" and not part.quoted and re.search(r"[*?\[]", part.text) for part in word.parts):
        return None
    if word.literal is not None:
        return word.literal, ()
    parts = [part for part in word.parts if part.kind != "text" or part.text]
    if len(parts) != 1 or parts[0].kind != "variable":
        return None
    name, detail, position = parts[0].text, parts[0].detail, test.position
    if name == "?" and not detail:
        number = next(index for index, each in enumerate(position.block) if each is position.statement)
        before = position.block[number - 1] if number else None
        after = [each for each in script.training if each.command.position.statement is before]
        return ("0", (after[0].line,)) if after else None
    default = re.fullmatch(r":?-([\w./-]*)", detail)
    if default is not None and not script.assignments_of(name):
        outside = name.startswith("SLURM") or _is_set_elsewhere(script, name, test)
        return None if outside else (default[1], (position.statement.line,))
    return _value_of(script, name, test) if not detail or default else None


_OF_STATUS = lazy_pattern(
    r"(?i)rc|ret(val|code)?|(\w+_)?(status|rc|exit|err|code)|e[cs]|exit_?(code|status)|rv|failed|fail"
)

_STATUS = lazy_pattern(r"\$\?|\$\{\?\}|\$\{PIPESTATUS\[0\]\}")


def _value_of(script: BatchScript, name: str, test: _Test) -> _Known | None:
    """Return the value of a variable that the script sets once, or of the status of a successful training."""
    given = script.assignments_of(name)
    if not given or any(each.in_task or each.is_for_one_command for each in given):
        return None
    if _is_set_elsewhere(script, name, test):
        return None
    lines = tuple(each.line for each in given)
    read = [each for each in given if _STATUS.fullmatch(each.value.text)]
    after = read and any(launch.line <= read[-1].line for launch in script.training)
    if after and _OF_STATUS.fullmatch(name) and all(each in read or each.value.text == "0" for each in given):
        return "0", lines[-1:]
    each = given[0]
    loose = each.is_conditional or (each.position is not None and any(p.kind for p in each.position.outward()))
    if len(given) > 1 or loose or not each.value.is_known or "*" in each.value.text:
        return None
    return (each.value.text, lines) if each.is_literal or each.value.has_default else None


_USUAL_CODE = lazy_pattern(r"conda|mamba|modulecmd|lmod|module|ssh-agent|spack|brew|dircolors")


def _is_set_elsewhere(script: BatchScript, name: str, test: _Test) -> bool:
    """Tell whether something else than its plain assignments may set a variable.

    `read NAME`, `((NAME++))`, `printf -v NAME`, the code of a trap and a call with the name as its argument all contain
    the name without a `$`. `sbatch --export` and an `eval` may set any variable.
    """
    if name in script.options.get("export", "") or re.search(rf"\$\{{{name}:?=", script.code):
        return True
    if any(step.name == "eval" and not _USUAL_CODE.search(step.written) for step in script.batch_commands):
        return True
    bare = re.compile(rf"(?<![\w$\{{#!./-]){name}(?![\w./-])")
    found = sum(len(bare.findall(line)) for _, line in script.command_lines)
    return found > len(script.assignments_of(name)) + len(bare.findall(test.text))
