"""How one cluster's Slurm is reached: the environment of its commands, who runs them, how often they may be asked."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm import cluster_identity as cluster_name
from hpc_kit.slurm.client import QUERY_SECONDS, run
from hpc_kit.slurm.command_environment import query_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpc_kit.slurm.client import Completed, Runner
    from hpc_kit.slurm.job_status import JobStatus
    from hpc_kit.slurm.queries import QueueSnapshot
    from hpc_kit.slurm.versions import SlurmVersion
    from hpc_kit.spec.cluster import Cluster

SYSTEM_PAUSE = 10.0
"""Seconds between two questions to a real Slurm: its controller serves the whole site."""

EMBEDDED_PAUSE = 0.2

MAX_ARRAY_SIZE = 1001
"""Slurm's own default, where `scontrol show config` does not tell."""

MIN_JOB_AGE = 300

_CONFIG_SECONDS = 30.0


class Access(NamedTuple):
    """One Slurm, as this process reaches it."""

    environ: Mapping[str, str]
    embedded: bool
    runner: Runner = run

    @property
    def pause(self) -> float:
        """Seconds between two questions."""
        return EMBEDDED_PAUSE if self.embedded else SYSTEM_PAUSE

    def ask(self, argv: Sequence[str], *, timeout: float | None = QUERY_SECONDS) -> Completed:
        """Run one of its commands, without what the user has set to filter its answers."""
        return self.runner(argv, timeout=timeout, environ=query_environment(self.environ))

    def at(self, cluster: str | None) -> Access:
        """Of several clusters that are asked, the one of this name alone: each counts its jobs from 1."""
        asked = self.environ.get("SLURM_CLUSTERS")
        if self.embedded or not asked or not cluster_name.is_one(cluster) or cluster_name.is_one(asked):
            return self
        return self._replace(environ={**self.environ, "SLURM_CLUSTERS": str(cluster)})

    def each(self) -> list[Access]:
        """Every one of the clusters that are asked by name."""
        return [self.at(name) for name in cluster_name.several(self.environ)] or [self]

    def query(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        """The state of jobs by id; see `queries.query`."""
        from hpc_kit.slurm.queries import query_jobs

        try:
            return query_jobs(self.runner, ids, self.environ)
        except SlurmUnavailable:
            if self._is_gone():
                return {}
            raise

    def survey(self, ids: Iterable[str], *, ended: bool = True) -> QueueSnapshot:
        """Everybody's queue, and the state of some jobs by id; see `queries.survey`."""
        from hpc_kit.slurm.queries import query_queue

        found = query_queue(self.runner, ids, self.environ, ended=ended)
        return found._replace(unreachable=None) if found.unreachable and self._is_gone() else found

    def _is_gone(self) -> bool:
        """Whether the embedded Slurm's commands were taken away, and with them every job: nobody will answer any more.

        Its folder says nothing: a command that was just starting makes that anew, empty.
        """
        folder = self.environ.get("HPC_KIT_SLURM_STATE")
        return self.embedded and folder is not None and not os.path.exists(f"{folder}/bin")  # noqa: PTH110

    def require(self, cluster_name: str) -> None:
        """Refuse to go on where there is no Slurm to take a job or to end one.

        Raises:
            SlurmUnavailable: There is none on PATH.
        """
        if not self.embedded and shutil.which("sbatch", path=self.environ.get("PATH", os.defpath)) is None:
            raise SlurmUnavailable(
                f"there is no Slurm here, and cluster {cluster_name} is a real one",
                found="no sbatch on PATH",
                remedy="run this on a login node of that cluster, or add --cluster local for the embedded Slurm",
            )

    def max_array_size(self) -> int:
        """The index that no element of an array may reach (MaxArraySize)."""
        return self._configured("MaxArraySize", MAX_ARRAY_SIZE)

    def remembered(self) -> int:
        """Seconds that the controller remembers a job that has ended (MinJobAge)."""
        return self._configured("MinJobAge", MIN_JOB_AGE)

    def _configured(self, name: str, default: int) -> int:
        try:
            answer = self.ask(["scontrol", "show", "config"], timeout=_CONFIG_SECONDS)
        except SlurmUnavailable:
            return default
        match = re.search(rf"^\s*{name}\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
        return int(match[1]) if match else default


def access_of(cluster: Cluster, environ: Mapping[str, str] | None = None) -> Access:
    """The Slurm of a cluster: the one on PATH, or the embedded one with the settings of the cluster's file.

    That it is there is for `Access.require` to say: what the runs left behind can be read without it.
    """
    environ = dict(os.environ if environ is None else environ)
    if cluster.slurm == "embedded":
        # These name real clusters.
        own = {name: value for name, value in environ.items() if name not in {"SLURM_CLUSTERS", "SBATCH_CLUSTERS"}}
        return Access(embedded_environ(cluster, own), embedded=True)
    return Access(environ, embedded=False)


def version_of(cluster: Cluster | None, environ: Mapping[str, str], *, here: bool = False) -> SlurmVersion | None:
    """The release of a cluster's Slurm: as its file says, else of the Slurm here, asked once; None: not known.

    Args:
        cluster: The cluster; None: whatever is here.
        environ: The environment in which its commands are found.
        here: Its sbatch is about to be asked, so whether there is a Slurm at all need not be.
    """
    from hpc_kit.slurm.versions import parse_version

    if cluster is not None and cluster.slurm_version is not None:
        return parse_version(cluster.slurm_version)
    if cluster is not None and cluster.slurm == "embedded":
        from hpc_kit.slurm import embedded

        return parse_version(embedded.VERSION)
    from hpc_kit.slurm.presence import find_slurm
    from hpc_kit.slurm.versions import detect_version

    try:
        return detect_version(environ) if here or find_slurm(environ) else None
    except SlurmUnavailable:
        return None


def embedded_environ(cluster: Cluster, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the embedded Slurm's commands are found, set up as the cluster file says."""
    from hpc_kit.slurm import embedded

    wanted, node = cluster.embedded, cluster.node
    settings = {
        "nodes": wanted.nodes,
        "cpus": node.cpus,
        "memory": _mib(node.mem),
        "gpus": node.gpus,
        "gpu_type": node.gpu,
        "partitions": list(wanted.partitions),
        "max_array_size": wanted.max_array_size,
        "kill_wait": wanted.kill_wait,
        "mpi_default": wanted.mpi_default,
        "strict": wanted.strict,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    # Each cluster file is a cluster of its own, with its own queue.
    return embedded.environment(given, "" if cluster.name == "local" else cluster.name, environ)


def _mib(size: str | int | None) -> int | None:
    from hpc_kit.slurm.units import parse_memory

    return None if size is None else parse_memory(str(size))
