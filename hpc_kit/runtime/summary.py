"""What a training says of itself at its end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_kit.run_files import RUN_VARIABLE, STEPS, SUMMARY, write_whole
from hpc_kit.runtime.launchers import resolve


def write_summary(**values: str | float | None) -> None:
    """Leave `values` as the run's summary.json, which `hpc-kit submit` shows at the end.

    Only rank 0 writes, so that all may call. Nothing happens outside of a run; a reader never meets half a file.
    """
    _write_json(SUMMARY, values, indent=2)


def write_steps(
    *,
    loss: Sequence[float],
    seconds: Sequence[float],
    tokens: float | None = None,
    busy: Sequence[tuple[float, float, float]] = (),
) -> None:
    """Leave the steps of a training as the run's steps.json, whose curves `hpc-kit report` draws.

    As with `write_summary`, only rank 0 writes.

    Args:
        loss: Of each step.
        seconds: Of each step.
        tokens: Of one step, over all ranks.
        busy: For each rank the quartiles, median in the middle, of what it worked in a step: its seconds without waits.
    """
    _write_json(
        STEPS, {"loss": list(loss), "seconds": list(seconds), "tokens": tokens, "busy": [list(each) for each in busy]}
    )


def _write_json(name: str, values: dict[str, Any], indent: int | None = None) -> None:
    folder = os.environ.get(RUN_VARIABLE)
    if folder and resolve(os.environ).is_main:
        write_whole(Path(folder, name), f"{json.dumps(values, indent=indent)}\n".encode(), 0o644)
