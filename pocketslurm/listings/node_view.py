"""A node as sinfo and scontrol show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.queue import nodes

if TYPE_CHECKING:
    from pocketslurm.queue.nodes import Out
    from pocketslurm.queue.state import State

SHORT = {
    "idle": "idle", "mixed": "mix", "allocated": "alloc", "completing": "comp", "drained": "drain", "draining": "drng",
    "down": "down", "n/a": "n/a",
}  # fmt: skip

NODE_STATES = (
    "unknown", "down", "idle", "allocated", "?", "mixed", "future", "drain", "drained", "draining", "no_respond",
    "reserved", "perfctrs", "cloud", "completing", "powering_down", "powered_down", "power_down", "powering_up", "fail",
    "maint", "reboot", "reboot^",
)  # fmt: skip
"""The states that sinfo knows, in its order."""


class NodeView(NamedTuple):
    """One node with what its jobs hold."""

    name: str
    cpus: int
    cpus_used: int
    mem_used: int
    gpus_used: int
    completing: bool
    out: Out | None
    missing: bool = False
    """It stands for no node at all."""

    @property
    def state(self) -> str:
        """`idle`, `mixed`, `allocated`, `drained`..."""
        if self.missing:
            return "n/a"
        if self.out:
            if self.out.state == "DOWN":
                return "down"
            return "draining" if self.cpus_used else "drained"
        if self.cpus_used >= self.cpus:
            return "allocated"
        return "mixed" if self.cpus_used else "completing" if self.completing else "idle"

    @property
    def long_state(self) -> str:
        """As scontrol shows it: `IDLE+DRAIN`."""
        base = "ALLOCATED" if self.cpus_used >= self.cpus else "MIXED" if self.cpus_used else "IDLE"
        if self.out and self.out.state == "DOWN":
            return "DOWN"
        return f"{base}+DRAIN" if self.out else base


def node_views(state: State) -> list[NodeView]:
    """Every node, in order."""
    holding = state.jobs("state = 'RUNNING' OR completing")
    out = nodes.out(state)
    views = []
    for node in nodes.all_of(state):
        held = [(job, job.nodes.index(node.name)) for job in holding if node.name in job.nodes]
        views.append(
            NodeView(
                node.name,
                node.cpus,
                min(node.cpus, sum(job.cpus[index] for job, index in held)),
                min(node.mem, sum(job.mem[index] for job, index in held)),
                sum(len(job.gpus[index]) for job, index in held),
                any(job.completing for job, _ in held),
                out.get(node.name),
            )
        )
    return views
