"""What a training says of itself at its end."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hpc_kit.run_files import RUN_VARIABLE, SUMMARY
from hpc_kit.runtime.launchers import resolve


def write_summary(**values: str | float | None) -> None:
    """Leave `values` as the run's summary.json, which `hpc-kit submit` shows at the end.

    Only rank 0 writes, so that all may call. Nothing happens outside of a run; a reader never meets half a file.
    """
    folder = os.environ.get(RUN_VARIABLE)
    if not folder or not resolve(os.environ).is_main:
        return
    target = Path(folder, SUMMARY)
    draft = target.with_name(f".{SUMMARY}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(values, indent=2) + "\n")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
