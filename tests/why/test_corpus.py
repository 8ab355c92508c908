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


def describe(wrong: list[Answer]) -> str:
    return "\n".join(
        f"{answer.name}: {answer.label} but {answer.verdict.class_}, {answer.verdict.cause}" for answer in wrong
    )


@pytest.mark.parametrize(
    ("parts", "least"), [(("run", "gpu", "written"), 120), (("unseen",), 40)], ids=["known", "unseen"]
)
def test_95_of_100_answers_are_right_80_are_certain_and_no_certain_one_is_wrong(
    parts: tuple[str, ...], least: int
) -> None:
    cases = list(answers(*parts))
    assert len(cases) >= least
    wrong = [answer for answer in cases if not answer.is_right]
    assert len(wrong) <= 0.05 * len(cases), describe(wrong)
    likely = [answer for answer in cases if answer.verdict.confidence == "likely"]
    assert len(likely) <= 0.2 * len(cases), describe(likely)
    sure = [answer for answer in wrong if answer.verdict.confidence == "certain"]
    assert not sure, describe(sure)
    for answer in cases:
        assert answer.verdict.cause, answer.name
        assert answer.verdict.fix, answer.name
        assert not re.search(r"\{\w+\}", answer.verdict.cause), answer.name
