"""Expands and folds node lists (`n[1-3,7]`) and tasks per node (`2(x3),1`) as Slurm does.

Order and repeats are kept: `expand(fold(hosts)) == hosts` for any list of host names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, product
from typing import NamedTuple, NoReturn

from hpc_kit.errors import HostlistError
from hpc_kit.lazy_pattern import lazy_pattern

MAX_HOSTS = 1_000_000
"""A longer list is a mistake, and would fill the memory."""

_MAX_DIGITS = 18
_NAME = r"[^\s\x00-\x1f\x7f,\[\]]*"
_ITEM = lazy_pattern(rf"{_NAME}(?:\[[^\[\]]*\]{_NAME})*")
_SEPARATOR = lazy_pattern(r"\s*,\s*|\s+")
_NOT_IN_NAMES = lazy_pattern(r"[\s,\[\]]")
_BRACKET = lazy_pattern(r"\[([^\]]*)\]")
_RANGE = lazy_pattern(r"([0-9]+)(?:-([0-9]+))?")
_REPEAT = lazy_pattern(r"([0-9]{1,9})(?:\(x([1-9][0-9]{0,17})\))?")
_EXAMPLE = "write it as Slurm prints it, for example n[1-3,7],login1"


class _Range(NamedTuple):
    """Numbers from `low` to `high`, each written with at least `width` digits."""

    low: int
    high: int
    width: int

    def names(self) -> list[str]:
        """Return every number as Slurm writes it."""
        if self.width == 1:
            return [str(number) for number in range(self.low, self.high + 1)]
        return [f"{number:0{self.width}d}" for number in range(self.low, self.high + 1)]


def expand(text: str) -> list[str]:
    """Return every host of a node list, in order: `n[1-2],m` is n1, n2, m; an empty list has none.

    Raises:
        HostlistError: The list is malformed; `position` points at the character.
    """
    hosts: list[str] = []
    for start, item in _items(text):
        pieces = _BRACKET.split(item)
        if len(pieces) == 1:
            hosts.append(item)
            continue
        position, columns, count = start, [], 1
        for index, piece in enumerate(pieces):
            if index % 2:
                ranges = _ranges(text, position + 1, piece)
                columns.append(ranges)
                count *= sum(1 if isinstance(each, str) else each.high - each.low + 1 for each in ranges)
                position += 2
            position += len(piece)
        # Counted before a single name is made: two brackets of five digits would fill the memory.
        if len(hosts) + count > MAX_HOSTS:
            _fail(f"more than {MAX_HOSTS} hosts", text, start, "look for a digit too many in the brackets")
        hosts.extend(_combine(pieces[::2], columns))
    return hosts


def fold(hosts: Iterable[str]) -> str:
    """Return the shortest list that Slurm writes for these hosts without changing their order.

    Only neighbours are folded, and only their last number: n1, n3, n2 is `n[1,3,2]`. Sort first for a shorter list.

    Raises:
        HostlistError: A name is empty or contains a comma, bracket or space.
    """
    folded: list[str] = []
    for prefix, group in groupby(map(_split_number, hosts), key=lambda pair: (pair[0], bool(pair[1]))):
        digits = [number for _, number in group]
        if not prefix[1]:
            folded.extend(prefix[0] for _ in digits)
        elif len(digits) == 1:
            folded.append(prefix[0] + digits[0])
        else:
            folded.append(f"{prefix[0]}[{','.join(_fold_numbers(digits))}]")
    return ",".join(folded)


def expand_tasks_per_node(text: str) -> list[int]:
    """Return the task count of each node, from SLURM_TASKS_PER_NODE: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        HostlistError: The text is malformed; `position` points at the character.
    """
    counts: list[int] = []
    position = 0
    for part in text.split(","):
        word = part.strip()
        match = _REPEAT.fullmatch(word)
        if not match:
            position += len(part) - len(part.lstrip())
            raise HostlistError(
                "malformed tasks per node",
                text=text,
                position=position + _good_length(word, _REPEAT),
                remedy="write it as SLURM_TASKS_PER_NODE has it, for example 2(x3),1",
            )
        repeat = int(match[2] or 1)
        if len(counts) + repeat > MAX_HOSTS:
            _fail(f"more than {MAX_HOSTS} nodes", text, position, "look for a digit too many behind the x")
        counts.extend([int(match[1])] * repeat)
        position += len(part) + 1
    return counts


def fold_tasks_per_node(counts: Sequence[int]) -> str:
    """Write task counts as Slurm does: 2, 2, 2, 1 is `2(x3),1`."""
    runs = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{length})" if length > 1 else str(count) for count, length in runs)


def _items(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of each item between commas that are not in brackets."""
    position = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    while position < end:
        match = _ITEM.match(text, position, end)
        stop = match.end() if match else position
        if stop < end and text[stop] in "[]":
            _fail_bracket(text, stop)
        if stop == position:
            what = "an empty item" if text[stop] == "," else "a character that is not allowed in names"
            _fail(what, text, position, "remove it")
        yield position, text[position:stop]
        separator = _SEPARATOR.match(text, stop, end)
        position = separator.end() if separator else stop
        if separator and position == end:
            _fail("an empty item at the end", text, stop, "remove the last comma")


