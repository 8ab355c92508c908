"""The World of an agent of `hpc-kit launch`, which starts one agent per host over ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import IncompleteEnvironment
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.variables import master_port, optional_int, required_int
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = _NODE, _HOSTS, _MASTER, _LAUNCH = tuple(
    f"HPC_KIT_SSH_{name}" for name in ("NODE", "HOSTS", "MASTER", "LAUNCH")
)
"""Variables of an agent. They are removed for its workers and for jobs that the workers submit."""


def from_ssh(environ: Mapping[str, str]) -> World | None:
    """Return the World of an agent of a launch over ssh, or None.

    Raises:
        IncompleteEnvironment: A variable is missing or is not a number.
        ContradictoryEnvironment: The numbers contradict each other.
    """
    if optional_int(environ, _NODE) is None:
        return None
    node, hosts = required_int(environ, _NODE, beside=_LAUNCH), tuple(filter(None, environ.get(_HOSTS, "").split(",")))
    launch, master = environ.get(_LAUNCH, ""), environ.get("MASTER_ADDR") or environ.get(_MASTER, "")
    if not hosts or not launch or not master:
        raise IncompleteEnvironment(
            "some variables of the launch over ssh are missing",
            found=f"{_NODE} = {node}, but not all of {_HOSTS}, {_MASTER}, {_LAUNCH}",
            remedy=f"hpc-kit launch sets all of them; unset {_NODE} where it is left over",
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
        sources={"rank": _NODE, "node_rank": _NODE, "world_size": _HOSTS, "nnodes": _HOSTS}
        | dict.fromkeys(("local_rank", "local_world_size"), "one agent a host")
        | {"master_addr": "MASTER_ADDR" if environ.get("MASTER_ADDR") else _MASTER, "master_port": f"from {_LAUNCH}"},
        hosts=hosts,
        tasks_per_node=(1,) * len(hosts),
    ).checked()
