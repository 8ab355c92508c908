"""Rules for ordered lists of files: the newest checkpoint, and clean-ups that remove old ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hpc_kit.check.bash_syntax import (
    Command,
    CompoundCommand,
    PipelineUse,
    SimpleCommand,
    Word,
    program_of,
    simple_commands,
)
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.restarts import LOADS
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern

_UNPADDED = r"(?:checkpoint-|global_step_?|epoch[=_-]|step[=_-])(?:\*|\[0-9\][*+]|\\d\+)"
"""A pattern for names with a number. The trainers that write these names pad no numbers with zeros."""
_SORTED_AS_TEXT = "this sorts numbers as text: 9000 comes after 10000, so that an old checkpoint is taken"
_MEANS_NEWEST = lazy_pattern(r"(?i)latest|newest|\blast|recent|resume")
_MEASURE = lazy_pattern(r"(?i)loss|acc|score|metric|val_|best|bleu|wer|ppl|iou|f1")
"""Names of files with a number that is no time."""
_PRINTING = frozenset({"echo", "logger", "printf"})


@rule("KIT432", needs=("head", "tail", "[-1]", "[@]"))
def oldest_checkpoint(script: BatchScript) -> Iterator[Problem]:
    """The script takes the oldest file for the newest.

    `ls -t` prints the newest file first, and `ls -tr` prints it last. With `ls -t | tail -n 1`, each start resumes from
    the first checkpoint.

    Sorted as text, checkpoint-9000 comes after checkpoint-10000 (a warning). `sort -n` does not help, because the names
    begin with letters; a pattern, `(out/checkpoint-*)`, has the same order. A clean-up with `ls -t | head -n -3 | xargs
    rm` keeps the three oldest checkpoints: `head -n -3` prints all lines but the last three. `ls -t | head -n 3 | xargs
    rm` removes the three newest ones (a warning).

    Fix: `ls -t ... | head -n 1`, or `ls -d ... | sort -V | tail -n 1`; `ls -t ... | tail -n +4 | xargs rm`.
    Documented: ls(1), -t; head(1) and tail(1), -n.
    """
    yield from _last_of_pattern(script)
    loaded = _loaded_variables(script)
    for use in script.pipelines:
        selections = _selections(use)
        if any(map(_removes, (*use.pipeline.commands, *_users(use)))):
            yield from (problem for each in selections if (problem := _newest_removed(each)) is not None)
        elif not any(program_of(user) in _PRINTING for user in _users(use)):
            yield from (problem for each in selections if (problem := _not_the_newest(each, loaded)) is not None)


class _Selection(NamedTuple):
    """A `head` or `tail` that selects lines of a list: `end` is its name, and `sign` and `count` are those of `-n`."""

    use: PipelineUse
    before: tuple[SimpleCommand, ...]
    end: Word
    sign: str
    number: str


def _selections(use: PipelineUse) -> Iterator[_Selection]:
    """Yield the parts of a pipe that select the first or last lines of a list."""
    commands = use.pipeline.commands
    for index, command in enumerate(commands):
        before = tuple(each for each in commands[:index] if isinstance(each, SimpleCommand))
        if not isinstance(command, SimpleCommand) or program_of(command) not in {"head", "tail"}:
            continue
        options = " ".join(word.unquoted for word in command.words[1:])
        limit = re.fullmatch(r"(?:-n\s*|--lines[= ]|-(?=\d))([-+]?)[\"']?(\d+|\$.*)", options)
        if before and len(before) == index and limit is not None:
            yield _Selection(use, before, command.words[0], limit[1], limit[2])


def _users(use: PipelineUse | None) -> Iterator[Command]:
    """Yield the commands that get the output of a pipeline in a `$(...)`, the innermost first."""
    while use is not None and use.user is not None and use.part is not None:
        yield use.user
        use = use.outer


def _removes(command: Command) -> bool:
    """Tell whether a command removes files: `rm`, `xargs rm`, or a loop with an `rm`."""
    if isinstance(command, CompoundCommand):
        return any(_removes(each) for _, block in command.bodies for each in simple_commands(block))
    starters = {"xargs", "parallel", "sudo"}
    name = program_of(command)
    return name == "rm" or (name in starters and any(word.plain == "rm" for word in command.words))


_LETTERS = {"sort=time": "-t", "sort=version": "-v", "reverse": "-r", "version-sort": "-V", "numeric-sort": "-n"}


def _letters(command: SimpleCommand) -> str:
    """Return the options of ls or sort as letters, also those of long options and those behind a key of sort."""
    texts = [word.unquoted for word in command.words[1:]]
    short = [text for text in (_LETTERS.get(text[2:], text) for text in texts) if re.match(r"-\w", text)]
    # The `-t` of sort has the separator as its value.
    return "".join(re.sub("t.*", "t", text) if program_of(command) == "sort" else text for text in short)


def _newest_removed(each: _Selection) -> Problem | None:
    """Find a clean-up that selects the newest files of an ordered list."""
    last = each.before[-1]
    letters, is_sort = _letters(last), program_of(last) == "sort"
    ordered = re.search("[nV]", letters) if is_sort else program_of(last) == "ls" and re.search("[tv]", letters)
    # The first line of `ls -l` is no file.
    texts = " ".join(word.raw for command in each.before for word in command.words)
    if not ordered or (not is_sort and "l" in letters) or _MEASURE.search(texts):
        return None
    # `ls -t` begins with the newest file, and every other order ends with it.
    newest_first = (not is_sort and "t" in letters) != ("r" in letters)
    at_newest_end = newest_first == (each.end.raw == "head")
    if at_newest_end and each.sign == {"head": "-", "tail": "+"}[each.end.raw]:
        remedy = f"write {'tail -n +N' if newest_first else 'head -n -N'}"
        return Problem(each.end, "this removes the newest files, and keeps the oldest", remedy, (each.end.line,))
    # A script may remove the last file, which may be incomplete.
    if at_newest_end and not each.sign and each.number.isdigit() and int(each.number) > 1:
        kept = int(each.number)
        remedy = f"write {f'tail -n +{kept + 1}' if newest_first else f'head -n -{kept}'}, which keeps them"
        return Problem(each.end, f"this removes the {kept} newest files", remedy, (each.end.line,), certain=False)
    return None


def _not_the_newest(each: _Selection, loaded: set[str]) -> Problem | None:
    """Find a single file that is meant as the newest one, and is another one."""
    if (each.sign, each.number) != ("", "1"):
        return None
    if (pattern := _pattern_sorted_as_text(each)) is not None:
        return Problem(pattern, _SORTED_AS_TEXT, "write sort -V", certain=False)
    last = each.before[-1]
    letters = _letters(last) if program_of(last) == "ls" else ""
    # The option or the variable that gets the file tells what it is for: `--init-from` may want the oldest.
    receiver = _receiver(each.use)
    if "t" not in letters or (each.end.raw == "tail") == ("r" in letters):
        return None
    if not _MEANS_NEWEST.search(receiver) and receiver.partition("=")[0] not in loaded:
        return None
    other = "head" if each.end.raw == "tail" else "tail"
    what = f"{last.words[0].raw} {' '.join(w.raw for w in last.words[1:] if w.raw[0] == '-')} | {each.end.raw}"
    edits = (Edit(each.end.line, each.end.column, each.end.raw, other),)
    return Problem(last.words[0], f"{what} is the oldest file", f"write {other} -n 1", edits=edits)


def _pattern_sorted_as_text(each: _Selection) -> Word | None:
    """Return the pattern of checkpoints whose last one by name is selected; None if the order is another one."""
    orders = {"ls": "[tvU]", "sort": "[VgMhkt]"}
    for command in each.before:
        order = orders.get(program_of(command) or "")
        by_time = any(re.search(r"%[TCYZAB]|--(sort|key|field)\b", word.raw) for word in command.words)
        if by_time or (order is not None and re.search(order, _letters(command))):
            return None
    *filters, last = each.before
    is_sorted = program_of(last) == "sort"
    reverse = is_sorted and "r" in _letters(last)
    source = next((command for command in reversed(filters) if program_of(command) != "sort"), None)
    source = source if is_sorted else last
    known = source is not None and program_of(source) in {"ls", "find", "printf", "echo", "grep"}
    if source is None or not known or each.end.raw != ("head" if reverse else "tail"):
        return None
    return next((word for word in source.words if re.search(_UNPADDED, word.raw)), None)


def _receiver(use: PipelineUse | None) -> str:
    """Return the text in front of a `$(...)`: its variable, the option that gets its output, or its function."""
    if use is None or use.user is None:
        return ""
    if isinstance(use.user, CompoundCommand) or use.part is None:
        return use.user.name if isinstance(use.user, CompoundCommand) else ""
    words = [(f"{each.name}={each.value.raw}", each.value) for each in use.user.assignments]
    words += [(word.raw, word) for word in use.user.words if program_of(use.user) != "export" or word.plain != "export"]
    index = next((n for n, (_, word) in enumerate(words) if any(part is use.part for part in word.parts)), 0)
    text = " ".join(raw for raw, _ in words[: index + 1]).rpartition(use.part.raw)[0]
    return _receiver(use.outer) + re.split(r"\s(?=-)", text)[-1]


def _loaded_variables(script: BatchScript) -> set[str]:
    """Return the variables that an option which loads a checkpoint gets."""
    loads = re.compile(rf"-\w*(?:{LOADS.pattern})\S*[= ]\"?\$\{{?(\w+)")
    texts = [step.written for step in script.commands] + [each.value.raw for each in script.written_assignments]
    return {name for text in texts for name in loads.findall(text)}


def _last_of_pattern(script: BatchScript) -> Iterator[Problem]:
    """Find the last element of a list of checkpoints, `C=(out/checkpoint-*)` and `${C[-1]}`."""
    lists = {each.name for each in script.written_assignments if re.fullmatch(rf"\(\S*{_UNPADDED}/?\)", each.value.raw)}
    for part in script.parts:
        last = part.kind == "variable" and part.text in lists
        if last and re.fullmatch(rf"\[(-1|\$?\(*\$\{{#{part.text}\[@\]\}}\s*-\s*1\)*)\]", part.detail):
            yield Problem(part.origin, _SORTED_AS_TEXT, "use ls -d ... | sort -V | tail -n 1", certain=False)
            return
