"""A comment silences a rule at its place, and must give a reason."""

from __future__ import annotations

import pytest

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules import check

HEAD = "#!/bin/bash\n"


def codes(text: str) -> list[str]:
    return [finding.code for finding in check(BatchScript(HEAD + text))]


@pytest.mark.parametrize(
    "text",
    [
        "export MASTER_PORT=29500  # kit: ignore[KIT302] reserved for us\n",
        "# kit: ignore[KIT302] reserved for us\nexport MASTER_PORT=29500\n",
        "# kit: ignore[KIT302] reserved for us\nsrun torchrun \\\n  --master-port 29500 t.py\n",
        "#SBATCH --time=24  # kit: ignore[KIT122] a test of 24 minutes\n",
        "# kit: ignore[KIT403, KIT302] the log matters more\nsrun torchrun --master-port 29500 t.py | tee log\n",
    ],
)
def test_a_comment_silences_its_rule_at_its_place(text: str) -> None:
    assert codes(text) == []


def test_a_comment_silences_no_other_rule_and_no_other_line() -> None:
    assert codes("export MASTER_PORT=29500  # kit: ignore[KIT304] x\n") == ["KIT100", "KIT302"]
    text = "A=1  # kit: ignore[KIT302] x\n\nexport MASTER_PORT=29500\n"
    assert codes(text) == ["KIT100", "KIT302"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("export MASTER_PORT=29500  # kit: ignore[KIT302]\n", "no reason"),
        ("export A=1  # kit: ignore[KIT302] old\n", "silences no finding"),
        ("export MASTER_PORT=29500  # kit: ignore the port\n", "the code is missing"),
    ],
)
def test_a_comment_without_reason_effect_or_code_is_a_finding(text: str, words: str) -> None:
    (finding,) = [each for each in check(BatchScript(HEAD + text)) if each.code == "KIT100"]
    assert words in finding.what
    assert finding.line == 2
