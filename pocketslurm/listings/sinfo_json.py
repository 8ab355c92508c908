"""`sinfo --json`: every node, whatever was asked for, under the names that 22.05 gives its fields."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pocketslurm.listings.json_documents import print_document
from pocketslurm.listings.node_view import NodeView, node_views
from pocketslurm.listings.scontrol_node import free_memory, partitions_of, tres_of, tres_used
from pocketslurm.queue.state import now
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from pocketslurm.queue.state import State
    from pocketslurm.settings import Settings

_PORT = 6818
"""slurmd's own by default; nobody listens there."""

_UNUSED = {
    "burstbuffer_network_address": "", "boards": 1, "comment": "", "cores": 1, "cpu_binding": 0, "extra": "",
    "features": "", "active_features": "", "gres_drained": "N/A", "mcs_label": "",
    "next_state_after_reboot": "invalid", "next_state_after_reboot_flags": [], "owner": None, "port": _PORT,
    "slurmd_version": SLURM_VERSION, "temporary_disk": 0, "threads": 1, "tres_weighted": 0.0, "weight": 1,
}  # fmt: skip
"""What is the same of all virtual nodes."""


def print_nodes(state: State) -> None:
    """Print all of them as one document."""
    print_document("v0.0.38", "v0.0.38", [_node(state.settings, view) for view in node_views(state)], kind="nodes")


def _node(settings: Settings, view: NodeView) -> dict[str, object]:
    uname, out = os.uname(), view.out
    booted = int(now() - time.clock_gettime(time.CLOCK_BOOTTIME))
    return {
        **_UNUSED,
        "address": view.name,
        "alloc_cpus": view.cpus_used,
        "alloc_memory": view.mem_used,
        "architecture": uname.machine,
        "boot_time": booted,
        "cpu_load": int(os.getloadavg()[0] * 100),
        "cpus": view.cpus,
        "free_memory": free_memory(),
        "gres": f"gpu:{settings.gpus}" if settings.gpus else "",
        "gres_used": f"gpu:{view.gpus_used}" if settings.gpus else "",
        "hostname": view.name,
        "idle_cpus": view.cpus - view.cpus_used,
        "last_busy": int(now()),
        "name": view.name,
        "operating_system": f"{uname.sysname} {uname.release} {uname.version}",
        "partitions": partitions_of(settings, view.name),
        "real_memory": settings.memory_of_node,
        "reason": out.reason if out else "",
        "reason_changed_at": int(out.since) if out else 0,
        "reason_set_by_user": out.user if out else None,
        "slurmd_start_time": booted,
        "sockets": view.cpus,
        "state": view.long_state.partition("+")[0].lower(),
        "state_flags": view.long_state.split("+")[1:],
        "tres": tres_of(settings),
        "tres_used": tres_used(view) or None,
    }
