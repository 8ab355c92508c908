"""The gate on covered lines is one on all of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_is_there_to_be_counted() -> None:
    """Lines count where their module was imported: a search for the others in each of many processes costs too much."""
    for path in sorted((ROOT / "hpc_kit").rglob("*.py")):
        if path.stem not in {"__main__", "__init__"}:
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
