"""The programs under jobs/train import one another by bare names, as they do when Python starts one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "jobs" / "train"
sys.path.insert(0, str(TRAIN))


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Python files: 60 small ones, of which a few are held back."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(60):
        lines = (f"def function_{number}_{line}(x):\n    return x * {number} + {line}\n" for line in range(20))
        (folder / f"module_{number}.py").write_text("\n".join(lines))
    return folder
