"""Importing the runtime imports no heavy package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hpc_kit.runtime

HEAVY = ("torch", "jinja2", "submitit", "msgspec", "click", "rich", "asyncio", "subprocess", "logging")


@pytest.mark.parametrize(
    "statement",
    [
        "import hpc_kit.runtime",
        "from hpc_kit.runtime import resolve; resolve({})",
        "from hpc_kit.runtime import distributed, write_summary, World",
        "import hpc_kit.runtime.__main__",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in found if name.split(".")[0] in HEAVY} == set()


def test_every_public_name_exists() -> None:
    for name in hpc_kit.runtime.__all__:
        assert getattr(hpc_kit.runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hpc_kit.runtime.nothing


def test_the_public_names_are_listed_without_importing_anything() -> None:
    program = "import sys, hpc_kit; print(*dir(hpc_kit)); print('torch' in sys.modules, 'submitit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, imported = done.stdout.splitlines()
    assert names.split() == sorted(hpc_kit.__all__)
    assert {"distributed", "save_checkpoint", "submit"} <= set(names.split())
    assert imported == "False False"
