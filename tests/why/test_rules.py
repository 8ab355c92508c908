"""Each rule: its examples match, its sentence can be filled, and its names exist."""

from __future__ import annotations

import re

import pytest

from hpc_kit.runs.why.log_reader import has_trigger
from hpc_kit.runs.why.rules import Rule, all_rules, fill_sentence, match_line, required_literals

VALUES = {"who", "rank", "host", "meaning", "detail", "name", "since", "silence", "time"}
"""Values that do not come from the line that matched."""


def groups_of(rule: Rule) -> set[str]:
    return {name for text in rule.patterns for name in re.compile(text).groupindex}


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.name)
def test_the_examples_of_a_rule_match_it_and_are_found_in_free_text(rule: Rule) -> None:
    assert rule.examples
    for example in rule.examples:
        lines = example.splitlines()
        found = {match.rule.name for line in lines for match in match_line(line, exception=not rule.alone)}
        assert rule.name in found
        assert any(has_trigger(line.lower().encode()) for line in lines)


def test_a_sentence_names_only_groups_of_its_patterns() -> None:
    for rule in all_rules():
        named = set(re.findall(r"\{(\w+)\}", rule.cause + rule.fix))
        assert named <= groups_of(rule) | VALUES, rule.name


def test_advice_is_there_and_classes_are_identifiers() -> None:
    for rule in all_rules():
        assert len(rule.fix) > 10, rule.name
        assert re.fullmatch(r"[a-z][a-z0-9-]+", rule.class_), rule.name


def test_patterns_with_any_text_in_front_are_anchored() -> None:
    """Otherwise, a search in a long line takes a time that grows with the square of its length."""
    patterns = [pattern for rule in all_rules() for pattern in rule.patterns]
    assert not [pattern for pattern in patterns if re.match(r"(\(\?P<\w+>)?\.\*", pattern)]


def test_the_name_of_a_rule_is_unique() -> None:
    names = [rule.name for rule in all_rules()]
    assert len(names) == len(set(names))


def test_a_rule_explains_only_classes_that_exist() -> None:
    classes = {rule.class_ for rule in all_rules()}
    unknown = {(rule.name, name) for rule in all_rules() for name in rule.explains} - {
        (rule.name, name) for rule in all_rules() for name in classes
    }
    assert not unknown


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("Disk quota exceeded", ("disk quota exceeded",)),
        (r"(?:rank|task) \d+ failed", (" failed",)),
        (r"(?P<name>SIGKILL|SIGTERM)", ("kill", "term")),
        (r"a?b*", ()),
        (r"x{2}yes(?!no)", ("yes",)),
        (r"\[Errno 28\]", ("[errno 28]",)),
        (r"(?i)Out Of Memory|oom_kill", ("out of memory", "oom_kill")),
    ],
)
def test_literals_of_patterns(pattern: str, literals: tuple[str, ...]) -> None:
    assert required_literals(pattern) == literals


def test_parts_without_a_value_are_left_out() -> None:
    assert fill_sentence("{who} failed[ in {path}][: {detail}]", {"who": "rank 1", "detail": "x"}) == "rank 1 failed: x"
