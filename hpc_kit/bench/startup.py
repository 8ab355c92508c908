"""Time from the command to the first training step, compared with hand-written sbatch scripts.

Every start is a job of its own, submitted after the previous one has left the queue. A hand-written script is the
shortest one that trains by env:// or torchrun with the same program, jobs/train/first_step.py. It takes the settings of
the site (account, partition, GPUs, modules, variables) from our rendered script and starts the ranks itself.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpc_kit.bench import option_checks, slurm_job
from hpc_kit.bench.recorder import Recorder, measure_in_turns
from hpc_kit.bench.results import Column, Plot, format_quantity
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.command_environment import submit_environment
from hpc_kit.slurm.partitions import SINFO_ARGV, parse_partitions

TITLE = "From the command to the first step"
PHASES = ("queue", "srun", "imports", "rendezvous", "model", "data", "step")
"""Phases as first_step.py names them; the queue phase begins with the command."""
COLUMNS = {**{phase: Column(unit="s") for phase in PHASES}, "total": Column(unit="s")}
COLUMNS["srun"] = Column(unit="s", title="srun (and torchrun)")

JOBS = {
    "hpc-kit": "first_step",
    "hpc-kit torchrun": "ddp_torchrun",
    "plain srun": "first_step",
    "plain torchrun": "ddp_torchrun",
}
"""The job of each variant: the job itself, or the one whose resources a hand-written script requests."""


class StartOptions(NamedTuple):
    """Options of `bench start`."""

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    ways: tuple[str, ...] = tuple(JOBS)
    nodes: int = 4
    """Maximum; with fewer ranks, each rank has a node."""
    repeats: int = 3
    timeout: float = 600.0
    """Seconds for one start."""

    def check(self) -> None:
        """Check the options before anything is measured.

        Raises:
            SpecError: A variant is unknown, or ranks do not divide over the nodes.
        """
        option_checks.check_known_names("way", self.ways, JOBS)
        for number in self.ranks:
            nodes = min(self.nodes, number)
            if number % nodes:
                raise SpecError(
                    "the ranks do not divide over the nodes",
                    found=f"--ranks {number}, --nodes {self.nodes}",
                    remedy=f"--ranks {nodes * (number // nodes + 1)}",
                )


class MeasuredStart(NamedTuple):
    """Seconds of one start."""

    phases: dict[str, float]
    """Seconds of each phase."""
    clock_difference: float | None = None
    """Maximum difference in seconds between the clocks of the ranks; None if unknown."""
    clock_lead: float = 0.0
    """Minimum seconds by which the nodes' clocks are ahead of this host's, if positive."""


def measure_startup(options: StartOptions, recorder: Recorder, slurm: SubmitSettings) -> None:
    """Measure one row for each number of ranks and variant; note variants that cannot start."""
    recorder.expect_rows(len(options.ranks) * len(options.ways) * options.repeats)
    most = max(options.ranks)
    title = f"{TITLE}: {most} ranks"
    recorder.add_plot(Plot(name="phases", title=title, kind="stacked", x="way", y=PHASES, where={"ranks": most}))
    recorder.add_plot(Plot(name="ranks", title=TITLE, x="ranks", y=("total",), series=("way",), log_x=True))
    every: list[MeasuredStart] = []
    for number in options.ranks:
        ranks_per_node = number // min(options.nodes, number)
        if slurm.gpus and lacks_gpus(ranks_per_node, slurm):
            recorder.add_note(
                f"{number} ranks: {ranks_per_node} on a node of {slurm.gpus} GPUs, so they compute on CPUs."
            )
        for variant, starts in _measure_interleaved(options, number, recorder, slurm).items():
            _note_unknown_queues(recorder, f"{number} ranks, {variant}", starts)
            every += starts
    _note_clocks(recorder, every)


def _measure_interleaved(
    options: StartOptions, number: int, recorder: Recorder, slurm: SubmitSettings
) -> dict[str, list[MeasuredStart]]:
    """Measure the starts of each variant with this number of ranks; put a row after each."""
    nodes = min(options.nodes, number)
    variants = {f"{number} ranks, {variant}": variant for variant in options.ways}
    starts: dict[str, list[MeasuredStart]] = {variant: [] for variant in options.ways}

    def measure(name: str) -> None:
        own = starts[variants[name]]
        own.append(measure_start(variants[name], nodes, number // nodes, slurm, options.timeout, recorder))
        _add_start_row(recorder, number, nodes, variants[name], own)

    measure_in_turns(recorder, variants, options.repeats, measure)
    return starts


def _add_start_row(recorder: Recorder, number: int, nodes: int, variant: str, starts: list[MeasuredStart]) -> None:
    """Add the row of a variant.

    If the end of the queue phase is unknown for one start, it is part of the srun phase in all of them.
    """
    phases_of_starts = [dict(start.phases) for start in starts]
    if any("queue" not in phases for phases in phases_of_starts):
        for phases in phases_of_starts:
            phases["srun"] = phases.get("srun", 0.0) + phases.pop("queue", 0.0)
    values: dict[str, Any] = {}
    for phase in PHASES:
        if all(phase in phases for phases in phases_of_starts):
            values[phase] = [phases[phase] for phases in phases_of_starts]
    values["total"] = [sum(phases.values()) for phases in phases_of_starts]
    recorder.add_row({"ranks": number, "nodes": nodes, "way": variant}, **values)


def _note_unknown_queues(recorder: Recorder, name: str, starts: list[MeasuredStart]) -> None:
    if without := sum("queue" not in start.phases for start in starts):
        recorder.add_note(
            f"{name}: when the job's script began is not known of {without} of {len(starts)} starts (is the node's"
            " clock behind this host's?); srun's phase is from the command on."
        )


def _note_clocks(recorder: Recorder, starts: list[MeasuredStart]) -> None:
    """Note the difference between the clocks, which limits the accuracy of phases across hosts."""
    if gaps := [start.clock_difference for start in starts if start.clock_difference is not None]:
        recorder.add_note(
            f"The clocks of the ranks agree to within {format_quantity(max(gaps), 's', 2)}, and so do the phases."
        )
    if (ahead := max((start.clock_lead for start in starts), default=0.0)) > 0:
        recorder.add_note(
            f"The nodes' clocks are at least {format_quantity(ahead, 's', 2)} ahead: so much shorter is the queue."
        )


def measure_start(
    variant: str, nodes: int, ranks_per_node: int, slurm: SubmitSettings, timeout: float, recorder: Recorder
) -> MeasuredStart:
    """Measure one start. The job is gone when this function returns, also after Ctrl-C.

    Raises:
        JobFailed: The job was rejected, never starts, ended without a step, or exceeded the timeout.
    """
    with tempfile.TemporaryDirectory(dir=slurm.folder, prefix="start-") as name:
        folder = Path(name)
        site = render_site_header(variant, nodes, ranks_per_node, slurm) if variant in PLAIN_COMMANDS else None
        begun = time.time()
        words = ["--submitted", repr(begun), "--to", str(folder / slurm_job.RESULT_FILE)]
        if site is None:
            argv = [*hpc_kit_command("submit", variant, nodes, ranks_per_node, slurm, words), "--no-wait"]
        else:
            argv = ["sbatch", "--parsable", str(folder / "by-hand.sbatch")]
            text = render_plain_script(variant, nodes, ranks_per_node, site, folder, [str(slurm.program), *words])
            Path(argv[-1]).write_text(text)
        with slurm_job.submitted_job(argv, slurm.client, recorder.add_note) as job:
            phases = slurm_job.wait_for_result(job, folder, begun + timeout, recorder.report_progress)
            clock_difference = phases.pop("clocks", None)
            # By the nodes' clocks, the first step ended at the sum of the phases. It cannot have ended after now.
            return MeasuredStart(phases, clock_difference, begun + sum(phases.values()) - time.time())


class SubmitSettings(NamedTuple):
    """Settings for submitting the jobs."""

    cluster: str | None
    """Cluster file; None: the default for this machine."""
    client: SlurmClient
    program: Path
    """first_step.py, at a path that the nodes see, too."""
    folder: Path
    """Folder for logs and results that the nodes see."""
    gpus: int | None = None
    """GPUs of a node; None: unknown."""


def hpc_kit_command(
    verb: str, variant: str, nodes: int, ranks_per_node: int, slurm: SubmitSettings, words: list[str]
) -> list[str]:
    """Return the command line that submits or renders the job of a variant; `words` are arguments of first_step.py."""
    # The only task of a node is torchrun's agent, which gets the CPUs and GPUs of all its ranks.
    tasks = 1 if "torchrun" in variant else ranks_per_node
    gpus = 0 if lacks_gpus(ranks_per_node, slurm) else ranks_per_node // tasks
    settings = [f"resources.nodes={nodes}", f"resources.ntasks_per_node={tasks}", "resources.time=00:10:00"]
    if "torchrun" in variant:
        settings += [f"launch.nproc_per_node={ranks_per_node}", f"resources.cpus_per_task={ranks_per_node}"]
    settings.append(f"resources.gpus_per_task={gpus}")
    settings.append(f"command={json.dumps(['python', str(slurm.program), *words])}")
    cluster = [] if slurm.cluster is None else ["--cluster", slurm.cluster]
    options = [*cluster, *(word for setting in settings for word in ("--set", setting))]
    return [sys.executable, "-m", "hpc_kit", verb, JOBS[variant], *options]


def lacks_gpus(ranks_per_node: int, slurm: SubmitSettings) -> bool:
    """Return whether a node has fewer GPUs than ranks."""
    return slurm.gpus is not None and ranks_per_node > slurm.gpus


def gpus_per_node(client: SlurmClient) -> int | None:
    """Return the largest number of GPUs of a node as sinfo reports it; None if unknown."""
    partitions = parse_partitions(client.run(SINFO_ARGV).stdout)
    return max((kind.gpus or 0 for each in partitions for kind in each.kinds), default=None)


def render_site_header(variant: str, nodes: int, ranks_per_node: int, slurm: SubmitSettings) -> SiteHeader:
    """Render our script and return the settings that a hand-written one takes from it.

    Raises:
        JobFailed: Our script cannot be rendered.
    """
    argv = hpc_kit_command("render", variant, nodes, ranks_per_node, slurm, [])
    environ = submit_environment(slurm.client.environ)
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobFailed("there is no script of ours to ask for the same", found=done.stderr.strip(), remedy="--cluster")
    return parse_site_header(done.stdout)


PLAIN_COMMANDS = {
    "plain srun": "srun {cpus} bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec {python} {path}"
    " --plain {words}'",
    "plain torchrun": "srun {cpus} --ntasks-per-node=1 --ntasks={nodes} bash -c 'exec {python} -m torch.distributed.run"
    " --nnodes={nodes} --nproc-per-node={ranks_per_node} --node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR"
    " --master-port=$MASTER_PORT {path} --plain {words}'",
}
_CPUS_OPTION = "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}"
"""Since Slurm 22.05 a step does not inherit sbatch's --cpus-per-task."""
_PLAIN_SCRIPT = """\
#!/bin/bash
{header}
#SBATCH --job-name=by-hand
#SBATCH --output={log}
{environment}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT={port} WORLD_SIZE=$SLURM_NTASKS OMP_NUM_THREADS=1
{line}
"""
_JOB_OPTIONS = {"job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue"}
"""Options of our own scripts that do not depend on the site."""


