"""Collective calls on Python objects, so that no rank goes on after another rank has stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torch import distributed as dist

from hpc_kit.errors import HpcKitError, JobFailed, SpecError

T = TypeVar("T")


def own_rank() -> int:
    """Return the rank of this process; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return the value of each rank, on every rank. No rank leaves before all ranks came, so it is also a barrier.

    Without a process group, this process is the only rank.
    """
    if not dist.is_initialized():
        return [value]
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group)
    return values  # type: ignore[return-value]


def run_on_all(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run a function on every rank. If it fails on one rank, it raises on all ranks.

    Args:
        work: The function.
        group: A group of all ranks. Default: the default group.

    Raises:
        Exception: The error of this rank.
        SpecError: Another rank has raised one; `found` contains it.
        JobFailed: Another rank has raised another error; `found` contains it.
    """
    own_error: Exception | None = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks would wait for this one in vain
        own_error = error
    kind = SpecError if isinstance(own_error, SpecError) else JobFailed
    message = str(own_error) if isinstance(own_error, HpcKitError) else f"{type(own_error).__name__}: {own_error}"
    errors = gather(None if own_error is None else (kind, f"{socket.gethostname()}: {message}"), group)
    if own_error is not None:
        raise own_error
    for rank, theirs in enumerate(errors):
        if theirs is not None:
            raise theirs[0](f"rank {rank} cannot go on", found=theirs[1])
    return result


def require_equal(facts: Mapping[str, str], remedies: Mapping[str, str]) -> None:
    """Refuse to go on if two ranks do not run the same thing.

    Args:
        facts: Values that must be equal on all ranks, by name.
        remedies: Remedies for names that need another one than "start every rank alike".

    Raises:
        SpecError: On every rank, with the first name that differs and both values.
    """
    ranks = gather({"host": socket.gethostname(), **facts})
    for name in facts:
        for rank, values in enumerate(ranks):
            if values[name] != ranks[0][name]:
                hosts = ranks[0]["host"], values["host"]
                raise SpecError(
                    f"rank 0 and rank {rank} do not run with the same {name}",
                    found=f"rank 0 on {hosts[0]}: {ranks[0][name]}\nrank {rank} on {hosts[1]}: {values[name]}",
                    remedy=remedies.get(name, "start every rank with the same Python, packages and arguments"),
                )


@contextmanager
def explain_timeouts(seconds: float | None) -> Iterator[None]:
    """Replace gloo's "Timed out waiting" by an error that names the time-out and the next step.

    Raises:
        JobFailed: Another rank did not come within the time-out.
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
            remedy="read the logs of the other ranks: one failed, hangs or is slower; or set a longer --timeout",
        ) from error
