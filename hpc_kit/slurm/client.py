"""Finds a Slurm and runs its commands, with time limits.

Every command of hpc-kit imports this module, so it imports next to nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm import cluster_identity
from hpc_kit.slurm.cluster_identity import find_command, find_configuration

if TYPE_CHECKING:
    from hpc_kit.slurm.job_status import JobStatus
    from hpc_kit.slurm.queries import QueueSnapshot

QUERY_SECONDS = 60.0
"""Time limit of a command that only queries: a busy controller answers late."""

PROBE_SECONDS = 5.0
"""Time limit of a probe. Without a configuration, Slurm asks DNS for one, and a broken DNS answers late."""

CONFIG_SECONDS = 30.0

SLURM_POLL_SECONDS = 10.0
"""Pause between two queries of a real Slurm, whose controller serves the whole site."""

EMBEDDED_POLL_SECONDS = 0.2

MAX_ARRAY_SIZE = 1001
"""Slurm's default, for a controller that does not print its configuration."""

MIN_JOB_AGE = 300
"""Slurm's default, in seconds."""


class Completed(NamedTuple):
    """A command that has ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs a command: `run_command`, or a substitute in a test."""

    def __call__(
        self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        """Run `argv` to its end."""
        ...


def run_command(
    argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
) -> Completed:
    """Run a command without a shell. The caller judges its exit status.

    Raises:
        SlurmUnavailable: The program does not exist, or does not end within `timeout` seconds.
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
            remedy="try again; `scontrol ping` shows whether the controller is up",
        ) from error
    return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)


_TYPED = lazy_pattern(
    r"(?<![\w(`/-])(?:sacct|scancel|scontrol|squeue) (?=-|\d|[A-Z]|(?:hold|ping|release|requeue|show|update)\b)"
)
"""Start of a command line in a text, such as `scontrol release 12`; not the name of a command in a sentence."""


class SlurmClient(NamedTuple):
    """Runs the commands of one Slurm."""

    environ: Mapping[str, str]
    """Environment of the commands; its PATH finds them."""

    embedded: bool
    runner: Runner = run_command
    typed_prefix: str = "hpc-kit embedded run"
    """Words that a user types before a command of the embedded Slurm."""

    @property
    def poll_seconds(self) -> float:
        """Seconds between two queries."""
        return EMBEDDED_POLL_SECONDS if self.embedded else SLURM_POLL_SECONDS

    def run(self, argv: Sequence[str], *, timeout: float | None = QUERY_SECONDS) -> Completed:
        """Run a command of Slurm without the user's variables that filter or reshape its output.

        Raises:
            SlurmUnavailable: SLURM_CONF names a missing file, or the command is missing or does not end in time.
        """
        from hpc_kit.slurm.command_environment import query_environment

        if not self.embedded:
            _check_configuration(self.environ)
        return self.runner(argv, timeout=timeout, environ=query_environment(self.environ))

    def typed_command(self, hint: str | None) -> str | None:
        """Return a hint with Slurm's commands as a user types them: those of the embedded Slurm are not on PATH.

        Commands in `$(...)` or backticks are lines of a batch script, where they are on PATH.
        """
        return _TYPED.sub(lambda match: f"{self.typed_prefix} {match[0]}", hint) if hint and self.embedded else hint

    def for_cluster(self, name: str | None) -> SlurmClient:
        """Return a client of one of the clusters in SLURM_CLUSTERS; otherwise this client.

        Each cluster counts its jobs from 1, so a job id is unambiguous within one cluster only.
        """
        queried = self.environ.get("SLURM_CLUSTERS")
        if self.embedded or not queried or not cluster_identity.is_one(name) or cluster_identity.is_one(queried):
            return self
        return self._replace(environ={**self.environ, "SLURM_CLUSTERS": str(name)})

    def for_each_cluster(self) -> list[SlurmClient]:
        """Return one client for each cluster in SLURM_CLUSTERS, or this client alone."""
        return [self.for_cluster(name) for name in cluster_identity.several(self.environ)] or [self]

    def query(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        """Return the status of jobs by id; see `queries.query_jobs`."""
        from hpc_kit.slurm.queries import query_jobs

        try:
            return query_jobs(self, ids)
        except SlurmUnavailable:
            if self._is_removed():
                return {}
            raise

    def query_queue(self, ids: Iterable[str], *, ended: bool = True) -> QueueSnapshot:
        """Return the queue of all users, and the status of some jobs by id; see `queries.query_queue`."""
        from hpc_kit.slurm.queries import query_queue

        found = query_queue(self, ids, ended=ended)
        return found._replace(unreachable=None) if found.unreachable and self._is_removed() else found

    def _is_removed(self) -> bool:
        """Return whether the folder with the embedded Slurm's commands was removed, and all its jobs with it.

        The state folder itself proves nothing: a command that was about to start creates it again, empty.
        """
        folder = self.environ.get("HPC_KIT_SLURM_STATE")
        return self.embedded and folder is not None and not os.path.exists(f"{folder}/bin")  # noqa: PTH110

    def check_available(self, cluster: str) -> None:
        """Check that there is a Slurm to submit to or to cancel jobs of."""
        if not self.embedded and find_command("sbatch", self.environ) is None:
            raise SlurmUnavailable(
                f"there is no Slurm here, and cluster {cluster} needs one",
                found="no sbatch on PATH",
                remedy="run this on a login node of that cluster, or add --cluster local for the embedded Slurm",
            )

    def max_array_size(self) -> int:
        """Return MaxArraySize: every index of an array is below it."""
        return self._configured("MaxArraySize", MAX_ARRAY_SIZE)

    def min_job_age(self) -> int:
        """Return MinJobAge: the seconds for which the controller remembers a job that has ended."""
        return self._configured("MinJobAge", MIN_JOB_AGE)

    def _configured(self, name: str, default: int) -> int:
        try:
            answer = self.run(["scontrol", "show", "config"], timeout=CONFIG_SECONDS)
        except SlurmUnavailable:
            return default
        match = re.search(rf"^\s*{name}\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
        return int(match[1]) if match else default


def has_slurm(environ: Mapping[str, str], runner: Runner | None = None) -> bool:
    """Return whether sbatch is on PATH and Slurm has a configuration.

    Raises:
        SlurmUnavailable: There is an sbatch, but SLURM_CONF names a missing file; or there is no configuration in the
            usual places, and no answer from sinfo.
    """
    if find_command("sbatch", environ) is None:
        return False
    if find_configuration(environ):
        return True
    _check_configuration(environ)
    # A site's wrapper, or a substitute, may provide sbatch alone.
    if find_command("sinfo", environ) is None:
        return True
    try:
        answer = (runner or run_command)(["sinfo", "--noheader"], timeout=PROBE_SECONDS, environ=environ)
    except SlurmUnavailable as error:
        # Do not guess: one answer would train on the login node, the other would wait for a queue that does not exist.
        raise SlurmUnavailable(
            "there is an sbatch here, but sinfo does not tell whether it has a cluster",
            found=error.found,
            remedy="try again, or name a cluster: --cluster slurm (HPC_KIT_CLUSTER=slurm), or --cluster local for the "
            "embedded Slurm",
        ) from error
    return answer.returncode == 0 or "configuration source" not in answer.stderr


def _check_configuration(environ: Mapping[str, str]) -> None:
    """Refuse a SLURM_CONF without a file, for which Slurm's commands would look for a minute.

    The file may be on a file system that is not mounted.
    """
    if environ.get("SLURM_CONF") and not find_configuration(environ):
        raise SlurmUnavailable(
            "the configuration of Slurm cannot be read",
            found=f"SLURM_CONF={environ['SLURM_CONF']}",
            remedy="set SLURM_CONF to the file, or unset it; or --cluster local for the embedded Slurm",
        )


def is_embedded(environ: Mapping[str, str]) -> bool:
    """Return whether the first sbatch on PATH is the embedded Slurm's own, as inside its jobs.

    Its folder contains the file `.pocketslurm`.
    """
    sbatch = find_command("sbatch", environ) if environ.get("HPC_KIT_SLURM_STATE") else None
    return sbatch is not None and os.path.exists(f"{os.path.dirname(sbatch)}/.pocketslurm")  # noqa: PTH110, PTH120


def user_name() -> str:
    """Return the name of the user of this process; in some containers a user has a number only."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
