"""The rules find the planted fault of each script in the corpus, and nothing in the good scripts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules import Finding, check

CORPUS = Path(__file__).parent / "corpus"
LABELS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((CORPUS / "labels.toml").read_text())
FAULTY = {(folder, name): label for folder, names in LABELS.items() for name, label in names.items() if label}
GOOD = [(folder, name) for folder, names in LABELS.items() for name, label in names.items() if not label]


def findings_of(folder: str, name: str) -> list[Finding]:
    return check(BatchScript((CORPUS / folder / f"{name}.sbatch").read_text(), name))


def is_found(folder: str, name: str) -> bool:
    """A finding names one of the labelled lines, itself or in its evidence."""
    lines = FAULTY[folder, name]["lines"]
    return any({each.line, *(line.line for line in each.evidence)} & {*lines} for each in findings_of(folder, name))


def test_the_labels_are_those_of_the_scripts() -> None:
    scripts = {(path.parent.name, path.stem) for path in CORPUS.glob("*/*.sbatch")}
    assert scripts == {*FAULTY, *GOOD}


def test_the_corpus_has_the_size_that_its_figures_need() -> None:
    faulty = [label["class"] for (folder, _), label in FAULTY.items() if folder == "faulty"]
    good = [name for folder, name in GOOD if folder == "good"]
    assert len(faulty) >= 120
    assert len({*faulty}) >= 90
    assert len(good) >= 80
    assert len(LABELS["later"]) >= 40


@pytest.mark.parametrize("folder", ["faulty", "later"])
def test_nearly_all_planted_faults_are_found(folder: str) -> None:
    names = [name for where, name in FAULTY if where == folder]
    missed = [name for name in names if not is_found(folder, name)]
    assert len(missed) <= 0.03 * len(names), missed


@pytest.mark.parametrize("folder", ["good", "later"])
def test_good_scripts_have_no_error_and_hardly_a_warning(folder: str) -> None:
    names = [name for where, name in GOOD if where == folder]
    found = {name: findings_of(folder, name) for name in names}
    assert [name for name in names if any(each.severity == "error" for each in found[name])] == []
    warned = [name for name in names if found[name]]
    assert len(warned) <= 0.02 * len(names), warned
