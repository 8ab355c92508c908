"""The jobs of `hpc-kit bench start`: ours as a user submits them, and what scripts by hand take over from ours."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpc_kit.bench import by_hand, slurm_job
from hpc_kit.errors import JobFailed
from hpc_kit.slurm.sizes import count_gres_gpus

JOB = {"hpc-kit": "first_step", "hpc-kit torchrun": "ddp_torchrun"}
_LIKE = {"plain srun": "hpc-kit", "plain torchrun": "hpc-kit torchrun"}
"""Whose resources a script by hand asks for."""


_SOCKETS = re.compile(r"\([^()]*\)")
"""Sockets that sinfo adds to generic resources: `gpu:a100:4(S:0-1)`."""


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
    gpus: int | None = None
    """Of a node; None: nothing is known of them."""


def ours(way: str, nodes: int, each: int, slurm: Slurm, words: list[str]) -> list[str]:
    """The command line of a user."""
    return [
        sys.executable,
        "-m",
        "hpc_kit",
        "submit",
        JOB[way],
        "--no-wait",
        *_options(way, nodes, each, slurm, words),
    ]


def _options(way: str, nodes: int, each: int, slurm: Slurm, words: list[str]) -> list[str]:
    tasks = 1 if "torchrun" in way else each
    sets = [f"resources.nodes={nodes}", f"resources.ntasks_per_node={tasks}", "resources.time=00:10:00"]
    if "torchrun" in way:
        sets += [f"launch.nproc_per_node={each}", f"resources.cpus_per_task={each}"]
    gpus = 0 if lacks_gpus(each, slurm) else each // tasks
    sets.append(f"resources.gpus_per_task={gpus}")
    sets.append(f"command={json.dumps(['python', str(slurm.program), *words])}")
    cluster = [] if slurm.cluster is None else ["--cluster", slurm.cluster]
    return [*cluster, *(word for each_set in sets for word in ("--set", each_set))]


def lacks_gpus(each: int, slurm: Slurm) -> bool:
    """Whether so many ranks of a node cannot have a GPU each."""
    return slurm.gpus is not None and each > slurm.gpus


def gpus_of_a_node(environ: Mapping[str, str]) -> int | None:
    """The most GPUs that a node has, as sinfo tells; None: it does not tell."""
    done = slurm_job.ask(["sinfo", "--noheader", "--format=%G"], environ)
    if done.returncode or not done.stdout.strip():
        return None
    return max(count_gres_gpus(_SOCKETS.sub("", line)) or 0 for line in done.stdout.splitlines())


def site(way: str, nodes: int, each: int, slurm: Slurm) -> by_hand.Site:
    """What a script by hand takes from ours.

    Raises:
        JobFailed: Ours cannot be rendered.
    """
    like = _LIKE[way]
    argv = [sys.executable, "-m", "hpc_kit", "render", JOB[like], *_options(like, nodes, each, slurm, [])]
    done = slurm_job.ask(argv, slurm.environ)
    if done.returncode:
        raise JobFailed("there is no script of ours to ask for the same", found=done.stderr.strip(), remedy="--cluster")
    return by_hand.site_of(done.stdout)
