"""The tables of docs/embedded-slurm.md contain every option and column. tests/spec compares the page with the code."""

from __future__ import annotations

from pocketslurm.option_support import SBATCH_SUPPORT
from tests.embedded_page import text


def test_every_option_and_column_has_its_row() -> None:
    page = text()
    for name in SBATCH_SUPPORT:
        assert f"--{name}" in page
    assert "| `%i` | `jobarrayid` |\n" in page
    assert "| `SLURM_RESTART_COUNT` | `1` |\n" in page
    assert "| `-L, --licenses=VALUE` | accepted, no effect | there are no licences; refused with `strict` |\n" in page
