"""What ranks do together, so that none goes on where another has stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torch import distributed as dist

from hpc_kit.errors import HpcKitError, JobFailed, SpecError

T = TypeVar("T")


def gather(value: T) -> list[T]:
    """The value of each rank, on each rank. Nobody leaves before everybody came: it is a barrier, too."""
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]


def together(work: Callable[[], T]) -> T:
    """Do the work on every rank; where it fails on one, it fails on all, and nobody waits for a rank that left.

    Raises:
        HpcKitError: this rank's own error, or a JobFailed or SpecError that tells another rank's.
    """
    fault: HpcKitError | None = None
    try:
        result = work()
    except HpcKitError as error:
        fault = error
    kind = JobFailed if isinstance(fault, JobFailed) else SpecError
    faults = gather(None if fault is None else (kind, f"{socket.gethostname()}: {fault}"))
    if fault is not None:
        raise fault
    for rank, theirs in enumerate(faults):
        if theirs is not None:
            raise theirs[0](f"rank {rank} cannot go on", found=theirs[1])
    return result


def compare(facts: Mapping[str, str], remedies: Mapping[str, str]) -> None:
    """Refuse to train where two ranks do not run the same thing.

    Args:
        facts: By name, what all ranks must have in common.
        remedies: What to do where one of them differs, if it is not that the ranks were started alike.

    Raises:
        SpecError: on every rank, with the first fact that differs and both values.
    """
    of_rank = gather({"host": socket.gethostname(), **facts})
    for name in facts:
        for rank, theirs in enumerate(of_rank):
            if theirs[name] != of_rank[0][name]:
                hosts = of_rank[0]["host"], theirs["host"]
                raise SpecError(
                    f"rank 0 and rank {rank} do not run with the same {name}",
                    found=f"rank 0 on {hosts[0]}: {of_rank[0][name]}\nrank {rank} on {hosts[1]}: {theirs[name]}",
                    remedy=remedies.get(name, "start every rank with the same Python, packages and arguments"),
                )


@contextmanager
def in_time(seconds: float | None) -> Iterator[None]:
    """Say in plain words that a rank did not come within the time-out.

    Raises:
        JobFailed: in place of gloo's "Timed out waiting".
    """
    try:
        yield
    except RuntimeError as error:
        if "timed out" not in str(error).lower():
            raise
        allowed = f"{seconds:g} s (--timeout, or timeout in [launch])" if seconds else "torch's own time-out"
        raise JobFailed(
            "another rank did not come within the time-out",
            found=f"{socket.gethostname()} waited {allowed}: {str(error).partition(chr(10))[0]}",
            remedy="the logs of the other ranks: one failed, hangs or is slower; else a longer --timeout",
        ) from error
