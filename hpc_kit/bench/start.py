"""From the command to the first training step: ours beside scripts written by hand, over numbers of ranks.

Every start is a job of its own, submitted when the one before it has left the queue. By hand means the shortest sbatch
script that trains by env:// or by torchrun; the program is the same, jobs/train/first_step.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.bench.document import Column, Plot
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.slurm.inherited import clean_environ

if TYPE_CHECKING:
    from hpc_kit.bench.sheet import Sheet

TITLE = "From the command to the first step"
PHASES = ("queue", "srun", "imports", "rendezvous", "model", "data", "step")
"""As first_step.py calls them; the queue's begins with the command line."""
COLUMNS = {**{phase: Column(unit="s") for phase in PHASES}, "total": Column(unit="s")}
COLUMNS["srun"] = Column(unit="s", title="srun (and torchrun)")
WAYS = ("hpc-kit", "hpc-kit torchrun", "plain srun", "plain torchrun")

PROGRAM = Path("train", "first_step.py")
"""Below the folder of the jobs."""

_JOB = {"hpc-kit": "first_step", "hpc-kit torchrun": "ddp_torchrun"}
_PLAIN = {
    "plain srun": "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec {program} --plain {words}'",
    "plain torchrun": "srun --ntasks-per-node=1 --ntasks={nodes} bash -c 'exec {python} -m torch.distributed.run"
    " --nnodes={nodes} --nproc-per-node={each} --node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR"
    " --master-port=$MASTER_PORT {path} --plain {words}'",
}
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=by-hand
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={each}
#SBATCH --time=00:10:00
#SBATCH --output={log}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT={port} WORLD_SIZE=$SLURM_NTASKS OMP_NUM_THREADS=1
{line}
"""
_PAUSE = 0.05
QUEUE_PAUSE = 2.0
"""Seconds between two questions to Slurm."""


class Question(NamedTuple):
    """What is to be measured."""

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    ways: tuple[str, ...] = WAYS
    nodes: int = 4
    """At most; fewer ranks than nodes have a node each."""
    repeats: int = 3
    timeout: float = 600.0
    """Seconds for one start."""


class Slurm(NamedTuple):
    """How jobs are submitted from here."""

    cluster: str | None
    """The cluster file; None: what fits this machine."""
    environ: Mapping[str, str]
    """In which sbatch, squeue and scancel are found."""
    program: Path
    """first_step.py, as the nodes see it, too."""
    folder: Path
    """That the nodes see: for logs and results."""


def refuse(asked: Question) -> None:
    """Say what cannot be measured before anything is.

    Raises:
        SpecError: A way is none, or ranks do not divide over the nodes.
    """
    if unknown := [way for way in asked.ways if way not in WAYS]:
        raise SpecError(f"unknown way {unknown[0]!r}", found=",".join(asked.ways), remedy=",".join(WAYS))
    for number in asked.ranks:
        nodes = min(asked.nodes, number)
        if number % nodes:
            raise SpecError(
                "the ranks do not divide over the nodes",
                found=f"--ranks {number}, --nodes {asked.nodes}",
                remedy=f"--ranks {nodes * (number // nodes + 1)}",
            )


def measure(asked: Question, sheet: Sheet, slurm: Slurm) -> None:
    """A row for each number of ranks and way; what cannot start is noted.

    Raises:
        SpecError: A way is none, or ranks do not divide over the nodes.
    """
    refuse(asked)
    sheet.expect(len(asked.ranks) * len(asked.ways))
    sheet.plot(
        Plot(
            name="phases",
            title=f"{TITLE}: {max(asked.ranks)} ranks",
            kind="stacked",
            x="way",
            y=PHASES,
            where={"ranks": max(asked.ranks)},
        )
    )
    sheet.plot(Plot(name="ranks", title=TITLE, x="ranks", y=("total",), series=("way",), log_x=True, x_title="ranks"))
    for number in asked.ranks:
        nodes = min(asked.nodes, number)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in asked.ways}
        for turn in range(asked.repeats):
            for way in asked.ways:
                sheet.doing(f"{number} ranks, {way}, start {turn + 1} of {asked.repeats}")
                try:
                    found[way].append(once(way, nodes, number // nodes, slurm, asked.timeout))
                except JobFailed as error:
                    sheet.note(f"{number} ranks, {way}: {error}")
        for way, starts in found.items():
            if starts:
                _add(sheet, number, nodes, way, starts)


def _add(sheet: Sheet, number: int, nodes: int, way: str, starts: list[dict[str, float]]) -> None:
    values: dict[str, Any] = {phase: [start[phase] for start in starts] for phase in PHASES if phase in starts[0]}
    values["total"] = [sum(start.values()) for start in starts]
    sheet.add({"ranks": number, "nodes": nodes, "way": way}, **values)


def once(way: str, nodes: int, each: int, slurm: Slurm, timeout: float) -> dict[str, float]:
    """One start: seconds of each phase. The job is gone when this returns, also by Ctrl-C.

    Raises:
        JobFailed: It was refused, ended without a step, or took too long.
    """
    with tempfile.TemporaryDirectory(dir=slurm.folder, prefix="start-") as name:
        folder, begun = Path(name), time.time()
        words = ["--submitted", repr(begun), "--to", str(folder / "found.json")]
        argv = ours(way, nodes, each, slurm, words) if way in _JOB else _by_hand(way, nodes, each, slurm, folder, words)
        with _submitted(argv, slurm) as job:
            return _result(job, folder, slurm, begun + timeout)


def ours(way: str, nodes: int, each: int, slurm: Slurm, words: list[str]) -> list[str]:
    """The command line of a user."""
    tasks = 1 if "torchrun" in way else each
    sets = [f"resources.nodes={nodes}", f"resources.ntasks_per_node={tasks}", "resources.time=00:10:00"]
    if "torchrun" in way:
        sets += [f"launch.nproc_per_node={each}", f"resources.cpus_per_task={each}", f"resources.gpus_per_task={each}"]
    sets.append(f"command={json.dumps(['python', str(slurm.program), *words])}")
    options = [word for each_set in sets for word in ("--set", each_set)]
    cluster = [] if slurm.cluster is None else ["--cluster", slurm.cluster]
    return [sys.executable, "-m", "hpc_kit", "submit", _JOB[way], "--no-wait", *cluster, *options]


def _by_hand(way: str, nodes: int, each: int, slurm: Slurm, folder: Path, words: list[str]) -> list[str]:
    """The script, and what submits it."""
    path = shlex.quote(str(slurm.program))
    python = shlex.quote(sys.executable)
    line = _PLAIN[way].format(
        program=f"{python} {path}", python=python, path=path, nodes=nodes, each=each, words=shlex.join(words)
    )
    script = folder / "by-hand.sbatch"
    # Two jobs in a row must not meet at one port.
    port = 20_000 + int(time.time() * 10) % 10_000
    script.write_text(_SCRIPT.format(nodes=nodes, each=each, log=folder / "log", port=port, line=line))
    return ["sbatch", "--parsable", str(script)]


@contextmanager
def _submitted(argv: list[str], slurm: Slurm) -> Iterator[str]:
    """The job's id; at the end the job has left the queue."""
    done = subprocess.run(argv, env=clean_environ(slurm.environ), capture_output=True, text=True, check=False)
    match = re.search(r"^(?:job\s+)?(\d+)", done.stdout, re.MULTILINE)
    if done.returncode or match is None:
        said = (done.stderr or done.stdout).strip()
        raise JobFailed("the job was not taken", found=said, remedy="fewer --ranks or more --nodes")
    ended = False
    try:
        yield match[1]
        ended = True
    finally:
        if not ended:
            _ask(["scancel", match[1]], slurm)
        _wait(lambda: not _state(match[1], slurm), time.time() + 60)


