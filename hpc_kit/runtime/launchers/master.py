"""Where rank 0 of a Slurm step is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.errors import IncompleteEnvironment
from hpc_kit.runtime.rendezvous import ports
from hpc_kit.runtime.rendezvous.network import is_loopback
from hpc_kit.runtime.variables import master_port, read_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.runtime.world import World


def with_master_address(
    environ: Mapping[str, str], world: World, *, here: str | None, task_ids: Sequence[str]
) -> World:
    """`world` with master_addr and master_port: the step's own, or those that the job script has set.

    Raises:
        IncompleteEnvironment: No variable tells on which node rank 0 could be.
    """
    host, why = _host_of_rank_0(environ, world, here, task_ids)
    given = environ.get("MASTER_ADDR", "").strip()
    warnings, left, agrees = list(world.warnings), list(world.left), list(world.agrees)
    if given and given == host:
        agrees.append(f"MASTER_ADDR = {given}")
    elif given and (wrong := _explain_wrong_address(given, host, world, environ)):
        warnings.append(f"MASTER_ADDR = {given} is not used: {wrong}")
        left.append(f"MASTER_ADDR = {given} ({wrong})")
    elif given:
        host, why = given, "MASTER_ADDR, set by the job"
    elif host is None and not world.hosts:
        raise IncompleteEnvironment(
            "no variable tells where rank 0 is",
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
        master_port=ports.candidate_ports(world.key, port)[0],
        sources=sources,
        warnings=tuple(warnings),
        left=tuple(left),
        agrees=tuple(agrees),
    )


def _host_of_rank_0(
    environ: Mapping[str, str], world: World, here: str | None, task_ids: Sequence[str]
) -> tuple[str | None, str]:
    if here and (world.rank == 0 or world.nnodes == 1):
        return here, "SLURMD_NODENAME, this node"
    if here and "0" in task_ids:
        return here, f"SLURMD_NODENAME, this node: SLURM_GTIDS = {environ['SLURM_GTIDS']} holds rank 0"
    if not world.hosts:
        return None, "unknown"
    if not _host_in_arbitrary_distribution(environ, world, here):
        listed = read_hosts(environ, "SLURM_STEP_NODELIST")[0] == world.hosts[0]
        name = "SLURM_STEP_NODELIST" if listed else "SLURM_JOB_NODELIST_HET_GROUP_0"
        return world.hosts[0], f"first of {name} = {environ.get(name, world.hosts[0])}"
    others = [host for host in world.hosts if host != here]
    if len(others) == 1:
        return others[0], "the step's other node: rank 0 is not on this one"
    return None, f"unknown until the ranks meet: any of {environ['SLURM_STEP_NODELIST']}"


def _host_in_arbitrary_distribution(environ: Mapping[str, str], world: World, here: str | None) -> bool:
    """Whether the order of the nodes says nothing of the order of the ranks."""
    named = environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    out_of_order = here in world.hosts and world.node_rank != world.hosts.index(here)
    return named or out_of_order


def _explain_wrong_address(given: str, host: str | None, world: World, environ: Mapping[str, str]) -> str | None:
    """Why an address that the job script has set cannot be rank 0's; None where it may be."""
    if is_loopback(given) and world.nnodes != 1 and given not in world.hosts:
        return f"it names each of the {world.nnodes} nodes itself"
    job_nodes = read_hosts(environ, "SLURM_JOB_NODELIST") or read_hosts(environ, "SLURM_NODELIST")
    if given in job_nodes and (host is not None or (world.hosts and given not in world.hosts)):
        return f"rank 0 of this step is on {host or ' or '.join(world.hosts)}"
    return None
