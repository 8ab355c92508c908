"""nn.DataParallel against DistributedDataParallel on one node, and the ways to start the latter's processes there.

All train the same model on the same batches from the same number of cores: one process has as many threads as the
others are processes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.bench import room, training_runs
from hpc_kit.bench.results import Column, Plot
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.runtime.launchers.agreement import CHOICE

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet

TITLE = "nn.DataParallel against DistributedDataParallel; spawn against srun"
COLUMNS = {
    "tokens_per_second": Column(unit="1/s", better="higher"),
    "step": Column(unit="s"),
    "memory": Column(unit="B", title="memory of the largest process"),
    "communication": Column(unit="%"),
    "start": Column(unit="s", title="to the first step"),
}
ONE, DATAPARALLEL, SPAWN, SRUN, TORCHRUN = (
    "one process",
    "nn.DataParallel",
    "DDP by spawn",
    "DDP by srun",
    "DDP by torchrun",
)
WAYS = (ONE, DATAPARALLEL, SPAWN, SRUN, TORCHRUN)

_PROCESS_BYTES = 400 << 20
"""What a process of torch takes with a model this small."""


class Question(NamedTuple):
    """What is to be measured."""

    ways: tuple[str, ...] = WAYS
    ranks: int = 2
    steps: int = 20
    global_batch: int = 64
    repeats: int = 3
    timeout: float = 600.0
    """Seconds for one training."""


def refuse(asked: Question) -> None:
    """Say what cannot be measured before anything is.

    Raises:
        SpecError: A way is none, the batch does not divide, or the processes do not fit into memory.
    """
    if unknown := [way for way in asked.ways if way not in WAYS]:
        raise SpecError(f"unknown way {unknown[0]!r}", found=",".join(asked.ways), remedy=",".join(WAYS))
    if asked.global_batch % asked.ranks:
        raise SpecError(
            "the batch does not divide over the ranks",
            found=f"--global-batch {asked.global_batch}, --ranks {asked.ranks}",
            remedy=f"--global-batch {asked.ranks * (asked.global_batch // asked.ranks + 1)}",
        )
    room.refuse_beyond(asked.ranks * _PROCESS_BYTES, f"{asked.ranks} processes", "fewer --ranks")


def measure(asked: Question, sheet: Sheet, environ: Mapping[str, str]) -> None:
    """A row for each way; one that cannot be taken here is noted.

    Args:
        asked: What is to be measured.
        sheet: Is filled in.
        environ: In which srun is found.

    Raises:
        SpecError: A way is none, the batch does not divide, or the processes do not fit into memory.
    """
    refuse(asked)
    for column in ("tokens_per_second", "start"):
        sheet.plot(Plot(name=column, title=TITLE, kind="bars", x="way", y=(column,)))
    gpus = _gpus()
    if DATAPARALLEL in asked.ways and gpus < 2:
        sheet.note(
            f"{gpus} GPUs here: nn.DataParallel scatters nothing and copies no model, so its row is that of one"
            " process; neither the cost of its copies nor the load on the first GPU is shown."
        )
    ways = list(asked.ways)
    if SRUN in ways and shutil.which("srun", path=environ.get("PATH", os.defpath)) is None:
        sheet.miss(SRUN, "there is no srun here.")
        ways.remove(SRUN)
    sheet.expect(len(ways) * asked.repeats)
    taken = {way: Taken([], []) for way in ways}
    # In turns, so that a machine whose speed drifts drifts for all of them.
    for turn in range(asked.repeats):
        for way in list(taken):
            sheet.doing(f"{way}, {turn + 1} of {asked.repeats}")
            try:
                _take(way, asked, environ, taken[way])
            except JobFailed as error:
                sheet.miss(way, str(error))
                del taken[way]
            else:
                _put(way, asked, sheet, taken[way])


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


class Taken(NamedTuple):
    """What the repeats of a way have given until now."""

    summaries: list[training_runs.Summary]
    starts: list[float]


def _take(way: str, asked: Question, environ: Mapping[str, str], taken: Taken) -> None:
    """One training, and one start."""
    program = training_runs.training("dataparallel.py" if way == DATAPARALLEL else "ddp.py")
    words = ["--steps", str(asked.steps), "--global-batch", str(asked.global_batch)]
    taken.summaries.append(_trained(way, asked, environ, training_runs.python(program, *words)))
    if way != DATAPARALLEL:
        taken.starts.append(_started(way, asked, environ))


def _put(way: str, asked: Question, sheet: Sheet, taken: Taken) -> None:
    summaries = taken.summaries
    values: dict[str, Any] = {
        "tokens_per_second": [float(each["tokens_per_second"]) for each in summaries],
        "step": [float(each["step_time_median"]) for each in summaries],
        "memory": max(float(each["peak_memory_mib"]) for each in summaries) * 2**20,
        "communication": [100 * float(each["communication_share"]) for each in summaries],
    }
    if taken.starts:
        values["start"] = taken.starts
    sheet.add({"way": way, "processes": 1 if way in {ONE, DATAPARALLEL} else asked.ranks}, **values)


def _trained(way: str, asked: Question, environ: Mapping[str, str], argv: list[str]) -> training_runs.Summary:
    with _folder() as name:
        _run(way, asked, environ, argv, Path(name))
        return training_runs.summary(Path(name))


def _started(way: str, asked: Question, environ: Mapping[str, str]) -> float:
    """Seconds from the command to the end of the first step."""
    with _folder() as name:
        found = Path(name, "found.json")
        words = ["--submitted", repr(time.time()), "--to", str(found)]
        _run(way, asked, environ, training_runs.python(training_runs.training("first_step.py"), *words), Path(name))
        phases: dict[str, float] = json.loads(found.read_text())
        return sum(seconds for phase, seconds in phases.items() if phase != "clocks")


def _folder() -> tempfile.TemporaryDirectory[str]:
    """For a training's files: in a job below its run folder, which a step of srun sees wherever it runs."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("HPC_KIT_RUN"))


def _run(way: str, asked: Question, environ: Mapping[str, str], argv: list[str], folder: Path) -> None:
    """The training by one of the ways, to its end.

    Raises:
        JobFailed: It failed.
    """
    lines = {
        SPAWN: [sys.executable, "-m", "hpc_kit.bench.spawned", str(asked.ranks), *argv[1:]],
        TORCHRUN: [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={asked.ranks}"],
        SRUN: [
            *("srun", "--nodes=1", f"--ntasks={asked.ranks}", f"--ntasks-per-node={asked.ranks}", "--cpus-per-task=1"),
            # The step that this process runs in has the job's CPUs and memory already.
            *(["--overlap", "--mem=0"] if "SLURM_JOB_ID" in os.environ else []),
            *argv,
        ],
    }
    lines[TORCHRUN] += argv[1:]
    alone = way in {ONE, DATAPARALLEL}
    own = training_runs.environment(folder, threads=asked.ranks if alone else 1)
    if way == SRUN:
        own = {**environ, **own, "PATH": environ.get("PATH", os.defpath), **_of_the_job()}
    elif alone:
        own[CHOICE] = "single"
    if fault := training_runs.run(lines.get(way, argv), own, asked.timeout):
        raise JobFailed("it failed", found=fault, remedy="its last lines are above")


def _of_the_job() -> dict[str, str]:
    """What srun needs to start a step in the job around it, without what the step around it has set."""
    return {name: value for name, value in os.environ.items() if name in {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF"}}
