"""Reads /proc/PID/stat, the kernel's description of a process or thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STATE, PARENT, START_TIME, EXIT_STATUS = 0, 1, 19, 49
"""Indices into the fields: state (`T`: stopped, `Z`: zombie), parent's pid, start in clock ticks since boot, and the
wait status of a zombie.
"""


def read_stat(folder: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the command; proc(5) lists them.

    Raises:
        OSError: There is no such process.
    """
    # The name is in parentheses, and may itself contain parentheses and spaces.
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
