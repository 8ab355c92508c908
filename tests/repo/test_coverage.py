"""The gate on covered lines is one on all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import coverage

from pocketslurm import exit_status

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "pyproject.toml"

FORK = """
import os
from pocketslurm import exit_status
if os.fork() == 0:
    exit_status.format_exit_code(256)
    os._exit(0)
os.wait()
"""


def test_every_module_can_be_imported() -> None:
    """Lines count where their module was imported: a search for the others in each of many processes costs too much."""
    for path in sorted([*(ROOT / "hpc_kit").rglob("*.py"), *(ROOT / "pocketslurm").rglob("*.py")]):
        if path.stem not in {"__main__", "__init__"}:
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def test_lines_of_a_fork_that_ends_with_exit_are_counted(tmp_path: Path) -> None:
    """So the embedded Slurm's processes end; and they run in other folders than the repository's."""
    program, data = tmp_path / "program.py", tmp_path / ".coverage"
    program.write_text(FORK)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    subprocess.run(
        [sys.executable, "-m", "coverage", "run", f"--rcfile={SETTINGS}", f"--data-file={data}", str(program)],
        cwd=tmp_path,
        env={**environ, "COVERED": str(ROOT)},
        check=True,
    )
    counted = coverage.CoverageData(str(data))
    for part in tmp_path.glob(".coverage.*"):
        found = coverage.CoverageData(str(part))
        found.read()
        counted.update(found)
    code = exit_status.format_exit_code.__code__
    body = {line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno}
    assert body & set(counted.lines(str(code.co_filename)) or [])
    assert counted.measured_files() <= {
        str(path) for folder in ("hpc_kit", "pocketslurm") for path in (ROOT / folder).rglob("*.py")
    }
