"""The World of an agent of `hpc-kit launch`, which starts one agent per host over ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import IncompleteEnvironment
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.variables import (
    SSH_HOSTS,
    SSH_LAUNCH,
    SSH_MASTER,
    SSH_NODE,
    master_port,
    optional_int,
)
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping


def from_ssh(environ: Mapping[str, str]) -> World | None:
    """Return the World of an agent of a launch over ssh, or None.

    Raises:
        IncompleteEnvironment: A variable is missing or is not a number.
        ContradictoryEnvironment: The numbers contradict each other.
    """
    node, hosts = optional_int(environ, SSH_NODE), tuple(filter(None, environ.get(SSH_HOSTS, "").split(",")))
    if node is None:
        return None
    launch, given = environ.get(SSH_LAUNCH, ""), environ.get("MASTER_ADDR")
    master = given or environ.get(SSH_MASTER, "")
    if not hosts or not launch or not master:
        raise IncompleteEnvironment(
            "some variables of the launch over ssh are missing",
            found=f"{SSH_NODE} = {node}, but not all of {SSH_HOSTS}, {SSH_MASTER}, {SSH_LAUNCH}",
            remedy=f"hpc-kit launch sets all of them; unset {SSH_NODE} where it is left over",
        )
    key = f"ssh launch {launch}"
    return World(
        rank=node,
        world_size=len(hosts),
        local_rank=0,
        local_world_size=1,
        node_rank=node,
        nnodes=len(hosts),
        master_addr=master,
        master_port=store.candidate_ports(key, master_port(environ))[0],
        launcher="ssh",
        name=f"the launch {launch} over ssh",
        key=key,
        sources={"rank": SSH_NODE, "node_rank": SSH_NODE, "world_size": SSH_HOSTS, "nnodes": SSH_HOSTS}
        | dict.fromkeys(("local_rank", "local_world_size"), "one agent a host")
        | {"master_addr": "MASTER_ADDR" if given else SSH_MASTER, "master_port": f"from {SSH_LAUNCH}"},
        hosts=hosts,
        tasks_per_node=(1,) * len(hosts),
    ).checked()