def _result(job: str, folder: Path, slurm: Slurm, deadline: float) -> dict[str, float]:
    """What rank 0 has left, as soon as it is there."""
    found, looked = folder / "found.json", time.time()
    while not found.exists():
        if time.time() - looked > QUEUE_PAUSE:
            looked, state = time.time(), _state(job, slurm)
            if not state and not found.exists():
                log = folder / "log"
                said = log.read_text(errors="replace")[-1500:] if log.exists() else f"hpc-kit logs {job} --all"
                raise JobFailed(f"job {job} ended without a first step", found=said, remedy="its log")
        if time.time() > deadline:
            raise JobFailed(f"job {job} had no first step in time", found=_state(job, slurm), remedy="--timeout")
        time.sleep(_PAUSE)
    phases: dict[str, float] = json.loads(found.read_text())
    return phases


def _state(job: str, slurm: Slurm) -> str:
    """As squeue says; nothing where the job has left the queue. A squeue that has no answer tells nothing of that."""
    done = _ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T"], slurm)
    if done.returncode and "Invalid job id" not in done.stderr:
        return "UNKNOWN"
    return done.stdout.strip()


def _ask(argv: list[str], slurm: Slurm) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=clean_environ(slurm.environ), capture_output=True, text=True, check=False)


def _wait(over: Callable[[], bool], deadline: float) -> None:
    while not over() and time.time() < deadline:
        time.sleep(QUEUE_PAUSE)
