"""The published schema says what the loader takes: an independent validator agrees on every shipped file."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from hpc_kit.spec.schema import schema_text
from tests.conftest import ROOT

FILES = [(path, "job") for path in sorted((ROOT / "jobs").glob("*.toml"))] + [
    (path, "cluster") for path in sorted((ROOT / "env").glob("*.toml"))
]


@pytest.mark.parametrize(("path", "kind"), FILES, ids=lambda value: getattr(value, "name", value))
def test_every_shipped_file_is_valid(path: Path, kind: str) -> None:
    jsonschema.Draft202012Validator(json.loads(schema_text(kind))).validate(tomllib.loads(path.read_text()))


@pytest.mark.parametrize(("path", "kind"), FILES, ids=lambda value: getattr(value, "name", value))
def test_every_shipped_file_names_its_schema(path: Path, kind: str) -> None:
    assert f"#:schema {kind}.schema.json" in path.read_text().splitlines()


@pytest.mark.parametrize(
    "wrong", [{"nodes": 2}, {"resources": {"nodes": -1}}, {"resources": {"time": []}}, {"env": {"A": []}}]
)
def test_the_schema_refuses_the_same_files_as_the_loader(wrong: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(schema_text("job"))).validate(wrong)


def test_generated_files_are_current() -> None:
    """A new interpreter makes them: click keeps the help of a command as a test called it first."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", "--check"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "", "make golden"
