"""Both engines give exactly the answers recorded on the real Slurm. Known differences are listed with their reasons."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.conformance.answers import RECORDED, ask, questions
from tests.conformance.engine import Engine

QUESTIONS = questions()
ANSWERS = json.loads(RECORDED.read_text())
DIFFERENCES = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())["answers"]


def test_every_query_has_a_recorded_answer() -> None:
    assert QUESTIONS.keys() == ANSWERS.keys()
    assert QUESTIONS.keys() >= DIFFERENCES.keys()


@pytest.mark.parametrize("title", QUESTIONS)
def test_the_embedded_slurm_answers_like_slurm(engine: Engine, title: str) -> None:
    found = ask(engine, QUESTIONS[title])
    if engine.name == "embedded" and title in DIFFERENCES:
        assert found != ANSWERS[title], f"no difference any more: {DIFFERENCES[title]}"
        return
    assert found == ANSWERS[title]
