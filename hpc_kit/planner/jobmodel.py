"""The model that a job trains: its `[model]`, or what the command of a program of jobs/train says."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from hpc_kit.planner.model import Model
from hpc_kit.spec.job import Job

DEFAULTS = {"layers": 4, "width": 128, "heads": 4, "sequence": 64, "global-batch": 64}
"""Options of the programs in jobs/train, with their defaults."""
BYTES = 256
WORDS = 32000
"""Vocabulary of the shipped programs, and one that is taken for granted of others."""


class Asked(Struct, frozen=True):
    """A job's model, and its batch."""

    model: Model
    global_batch: int
    seq_len: int


def shipped(job: Job) -> bool:
    """Whether a job runs one of the programs of jobs/train, each of which splits a model in its own way."""
    programs = [word for word in job.command if word.endswith(".py")]
    return bool(programs) and Path(programs[0]).parent.name == "train"


def asked(job: Job) -> Asked | None:
    """What a job trains; None where neither its `[model]` nor its command says."""
    told = {"layers": job.model.layers, "width": job.model.width, "heads": job.model.heads}
    if not shipped(job) and None in told.values():
        return None
    told |= {"sequence": job.model.sequence, "global-batch": job.layout.global_batch}
    found = {name: told[name] or usual for name, usual in DEFAULTS.items()}
    for word, following in zip(job.command, (*job.command[1:], ""), strict=True):
        name, equals, value = word.removeprefix("--").partition("=")
        text = value if equals else following
        if word.startswith("--") and name in found and text.isdigit():
            found[name] = int(text)
    width, length = found["width"], found["sequence"]
    model = Model(
        name=f"l{found['layers']}-h{width}",
        layers=found["layers"],
        hidden=width,
        ffn=4 * width,
        heads=found["heads"],
        kv_heads=found["heads"],
        head_dim=max(1, width // found["heads"]),
        vocab=BYTES if shipped(job) else WORDS,
        seq_len=length,
        gated=False,
        positions=length + 1,
    )
    return Asked(model, found["global-batch"], length)
