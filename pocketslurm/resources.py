"""What the processes of a step have used, as the kernel tells it of those that have ended."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pocketslurm.queue.records import Step


class Usage(NamedTuple):
    """CPU seconds of all processes, and the memory (KiB) of the largest one; names as in `Step`."""

    user_cpu: float = 0.0
    system_cpu: float = 0.0
    peak_memory: int = 0


def of_children(others: Iterable[Step] = ()) -> Usage:
    """What this process's children have used, and theirs, as far as somebody has waited for them.

    Args:
        others: Steps below this process, which account for themselves. Where one of them may have had the largest
            process, that of the rest is not known, and is 0.

    A child begins as a copy of this process, and the kernel counts that copy: below its size no peak is known.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    apart = list(others)
    known = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *(step.peak_memory for step in apart), 0)
    peak = used.ru_maxrss if used.ru_maxrss > known else 0
    return Usage(
        max(0.0, used.ru_utime - sum(step.user_cpu for step in apart)),
        max(0.0, used.ru_stime - sum(step.system_cpu for step in apart)),
        peak,
    )


def shown(seconds: float) -> str:
    """CPU seconds as sacct prints them: thousandths below an hour, where there are any."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours or not thousandths:
        days, hour = divmod(hours, 24)
        return f"{days}-" * bool(days) + f"{hour:02}:{minute:02}:{second:02}"
    return f"{minute:02}:{second:02}.{thousandths:03}"
