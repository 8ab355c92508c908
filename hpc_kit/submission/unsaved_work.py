"""Notes about work that each stop of a job with [restart] loses, because its program does not save at the stop signal.

Then a stop loses the work since the last checkpoint, however long `lead` is.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_kit.check.prerequisites import programs_of
from hpc_kit.runs.history import read_history
from hpc_kit.script.context import working_folder
from hpc_kit.slurm.start_forecast import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.spec.restart import Restart

_RUNS = 10
"""Earlier runs that are read."""

_HANDLERS = r"Checkpointer|^\s*(import|from) signal\b|HPC_KIT_STOP_SIGNAL|\blightning\b|pytorch_lightning|SIG{name}\b"
"""Text of a program that handles the signal. Lightning's Trainer handles SIGUSR1 itself."""


def list_unsaved_work(resolved: Resolved, root: Path) -> Iterator[str]:
    """Yield a note if a stop of a job with [restart] loses more work than `lead`, or may do so.

    An earlier run of the job shows how much its stops have lost. Without such a run, the source of a Python program
    shows whether it handles the signal. Nothing is known about other programs.

    Args:
        resolved: The job.
        root: The user's project.
    """
    restart = resolved.job.restart
    if restart is None:
        return
    folder, lead = working_folder(resolved, root), format_duration(restart.lead_seconds)
    remedy = f"handle {restart.signal_name}, or save at least every {lead} (lead)"
    if (lost := _find_loss(folder / resolved.log_folder)) is not None:
        run, seconds = lost
        if seconds > restart.lead_seconds:
            yield f"a stop of job {run} lost {format_duration(round(seconds))} of work since its last save: {remedy}"
        return
    file = next((each.file for each in programs_of(resolved.argv) if each.file and each.file.endswith(".py")), None)
    if file is not None and (folder / file).is_file() and not _has_handler(folder / file, restart):
        signal = restart.signal_name
        yield f"{file} seems not to handle {signal}, and a stop loses the work since its last save: {remedy}"


def _find_loss(runs: Path) -> tuple[str, float] | None:
    """Return the latest run with a stop and a known save, and the most seconds of work that one of its stops lost."""
    with suppress(OSError):
        files = sorted(runs.glob("*/history"), key=lambda path: path.stat().st_mtime, reverse=True)
        for file in files[:_RUNS]:
            attempts = read_history(file.parent).attempts
            stops = [each for each in attempts if each.reason.startswith("stopped by") and each.saved is not None]
            if stops:
                return file.parent.name, max(each.unsaved for each in stops)
    return None


def _has_handler(program: Path, restart: Restart) -> bool:
    """Return whether a program or a module beside it contains a word of a handler; True if a file cannot be read."""
    words = re.compile(_HANDLERS.format(name=restart.signal_name), re.MULTILINE)
    waiting, seen = [program], set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        try:
            text = file.read_text()
            imported = list(_imported_files(ast.parse(text), file, program.parent))
        except (OSError, ValueError, SyntaxError):
            return True
        if words.search(text):
            return True
        waiting += [each for each in imported if each not in seen]
    return False


def _imported_files(tree: ast.AST, file: Path, first: Path) -> Iterator[Path]:
    """Yield the files that a module imports from the folder of the program, and from its own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, folder = [name.name for name in node.names], first
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            names = [*([node.module] if node.module else []), *(f"{base}{name.name}" for name in node.names)]
            folder = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else first
        else:
            continue
        for name in names:
            path = folder / name.replace(".", "/")
            yield from filter(lambda each: each.is_file(), (path.with_suffix(".py"), path / "__init__.py"))
