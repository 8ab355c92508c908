"""docs/embedded-slurm.md is the code's own word."""

from __future__ import annotations

from hpc_kit.embedded.contract import text
from hpc_kit.embedded.support import SBATCH_SUPPORT
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "embedded-slurm.md"


def test_the_page_is_current() -> None:
    remedy = "make it anew: python -m hpc_kit.embedded.contract > docs/embedded-slurm.md"
    assert PAGE.read_text() == text(), remedy


def test_every_option_and_column_has_its_row() -> None:
    page = text()
    for name in SBATCH_SUPPORT:
        assert f"--{name}" in page
    assert "| `%i` | `jobarrayid` |\n" in page
    assert "| `SLURM_RESTART_COUNT` | `1` |\n" in page
    assert "| `-L, --licenses=VALUE` | accepted, no effect | there are no licences; refused with `strict` |\n" in page
