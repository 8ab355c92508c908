"""The rules of `rules/*.toml`: patterns of lines, with the class, the sentence and the fix that they mean."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections import Counter
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

Kind = Literal["cause", "soft", "symptom", "consequence", "end"]
Confidence = Literal["certain", "likely"]

DIRECT = 60
"""Weight from which a rule states a cause directly."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """One kind of failure, and the lines that programs print about it."""

    name: str
    class_: str
    """Short identifier of the kind of failure. Several rules may share it."""
    cause: str
    """The sentence. `{name}` is a group of the pattern; text in square brackets is left out if its group is."""
    fix: str
    """Advice that begins with an imperative. `{name}` as in the sentence."""
    patterns: tuple[str, ...] = ()
    """Lines that prove the sentence."""
    hints: tuple[str, ...] = ()
    """Lines that only suggest the sentence, because other failures print them, too: the answer is then `likely`."""
    examples: tuple[str, ...]
    """Real lines that a pattern matches: the tests and the documentation of the rule."""
    weight: int
    """Precedence: a direct statement of a cause has `DIRECT` or more, a generic error less."""
    kind: Kind = "cause"
    """`cause` ends a program. `soft` may explain a later failure. `symptom` matters only if nothing else is found.
    `consequence` is printed by victims. `end` is an end that Slurm ordered."""
    confidence: Confidence = "certain"
    scope: Literal["rank", "node", "job"] = "rank"
    """The part of the job that is to blame."""
    explains: tuple[str, ...] = ()
    """Classes that follow from this failure."""
    warns: bool = False
    """A warning with this text counts, too."""
    alone: bool = False
    """Counts only for a line that no other rule matches and that is no exception of a traceback."""
    exceptions_only: bool = False
    """Matches exceptions of tracebacks only, no other lines."""


_GRAM = 4
"""Length of the pieces of text by which patterns are found."""


class Match(NamedTuple):
    """A rule and the groups that its pattern found."""

    rule: Rule
    groups: dict[str, str]
    is_hint: bool = False
    """The line suggests the rule's sentence, but does not prove it."""


