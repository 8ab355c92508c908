"""A note about work that the stops of an earlier run have lost, because its program did not save at the stop signal.

Then a stop loses the work since the last checkpoint, however long `lead` is.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_kit.runs.history import read_history
from hpc_kit.script.context import working_folder
from hpc_kit.slurm.start_forecast import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved

_RUNS = 10
"""Earlier runs that are read."""


def list_unsaved_work(resolved: Resolved, root: Path) -> Iterator[str]:
    """Yield a note if a stop of an earlier run of a job with [restart] lost more seconds of work than `lead`."""
    restart = resolved.job.restart
    if restart is None:
        return
    lost = _find_loss(working_folder(resolved, root) / resolved.log_folder)
    if lost is not None and lost[1] > restart.lead_seconds:
        run, seconds = lost
        yield (
            f"a stop of job {run} lost {format_duration(round(seconds))} of work since its last save: "
            f"handle {restart.signal_name}, or save at least every {format_duration(restart.lead_seconds)} (lead)"
        )


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
