"""nn.DataParallel compared with DistributedDataParallel on one node, and the ways to start its processes.

All variants train the same model on the same batches and number of cores: a single process has as many threads as the
other variants have processes.
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
from typing import NamedTuple

from hpc_kit.bench import option_checks, training_runs
from hpc_kit.bench.recorder import Recorder, measure_in_turns
from hpc_kit.bench.results import Column, Plot
from hpc_kit.errors import JobFailed
from hpc_kit.run_files import RUN_VARIABLE
from hpc_kit.runtime.variables import CHOICE

TITLE = "nn.DataParallel against DistributedDataParallel; spawn against srun"
COLUMNS = {
    "tokens_per_second": Column(unit="1/s", better="higher"),
    "step": Column(unit="s"),
    "memory": Column(unit="B", title="memory of the largest process"),
    "communication": Column(unit="%"),
    "start": Column(unit="s", title="to the first step"),
}
VARIANTS = ("one process", "nn.DataParallel", "DDP by spawn", "DDP by srun", "DDP by torchrun")
SINGLE_PROCESS, DATAPARALLEL, SPAWN, SRUN, TORCHRUN = VARIANTS

_PROCESS_BYTES = 400 << 20
"""Memory of a torch process with such a small model."""


class DataParallelOptions(NamedTuple):
    """Options of `bench dp`."""

    ways: tuple[str, ...] = VARIANTS
    ranks: int = 2
    steps: int = 20
    global_batch: int = 64
    repeats: int = 3
    timeout: float = 600.0
    """Time limit of one run, in seconds."""

    def check(self) -> None:
        """Check the options before anything is measured.

        Raises:
            SpecError: A variant is unknown, the batch does not divide, or memory is too small.
        """
        option_checks.check_known_names("way", self.ways, VARIANTS)
        option_checks.check_divides(self.ranks, "global-batch", self.global_batch)
        option_checks.check_memory(self.ranks * _PROCESS_BYTES, f"{self.ranks} processes", "fewer --ranks")


def measure_data_parallel(options: DataParallelOptions, recorder: Recorder, environ: Mapping[str, str]) -> None:
    """Measure one row for each variant; note variants that cannot run here. `environ` has srun on PATH."""
    import torch

    for column in ("tokens_per_second", "start"):
        recorder.add_plot(Plot(name=column, title=TITLE, kind="bars", x="way", y=(column,)))
    gpus = torch.cuda.device_count()
    if DATAPARALLEL in options.ways and gpus < 2:
        recorder.add_note(
            f"{gpus} GPUs here: nn.DataParallel scatters nothing and copies no model, so its row is that of one"
            " process; neither the cost of its copies nor the load on the first GPU is shown."
        )
    ways = list(options.ways)
    if SRUN in ways and shutil.which("srun", path=environ.get("PATH", os.defpath)) is None:
        recorder.note_missing(SRUN, "there is no srun here.")
        ways.remove(SRUN)
    recorder.expect_rows(len(ways) * options.repeats)
    times: dict[str, VariantTimes] = {variant: VariantTimes([], []) for variant in ways}

    def measure(variant: str) -> None:
        _measure_once(variant, options, environ, times[variant])
        summaries, starts = times[variant]
        values = training_runs.summary_values(summaries) | ({"start": starts} if starts else {})
        processes = 1 if variant in {SINGLE_PROCESS, DATAPARALLEL} else options.ranks
        known = {name: value for name, value in values.items() if name in COLUMNS}
        recorder.add_row({"way": variant, "processes": processes}, **known)

    measure_in_turns(recorder, ways, options.repeats, measure)


class VariantTimes(NamedTuple):
    """Summaries and start times of a variant's repeats so far."""

    summaries: list[training_runs.Summary]
    starts: list[float]


def _measure_once(variant: str, options: DataParallelOptions, environ: Mapping[str, str], times: VariantTimes) -> None:
    """Run one training and one start."""
    program = "dataparallel.py" if variant == DATAPARALLEL else "ddp.py"
    words = ["--steps", str(options.steps), "--global-batch", str(options.global_batch)]
    with _temporary_folder() as name:
        _run_variant(variant, options, environ, training_runs.training_command(program, *words), Path(name))
        times.summaries.append(training_runs.read_summary(Path(name)))
    # first_step.py trains with DDP only.
    if variant != DATAPARALLEL:
        times.starts.append(_measure_start(variant, options, environ))


def _measure_start(variant: str, options: DataParallelOptions, environ: Mapping[str, str]) -> float:
    """Return the seconds from the command to the end of the first step."""
    with _temporary_folder() as name:
        found = Path(name, "found.json")
        words = ["--submitted", repr(time.time()), "--to", str(found)]
        argv = training_runs.training_command("first_step.py", *words)
        _run_variant(variant, options, environ, argv, Path(name))
        phases: dict[str, float] = json.loads(found.read_text())
        # `clocks` is the difference of the clocks of the ranks, not a phase.
        return sum(seconds for phase, seconds in phases.items() if phase != "clocks")


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder for a training's files.

    Inside a job it lies in the run folder, which srun steps see on every node.
    """
    return tempfile.TemporaryDirectory(dir=os.environ.get(RUN_VARIABLE))


def _run_variant(
    variant: str, options: DataParallelOptions, environ: Mapping[str, str], argv: list[str], folder: Path
) -> None:
    """Run the training in one of the variants to its end."""
    ranks = options.ranks
    srun = ["srun", "--nodes=1", f"--ntasks={ranks}", f"--ntasks-per-node={ranks}", "--cpus-per-task=1"]
    if "SLURM_JOB_ID" in os.environ:
        # This process's own step already holds the job's CPUs and memory.
        srun += ["--overlap", "--mem=0"]
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command_lines = {
        SPAWN: [sys.executable, "-P", "-m", "hpc_kit.bench.training_runs", str(ranks), *argv[1:]],
        TORCHRUN: [*torchrun, *argv[1:]],
        SRUN: [*srun, *argv],
    }
    alone = variant in {SINGLE_PROCESS, DATAPARALLEL}
    own = training_runs.program_environment(folder, threads=ranks if alone else 1)
    if variant == SRUN:
        # srun starts a step in the surrounding job, but not with the variables of this step.
        job = {name: os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF") if name in os.environ}
        own = {**environ, **own, "PATH": environ.get("PATH", os.defpath), **job}
    elif alone:
        own[CHOICE] = "single"
    if fault := training_runs.run_program(command_lines.get(variant, argv), own, options.timeout):
        raise JobFailed("it failed", found=fault, remedy="its last lines are above")
