"""Debian's Slurm commands as parsers: they need a configuration file, and neither daemon nor cluster."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CONFIGURATION = """\
ClusterName=oracle
SlurmctldHost=localhost
AuthType=auth/none
CredType=cred/none
SlurmUser=root
NodeName=n1 CPUs=8
PartitionName=main Nodes=n1 Default=YES
"""

_PREFIX = "sbatch: "
_OWN = {"test-only", "verbose"}


class Refused(Exception):
    """The real parser does not take it; the text is what it wrote."""


def sbatch_defined_options(
    script: str, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of a batch script by name, as the real sbatch prints them.

    Raises:
        Refused: sbatch ended before it had listed them.
    """
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder, "job.sbatch")
        batch.write_text(script, newline="")
        with _sbatch(folder, [*argv, str(batch)], variables or {}) as lines:
            options: dict[str, str] = {}
            heard = []
            for line in lines:
                heard.append(line)
                if line == f"{_PREFIX}end of defined options":
                    return options
                name, colon, value = line.removeprefix(_PREFIX).partition(":")
                if colon and len(name) >= 20 and name.strip() not in _OWN:
                    options[name.strip()] = value[1:]
            raise Refused("\n".join(heard))


def scontrol(*argv: str) -> str:
    """What `scontrol show hostnames` or `hostlist` prints; they ask nobody."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["scontrol", *argv], env=_environ(folder), capture_output=True, text=True, timeout=20, check=False
        )
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def messages(command: str, *argv: str) -> str:
    """What a command writes about an argv that it refuses, or its help."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [command, *argv],
            env=_environ(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    return done.stdout + done.stderr


def _environ(folder: str) -> dict[str, str]:
    configuration = Path(folder, "slurm.conf")
    configuration.write_text(CONFIGURATION)
    return {"PATH": os.environ["PATH"], "SLURM_CONF": str(configuration), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


@contextmanager
def _sbatch(folder: str, argv: list[str], variables: Mapping[str, str]) -> Iterator[Iterator[str]]:
    """Its messages line by line; whoever has read enough leaves, and sbatch need not wait for a controller."""
    with subprocess.Popen(
        ["sbatch", "-v", "--test-only", *argv],
        env={**_environ(folder), **variables},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="surrogateescape",
    ) as process:
        stderr = process.stderr
        if stderr is None:
            raise Refused("no stderr")
        try:
            yield (line.rstrip("\n") for line in stderr)
        finally:
            process.kill()
