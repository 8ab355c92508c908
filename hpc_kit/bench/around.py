"""The job around a bench: what it holds of the nodes on which the jobs of the bench are to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from subprocess import CompletedProcess
from typing import NamedTuple

from hpc_kit.errors import HostlistError
from hpc_kit.slurm import nodelist

Ask = Callable[[list[str], Mapping[str, str]], CompletedProcess[str]]
"""Runs a command of Slurm."""


class Held(NamedTuple):
    """What one job holds of a partition that nobody else is on."""

    job: str
    cpus: int
    of: int
    """CPUs of the partition's nodes that are up."""

    def __str__(self) -> str:
        return (
            f"nobody else is on its nodes: of their {self.of} CPUs {self.cpus} are held by job {self.job}, around this"
            " bench"
        )


def all_that_is_held(partition: str, environ: Mapping[str, str], ask: Ask) -> Held | None:
    """What the job around this bench holds of a partition; None: it is not all that is held there, or not known.

    Args:
        partition: Or several, as squeue shows them.
        environ: Of the bench, with Slurm's variables of the job around it.
        ask: Asks Slurm.
    """
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not nodes or not partition:
        return None
    try:
        mine = sum(nodelist.expand_tasks_per_node(environ.get("SLURM_JOB_CPUS_PER_NODE", "")))
        own = set(nodelist.expand(nodes))
    except HostlistError:
        return None
    done = ask(["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N %C"], environ)
    counts = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)  # once a partition
    if done.returncode or not own & counts.keys():
        return None
    try:
        held = {node: tuple(map(int, text.split("/"))) for node, text in counts.items()}
        busy = {node: allocated for node, (allocated, *_) in held.items() if allocated}
        up = sum(allocated + idle for allocated, idle, *_ in held.values())
    except ValueError:  # of large clusters some sites' sinfo says 1.5K
        return None
    return Held(job, mine, up) if busy.keys() <= own and sum(busy.values()) <= mine else None
