"""A script that was written for another cluster: what of its options counts here, where the settings are not strict."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pocketslurm.queue.job_gpus import is_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.job_size import Request


def counted(options: Mapping[str, str]) -> dict[str, str]:
    """The options as the size of a job or a step is worked out from them.

    Generic resources other than GPUs are left out, and `--tres-per-task` is told in the older options.
    """
    found = dict(options)
    if "gres" in found:
        items = found["gres"].split(",")
        found["gres"] = ",".join(item for item in items if is_gpu(item) or item.lower() == "none")
        if not found["gres"]:
            del found["gres"]
    for item in found.pop("tres-per-task", "").split(","):
        kind, _, amount = item.replace("=", ":").removeprefix("gres/").partition(":")
        if kind == "cpu":
            found.setdefault("cpus-per-task", amount)
        elif kind == "gpu":
            found.setdefault("gpus-per-task", amount or "1")
    return found


def fitted(request: Request, names: set[str]) -> Request:
    """The request for nodes as large as it needs, none of those excluded that are not there."""
    return request._replace(fits=True, exclude=tuple(name for name in request.exclude if name in names), gpu_types=())


def remark(command: str, request: Request, count: int) -> None:
    """Tell a person, and no script that reads along, what keeps a job from ever starting."""
    if request.min_nodes > count and sys.stderr.isatty():
        more = "[embedded] nodes in the cluster file makes more of them"
        print(f"{command}: note: {request.min_nodes} nodes, and there are {count}: {more}", file=sys.stderr)
