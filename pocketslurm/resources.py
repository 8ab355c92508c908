"""Measures CPU time and memory, detects out-of-memory kills, and passes on resource limits."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pocketslurm.queue.records import Step


class ResourceUsage(NamedTuple):
    """CPU seconds of all processes, and the memory (KiB) of the largest one; names as in `Step`."""

    user_cpu: float = 0.0
    system_cpu: float = 0.0
    peak_memory: int = 0


def children_usage(steps: Iterable[Step] = ()) -> ResourceUsage:
    """Return the use of this process's descendants that were waited for.

    Args:
        steps: Steps below this process, which are recorded separately. If one of them may contain the largest
            process, the peak of the rest is unknown and 0.

    A child starts as a copy of this process, and the kernel counts that copy. A peak below its size is unknown.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    recorded = list(steps)
    known = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *(step.peak_memory for step in recorded), 0)
    peak = used.ru_maxrss if used.ru_maxrss > known else 0
    return ResourceUsage(
        max(0.0, used.ru_utime - sum(step.user_cpu for step in recorded)),
        max(0.0, used.ru_stime - sum(step.system_cpu for step in recorded)),
        peak,
    )


def format_cpu_time(seconds: float) -> str:
    """Format CPU seconds as sacct does: with thousandths below an hour."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours or not thousandths:
        days, hour = divmod(hours, 24)
        return f"{days}-" * bool(days) + f"{hour:02}:{minute:02}:{second:02}"
    return f"{minute:02}:{second:02}.{thousandths:03}"


OUT_OF_MEMORY = 125
"""Slurm records an out-of-memory kill as signal 125."""

_ROOT = Path("/sys/fs/cgroup")


class OomCounter:
    """Counts out-of-memory kills from now on, in the control group of this process or else on the whole machine."""

    def __init__(self) -> None:
        # Without control groups of its own, a container shares the counter of the machine with all other processes.
        self._files = counters(_text(Path("/proc/self/cgroup")))
        self._before = [kills(path) for path in self._files]

    def rose(self) -> bool:
        """Return whether the count has increased."""
        return any(kills(path) > before for path, before in zip(self._files, self._before, strict=True))


def is_any_killed(status: int, step_statuses: Iterable[int]) -> bool:
    """Return whether one of the wait statuses of the script and its steps is that of SIGKILL."""
    # A shell reports a program that SIGKILL has ended as exit code 137.
    killed = {-signal.SIGKILL, 128 + signal.SIGKILL}
    return any(os.waitstatus_to_exitcode(each) in killed for each in (status, *step_statuses))


def counters(lines: str, root: Path = _ROOT) -> list[Path]:
    """Return the kernel's counter files for the control group in `/proc/self/cgroup`, else the machine's."""
    found = []
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [base / path.lstrip("/") / "memory.events" for base in (root, root / "unified")]
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [path for path in found if path.exists()] or [Path("/proc/vmstat")]


def kills(path: Path) -> int:
    """Return the number of out-of-memory kills in a counter file."""
    lines = _text(path).splitlines()
    return sum(int(words[1]) for line in lines if (words := line.split())[:1] == ["oom_kill"])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_NAMES = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK")
_NUMBERS = {name: int(getattr(resource, f"RLIMIT_{name}")) for name in _NAMES}


def propagated_limits(propagate: str | None) -> dict[str, int]:
    """Return the soft limits of this process that a job inherits.

    Args:
        propagate: The option's value: names between commas, ALL or nothing for all, NONE; None: it was not given.
    """
    words = {word.strip().upper().removeprefix("RLIMIT_") for word in (propagate or "ALL").split(",")}
    if "NONE" in words:
        return {}
    return {name: resource.getrlimit(_NUMBERS[name])[0] for name in _NAMES if "ALL" in words or name in words}


def apply_limits(limits: Mapping[str, int]) -> None:
    """Set the soft limits of this process, up to its hard limits."""
    for name, soft in limits.items():
        most = resource.getrlimit(_NUMBERS[name])[1]
        # RLIM_INFINITY is -1, and the lowest number would win.
        _set(name, min((limit for limit in (soft, most) if limit != resource.RLIM_INFINITY), default=soft))


def raise_limits() -> None:
    """Raise the soft limits to the hard limits: a daemon serves all jobs, not only its submitter's."""
    for name in _NAMES:
        _set(name, resource.getrlimit(_NUMBERS[name])[1])


def _set(name: str, soft: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # a container may forbid it
        resource.setrlimit(_NUMBERS[name], (soft, resource.getrlimit(_NUMBERS[name])[1]))
