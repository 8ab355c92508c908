"""Environments of launchers: captured ones, and generated ones for any layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from hpc_kit.slurm import nodelist

FOLDER = Path(__file__).parent / "environments"

Environ = dict[str, str]


class Rank(TypedDict):
    hostname: str
    env: Environ
    truth: dict[str, int | str]


class Case(TypedDict):
    case: str
    description: str
    slurm_version: str
    expect: str
    ranks: list[Rank]


def captured() -> list[Case]:
    """Return all cases of environments/, of each Slurm release."""
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


def captured_case(name: str) -> list[Environ]:
    """Return the variables of one case, one mapping per rank."""
    (path,) = FOLDER.glob(f"{name}.json")
    case: Case = json.loads(path.read_text())
    return [rank["env"] for rank in case["ranks"]]


@dataclass(frozen=True)
class Step:
    """A step; `placement` contains the node index of each rank."""

    placement: tuple[int, ...]
    hosts: tuple[str, ...]
    distribution: str = "block"
    job: str = "1234"
    job_hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, *tasks: int, distribution: str = "block", hosts: tuple[str, ...] = (), job: str = "1234") -> Step:
        """Return a step with these numbers of tasks per node, in srun's block distribution."""
        names = hosts or tuple(f"n{node + 1}" for node in range(len(tasks)))
        if distribution == "block":
            placement = [node for node, count in enumerate(tasks) for _ in range(count)]
        else:
            rounds = range(max(tasks))
            placement = [node for turn in rounds for node, count in enumerate(tasks) if turn < count]
        return cls(tuple(placement), names, distribution, job)

    @property
    def tasks_per_node(self) -> list[int]:
        return [self.placement.count(node) for node in range(len(self.hosts))]

    def environ(self, rank: int) -> Environ:
        """Return the variables of one task."""
        node = self.placement[rank]
        local = self.placement[:rank].count(node)
        ids = ",".join(str(other) for other, its in enumerate(self.placement) if its == node)
        job_hosts = self.job_hosts or self.hosts
        tasks = nodelist.fold_tasks_per_node(self.tasks_per_node)
        return {
            "SLURM_JOB_ID": self.job,
            "SLURM_JOB_NODELIST": nodelist.fold(list(job_hosts)),
            "SLURM_JOB_NUM_NODES": str(len(job_hosts)),
            "SLURM_NODELIST": nodelist.fold(list(job_hosts)),
            "SLURM_NTASKS": str(len(self.placement)),
            "SLURM_TASKS_PER_NODE": tasks,
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": str(len(self.placement)),
            "SLURM_STEP_NUM_NODES": str(len(self.hosts)),
            "SLURM_STEP_NODELIST": nodelist.fold(list(self.hosts)),
            "SLURM_STEP_TASKS_PER_NODE": tasks,
            "SLURM_DISTRIBUTION": self.distribution,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_GTIDS": ids,
            "SLURMD_NODENAME": self.hosts[node],
        }

    def environs(self) -> list[Environ]:
        """Return the variables of all tasks."""
        return [self.environ(rank) for rank in range(len(self.placement))]


def worker(rank: int = 5, *, agents: int = 2, per_agent: int = 4, **others: str) -> Environ:
    """Return the variables of a worker of torchrun."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(agents * per_agent),
        "LOCAL_RANK": str(rank % per_agent),
        "LOCAL_WORLD_SIZE": str(per_agent),
        "GROUP_RANK": str(rank // per_agent),
        "GROUP_WORLD_SIZE": str(agents),
        "ROLE_RANK": str(rank),
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RUN_ID": "77",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    } | others
