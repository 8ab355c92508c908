"""When a job may run, how long and how often: the options that have nothing to do with its size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import HpcKitError
from hpc_kit.slurm import option_values, units
from hpc_kit.slurm.datetimes import parse_datetime
from pocketslurm.errors import Refused
from pocketslurm.queue.state import now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.settings import Partition, Settings


class Terms(NamedTuple):
    """Columns of a job's record, under the same names."""

    time_limit: int
    array_spec: str
    array_at_once: int
    dependency: str
    begin_time: float
    deadline: float
    requeue: bool
    umask: int


def read_terms(
    options: Mapping[str, str], environ: Mapping[str, str], settings: Settings, partition: Partition
) -> Terms:
    """Read them.

    Raises:
        Refused: One of them is none that Slurm takes.
    """
    begin, deadline = _instant(options, "begin"), _instant(options, "deadline")
    if deadline and deadline < begin:
        raise Refused("error: Incompatible begin and deadline time specification")
    if deadline and deadline < int(now()):
        raise Refused(denied="Requested time limit is invalid (missing or exceeds some limit)")
    spec, at_once = _array(options, settings.max_array_size)
    requeue = _requeue(options, default=settings.requeue)
    limit = _time_limit(options, partition)
    return Terms(limit, spec, at_once, _dependency(options), begin, deadline, requeue, _umask(environ))


def _time_limit(options: Mapping[str, str], partition: Partition) -> int:
    if options.get("time"):
        seconds = units.parse_time(options["time"])
        if seconds:  # zero means the partition's own limit
            return seconds if seconds < 0 else -(-seconds // 60) * 60
    return partition.max_time if partition.default_time is None else partition.default_time


def _array(options: Mapping[str, str], max_array_size: int) -> tuple[str, int]:
    text = options.get("array")
    if not text:
        return "", 0
    try:
        # Slurm takes a limit of 0 for none.
        spec = option_values.parse_array(text.removesuffix("%0"), max_array_size)
    except HpcKitError:
        raise Refused(denied="Invalid job array specification") from None
    return option_values.fold_indices(spec.indices), spec.at_once or 0


def _dependency(options: Mapping[str, str]) -> str:
    text = options.get("dependency", "")
    try:
        if text:
            option_values.parse_dependency(text)
    except HpcKitError:
        raise Refused(denied="Job dependency problem") from None
    return text


def _instant(options: Mapping[str, str], name: str) -> float:
    return parse_datetime(options[name]).timestamp() if options.get(name) else 0.0


def _requeue(options: Mapping[str, str], *, default: bool) -> bool:
    return "requeue" in options or ("no-requeue" not in options and default)


def _umask(environ: Mapping[str, str]) -> int:
    try:
        return int(environ["SLURM_UMASK"], 8)
    except (KeyError, ValueError):
        own = os.umask(0o022)
        os.umask(own)
        return own
