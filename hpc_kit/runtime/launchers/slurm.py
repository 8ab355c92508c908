"""Slurm: the step that srun started, and only the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime import ports
from hpc_kit.runtime.launchers import agreement, leftovers, master
from hpc_kit.runtime.variables import counts_of, hosts_of, needed, number
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_REAL_STEP = 0xFFFF_FFF0
"""Step ids from here up are names: batch, interactive, extern. Newer releases write them as -5, -6, ..."""


@dataclass(frozen=True)
class Step:
    """An srun step, by its own variables."""

    job: str
    number: str
    ntasks: int
    nnodes: int | None
    hosts: tuple[str, ...]
    tasks_per_node: tuple[int, ...]
    here: str | None
    """This node's name, SLURMD_NODENAME."""
    task_ids: tuple[str, ...]
    """Ranks on this node, SLURM_GTIDS."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Step:
        """The step variables; numbers that are there are checked, absent ones are None or empty."""
        return cls(
            job=environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or "?",
            number=environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or "?",
            ntasks=needed(environ, "SLURM_STEP_NUM_TASKS", beside="SLURM_PROCID"),
            nnodes=number(environ, "SLURM_STEP_NUM_NODES"),
            hosts=hosts_of(environ, "SLURM_STEP_NODELIST"),
            tasks_per_node=counts_of(environ, "SLURM_STEP_TASKS_PER_NODE"),
            here=environ.get("SLURMD_NODENAME") or None,
            task_ids=tuple(filter(None, environ.get("SLURM_GTIDS", "").split(","))),
        )


def from_slurm_step(environ: Mapping[str, str]) -> World | None:
    """The world of an srun step, or None outside of one.

    Reads step variables only: in a step smaller than the job, SLURM_JOB_NODELIST and SLURM_JOB_NUM_NODES
    still describe the job.

    Raises:
        IncompleteEnvironment: A step variable is missing or is no number.
        ContradictoryEnvironment: The step's own numbers do not fit together, or RANK and WORLD_SIZE say otherwise.
    """
    if why_no_step(environ) is not None:
        return None
    step = Step.read(environ)
    beside = "SLURM_STEP_NUM_TASKS"
    node_rank = _node_rank(step, needed(environ, "SLURM_NODEID", beside=beside), environ)
    key = key_of(environ, step)
    world = World(
        rank=needed(environ, "SLURM_PROCID", beside=beside),
        world_size=step.ntasks,
        local_rank=needed(environ, "SLURM_LOCALID", beside=beside),
        local_world_size=_local_world_size(step, node_rank),
        node_rank=node_rank,
        nnodes=step.nnodes,
        master_port=ports.candidates(key)[0],
        launcher="slurm",
        name=f"the srun step {step.job}.{step.number}",
        key=key,
        sources=_sources(environ, step, node_rank),
        hosts=step.hosts,
        tasks_per_node=step.tasks_per_node,
        left=leftovers.of_step(environ),
    ).checked()
    agrees, left = leftovers.pmi(environ, world)
    world = replace(world, agrees=agreement.with_plain_variables(environ, world) + agrees, left=(*world.left, *left))
    return master.with_address(environ, world, here=step.here, task_ids=step.task_ids)


def why_no_step(environ: Mapping[str, str]) -> str | None:
    """The variable that shows that this process is no task of a step; None in a step."""
    tasks = number(environ, "SLURM_STEP_NUM_TASKS")
    if tasks is None:
        return "no SLURM_STEP_NUM_TASKS"
    step_id = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    if step_id.startswith("-") or (step_id.isdigit() and int(step_id) >= _NO_REAL_STEP):
        return f"SLURM_STEP_ID = {step_id}, a shell of the job"
    if tasks == 1 and (number(environ, "SLURM_NTASKS") or 1) > 1:
        return f"SLURM_STEP_NUM_TASKS = 1 beside SLURM_NTASKS = {environ['SLURM_NTASKS']}, an interactive step"
    # It leaks into the steps that are started from that shell, too: there it stands beside other counts.
    if tasks == 1 and environ.get("SLURM_PTY_PORT"):
        return f"SLURM_PTY_PORT = {environ['SLURM_PTY_PORT']}, the shell of an srun --pty"
    return _leaked(environ)


def _leaked(environ: Mapping[str, str]) -> str | None:
    """How the step variables betray that sbatch was called inside a step and handed them on to a batch shell."""
    step = Step.read(environ)
    if step.here and step.hosts and step.here not in step.hosts:
        return f"SLURM_STEP_NODELIST = {environ['SLURM_STEP_NODELIST']} without this node, {step.here}"
    # A batch shell has the one task 0 on node 0; slurmstepd names all tasks of a node in a real step.
    shell = step.task_ids == ("0",) and environ.get("SLURM_PROCID") == environ.get("SLURM_NODEID") == "0"
    if shell and step.tasks_per_node[:1] > (1,):
        return f"SLURM_GTIDS = 0 alone, although SLURM_STEP_TASKS_PER_NODE = {environ['SLURM_STEP_TASKS_PER_NODE']}"
    return None


def key_of(environ: Mapping[str, str], step: Step) -> str:
    """What all tasks of this step share, and those of no other step, array element or attempt."""
    parts = [
        f"job {step.job}",
        f"step {step.number}",
        f"restart {environ.get('SLURM_RESTART_COUNT') or 0}",
    ]
    if element := environ.get("SLURM_ARRAY_TASK_ID"):
        parts.append(f"array {element}")
    if environ.get("SLURM_HET_SIZE"):
        # The components number their steps apart, and some releases give each its own job id.
        parts[0] = f"job {environ.get('SLURM_JOB_ID_HET_GROUP_0', step.job)}"
        parts.append(f"nodes {environ.get('SLURM_STEP_NODELIST', '')}")
    return ", ".join(parts)


def _node_rank(step: Step, told: int, environ: Mapping[str, str]) -> int:
    """The index of this node in the step's lists: SLURM_NODEID, once the lists agree with each other and with it."""
    found = (
        f"SLURM_STEP_NUM_TASKS = {step.ntasks}, SLURM_STEP_TASKS_PER_NODE = "
        f"{environ.get('SLURM_STEP_TASKS_PER_NODE')}, SLURM_STEP_NODELIST = {environ.get('SLURM_STEP_NODELIST')}, "
        f"SLURM_STEP_NUM_NODES = {step.nnodes}"
    )
    sizes = {len(step.tasks_per_node), len(step.hosts), step.nnodes or 0} - {0}
    if len(sizes) > 1 or (step.tasks_per_node and sum(step.tasks_per_node) != step.ntasks):
        raise ContradictoryEnvironment(
            f"the numbers of the srun step {step.job}.{step.number} do not fit together",
            found=found,
            remedy="unset the SLURM_STEP_ variables that an earlier step has left behind, and start with srun",
        )
    listed = step.hosts.index(step.here) if step.here in step.hosts else told
    counts, here = dict(enumerate(step.tasks_per_node)), len(step.task_ids)
    # Components of a heterogeneous job may count their nodes from 0 each; then the name and the tasks here decide.
    return listed if counts.get(told) != here == counts.get(listed) else told


def _local_world_size(step: Step, node_rank: int) -> int | None:
    if node_rank < len(step.tasks_per_node):
        return step.tasks_per_node[node_rank]
    return step.ntasks if step.nnodes == 1 else None


def _sources(environ: Mapping[str, str], step: Step, node_rank: int) -> dict[str, str]:
    parts = key_of(environ, step)
    return {
        "rank": "SLURM_PROCID",
        "local_rank": "SLURM_LOCALID",
        "world_size": "SLURM_STEP_NUM_TASKS",
        "local_world_size": f"SLURM_STEP_TASKS_PER_NODE = {environ.get('SLURM_STEP_TASKS_PER_NODE')}, node {node_rank}",
        "node_rank": "SLURM_NODEID",
        "nnodes": "SLURM_STEP_NUM_NODES",
        "master_port": f"from {parts}",
    }
