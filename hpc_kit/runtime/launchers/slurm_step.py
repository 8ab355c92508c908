"""Reads the World of a task from the variables of its srun step. Variables of the job describe another size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, IncompleteEnvironment
from hpc_kit.runtime.launchers import variable_conflicts
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.rendezvous.network import is_loopback
from hpc_kit.runtime.variables import master_port, optional_int, read_node_list, required_int, step_counts
from hpc_kit.runtime.world import World
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_FIRST_SPECIAL_STEP_ID = 0xFFFF_FFF0
"""From here on, step ids are those of batch, interactive and extern. Newer releases write them as -5, -6, ..."""


@dataclass(frozen=True)
class SlurmStep:
    """An srun step, as its variables describe it."""

    job_id: str
    step_id: str
    ntasks: int
    nnodes: int | None
    hosts: tuple[str, ...]
    """Nodes in the order of SLURM_NODEID."""
    tasks_per_node: tuple[int, ...]
    """Number of tasks on each of `hosts`."""
    component: tuple[str, ...]
    """In a heterogeneous job, the nodes of this task's component; else empty."""
    here: str | None
    """Name of this node, SLURMD_NODENAME."""
    task_ids: tuple[str, ...]
    """Ranks on this node, SLURM_GTIDS."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> SlurmStep:
        """Read and check the step's variables. Absent ones are None or empty."""
        here = environ.get("SLURMD_NODENAME") or None
        hosts, counts = read_node_list(environ, "SLURM_STEP_NODELIST"), step_counts(environ)
        components = _nodes_by_component(environ, hosts)
        task_ids = tuple(filter(None, environ.get("SLURM_GTIDS", "").split(",")))
        if components and len(set(hosts)) == len(hosts) and len(counts) in {0, len(hosts)}:
            # Slurm sorts the list and its counts by name, but SLURM_NODEID follows the order of the components.
            of_host = dict(zip(hosts, counts, strict=False))
            hosts = tuple(host for component in components for host in component)
            counts = tuple(of_host[host] for host in hosts if of_host)
        return cls(
            job_id=environ.get("SLURM_JOB_ID") or "?",
            step_id=environ.get("SLURM_STEP_ID") or "?",
            ntasks=required_int(environ, "SLURM_STEP_NUM_TASKS", beside="SLURM_PROCID"),
            nnodes=optional_int(environ, "SLURM_STEP_NUM_NODES") or len(hosts) or len(counts) or None,
            hosts=hosts,
            tasks_per_node=counts,
            component=next((component for component in components if here in component), ()),
            here=here,
            # In a heterogeneous step, each component may count its tasks from 0, so these numbers may not be ranks.
            task_ids=task_ids if environ.get("SLURM_PROCID", "").strip() in task_ids else (),
        )