class SiteHeader(NamedTuple):
    """Settings of a site in one of our scripts."""

    header: tuple[str, ...]
    """#SBATCH lines."""
    environment: str
    """Variables, modules and activation."""
    python: str


def parse_site_header(rendered: str) -> SiteHeader:
    """Parse the site's settings out of our script that runs first_step.py."""
    # The marks are lines of the templates: the environment lies between `set` and the comment on the run's files.
    options = re.findall(r"^#SBATCH --([\w-]+)(.*)$", rendered, re.MULTILINE)
    environment = re.search(r"^set -euo pipefail\n(.*?)^# The files of this run", rendered, re.MULTILINE | re.DOTALL)
    python = re.search(
        r"^ +(\S*python\S*) (?:\S*first_step\.py|-P -m hpc_kit\.runtime\.torchrun)", rendered, re.MULTILINE
    )
    return SiteHeader(
        tuple(f"#SBATCH --{name}{value}" for name, value in options if name not in _JOB_OPTIONS),
        environment[1].strip() if environment else "",
        python[1] if python else shlex.quote(sys.executable),
    )


def render_plain_script(
    variant: str, nodes: int, ranks_per_node: int, site: SiteHeader, folder: Path, program: Sequence[str]
) -> str:
    """Render a hand-written script whose log is in the folder.

    `variant` is a key of `PLAIN_COMMANDS`, `program` the path of first_step.py and its arguments.
    """
    path, *words = map(shlex.quote, program)
    line = PLAIN_COMMANDS[variant].format(
        cpus=_CPUS_OPTION,
        python=site.python,
        path=path,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        words=" ".join(words),
    )
    # A port of the previous job may still be in TIME_WAIT, so the port follows the time in steps of 0.1 s.
    port = 20_000 + int(time.time() * 10) % 10_000
    header = "\n".join(site.header)
    return _PLAIN_SCRIPT.format(header=header, environment=site.environment, log=folder / "log", port=port, line=line)