def _fail_bracket(text: str, position: int) -> NoReturn:
    # Slurm 22.05 reads `n[1-3` as a host `n]`, which cannot be intended.
    if text[position] == "]":
        _fail("a closing bracket without an opening one", text, position, _EXAMPLE)
    inner = text.find("[", position + 1)
    close = text.find("]", position + 1)
    if inner >= 0 and (close < 0 or inner < close):
        _fail("a bracket inside a bracket", text, inner, _EXAMPLE)
    _fail("a bracket that is never closed", text, position, _EXAMPLE)


def _ranges(text: str, position: int, body: str) -> list[_Range | str]:
    """Return the numbers and ranges in a pair of brackets. `position` is that of their first character."""
    ranges: list[_Range | str] = []
    for part in body.split(","):
        # A plain number stays text: a shuffled list of 100 000 hosts consists of them.
        if part.isdecimal() and part.isascii() and len(part) <= _MAX_DIGITS:
            ranges.append(part)
            position += len(part) + 1
            continue
        match = _RANGE.fullmatch(part)
        if not match:
            what = "not a number or a range of numbers" if part else "a missing number"
            _fail(what, text, position + _good_length(part, _RANGE), _EXAMPLE)
        first, last = match[1], match[2] or match[1]
        if max(len(first), len(last)) > _MAX_DIGITS:
            _fail("a number too long", text, position, _EXAMPLE)
        if int(last) < int(first):
            _fail("a range that runs backwards", text, position, f"write {last}-{first}")
        ranges.append(_Range(int(first), int(last), len(first)))
        position += len(part) + 1
    return ranges


def _combine(literals: list[str], columns: list[list[_Range | str]]) -> list[str]:
    """Return all names of one item. The last bracket changes fastest."""
    names = [literals[0]]
    for ranges, literal in zip(columns, literals[1:], strict=True):
        numbers = chain.from_iterable((each,) if isinstance(each, str) else each.names() for each in ranges)
        endings = [number + literal for number in numbers]
        names = [head + ending for head, ending in product(names, endings)]
    return names


def _split_number(host: str) -> tuple[str, str]:
    """Split a name from the number at its end. A number that is too long stays in the name."""
    bad = _NOT_IN_NAMES.search(host)
    if bad or not host:
        _fail("not a host name", host, bad.start() if bad else 0, "give one name an item, without commas or brackets")
    prefix = host.rstrip("0123456789")
    digits = host[len(prefix) :]
    return (prefix, digits) if len(digits) <= _MAX_DIGITS else (host, "")


def _fold_numbers(numbers: Iterable[str]) -> Iterator[str]:
    """Yield the items inside brackets: numbers that increase by one become a range."""
    first = last = ""
    high = -1
    for digits in numbers:
        number = int(digits)
        # Leading zeros set the width: neither 9 nor 09 is followed by 010.
        if last and number == high + 1 and f"{number:0{len(first)}d}" == digits:
            last, high = digits, number
            continue
        if last:
            yield first if first == last else f"{first}-{last}"
        first = last = digits
        high = number
    yield first if first == last else f"{first}-{last}"


def _good_length(part: str, pattern: re.Pattern[str]) -> int:
    match = pattern.match(part)
    return match.end() if match else 0


def _fail(what: str, text: str, position: int, remedy: str) -> NoReturn:
    raise HostlistError(f"malformed node list: {what}", text=text, position=position, remedy=remedy)