class _Pattern(NamedTuple):
    text: str
    rule: Rule
    order: int
    is_hint: bool


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rules in the order of their files."""

    class Document(msgspec.Struct, forbid_unknown_fields=True):
        rule: list[Rule]

    folder = files("hpc_kit.runs.why") / "rules"
    texts = [entry.read_text(encoding="utf-8") for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)]
    return tuple(rule for text in texts for rule in msgspec.convert(tomllib.loads(text), Document).rule)


@cache
def rule_named(name: str) -> Rule:
    """Return the rule of a name."""
    return next(rule for rule in all_rules() if rule.name == name)


def match_line(text: str, *, exception: bool = False) -> list[Match]:
    """Return the rules that match a line, at most one match a rule, the heaviest first.

    Args:
        text: The line, without prefixes and terminal escapes.
        exception: The line is the exception of a traceback.
    """
    return [match._replace(groups=dict(match.groups)) for match in _matches(text, exception)]


@lru_cache(maxsize=64)
def _matches(text: str, exception: bool) -> tuple[Match, ...]:
    """Return the matches of a line, which hundreds of ranks may print."""
    lower = text.lower()
    index = _pattern_index()
    # Hundreds of patterns: search only for those of which a rare piece of text is in the line.
    grams = {lower[start : start + _GRAM] for start in range(len(lower) - _GRAM + 1)}
    candidates = [entry for gram in grams & index.keys() for entry in index[gram]] + index[""]
    found: dict[str, Match] = {}
    for literal, pattern in sorted(candidates, key=lambda entry: entry[1].order):
        rule = pattern.rule
        if literal not in lower or rule.name in found or (rule.exceptions_only and not exception):
            continue
        if match := _compiled(pattern.text).search(text):
            groups = {name: value for name, value in match.groupdict().items() if value}
            found[rule.name] = Match(rule, groups, pattern.is_hint)
    if exception or len(found) > 1:
        # Of vague rules only, the heaviest one is left; in a traceback they never count.
        others = {name: match for name, match in found.items() if not match.rule.alone}
        heaviest = max(found, key=lambda name: found[name].rule.weight, default="")
        found = others if others or exception else {heaviest: found[heaviest]}
    return tuple(sorted(found.values(), key=lambda match: -match.rule.weight))


def fill_sentence(template: str, values: dict[str, str]) -> str:
    """Replace `{name}` in a sentence, and leave out the bracketed parts whose values are not known."""

    def fill_part(match: re.Match[str]) -> str:
        names = re.findall(r"\{(\w+)\}", match[1])
        return match[1] if all(values.get(name) for name in names) else ""

    # `[x {name} y]`: only brackets with a name in them are optional parts.
    text = re.sub(r"\[([^\[\]]*\{\w+\}[^\[\]]*)\]", fill_part, template)
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


@cache
def _pattern_index() -> dict[str, list[tuple[str, _Pattern]]]:
    """Return the patterns by a rare piece of each of their literals; those without a literal under ''."""
    texts = [(text, rule, text in rule.hints) for rule in all_rules() for text in (*rule.patterns, *rule.hints)]
    patterns = [_Pattern(text, rule, order, is_hint) for order, (text, rule, is_hint) in enumerate(texts)]
    table = json.loads(_LITERALS.read_text(encoding="utf-8"))
    # Only a rule that was just written is not in the table.
    known = {text: table[text] if text in table else required_literals(text) for text, _, _ in texts}
    literals = [(literal, pattern) for pattern in patterns for literal in known[pattern.text] or ("",)]
    uses = Counter(gram for literal, _ in literals for gram in _grams(literal))
    index: dict[str, list[tuple[str, _Pattern]]] = {"": []}
    for literal, pattern in literals:
        # A rare piece is in few lines, so that few patterns are tried.
        rarest = min(_grams(literal), key=lambda gram: uses[gram], default="")
        index.setdefault(rarest, []).append((literal, pattern))
    return index


def _grams(text: str) -> list[str]:
    return [text[start : start + _GRAM] for start in range(len(text) - _GRAM + 1)]


_LITERALS = files("hpc_kit.runs.why") / "pattern_literals.json"


def literal_table() -> str:
    """Return the content of `pattern_literals.json`: to parse all patterns takes longer than most logs."""
    texts = sorted({text for rule in all_rules() for text in (*rule.patterns, *rule.hints)})
    rows = (f"{json.dumps(text)}: {json.dumps(required_literals(text))}" for text in texts)
    return "{\n" + ",\n".join(rows) + "\n}\n"


@cache
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


def required_literals(pattern: str) -> tuple[str, ...]:
    """Return lower-case texts of which each match of a pattern contains one; empty if there are no such texts."""
    from re import _parser as parser  # type: ignore[attr-defined]  # the parser of `re` itself: no second one

    return _literals_of(parser.parse(pattern), parser)


def _literals_of(items: Iterable[tuple[object, Any]], parser: ModuleType) -> tuple[str, ...]:
    """Return the literals of the part of a parsed pattern whose shortest literal is the longest."""
    parts: list[tuple[str, ...]] = []
    run = ""
    for kind, value in items:
        if kind is parser.LITERAL:
            run += chr(value).lower()
            continue
        parts.append((run,))
        run = ""
        if kind is parser.SUBPATTERN:
            parts.append(_literals_of(value[-1], parser))
        elif kind in {parser.MAX_REPEAT, parser.MIN_REPEAT} and value[0] > 0:
            parts.append(_literals_of(value[2], parser))
        elif kind is parser.BRANCH:
            branches = [_literals_of(branch, parser) for branch in value[1]]
            parts.append(tuple(dict.fromkeys(itertools.chain(*branches))) if all(branches) else ())
    usable = [part for part in [*parts, (run,)] if part and all(part)]
    return max(usable, key=lambda part: min(map(len, part)), default=())