def _nodes_by_component(environ: Mapping[str, str], hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the step's nodes by component; empty outside of a heterogeneous job, or if the lists disagree."""
    groups = range(optional_int(environ, "SLURM_HET_SIZE") or 0)
    lists = [read_node_list(environ, f"SLURM_JOB_NODELIST_HET_GROUP_{group}") for group in groups]
    components = [tuple(host for host in nodes if host in hosts) for nodes in lists]
    return components if sorted(host for component in components for host in component) == sorted(hosts) else []


def from_slurm_step(environ: Mapping[str, str]) -> World | None:
    """Return the World of a task of an srun step, or None outside of a step.

    Only the step's variables are read. In a step smaller than its job, SLURM_JOB_NODELIST and SLURM_JOB_NUM_NODES still
    describe the job.

    Raises:
        IncompleteEnvironment: A variable of the step is missing or is not a number.
        ContradictoryEnvironment: The step's numbers contradict each other, or RANK and WORLD_SIZE.
    """
    if reason_not_in_step(environ) is not None:
        return None
    step = SlurmStep.read(environ)
    beside = "SLURM_STEP_NUM_TASKS"
    node_id = required_int(environ, "SLURM_NODEID", beside=beside)
    _check_counts(step, environ)
    node_rank = _node_rank(step, node_id)
    key = _step_key(environ, step)
    local_world_size, source = _local_world_size(step, node_rank)
    world = World(
        rank=required_int(environ, "SLURM_PROCID", beside=beside),
        world_size=step.ntasks,
        local_rank=required_int(environ, "SLURM_LOCALID", beside=beside),
        local_world_size=local_world_size,
        node_rank=node_rank,
        nnodes=step.nnodes,
        master_port=store.candidate_ports(key)[0],
        launcher="slurm",
        name=f"the srun step {step.job_id}.{step.step_id}",
        key=key,
        sources={
            "rank": "SLURM_PROCID",
            "local_rank": "SLURM_LOCALID",
            "world_size": "SLURM_STEP_NUM_TASKS",
            "local_world_size": source,
            "node_rank": "SLURM_NODEID",
            "nnodes": "SLURM_STEP_NUM_NODES",
            "master_port": f"from {key}",
        },
        hosts=step.hosts,
        tasks_per_node=step.tasks_per_node,
        ignored=variable_conflicts.ignored_by_step(environ),
    ).checked()
    agrees, ignored = variable_conflicts.compare_pmi(environ, world)
    ignored = (*world.ignored, *ignored, *variable_conflicts.compare_local_rank(environ, world))
    world = replace(world, agrees=variable_conflicts.check_agreement(environ, world) + agrees, ignored=ignored)
    return _with_master_address(environ, world, step)


def reason_not_in_step(environ: Mapping[str, str]) -> str | None:
    """Return the variable that shows that this process is no task of a step; None in a step."""
    step_id = environ.get("SLURM_STEP_ID", "")
    if step_id.startswith("-") or (step_id.isdigit() and int(step_id) >= _FIRST_SPECIAL_STEP_ID):
        return f"SLURM_STEP_ID = {step_id}, a shell of the job"
    if _is_certainly_task(environ):
        return None
    tasks = optional_int(environ, "SLURM_STEP_NUM_TASKS")
    if tasks is None:
        # A task of a step without this variable is a fault, which `from_slurm_step` reports.
        return None if step_id.isdigit() and environ.get("SLURM_PROCID") else "no SLURM_STEP_NUM_TASKS"
    if tasks == 1 and (optional_int(environ, "SLURM_NTASKS") or 1) > 1:
        return f"SLURM_STEP_NUM_TASKS = 1 beside SLURM_NTASKS = {environ['SLURM_NTASKS']}, an interactive step"
    # Steps that are started from the shell of `srun --pty` also inherit this variable, but have other counts.
    if tasks == 1 and environ.get("SLURM_PTY_PORT"):
        return f"SLURM_PTY_PORT = {environ['SLURM_PTY_PORT']}, the shell of an srun --pty"
    return _inherited_step_variables(environ)


def _is_certainly_task(environ: Mapping[str, str]) -> bool:
    """Return whether this is certainly a task, and no shell of a job: a shell is always task 0 on node 0."""
    ids = [environ.get(name, "").strip() for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")]
    return any(ids[0] and text not in {"", "0"} for text in ids)


def describe_claim(environ: Mapping[str, str]) -> str:
    """Return the rank and the size in the step's variables, for the error about two launchers."""
    claim = f"rank {environ.get('SLURM_PROCID')} of {environ.get('SLURM_STEP_NUM_TASKS')}"
    return f"the srun step says {claim} (SLURM_PROCID, SLURM_STEP_NUM_TASKS)"


def is_interactive_shell(environ: Mapping[str, str]) -> bool:
    """Return whether the user may type in this step: the shell of `srun --pty` is task 0 of a step of any size.

    Steps that are started in that shell inherit SLURM_PTY_PORT. Their task 0 cannot be distinguished from the shell.
    """
    return bool(environ.get("SLURM_PTY_PORT")) and not _is_certainly_task(environ)


def _inherited_step_variables(environ: Mapping[str, str]) -> str | None:
    """Return the variable that shows that this is a batch shell which inherited a step's variables from sbatch.

    sbatch passes them on if it is called inside a step. Return None if nothing shows this.
    """
    step = SlurmStep.read(environ)
    if step.here and step.hosts and step.here not in step.hosts:
        return f"SLURM_STEP_NODELIST = {environ['SLURM_STEP_NODELIST']} without this node, {step.here}"
    if step.task_ids != ("0",):
        return None
    # In a step, SLURM_GTIDS lists all tasks of the node. In a batch shell it is always 0.
    if step.tasks_per_node[:1] > (1,):
        return f"SLURM_GTIDS = 0 alone, although SLURM_STEP_TASKS_PER_NODE = {environ['SLURM_STEP_TASKS_PER_NODE']}"
    # srun --preserve-env keeps the job's counts in a real step, so the counts alone prove nothing.
    counts = (("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), ("SLURM_NNODES", "SLURM_STEP_NUM_NODES"))
    others = [job for job, of_step in counts if environ.get(job) and environ[job] != environ.get(of_step)]
    submitter = environ.get("SLURM_SUBMIT_HOST", "").partition(".")[0]
    if others and (submitter in step.hosts or variable_conflicts.is_outside_job(environ, step.hosts)):
        return f"{others[0]} = {environ[others[0]]} beside a step of another job, {environ['SLURM_STEP_NODELIST']}"
    return None


def _step_key(environ: Mapping[str, str], step: SlurmStep) -> str:
    """Return a key that all tasks of this step share, and no other step, array element or restart."""
    parts = [
        f"job {step.job_id}",
        f"step {step.step_id}",
        f"restart {environ.get('SLURM_RESTART_COUNT') or 0}",
    ]
    if element := environ.get("SLURM_ARRAY_TASK_ID"):
        parts.append(f"array {element}")
    if environ.get("SLURM_HET_SIZE"):
        # Each component numbers its steps separately, and some releases give each component its own job id.
        parts[0] = f"job {environ.get('SLURM_JOB_ID_HET_GROUP_0', step.job_id)}"
        parts.append(f"nodes {environ.get('SLURM_STEP_NODELIST', '')}")
    # Job ids are unique within one cluster only, and every queue of the embedded Slurm starts with job 1.
    parts += [f"{name} {environ[name]}" for name in ("SLURM_CLUSTER_NAME", "HPC_KIT_SLURM_STATE") if environ.get(name)]
    return ", ".join(parts)


def _check_counts(step: SlurmStep, environ: Mapping[str, str]) -> None:
    """Raise ContradictoryEnvironment if the step's counts and lists contradict each other."""
    sizes = {len(step.tasks_per_node), len(step.hosts), step.nnodes or 0} - {0}
    is_wrong_sum = step.tasks_per_node and sum(step.tasks_per_node) != step.ntasks
    if len(sizes) <= 1 and not is_wrong_sum and _is_listed(step, environ):
        return
    found = (
        f"SLURM_STEP_NUM_TASKS = {step.ntasks}, SLURM_STEP_TASKS_PER_NODE = "
        f"{environ.get('SLURM_STEP_TASKS_PER_NODE')}, SLURM_STEP_NODELIST = {environ.get('SLURM_STEP_NODELIST')}, "
        f"SLURM_STEP_NUM_NODES = {step.nnodes}"
    )
    if step.task_ids:
        found += "".join(f", {name} = {environ.get(name)}" for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS"))
    raise ContradictoryEnvironment(
        f"the numbers of the srun step {step.job_id}.{step.step_id} contradict each other",
        found=found,
        remedy="unset the SLURM_STEP_ variables that an earlier step has left behind, and start with srun",
    )


def _node_rank(step: SlurmStep, node_id: int) -> int:
    """Return the index of this node in the step's list for its SLURM_NODEID.

    In a heterogeneous job, some releases count the nodes of each component from 0.
    """
    if step.here in step.component and node_id == step.component.index(step.here):
        return step.hosts.index(step.here)
    return node_id


def _is_listed(step: SlurmStep, environ: Mapping[str, str]) -> bool:
    """Return whether SLURM_GTIDS, which lists the ranks of this node by local rank, agrees with this task."""
    local = optional_int(environ, "SLURM_LOCALID")
    return local is None or local >= len(step.task_ids) or step.task_ids[local] == environ["SLURM_PROCID"].strip()


def _local_world_size(step: SlurmStep, node_rank: int) -> tuple[int | None, str]:
    """Return the number of tasks on this node and its source.

    SLURM_GTIDS comes first, because its meaning does not depend on the distribution of tasks or the order of nodes.
    """
    # If one srun starts several components, their order differs from that of the list of nodes.
    index = step.hosts.index(step.here) if step.hosts.count(step.here or "") == 1 else node_rank
    listed = step.tasks_per_node[index] if index < len(step.tasks_per_node) else None
    if step.task_ids and listed != len(step.task_ids):
        return len(step.task_ids), f"SLURM_GTIDS = {','.join(step.task_ids)}"
    if listed is not None:
        counts = nodelist.fold_tasks_per_node(step.tasks_per_node)
        return listed, f"SLURM_STEP_TASKS_PER_NODE = {counts}, node {index}"
    if step.nnodes == 1:
        return step.ntasks, "SLURM_STEP_NUM_TASKS, one node"
    return None, "unknown until the ranks meet"


def _with_master_address(environ: Mapping[str, str], world: World, step: SlurmStep) -> World:
    """Return `world` with master_addr and master_port, from variables that the job sets or from the step.

    Raises:
        IncompleteEnvironment: No variable names the node of rank 0.
    """
    host, why = _host_of_rank_0(environ, world, step)
    given = environ.get("MASTER_ADDR", "").strip()
    warnings, ignored, agrees = list(world.warnings), list(world.ignored), list(world.agrees)
    if given and given == host:
        agrees.append(f"MASTER_ADDR = {given}")
    elif given and (wrong := _explain_wrong_address(given, host, world, environ)):
        warnings.append(f"MASTER_ADDR = {given} is not used: {wrong}")
        ignored.append(f"MASTER_ADDR = {given} ({wrong})")
    elif given:
        host, why = given, "MASTER_ADDR, set by the job"
    elif host is None and not world.hosts:
        raise IncompleteEnvironment(
            "no variable names the host of rank 0",
            found=f"{world.name}, {world.world_size} tasks, without SLURM_STEP_NODELIST",
            remedy="start with srun, which sets it; or export MASTER_ADDR=HOST, the host of rank 0",
        )
    sources = dict(world.sources) | {"master_addr": why}
    port = master_port(environ)
    if port is not None:
        sources["master_port"] = "MASTER_PORT, set by the job"
    return replace(
        world,
        master_addr=host,
        master_port=store.candidate_ports(world.key, port)[0],
        sources=sources,
        warnings=tuple(warnings),
        ignored=tuple(ignored),
        agrees=tuple(agrees),
    )


def _host_of_rank_0(environ: Mapping[str, str], world: World, step: SlurmStep) -> tuple[str | None, str]:
    """Return the host of rank 0, or None if it is unknown; and the variable or the reason."""
    here = step.here
    if here and (world.rank == 0 or world.nnodes == 1):
        return here, "SLURMD_NODENAME, this node"
    if here and "0" in step.task_ids:
        return here, f"SLURMD_NODENAME, this node: SLURM_GTIDS = {environ['SLURM_GTIDS']} contains rank 0"
    if not world.hosts:
        return None, "unknown"
    # With --distribution=arbitrary, rank 0 need not be on the first node.
    out_of_order = here in world.hosts and world.node_rank != world.hosts.index(here)
    if not (environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary") or out_of_order):
        listed = read_node_list(environ, "SLURM_STEP_NODELIST")[0] == world.hosts[0]
        name = "SLURM_STEP_NODELIST" if listed else "SLURM_JOB_NODELIST_HET_GROUP_0"
        return world.hosts[0], f"first of {name} = {environ.get(name, world.hosts[0])}"
    others = [host for host in world.hosts if host != here]
    if len(others) == 1:
        return others[0], "the step's other node: rank 0 is not on this one"
    return None, f"unknown until the ranks meet: any of {environ['SLURM_STEP_NODELIST']}"


def _explain_wrong_address(given: str, host: str | None, world: World, environ: Mapping[str, str]) -> str | None:
    """Return why the address that the job sets cannot be that of rank 0; None if it can."""
    if is_loopback(given) and world.nnodes != 1 and given not in world.hosts:
        return f"on each of the {world.nnodes} nodes it names that node"
    job_nodes = read_node_list(environ, "SLURM_JOB_NODELIST")
    if given in job_nodes and (host is not None or (world.hosts and given not in world.hosts)):
        return f"rank 0 of this step is on {host or ' or '.join(world.hosts)}"
    return None
