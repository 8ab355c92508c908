"""The labelled failing jobs: right in 95 of 100 cases, sure in 80, and never sure and wrong.

`run/` are jobs that really ran (`make_cases.py`), `gpu/` ran on H100 GPUs (torch 2.11, NCCL 2.28), `written/` follow
public error texts, and `unseen/` were written without a look at the rules.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_kit.runs.why import explain
from hpc_kit.runs.why.verdicts import Verdict

FOLDER = Path(__file__).parent


class Answer(NamedTuple):
    name: str
    label: dict[str, Any]
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        verdict, label = self.verdict, self.label
        found = {"class": verdict.class_, "rank": verdict.rank, "host": verdict.host}
        is_place_right = all(found[key] == label[key] for key in found if key in label)
        return is_place_right and label.get("cause", "") in verdict.cause


def answers(*parts: str) -> Iterator[Answer]:
    for part in parts:
        for folder in sorted((FOLDER / part).iterdir()):
            if (folder / "label.toml").exists():
                files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "label.toml")
                label = tomllib.loads((folder / "label.toml").read_text())
                yield Answer(f"{part}/{folder.name}", label, explain(files))


@pytest.fixture(scope="module")
def known() -> list[Answer]:
    return list(answers("run", "gpu", "written"))


@pytest.fixture(scope="module")
def unseen() -> list[Answer]:
    return list(answers("unseen"))


def describe(wrong: list[Answer]) -> str:
    return "\n".join(
        f"{answer.name}: {answer.label} but {answer.verdict.class_}, {answer.verdict.cause}" for answer in wrong
    )


def test_the_corpus_has_at_least_120_cases_and_40_unseen_ones(known: list[Answer], unseen: list[Answer]) -> None:
    assert len(known) >= 120
    assert len(unseen) >= 40


@pytest.mark.parametrize("part", ["known", "unseen"])
def test_95_of_100_answers_are_right(part: str, request: pytest.FixtureRequest) -> None:
    cases: list[Answer] = request.getfixturevalue(part)
    wrong = [answer for answer in cases if not answer.is_right]
    assert len(wrong) <= 0.05 * len(cases), describe(wrong)


@pytest.mark.parametrize("part", ["known", "unseen"])
def test_80_of_100_answers_are_certain(part: str, request: pytest.FixtureRequest) -> None:
    cases: list[Answer] = request.getfixturevalue(part)
    likely = [answer for answer in cases if answer.verdict.confidence == "likely"]
    assert len(likely) <= 0.2 * len(cases), describe(likely)


@pytest.mark.parametrize("part", ["known", "unseen"])
def test_no_certain_answer_is_wrong(part: str, request: pytest.FixtureRequest) -> None:
    cases: list[Answer] = request.getfixturevalue(part)
    wrong = [answer for answer in cases if answer.verdict.confidence == "certain" and not answer.is_right]
    assert not wrong, describe(wrong)


def test_every_answer_has_a_cause_and_advice(known: list[Answer], unseen: list[Answer]) -> None:
    for answer in (*known, *unseen):
        assert answer.verdict.cause, answer.name
        assert answer.verdict.fix, answer.name
        assert not re.search(r"\{\w+\}", answer.verdict.cause), answer.name
