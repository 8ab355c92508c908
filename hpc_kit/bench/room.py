"""Whether what is to be measured fits into this machine's memory: asked before, as the kernel asks nobody after."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.bench.quantity import quantity
from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.runtime.process_group import Group

_MEMINFO, _CGROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def available(meminfo: Path = _MEMINFO, own: Path = _OWN, cgroups: Path = _CGROUPS) -> int | None:
    """Bytes that may still be taken: of the machine, or of the job's own limit; None where neither is told."""
    found = []
    with suppress(OSError):
        if match := re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE):
            found.append(int(match[1]) * 1024)
    with suppress(OSError):
        unified = re.search(r"^0::/(.*)$", own.read_text(), re.MULTILINE)
        folder = cgroups / (unified[1] if unified else "")
        for each in (folder, *folder.parents):
            with suppress(OSError, ValueError):
                limit, used = ((each / f"memory.{name}").read_text().strip() for name in ("max", "current"))
                found.append(int(limit) - int(used))
            if each == cgroups:
                break
    return max(0, min(found)) if found else None


def refuse_beyond_gpus(needed: float, what: str, remedy: str, world: Group) -> None:
    """Refuse what some rank's GPU does not hold; a collective. Of ranks on CPUs nothing is asked.

    Args:
        needed: Bytes, of a rank.
        what: What needs them.
        remedy: What to ask for instead.
        world: The ranks.

    Raises:
        SpecError: On all ranks, with the least that is left.
    """
    if world.device.type != "cuda":
        return
    import torch
    from torch import distributed as dist

    left = [0] * world.world_size
    dist.all_gather_object(left, torch.cuda.mem_get_info(world.device)[0])
    refuse_beyond(needed, f"{what}, on a GPU,", remedy, left=min(left))


def refuse_beyond(needed: float, what: str, remedy: str, *, left: int | None = None) -> None:
    """Refuse what does not fit.

    Args:
        needed: Bytes, of all ranks on this machine together.
        what: What needs them.
        remedy: What to ask for instead.
        left: Bytes that there are; default: `available()`.

    Raises:
        SpecError: It does not fit.
    """
    left = available() if left is None else left
    if left is not None and needed > left:
        raise SpecError(
            f"{what} does not fit into memory",
            found=f"about {quantity(needed, 'B', 3)} needed, {quantity(left, 'B', 3)} available",
            remedy=remedy,
        )
