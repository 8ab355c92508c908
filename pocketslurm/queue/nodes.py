"""The virtual nodes and partitions."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.nodelist import expand
from pocketslurm.errors import CommandError
from pocketslurm.queue.node_selection import NodeResources, all_nodes

if TYPE_CHECKING:
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.settings import Partition, Settings


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers in a text as numbers.

    >>> sorted(["n10", "n2"], key=natural)
    ['n2', 'n10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]


# Each pass of the controller and each row of a listing asks for the nodes.
@lru_cache
def _expand(text: str) -> tuple[str, ...]:
    return tuple(expand(text))


def expand_names(text: str) -> tuple[str, ...]:
    """Return the nodes of a list that a user typed; none if it is malformed."""
    try:
        return _expand(text)
    except HpcKitError:
        return ()


def names(settings: Settings) -> tuple[str, ...]:
    """Return the names of all nodes."""
    return _expand(settings.nodes)


def of_partition(settings: Settings, partition: Partition) -> tuple[str, ...]:
    """Return the names of a partition's nodes."""
    return _expand(partition.nodes) if partition.nodes else names(settings)


def partition(settings: Settings, name: str) -> Partition:
    """Return a partition by name; unless the settings are strict, an unknown name means the default one.

    Raises:
        CommandError: There is none.
    """
    for each in settings.partitions:
        if each.name == name:
            return each
    if not settings.strict:
        return settings.partitions[0]._replace(name=name)
    raise CommandError(f"error: invalid partition specified: {name}", denied="Invalid partition name specified")


def partitions(settings: Settings, listed: str | None) -> list[Partition]:
    """Return all partitions, or those in a list of names."""
    wanted = listed.split(",") if listed is not None else []
    found = [each for each in settings.partitions if listed is None or each.name in wanted]
    known = {each.name for each in settings.partitions}
    others = [] if settings.strict else [name for name in wanted if name not in known]
    return found + [partition(settings, name) for name in others]


def over_limit(partition: Partition, time_limit: int) -> bool:
    """Return whether a job's time limit exceeds its partition's."""
    # UNLIMITED is negative, for the partition and for the job.
    return partition.max_time >= 0 and not 0 <= time_limit <= partition.max_time


def all_of(state: StateDirectory) -> list[NodeResources]:
    """Return all nodes with all their resources."""
    return all_nodes(state.settings, names(state.settings))


def in_partition(settings: Settings, partition: Partition) -> list[NodeResources]:
    """Return a partition's nodes with all their resources."""
    return all_nodes(settings, of_partition(settings, partition))
