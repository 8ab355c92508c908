"""Nodes that srun is told of by name: in an option, or in a file that the option or SLURM_HOSTFILE names."""

from __future__ import annotations

from hpc_kit.slurm import nodelist
from pocketslurm.errors import CommandError


def named(text: str, expected: int | None = None) -> list[str]:
    """The hosts of an option: a node list, or with a slash in it a file."""
    return from_file(text, expected) if "/" in text else nodelist.expand(text)


def from_file(path: str, expected: int | None = None) -> list[str]:
    """The hosts of a file, one a line or more, `n1*3` for three times n1; read until there are as many as expected.

    Raises:
        Refused: It cannot be read, is empty, or has too few.
    """
    hosts: list[str] = []
    for line in _lines(path):
        hosts += _of_line(line)
        if expected is not None and len(hosts) >= expected:
            break
    if not hosts:
        raise CommandError("error: Hostlist is empty!")
    if expected is not None and len(hosts) < expected:
        raise CommandError("error: Too few NodeNames in Slurm Hostfile")
    return hosts


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:  # noqa: PTH123 - at the start of every srun
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise CommandError(f"error: slurm_allocate_resources error opening file {path}, {error.strerror}") from None
    return [line for line in lines if line]


def _of_line(line: str) -> list[str]:
    if "*" not in line:
        return nodelist.expand(line)
    pairs = (item.partition("*") for item in line.split(","))
    return [name for name, _, times in pairs for _ in range(int(times or 1))]
