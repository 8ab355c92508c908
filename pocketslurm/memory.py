"""Whether the kernel ended something for want of memory: its own counters say so."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

OUT_OF_MEMORY = 125
"""Slurm books it as signal 125."""

_ROOT = Path("/sys/fs/cgroup")


class OomCounter:
    """Counts the kernel's out-of-memory kills from now on, in our own control group or else on the whole machine."""

    def __init__(self) -> None:
        self._files = counters(_text(Path("/proc/self/cgroup")))
        self._before = [kills(path) for path in self._files]

    def rose(self) -> bool:
        """Whether there were any since."""
        return any(kills(path) > before for path, before in zip(self._files, self._before, strict=True))


def looks_killed(status: int, others: Iterable[int]) -> bool:
    """Whether one of the wait statuses, the script's or a step's, is that of SIGKILL."""
    return any(_is_kill(each) for each in (status, *others))


def _is_kill(status: int) -> bool:
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    return os.WEXITSTATUS(status) == 128 + signal.SIGKILL


def counters(lines: str, root: Path = _ROOT) -> list[Path]:
    """The kernel's counter files for the control group of these `/proc/self/cgroup` lines, else the machine's."""
    found = []
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += [base / path.lstrip("/") / "memory.events" for base in (root, root / "unified")]
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [path for path in found if path.exists()] or [Path("/proc/vmstat")]


def kills(path: Path) -> int:
    """The count in such a file."""
    lines = _text(path).splitlines()
    return sum(int(words[1]) for line in lines if (words := line.split())[:1] == ["oom_kill"])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
