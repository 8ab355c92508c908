"""Writes the results of a training into the run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_kit.run_files import RUN_VARIABLE, STEPS, SUMMARY, write_whole
from hpc_kit.runtime.launchers import resolve


def write_summary(**values: str | float | None) -> None:
    """Write `values` as the run's summary.json, which `hpc-kit submit` prints at the end.

    Only rank 0 writes, so all ranks may call it. Outside of a run it does nothing. The file is replaced atomically.
    """
    _write_json(SUMMARY, values, indent=2)


def write_steps(
    *,
    loss: Sequence[float],
    seconds: Sequence[float],
    tokens: float | None = None,
    busy: Sequence[tuple[float, float, float]] = (),
) -> None:
    """Write the steps of a training as the run's steps.json, from which `hpc-kit report` draws curves.

    Only rank 0 writes, as in `write_summary`.

    Args:
        loss: Loss of each step.
        seconds: Duration of each step.
        tokens: Tokens of one step over all ranks.
        busy: For each rank, the quartiles (median second) of its seconds per step without waiting.
    """
    _write_json(
        STEPS, {"loss": list(loss), "seconds": list(seconds), "tokens": tokens, "busy": [list(each) for each in busy]}
    )


def _write_json(name: str, values: dict[str, Any], indent: int | None = None) -> None:
    folder = os.environ.get(RUN_VARIABLE)
    if folder and resolve(os.environ).is_main:
        write_whole(Path(folder, name), f"{json.dumps(values, indent=indent)}\n".encode(), 0o644)
