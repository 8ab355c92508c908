"""What cannot be measured is refused before anything starts: a backend not built in, sizes beyond memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hpc_kit.bench import local_ranks as ranks
from hpc_kit.bench import room
from hpc_kit.bench.quantity import quantity
from hpc_kit.errors import SpecError
from hpc_kit.runtime.mpi import library
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    import torch

    from hpc_kit.bench.collectives import Question

TENSORS = 3
"""Of the largest size, in each rank: two that are filled, and as much again for copies of the backend's own."""


PROCESS = 150 << 20
"""What a rank takes before it has any of them."""


def refuse(asked: Question, step: int, *, elsewhere: bool = False) -> None:
    """Refuse what cannot be measured, before a rank is started.

    Args:
        asked: What is to be measured.
        step: Ranks of the step that this process is in; 1: they are to be started.
        elsewhere: Whether they are started on other hosts, whose memory they have to look at themselves.

    Raises:
        SpecError: A backend is not built in, or lacks GPUs, or the sizes are too large.
    """
    for name in asked.backends:
        error = why_not(name)
        if error is not None:
            raise error
    if elsewhere:
        return
    _refuse_gpus(asked, step)
    if step == 1 and set(asked.backends) != {"nccl"}:
        refuse_on_host(asked, asked.ranks, network.this_node_name(os.environ), room.available(), PROCESS)


def _refuse_gpus(asked: Question, step: int) -> None:
    """NCCL wants a GPU a rank; in a step, other hosts have theirs."""
    if "nccl" not in asked.backends:
        return
    import torch

    found, wanted = torch.cuda.device_count(), asked.ranks if step == 1 else 1
    if found < wanted:
        raise SpecError(
            "the backend nccl needs a GPU a rank",
            found=f"{asked.ranks} ranks, {found} GPUs that this process sees",
            remedy="--ranks with no more, or as a job: hpc-kit submit bench_comm --set resources.gpus_per_task=1",
        )


def automatic(wanted: int, step: int) -> tuple[str, ...]:
    """The backends that can be measured here: gloo; nccl with a GPU a rank; mpi where it starts the ranks, or could.

    Args:
        wanted: Ranks that take part.
        step: Ranks of the step that this process is in; 1: they are to be started.
    """
    import torch

    alone = step == 1
    usable = {
        "gloo": True,
        "mpi": ranks.has_mpirun() if alone else library.find_evidence(os.environ) is not None,
        "nccl": torch.cuda.device_count() >= (wanted if alone else 1),
    }
    return tuple(name for name, can in usable.items() if can and why_not(name) is None)


def why_not(name: str) -> SpecError | None:
    """Why a backend cannot be used with this Python; None where it can."""
    if name == "horovod":
        return _horovod()
    from torch import __version__ as version
    from torch import distributed as dist

    if name == "mpi" and not dist.is_mpi_available() and find_spec("mpi4py") is None:
        return SpecError(
            "the backend mpi needs mpi4py", found="it is not installed", remedy="pip install 'hpc_kit[mpi]'"
        )
    if name != "mpi" and not dist.is_backend_available(name):
        return SpecError(
            f"the backend {name} is not built in",
            found=f"torch {version} of {sys.executable}",
            remedy="a torch that has it: pip install torch, without +cpu, on a machine with a GPU"
            if name == "nccl"
            else None,
        )
    return None


def _horovod() -> SpecError:
    from torch import __version__ as version

    return SpecError(
        "bench comm has no backend horovod",
        found=f"Horovod 0.28.1, its last release, is written in C++14; the headers of torch {version} ask for C++17",
        remedy="--algorithms ring: its all-reduce is that ring, here of plain messages",
    )


def refuse_size(asked: Question, hosts: Sequence[str], gpu: torch.device | None = None) -> None:
    """Refuse sizes that the memory of some host or GPU cannot hold; a collective: every rank must call it.

    Args:
        asked: What is to be measured.
        hosts: The host of each rank.
        gpu: This rank's, where NCCL is to use one.

    Raises:
        SpecError: On all ranks, of the host that lacks most.
    """
    import torch
    from torch import distributed as dist

    left: list[tuple[str, int | None, int | None]] = [("", None, None)] * len(hosts)
    on_gpu = None if gpu is None else torch.cuda.mem_get_info(gpu)[0]
    dist.all_gather_object(left, (hosts[dist.get_rank()], room.available(), on_gpu))
    for host, bytes_left, of_gpu in left:
        if set(asked.backends) != {"nccl"}:
            refuse_on_host(asked, hosts.count(host), host, bytes_left)
        refuse_on_host(asked, 1, f"a GPU of {host}", of_gpu)


def refuse_on_host(asked: Question, ranks: int, host: str, left: int | None, own: int = 0) -> None:
    """Refuse sizes that one host's memory cannot hold.

    Args:
        asked: What is to be measured.
        ranks: How many of them are there.
        host: Its name.
        left: Bytes that it has left; None: nobody tells.
        own: Bytes that each rank takes besides, where they do not run yet.

    Raises:
        SpecError: They are too large, with the largest that fits; or the ranks are too many.
    """
    largest = max(asked.sizes)
    needed = TENSORS * largest * ranks
    if left is None or needed + own * ranks <= left:
        return
    fits = (left - own * ranks) // (TENSORS * ranks)
    if own and fits < 1 << 20:
        room.refuse_beyond(needed + own * ranks, f"bench comm on {ranks} ranks of {host}", "fewer --ranks", left=left)
    raise SpecError(
        f"{quantity(largest, 'B')} are too many for the memory of {host}",
        found=f"{ranks} ranks x {TENSORS} tensors of {quantity(largest, 'B')} = {quantity(needed, 'B', 3)}, "
        f"{quantity(left, 'B', 3)} are left",
        remedy=f"--sizes up to {fits >> 20}MiB",
    )
