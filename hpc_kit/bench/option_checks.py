"""Checks of the options of a benchmark: known names, and sizes that fit into memory.

The kernel would kill a benchmark that is too large, after minutes and without a message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.bench.results import format_quantity
from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.runtime.process_group import Group

_MEMINFO, _CGROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def check_known_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Check that all names are known.

    Raises:
        SpecError: A name is unknown; the error lists the known names.
    """
    if unknown := [name for name in names if name not in known]:
        raise SpecError(
            f"unknown {kind} {unknown[0]!r}", found=",".join(names), remedy=f"one or more of {','.join(known)}"
        )


def check_several_ranks(ranks: int, what: str) -> None:
    """Check that there are at least two ranks; `what` is the sentence of the error.

    Raises:
        SpecError: There is one rank only.
    """
    if ranks < 2:
        raise SpecError(what, found=f"--ranks {ranks}", remedy="--ranks 2 or more")


def check_divides(ranks: int, option: str, number: int) -> None:
    """Check that the ranks divide the number of an option without its dashes: "global-batch".

    Raises:
        SpecError: A remainder is left; the error names the next number without one.
    """
    if number % ranks:
        raise SpecError(
            f"the ranks do not divide the {option}",
            found=f"--{option} {number}, --ranks {ranks}",
            remedy=f"--{option} {ranks * (number // ranks + 1)}",
        )


def free_memory(meminfo: Path = _MEMINFO, own: Path = _OWN_CGROUP, cgroups: Path = _CGROUPS) -> int | None:
    """Return the free bytes of the machine or of the job's memory limit; None if unknown."""
    found = []
    with suppress(OSError):
        if match := re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE):
            found.append(int(match[1]) * 1024)
    with suppress(OSError):
        unified = re.search(r"^0::/(.*)$", own.read_text(), re.MULTILINE)
        folder = cgroups / (unified[1] if unified else "")
        for each in (folder, *folder.parents):
            with suppress(OSError, ValueError):
                limit, used = (int((each / f"memory.{name}").read_text()) for name in ("max", "current"))
                # memory.current includes files that the kernel keeps, and drops when a process needs memory.
                cached = re.search(r"^inactive_file (\d+)", (each / "memory.stat").read_text(), re.MULTILINE)
                found.append(limit - used + (int(cached[1]) if cached else 0))
            if each == cgroups:
                break
    return max(0, min(found)) if found else None


def check_gpu_memory(needed: float, what: str, remedy: str, world: Group) -> None:
    """Check the free memory of every rank's GPU; CPUs are not checked. Every rank must call this collective.

    `needed` are the bytes of one rank. The other arguments are those of `check_memory`.

    Raises:
        SpecError: A GPU has too little memory. All ranks raise the same error.
    """
    if world.device.type != "cuda":
        return
    import torch
    from torch import distributed as dist

    free = [0] * world.world_size
    dist.all_gather_object(free, torch.cuda.mem_get_info(world.device)[0])
    check_memory(needed, f"{what}, on a GPU,", remedy, free=min(free))


def check_memory(needed: float, what: str, remedy: str, *, free: int | None = None) -> None:
    """Check that the bytes of all ranks on this machine are free. `free` is by default `free_memory()`.

    `what` is the subject of the error, "the model", and `remedy` its advice, "fewer --ranks".

    Raises:
        SpecError: There is too little memory.
    """
    free = free_memory() if free is None else free
    if free is not None and needed > free:
        raise SpecError(
            f"{what} does not fit into memory",
            found=f"about {format_quantity(needed, 'B', 3)} needed, {format_quantity(free, 'B', 3)} available",
            remedy=remedy,
        )
