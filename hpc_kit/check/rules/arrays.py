"""Rules for job arrays: the index, the lists that it selects from, and files that all elements write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from math import prod
from typing import NamedTuple

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.bash_syntax import Origin
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import ExpandedText, evaluate_sum
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.files import OWN_DISK, differs_between_elements
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.check.rules.restarts import overwritten_files
from hpc_kit.check.rules.set_up import counts_from_one
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import DirectiveOption

_MOST_ELEMENTS = 20_000
_INDEX = "SLURM_ARRAY_TASK_ID"


class ArrayRange(NamedTuple):
    """The indexes of an array, and how many of its elements run at the same time."""

    indexes: tuple[int, ...]
    at_once: int | None


def parse_array(text: str) -> ArrayRange | None:
    """Return the indexes of `--array=0-9:3,12%4`; None if they cannot be read."""
    listed, _, limit = text.partition("%")
    indexes: list[int] = []
    for item in listed.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,5}))?)?", item)
        if match is None or int(match[2] or 0) - int(match[1]) > _MOST_ELEMENTS:
            return None
        indexes += range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))
    return ArrayRange(tuple(indexes), int(limit) if limit.isdigit() else None) if indexes else None


def array_of(script: BatchScript) -> ArrayRange | None:
    """Return the array of a job with several elements."""
    array = parse_array(script.options["array"]) if "array" in script.options else None
    return array if array is not None and len(array.indexes) > 1 else None


class ArrayIndex:
    """Computes subscripts that depend on the index of the array."""

    def __init__(self, script: BatchScript) -> None:
        self.values: dict[str, str] = {}
        self.lengths = script.list_lengths
        self.padded: set[str] = set()
        seen: set[str] = set()
        for each in script.written_assignments:
            # A variable with several values may be anything.
            if each.name in seen or each.append or each.indexed:
                self.values.pop(each.name, None)
            elif each.value.elements is None:
                self.values[each.name] = each.value.unquoted
            else:
                self.padded |= {each.name for word in each.value.elements[:1] if _PLACEHOLDER.match(word.raw)}
            seen.add(each.name)
        array = array_of(script)
        if array is not None:
            low, high, count = min(array.indexes), max(array.indexes), len(array.indexes)
            sizes = {"COUNT": count, "MIN": low, "MAX": high, "STEP": array.indexes[1] - array.indexes[0]}
            self.values |= {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in sizes.items()}

    def all_but_one(self, name: str) -> list[set[int]]:
        """Return the elements of a list without its last one, and without its first one unless it holds a place."""
        length = self.lengths[name]
        return [{*range(length - 1)}, *([] if name in self.padded else [{*range(1, length)}])]

    def depends(self, text: str, depth: int = 0) -> bool:
        """Tell whether a subscript contains the index."""
        if _INDEX in text:
            return True
        names = re.findall(NAME, text) if depth < 5 else []
        return any(self.depends(self.values[name], depth + 1) for name in names if name in self.values)

    def compute(self, text: str, index: int, depth: int = 0) -> int | None:
        """Return the value of a subscript in one element of the array; None if it is unknown."""

        def known(match: re.Match[str]) -> str:
            if match["length"]:
                return str(self.lengths.get(match["length"], "?"))
            name = match["name"] or match["braced"] or match["bare"]
            if name == _INDEX:
                return str(index)
            inner = self.values.get(name)
            value = None if inner is None or depth > 5 else self.compute(inner, index, depth + 1)
            return "?" if value is None else f"({value})"

        pattern = (
            rf"\$\{{#(?P<length>{NAME})\[[@*]\]\}}|\$(?P<name>{NAME})|\$\{{(?P<braced>{NAME})\}}|\b(?P<bare>{NAME})\b"
        )
        # The default of `${SLURM_ARRAY_TASK_ID:-0}` is for runs outside of a job.
        text = re.sub(r"\$\{(SLURM_ARRAY_TASK_\w+):?-\w*\}", r"$\1", text)
        # An index of bash is an arithmetic expression: names need no `$`, and an inner `$((...))` is a parenthesis.
        text = re.sub(r"\A\s*\$\(\((.*)\)\)\s*\Z", r"(\1)", text, flags=re.DOTALL)
        return evaluate_sum(re.sub(pattern, known, text.replace("$((", "(").replace("))", ")").replace('"', "")))


_PLACEHOLDER = lazy_pattern(r"(?i)[\"']?(\W*|_+|x+|none|null|dummy|unused|placeholder|skip|pad(ding)?|n/?a)[\"']?\Z")
"""An element 0 that only lets a list count from 1."""


_LINE_OF_FILE = lazy_pattern(
    rf"\bsed\s+-n\w*\s+(?:-e\s*)?[\"']?\$\{{?(?P<sed>{NAME})\}}?[\"']?p|NR\s*==\s*[\"']*\$\{{?(?P<awk>{NAME})"
    rf"|\bhead\s+-n?\s*[\"']?\$\{{?(?P<head>{NAME})\}}?[\"']?\s[^|]*\|\s*tail\s"
    rf"|\bawk\s+-v\s*(?P<var>\w+)=[\"']?\$\{{?(?P<set>{NAME})\}}?[\"']?\s+[\"']\s*NR\s*==\s*(?P=var)\b"
)
_SHARDS = (
    "num-shards", "n-shards", "nshards", "num-chunks", "num-splits", "num-parts", "num-partitions", "total-shards",
    "num-slices", "n-chunks", "n-splits", "num-jobs", "num-tasks",
)  # fmt: skip


@rule("KIT251", "warning")
def array_bounds(script: BatchScript) -> Iterator[Problem]:
    """The bounds of --array do not fit the list that the index selects from.

    bash counts the elements of a list from 0, zsh from 1, and sed and awk count lines from 1. An index beyond the list
    is an empty word, and no error: the last element trains with an empty option, or with its default (an error of the
    script). Two lists that take the same remainder of the index, `${A[i % 4]}` and `${B[i % 2]}`, never meet in all
    combinations. The remainders of `i % 16` are 0 to 15: with `--array=1-16`, no element takes every 16th file.

    Fix: `--array=0-3` for a list of four; `--array=1-N` for the lines of a file.
    Documented: sbatch(1), --array; bash(1), Arrays.
    """
    array, directive = array_of(script), script.directive("array")
    if array is None or directive is None:
        return
    index = ArrayIndex(script)
    # `read -a NAME` and `mapfile NAME` make lists of any length.
    reading = (step for step in script.commands if step.name in {"mapfile", "read", "readarray"})
    seen = {text for step in reading for text in step.texts[1:]}
    selected: dict[str, _Selection] = {}
    for part in script.parts:
        subscript = re.fullmatch(r"\[(.+)\]", part.detail, re.DOTALL) if part.kind == "variable" else None
        length = index.lengths.get(part.text)
        if subscript is None or part.text in seen or not index.depends(subscript[1]):
            continue
        if length is None:
            if re.search(r"\S\s+\S", index.values.get(part.text, "")) and max(array.indexes) > 0:
                seen.add(part.text)
                what = f"{part.text} is one text and no list: an index above 0 selects nothing"
                yield Problem(part.origin, what, f"write {part.text}=(...)", (directive.line,), certain=True)
            continue
        selected[part.text] = _Selection(subscript[1], length, part.origin)
        low = 1 if counts_from_one(script) else 0
        values = {each: index.compute(subscript[1], each) for each in array.indexes}
        fault = _outside_list(script, part.text, range(low, length + low), values)
        known = {value - low for value in values.values() if value is not None}
        if fault is not None:
            seen.add(part.text)
            remedy = f"change --array={directive.value}; {script.interpreter or 'bash'} counts from {low}"
            yield Problem(part.origin, fault, remedy, (directive.line,), certain=True)
        # An array that misses one end of the list was mostly counted from the wrong number.
        elif None not in values.values() and known in index.all_but_one(part.text):
            seen.add(part.text)
            unused = length - 1 if 0 in known else 0
            what = f"no index of --array={directive.value} selects element {unused} of {part.text}, which has {length}"
            yield Problem(part.origin, what, f"write --array=0-{length - 1}", (directive.line,))
    if len(selected) > 1:
        yield from _combinations_left(index, array, directive, selected, seen)
    yield from _branches_left(script, index, array)
    if min(array.indexes) == 0:
        yield from _line_zero(script, index, max(array.indexes), directive.line)
    yield from _shard_counts(script, array, directive.line)
    yield from _shares_left(script, index, array, directive)


def _outside_list(script: BatchScript, name: str, elements: range, selected: dict[int, int | None]) -> str | None:
    """Return the effect of the last index that selects no element of a list, or one from its end."""
    values = {index: value for index, value in selected.items() if value is not None}
    beyond = [index for index, value in values.items() if value >= elements.stop]
    below = [index for index, value in values.items() if value < elements.start]
    if beyond:
        bounds = f"{elements.start} to {elements.stop - 1}"
        return f"{name} has {len(elements)} elements, {bounds}: index {beyond[-1]} selects nothing"
    if below and elements.start:
        return f"index {below[0]} selects nothing from {name}: {script.interpreter} counts from 1"
    return f"index {below[0]} selects an element from the end of {name}: bash counts from 0" if below else None


def _line_zero(script: BatchScript, index: ArrayIndex, high: int, line_of_array: int) -> Iterator[Problem]:
    """Find a `sed`, `awk` or `head` that gets 0 as the number of a line in the first element of the array."""
    inside = [step for steps in script.functions.values() for step in steps if step.name in {"sed", "awk", "head"}]
    for number, line in [*script.command_lines, *((step.line, step.text) for step in inside)]:
        match = _LINE_OF_FILE.search(line)
        name = (match["sed"] or match["awk"] or match["head"] or match["set"]) if match else None
        if match and name and (name == _INDEX or index.compute(f"${name}", 0) == 0):
            what = "lines count from 1, but the array from 0: index 0 selects no line"
            remedy = f"write --array=1-{high + 1}"
            yield Problem(Origin(number, match.start() + 1), what, remedy, (line_of_array,), certain=True)


class _Selection(NamedTuple):
    """The subscript that selects from a list, the length of the list, and the place of the subscript."""

    subscript: str
    length: int
    place: Origin


def _combinations_left(
    index: ArrayIndex, array: ArrayRange, directive: DirectiveOption, lists: dict[str, _Selection], reported: set[str]
) -> Iterator[Problem]:
    """Find combinations from several lists that no index selects."""

    def select(number: int) -> tuple[int, ...] | None:
        values = [(index.compute(each.subscript, number), each.length) for each in lists.values()]
        chosen = tuple(value for value, length in values if value is not None and 0 <= value < length)
        return chosen if len(chosen) == len(values) else None

    names, total = " and ".join(lists), prod(each.length for each in lists.values())
    seen, low, high = {select(number) for number in array.indexes}, min(array.indexes), max(array.indexes)
    if None in seen:
        return
    # As many elements as combinations, but repeated ones: the subscripts depend on each other.
    if len(seen) < len(array.indexes) == total:
        what = f"only {len(seen)} of the {total} combinations of {names} run, some of them again and again"
        first = next(iter(lists.values())).length
        remedy = f"take the rest for one list, index % {first}, and the quotient for the next, index / {first}"
        *others, last = lists.values()
        lines = (directive.line, *(each.place.line for each in others))
        # One position has one finding.
        places = [each.place for name, each in reversed(lists.items()) if name not in reported]
        yield Problem(places[0] if places else directive, what, remedy, (*lines, last.place.line), certain=False)
    # An array with gaps is a choice of its author, such as the elements that failed before.
    if len(seen) < len(array.indexes) or len(array.indexes) != high - low + 1:
        return
    missed = 0
    while missed < _MOST_ELEMENTS and (chosen := select(high + missed + 1)) is not None and chosen not in seen:
        seen.add(chosen)
        missed += 1
    if missed:
        what = f"{missed} combination{'s' * (missed > 1)} of {names} never run{'s' * (missed == 1)}: no index selects"
        yield Problem(directive, f"{what} them", f"write --array={low}-{high + missed}", certain=False)


def _branches_left(script: BatchScript, index: ArrayIndex, array: ArrayRange) -> Iterator[Problem]:
    """Find a `case` on the index that has a branch for many elements of the array, but not for all."""
    for compound in script.compounds("case"):
        subject, *patterns = compound.texts or ("",)
        if not index.depends(subject) or any("$" in pattern or "(" in pattern for pattern in patterns):
            continue
        values = [index.compute(subject, each) for each in array.indexes]
        plain = [pattern.strip("\"'") for pattern in patterns]
        left = [value for value in values if not any(fnmatchcase(str(value), pattern) for pattern in plain)]
        if left and None not in values and len(left) < len(values):
            what = f"no branch of this case is for element {left[-1]} of the array"
            remedy = "change --array, or write a branch *)"
            yield Problem(Origin(compound.line), what, remedy, (script.line_of("array"),), certain=False)


def _shard_counts(script: BatchScript, array: ArrayRange, line: int) -> Iterator[Problem]:
    """Find arrays with one element more or less than the program has shards, or than the stride of a loop."""
    low, high = min(array.indexes), max(array.indexes)
    for each in script.assignments if low == 0 else ():
        if each.value.variable != "SLURM_ARRAY_TASK_MAX":
            continue
        if re.search(rf"\+=\s*\$?\{{?{each.name}\}}?\s*(?:[;)]|$)", script.code, re.MULTILINE):
            what = f"the stride is the last index, {high}: elements 0 and {high} do the same work"
            yield Problem(each.value, what, "write $SLURM_ARRAY_TASK_COUNT", (line,), certain=True)
    for launch in script.launch_lines:
        count = launch.argument(*_SHARDS)
        uses_index = any(_INDEX in word.text for word in launch.program.words)
        if count is None or not count.text.isdigit() or not uses_index or len(array.indexes) != high - low + 1:
            continue
        # One too many or too few is a mistake in counting from 0. Other numbers may be meant.
        if len(array.indexes) in {int(count.text) + 1, int(count.text) - 1}:
            what = f"the array has {len(array.indexes)} elements, {low} to {high}, but there are {count.text} shards"
            yield Problem(count, what, f"write --array=0-{int(count.text) - 1}", (line, launch.line))


_SUM = r"\$?\{?\w+(?::?-\w*)?\}?(?:\s*[-+]\s*\d+)?"
_TERM = rf"\$\(\([^()]*\)\)|\({_SUM}\)|{_SUM}"
_PARTS = r"(?P<parts>\(\s*\$?\{?\w+\}?\s*[-+]\s*\d+\s*\)|\$?\{?\w+\}?)"
_OF_STRIDE = (
    # (( i % 16 == SLURM_ARRAY_TASK_ID )), [ $((i % N)) -eq "$ID" ], NR % n == id
    lazy_pattern(
        rf"(?P<item>[\w)}}+]+)\s*%\s*{_PARTS}\s*\)*(?P<more>\s*[-+]\s*\d+)?\s*\)*[\"']*\s*(?:==?|!=|-eq|-ne)\s*[\"']?"
        rf"(?P<index>{_TERM})(?![\w}}]|\s*[%*/])"
    ),
    lazy_pattern(
        rf"(?P<index>{_TERM})[\"']?\s*(?:==?|!=|-eq|-ne)\s*[\"']?(?:\$\(\()?\(*\s*\$?\{{?(?P<item>\w+)\}}?\s*%\s*{_PARTS}"
    ),
    lazy_pattern(rf"\bsplit\b.*?(?:\s-n\s*|--number=)[\"']?(?P<split>[rl]/)?(?P<index>{_TERM})/{_PARTS}"),
    lazy_pattern(
        rf"\bfor\s*\(\(\s*(?P<item>\w+)\s*=\s*(?P<index>{_TERM})\s*;[^;]*;\s*(?P=item)\s*(?P<stride>\+=)\s*{_PARTS}\s*\)\)"
    ),
    lazy_pattern(rf"\[\s*(?P<index>{_TERM})\s*(?P<stride>::)\s*{_PARTS}\s*\]"),
)
"""Expressions that give each element every N-th item: the index, and the number of parts."""
_MAY_HAVE_STRIDE = lazy_pattern(r"%|\+=|::|\bsplit\b")
_AWK_VARIABLE = lazy_pattern(r"\s-v\s*(\w+)=[\"']?(\$\(\([^()]*\)\)|\$?\{?\w+\}?)")


def _shares_left(
    script: BatchScript, index: ArrayIndex, array: ArrayRange, directive: DirectiveOption
) -> Iterator[Problem]:
    """Find items that no element takes, where each takes every N-th one: `i % 16 == SLURM_ARRAY_TASK_ID` with 1-16."""
    low, high = min(array.indexes), max(array.indexes)
    # An array with gaps is a choice of its author, such as the elements that failed before.
    lines = script.command_lines if len(array.indexes) == high - low + 1 else []
    for name, value in _AWK_VARIABLE.findall(script.code) if lines else ():
        index.values[name] = value if index.values.get(name, value) == value else "?"
    found: dict[tuple[str | None, str], list[tuple[int, re.Match[str]]]] = {}
    for number, line in lines:
        patterns = _OF_STRIDE if _MAY_HAVE_STRIDE.search(line) else ()
        for match in (match for pattern in patterns for match in pattern.finditer(line)):
            given = match.groupdict()
            # `${file%.txt}` removes a suffix, and a loop may count lines, from 1.
            before = line[: match.start()]
            suffix = re.search(r"\$\{[^}]*\Z", line[: match.start("parts")]) or re.search(r"[%*/]\s*\Z", before)
            by_item = given.get("item") if "stride" in given else None
            if not suffix and not (by_item and not _selects_in_loop(script, number, by_item)):
                found.setdefault((given.get("item"), match["parts"]), []).append((number, match))
    for matches in found.values():
        number, match = matches[0]
        # `i % 8 == ID || i % 8 == ID + 4` gives two remainders to each element.
        if len({each["index"] for _, each in matches}) > 1:
            continue
        if (fault := _items_left(index, array, match.groupdict())) is not None:
            what, remedy, certain = fault
            place = Origin(number, match.start() + 1)
            yield Problem(place, what.format(directive.value), remedy, (directive.line,), certain)


def _selects_in_loop(script: BatchScript, line: int, name: str) -> bool:
    """Tell whether the variable of the loop in a line selects an element of a list in the loop."""
    loops = [compound for compound in script.compounds("for") if compound.line == line]
    inside = {step.line for loop in loops for step in script.commands_in(loop)}
    return any(re.search(rf"\w\[\$?\{{?{name}\}}?\]", script.lines[number - 1]) for number in inside)


def _items_left(index: ArrayIndex, array: ArrayRange, given: Mapping[str, str | None]) -> tuple[str, str, bool] | None:
    """Return the items that no element takes as a message, the remedy, and whether the bounds are surely wrong."""
    parts_text, index_text = given["parts"] or "", given["index"] or ""
    fixed = not any(index.depends(text) for text in (parts_text, given.get("item") or ""))
    parts = index.compute(parts_text, -1) if fixed else None
    values = [index.compute(index_text, each) for each in array.indexes] if index.depends(index_text) else []
    known = [value for value in values if value is not None]
    if parts is None or parts < 2 or not known or len(known) < len(values):
        return None
    low, kind = min(array.indexes), "chunk" if "split" in given else "item" if "stride" in given else "remainder"
    first = 1 if kind == "chunk" else int(re.sub(r"\s", "", given.get("more") or "0"))
    missing = [number for number in range(first, first + parts) if number not in known]
    beyond = [each for each, value in zip(array.indexes, known, strict=True) if not first <= value < first + parts]
    beyond = [] if kind == "item" else beyond
    # The rest of the items may belong to an array that begins elsewhere.
    if not beyond and not (missing and low in {0, 1}):
        return None
    shown = ", ".join(map(str, missing[:3])) + (", ..." if len(missing) > 3 else "")
    faults = [f"no index of --array={{}} takes {kind} {shown}"] if missing else []
    faults += [f"index {beyond[-1]} takes no {kind}"] if beyond else []
    start = first - known[0] + low
    remedy = f"write --array={start}-{start + parts - 1}" if start >= 0 else "change --array"
    return ", and ".join(faults), remedy, bool(missing and beyond)


@rule("KIT256", "warning")
def array_step(script: BatchScript) -> Iterator[Problem]:
    """--array has a step, as if it were the number of elements that run at the same time.

    `--array=1-200:10` has the indexes 1, 11, 21, ..., 191. The rule finds a step that misses the upper bound, in a
    script that neither reads SLURM_ARRAY_TASK_STEP nor computes with the number, or with one less. With
    `--array=0-475:25`, the index is the start of a block already: `START=$((SLURM_ARRAY_TASK_ID * 25))` goes on in
    steps of 625.

    Fix: `--array=1-200%10` for ten elements at the same time; `START=$SLURM_ARRAY_TASK_ID`, or `--array=0-19`.
    Documented: sbatch(1), --array.
    """
    directive = script.directive("array")
    match = re.fullmatch(r"(\d{1,7})-(\d{1,7}):(\d{1,5})(?:%\d+)?", directive.value) if directive is not None else None
    if directive is None or match is None:
        return
    yield from _scaled_twice(script, directive, int(match[1]), int(match[3]))
    if "SLURM_ARRAY_TASK_STEP" in script.code:
        return
    low, high, step = int(match[1]), int(match[2]), int(match[3])
    last = high - (high - low) % max(step, 1)
    # A script that computes with the step itself shares out blocks of that size.
    if last != high and not re.search(rf"(?<!\w)({step}|{step - 1})(?!\w)", script.code):
        what = f"the indexes are {low}, {low + step}, ... {last}: the step {step} leaves out those between"
        yield Problem(directive, what, f"write --array={low}-{high}%{step} for at most {step} at the same time")


_OF_START = lazy_pattern(
    r"(?i)-*(\w*[-_.])?(start|begin|first|offset|skip|from|low)([-_]?(idx|index|id|row|line|at))?\Z"
)
_C_LOOP = lazy_pattern(r"\bfor\s*\(\(\s*\w+\s*=([^;]+);\s*\w+\s*<=?([^;]+);")
_SET_BY_ARITHMETIC = lazy_pattern(rf"\(\(\s*({NAME})\s*=(?!=)(.*)\)\)\Z", re.DOTALL)


def _scaled_twice(script: BatchScript, directive: DirectiveOption, low: int, step: int) -> Iterator[Problem]:
    """Find the start of a block that is computed as if the array had no step."""
    index = ArrayIndex(script)
    given: list[tuple[str, str, Place]] = [
        (each.name, each.value.unquoted, each.value) for each in script.written_assignments if "*" in each.value.raw
    ]
    given += [
        (match[1], match[2], Origin(each.line))
        for each in script.expressions
        if (match := _SET_BY_ARITHMETIC.match(each.text))
    ]
    given += [(option, word.text, word) for launch in script.training for option, word in launch.option_values()]
    for number, line in script.command_lines:
        # `seq $((ID * 25)) $((ID * 25 + 24))` and `for ((i = ID * 25; i < (ID + 1) * 25; i++))` have both ends.
        loop = _C_LOOP.search(line)
        for begin, end in pairwise(loop.groups() if loop else re.findall(r"\$\(\(([^;|&]*?)\)\)", line)):
            first, last = index.compute(begin, low), index.compute(end, low)
            if first is not None and last is not None and last - first in {step, step - 1}:
                given.append(("start", begin, Origin(number, line.find(begin) + 1)))
    for name, text, place in given:
        # `ID / 10 * 100` undoes the step.
        if "*" not in text or "/" in text or not index.depends(text):
            continue
        first, second = (index.compute(text, each) for each in (low, low + step))
        # The step of such a start is that of the array, times the same number again.
        if step < 2 or first is None or second is None or second - first != step * step:
            continue
        ends = re.findall(rf"\b{name}\}}?\s*\+\s*\$?\{{?(\w+)", script.code) if name.isidentifier() else []
        adds = any(index.compute(each, -1) in {step, step - 1} for each in ends) or "SLURM_ARRAY_TASK_STEP" in text
        if adds or _OF_START.match(name):
            what = f"the index is a multiple of {step} already: element {low + step} starts at {second}"
            remedy = f"use the index itself, or write --array without :{step}"
            yield Problem(place, what, remedy, (directive.line,), certain=adds)


@rule("KIT252", "warning")
def unused_index(script: BatchScript) -> Iterator[Problem]:
    """Nothing in the script uses the index of the array.

    All elements of the array then run the same command with the same arguments and the same seed, unless the program
    itself reads SLURM_ARRAY_TASK_ID.

    Fix: pass it on: `--seed "$SLURM_ARRAY_TASK_ID"`. For a chain of equal jobs, write `--array=1-10%1`.
    Documented: slurm.schedmd.com/job_array.html.
    """
    array, directive = array_of(script), script.directive("array")
    if array is None or directive is None or array.at_once == 1 or script.sources_files:
        return
    # A message in the log with the index changes nothing. The output of a function or block may go elsewhere.
    printing = (step for step in script.commands if step.name in {"echo", "printf", "logger"} and not step.compounds)
    messages = {step.line for step in printing if "-v" not in step.texts}
    code = [line for number, line in script.code_lines if number not in messages or re.search(r"[>|;&`]|\$\(", line)]
    texts = [*code, *(each.value for each in script.directive_options if each.name == "export")]
    training = script.training
    if not training or any("SLURM_ARRAY_TASK" in text or "%a" in text for text in texts):
        return
    if all(launch.program.kind == "python" for launch in training):
        launch = training[-1]
        what = f"all {len(array.indexes)} elements of the array run this same command"
        remedy = "pass $SLURM_ARRAY_TASK_ID to the program"
        yield Problem(launch.stages[0], what, remedy, (directive.line,))


_OUTPUTS = (
    "output", "out", "output-file", "out-file", "outfile", "output-path", "out-path", "save", "save-path", "save-to",
    "ckpt", "ckpt-path", "checkpoint", "checkpoint-path", "log-file", "logfile", "result", "results", "result-file",
    "results-file", "csv", "metrics", "metrics-file", "predictions", "pred-file",
    "save-best", "save-model", "best-model", "model-out",
)  # fmt: skip
_OUTPUT_FOLDERS = ("ckpt-dir", "checkpoint-dir", "save-dir", "default-root-dir")
_FOLDERS_OF_RUNS = (
    "output-dir", "out-dir", "outdir", "output", "out", "run-dir", "rundir", "work-dir", "workdir", "exp-dir", "expdir",
    "experiment-dir", "results-dir", "result-dir", "results", "save", "save-path", "output-path",
)  # fmt: skip
_RUN_NAMES = ("name", "exp-name", "experiment", "experiment-name", "run-id", "tag")
_FILE = lazy_pattern(r"\.(pt|pth|ckpt|json|jsonl|csv|tsv|txt|log|npy|npz|pkl|h5|hdf5|parquet|safetensors|onnx)\Z")


@rule("KIT253", "warning")
def shared_array_files(script: BatchScript) -> Iterator[Problem]:
    """All elements of an array write the same file.

    The elements run at the same time. Each overwrites the previous result, so that one of many remains. If they write
    their settings to one file, a training may read those of another element. An `rm -r` at the start deletes the files
    of elements that started earlier.

    Fix: `--output "results/$SLURM_ARRAY_TASK_ID.json"`.
    Documented: slurm.schedmd.com/job_array.html.
    """
    array, directive = array_of(script), script.directive("array")
    if array is None or directive is None or array.at_once == 1:
        return
    remedy = "write $SLURM_ARRAY_TASK_ID in the name"
    for launch in script.training:
        files = [text for name in _OUTPUTS if (text := launch.argument(name)) is not None]
        file = next(
            (text for text in files if _FILE.search(text.text) and not differs_between_elements(text.text)), None
        )
        folder = launch.argument(*_OUTPUT_FOLDERS)
        # Other programs make a folder with a name of its own in --output-dir.
        if folder is None and (launch.trains_with_hugging_face or _hides_element(launch)):
            folder = launch.argument(*_FOLDERS_OF_RUNS)
        moves = _moves_to_own_folder(script, launch)
        file, folder = (
            None if moves and text and not text.text.startswith(("/", "$")) else text for text in (file, folder)
        )
        # The run name of Hugging Face's Trainer names no folder.
        of_trainer = launch.trains_with_hugging_face or launch.argument("save-steps") is not None
        name = launch.argument(*_RUN_NAMES, *(() if of_trainer else ("run-name",)))
        names_run = name is not None and "$" in name.text
        if file is not None:
            what = f"all elements of the array write {file.text}"
            yield Problem(_option_word(launch, file), what, remedy, (directive.line, file.line))
        # With a name for each element, the program mostly makes a folder of that name.
        elif folder is not None and folder.text and not names_run and not differs_between_elements(folder.text):
            what = f"all elements of the array save their results in {folder.text}"
            yield Problem(_option_word(launch, folder), what, remedy, (directive.line, folder.line))
        for output in overwritten_files(launch.inner_command):
            own = moves and not (output.literal or "").startswith("/")
            if output.literal and not output.literal.startswith("/dev/") and not own:
                what = f"all elements of the array overwrite {output.literal}"
                yield Problem(output, what, remedy, (directive.line,))
    yield from _shared_settings(script, directive)
    yield from _removed_for_all(script, directive)


def _removed_for_all(script: BatchScript, directive: DirectiveOption) -> Iterator[Problem]:
    """Find an `rm -r` of a folder that all elements use: a later element deletes the files of the others."""
    for step in script.batch_commands:
        if not step.removes_folders or step.is_conditional or any(_INDEX in word.text for word in step.words):
            continue
        later = [launch for launch in script.training if script.is_before(step, launch.command)]
        if any(_moves_to_own_folder(script, launch) for launch in later):
            continue
        texts = [text for launch in later for text in launch.program.texts]
        for word in step.words[1:]:
            folder = word.text.rstrip("/")
            own = differs_between_elements(folder) or OWN_DISK.match(folder) or not re.search(r"/\w", folder)
            if folder.startswith("-") or own or not any(f"{folder}/" in f"{text}/" for text in texts):
                continue
            what = f"each element of the array deletes {folder}, also while others use it"
            yield Problem(word, what, "write $SLURM_ARRAY_TASK_ID in the name", (directive.line, later[0].line))
            return


def _option_word(launch: LaunchLine, value: ExpandedText) -> Place:
    """Return the word of the launch line that gives a value, which may come from a variable above."""
    texts = [word.text for word in launch.inner_command.words]
    index = next((number for number, text in enumerate(texts) if text.rpartition("=")[2] == value.text), None)
    written = launch.inner_command.syntax.words
    # Expanded words and written ones correspond if no variable is a list.
    return written[index] if index is not None and len(written) == len(texts) else value


def _shared_settings(script: BatchScript, directive: DirectiveOption) -> Iterator[Problem]:
    """Find a file with the settings of one element, which the others overwrite before the training reads it."""
    for step in script.batch_commands:
        output, content = step.syntax.output, [*step.texts, step.stdin.text if step.stdin is not None else ""]
        if output is None or not any(_INDEX in text for text in content):
            continue
        path = script.resolve(output.unquoted)
        readers = [launch for launch in script.training if any(path in text for text in launch.program.texts)]
        own = differs_between_elements(path) or (readers and _moves_to_own_folder(script, readers[0]))
        if readers and not own and "/" in path.strip("./"):
            what = f"all elements of the array write their settings to {path}: line {readers[0].line} reads any of them"
            yield Problem(output, what, "write $SLURM_ARRAY_TASK_ID in the name", (directive.line, readers[0].line))


_CHANGES_ALL = (
    r"(\S*/)?(pip3?|python\S* -m pip|uv pip|conda|mamba) (un)?install\b|(conda|mamba) env update\b"
    r"|git (-C \S+ )?(pull|checkout|reset|stash)\b"
)
"""A command that changes an environment, or the code of all elements."""
_OWN_ENVIRONMENT = lazy_pattern(
    r"\bgit\s+(clone|worktree)\b|\b(venv|virtualenv)\b\s+(?!\S*/bin/)|\b(conda|mamba)\s+create|\bflock\b"
    r"|(TMPDIR|/tmp|SLURM_JOB_?ID|SLURM_ARRAY)\S*/bin/activate"
)
"""An environment, or a copy of the code, that each element creates for itself, or a lock."""


@rule("KIT257", "warning")
def concurrent_installation(script: BatchScript) -> Iterator[Problem]:
    """All elements of an array change the same environment, or the same code.

    pip removes the old files of a package before it writes new ones. While one element installs, the imports of the
    others fail, and two installations at the same time leave a broken environment. `git pull` in each element fails at
    its lock, and changes the code of elements that run. The rule ignores an environment on the disk of the node, and
    one that the script creates.

    Fix: install before you submit the job; or create an environment in `$TMPDIR` for each element.
    Documented: pip.pypa.io/en/stable/cli/pip_install; slurm.schedmd.com/job_array.html.
    """
    array = array_of(script)
    if array is None or array.at_once == 1 or script.sources_files or _OWN_ENVIRONMENT.search(script.code):
        return
    if re.search(r"TMPDIR|PYTHONUSERBASE|writable-tmpfs|--container|docker|\bcd\s[^\n]*(ARRAY|JOB_ID)", script.code):
        return  # an element may have a copy of its own
    for launch in script.launch_lines:
        texts = launch.program.texts
        installs = re.match(_CHANGES_ALL, " ".join(texts))
        elsewhere = any(re.match(r"(-t|--target|--prefix|--root|--dry-run|--download)\b", text) for text in texts)
        if installs and not elsewhere and not launch.command.is_conditional:
            code = launch.program.name == "git"
            what = f"all elements of the array change the same {'code' if code else 'environment'} at the same time"
            lines = (script.line_of("array"), launch.line)
            yield Problem(launch.program, what, "do it before you submit the job", lines)


_NAMES_OF_INDEX = frozenset({"array", "job", "task"})
"""Words in front of the index in names of files, which are no settings."""


@rule("KIT254", "warning")
def label_without_setting(script: BatchScript) -> Iterator[Problem]:
    """A folder named after a setting that the program does not get.

    A loop, or an array, writes to `seed_$s`, but the program gets `--seed 1` each time: all runs are the same, and the
    names of their folders pretend otherwise.

    Fix: `--seed "$s"`.
    Documented: bash(1), Looping Constructs.
    """
    for launch in script.training:
        output = launch.command.syntax.output
        texts = [word.text for word in launch.program.words[1:]] + ([output.raw] if output is not None else [])
        for word in launch.program.words[1:] if any("$" in text for text in texts) else ():
            name = word.text.lstrip("-").partition("=")[0].replace("-", "_")
            given = launch.argument(name.replace("_", "-")) if word.text.startswith("--") and len(name) > 1 else None
            if given is None or given.number is None or not any("$" in text and name in text for text in texts):
                continue
            label = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}[-_=]?\$\{{?(\w+)")
            labels = {text: match for text in texts if (match := label.search(text))}
            match = next(iter(labels.values()), None)
            # The program may get the variable by another option.
            elsewhere = {used for text in texts if text not in labels for used in re.findall(rf"\$\{{?({NAME})", text)}
            if match is None or match[1] in elsewhere or (match[1] == _INDEX and name in _NAMES_OF_INDEX):
                continue
            if match[1] == _INDEX or match[1] in script.loop_variables:
                what = f"the folder is named after ${match[1]}, but --{name} is {given.text} each time"
                yield Problem(given, what, f'write --{name} "${match[1]}"', (launch.line,))
                break


_FLOOR = lazy_pattern(rf"\$\(\(\s*\$?\{{?(?P<total>{NAME})\}}?\s*/\s*\$?\{{?(?P<parts>{NAME})\}}?\s*\)\)")


@rule("KIT255", "warning")
def lost_remainder(script: BatchScript) -> Iterator[Problem]:
    """The elements of an array share a list by a division that loses its rest.

    `$((TOTAL / N))` rounds down: with 100 files and 8 elements, each takes 12, and nobody takes the last 4. The rule
    finds it where the script limits the end of a share, `((END > TOTAL)) && END=$TOTAL`, which only a division that
    rounds up needs.

    Fix: `CHUNK=$(((TOTAL + N - 1) / N))`.
    Documented: bash(1), ARITHMETIC EVALUATION.
    """
    directive = script.directive("array")
    for each in script.written_assignments if directive is not None else ():
        match = _FLOOR.fullmatch(each.value.raw.strip('"'))
        if match is None:
            continue
        total = re.escape(match["total"])
        limits = re.search(rf"(>=?|-g[te])\s*\"?\$?\{{?{total}\b", script.code) and re.search(
            rf"=\s*\"?\$?\{{?{total}\b", script.code
        )
        rest = re.search(
            rf"%|\b{re.escape(match['parts'])}\s*-\s*1|TASK_MAX|\blast\b|{_INDEX}\W*(==|-eq\b)",
            script.code.partition(each.value.raw)[2],
        )
        # A division without a rest loses nothing.
        numbers = [script.resolve(f"${{{match[name]}}}") for name in ("total", "parts")]
        even = all(map(str.isdigit, numbers)) and int(numbers[0]) % max(int(numbers[1]), 1) == 0
        if limits and not rest and not even:
            what = f"{each.value.raw} rounds down: the rest of the list belongs to no element"
            remedy = f"write {each.name}=$((({match['total']} + {match['parts']} - 1) / {match['parts']}))"
            yield Problem(each.value, what, remedy, (directive.line,) if directive is not None else ())


_SETTINGS = lazy_pattern(
    r"(?i)-*([-\w]+\.)*\w*(lr|learning[-_]rate|seed|wd|decay|batch([-_]size)?|bs|drop\w*|alpha|beta|gamma|lambda|temp\w*"
    r"|width|depth|layers?|hidden|dim|epochs|momentum|eps|warmup|optim\w*|loss|rank)\Z"
)


def _hides_element(launch: LaunchLine) -> bool:
    """Tell whether a setting of the training differs between the elements, and the program does not get the index.

    A program with another input for each element mostly names its results after the input.
    """
    words = launch.program.words[1:]
    # An element of a list does not tell the index that selected it.
    texts = [re.sub(rf"\$\{{{NAME}\[[^]]*\]\}}", "$?", word.text) for word in words]
    if any(_INDEX in text for text in texts):
        return False
    differs = [index for index, text in enumerate(texts) if differs_between_elements(text)]
    named = [texts[index].partition("=")[0] if "=" in texts[index] else texts[max(index - 1, 0)] for index in differs]
    return bool(named) and all(map(_SETTINGS.match, named))


def _moves_to_own_folder(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether a `cd` before the training goes to a folder of the element alone."""
    moves = (step for step in reversed(script.moves) if script.is_before(step, launch.command))
    last = next(moves, None)
    return last is not None and differs_between_elements(last.texts[1])
