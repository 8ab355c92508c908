"""Why nothing can be planned: what comes nearest, and the least that would do."""

from __future__ import annotations

from msgspec import structs

from hpc_kit.errors import AnswerNo
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.search import Answer, Task, search, shown

MOST_NODES = 1024
"""Larger clusters are not looked at."""
NEAR = 16
"""Numbers of nodes that are tried below one that fits."""


def refuse(task: Task, answer: Answer, rates: Rates) -> AnswerNo:
    """The error for a cluster on which nothing fits: what comes nearest, and the least that would do."""
    near = next((one for one in answer.rejected if one.gib), None)
    if near is None:
        batch = _rounded(task.global_batch, task.gpus)
        return AnswerNo(
            f"no layout of {task.model.name} on {task.gpus} GPUs is legal",
            found="\n".join(sorted({one.reason for one in answer.rejected})[:6]),
            remedy=f"a global batch that the data-parallel degree divides, such as {batch}",
        )
    return AnswerNo(
        f"{task.model.name} does not fit on {task.gpus} x {task.machine.gpu.name} under any layout",
        found=f"nearest: {shown(near.run)}: {near.reason}",
        remedy=_remedy(task, rates),
    )


def _remedy(task: Task, rates: Rates) -> str:
    nodes = least_nodes(task, rates)
    if nodes is None:
        return "GPUs with more memory, or a smaller model"
    batch = _rounded(task.global_batch, nodes * task.machine.gpus_per_node)
    if batch == task.global_batch or _fits(task, rates, nodes, task.global_batch):
        return f"the least that would do: --nodes {nodes}"
    said = f"the least that would do: --nodes {nodes} --global-batch {batch}"
    more = next((n for n in range(nodes + 1, 2 * nodes) if _fits(task, rates, n, task.global_batch)), None)
    return f"{said}\nwith a batch of {task.global_batch}: --nodes {more}" if more else said


def least_nodes(task: Task, rates: Rates) -> int | None:
    """The fewest nodes on which something fits, with a batch that all their GPUs divide; None: not even MOST_NODES.

    By doubling and halving the last step; then those just below are tried, since not every number splits as well.
    """

    def enough(nodes: int) -> bool:
        return _fits(task, rates, nodes, _rounded(task.global_batch, nodes * task.machine.gpus_per_node))

    own = max(1, task.gpus // task.machine.gpus_per_node)
    if enough(own):
        return own
    low, high = own, 2 * own
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_NODES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    below = range(max(own + 1, high - min(NEAR, high // 4)), high)
    return next((nodes for nodes in below if enough(nodes)), high)


def _rounded(batch: int, gpus: int) -> int:
    """The batch, or the next larger one that all GPUs divide."""
    return -(-batch // gpus) * gpus


def _fits(task: Task, rates: Rates, nodes: int, batch: int) -> bool:
    gpus = nodes * task.machine.gpus_per_node
    return bool(search(structs.replace(task, gpus=gpus, global_batch=batch), rates).plans)
