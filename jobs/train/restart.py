"""Ranks that are started again go on from what they wrote themselves, and from nobody else's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from hpc_kit.run_files import RUN_VARIABLE

ABOUT = "about.json"


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether these ranks were here before: Slurm has requeued the job, or torchrun starts its workers again."""
    return any(environ.get(name, "0") != "0" for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"))


def identity(environ: Mapping[str, str]) -> str:
    """What stays the same over a restart and is no other training's; "": nothing is."""
    names = (environ.get(name, "") for name in ("SLURM_JOB_ID", RUN_VARIABLE, "TORCHELASTIC_RUN_ID"))
    if known := [name for name in names if name not in {"", "none"}]:  # none: torchrun without --rdzv-id
        return " ".join(known)
    # torchrun is the parent of all workers of its host.
    return f"pid {os.getppid()}" if environ.get("GROUP_WORLD_SIZE") == "1" else ""


def starts(environ: Mapping[str, str]) -> str:
    """Which start of the job this is, of which of its steps, and which of torchrun's: what `is_later` compares."""
    names = ("SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT")
    return " ".join(environ.get(name) or "0" for name in names)


def is_later(ours: str, theirs: str) -> bool:
    """Whether one is a later start of the other; two steps of one start of a job are two trainings."""
    try:
        (job, step, worker), (old_job, old_step, old_worker) = (map(int, each.split()) for each in (ours, theirs))
    except ValueError:
        return False
    return job > old_job or (job == old_job and step == old_step and worker > old_worker)


def moved(path: Path) -> Path:
    """Where the old checkpoint is while the new one gets its name."""
    return path.with_name(f".{path.name}.old")


def own_checkpoint(path: Path, environ: Mapping[str, str]) -> tuple[Path, int] | None:
    """What these ranks wrote before they were started again, and its step; None: nothing yet."""
    place = path if path.exists() else moved(path)
    mine = identity(environ)
    if not mine or not is_restart(environ):
        return None
    try:
        about = json.loads((place / ABOUT).read_text())
        return (place, int(about["step"])) if about.get("run") == mine else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
