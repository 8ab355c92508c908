"""The one place that starts Slurm's commands; whoever needs them is handed a runner, tests hand in their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from hpc_kit.errors import SlurmUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUERY_SECONDS = 60.0
"""How long a command that only asks may take: a busy controller answers late."""


class Completed(NamedTuple):
    """A command that has ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Whatever runs a command: `run`, or a test's stand-in."""

    def __call__(
        self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        """Run `argv` to its end."""
        ...


def run(argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None) -> Completed:
    """Run a command, never through a shell; its exit status is the caller's to judge.

    Raises:
        SlurmUnavailable: There is no such program, or it does not answer within `timeout` seconds.
    """
    import subprocess

    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=None if environ is None else dict(environ),
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise SlurmUnavailable(
            f"cannot run {argv[0]}",
            found=f"{argv[0]}: {error.strerror}",
            remedy="run this on a login node, or use --cluster local for the embedded Slurm",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmUnavailable(
            f"{argv[0]} does not answer",
            found=f"{' '.join(argv)[:200]}: nothing within {timeout:g} s",
            remedy="try again; `scontrol ping` tells whether the controller is up",
        ) from error
    return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)
