"""Opens the client of the Slurm that a cluster file means."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from hpc_kit.errors import AnswerNo, SlurmUnavailable
from hpc_kit.slurm.client import SlurmClient, has_slurm

if TYPE_CHECKING:
    from hpc_kit.slurm.versions import SlurmVersion
    from hpc_kit.spec.cluster import Cluster


def open_client(cluster: Cluster, environ: Mapping[str, str] | None = None) -> SlurmClient:
    """Return a client of the Slurm on PATH, or of the embedded Slurm with the settings of the cluster file.

    The Slurm need not exist: a run can be read without it. `SlurmClient.check_available` checks.
    """
    environ = dict(os.environ if environ is None else environ)
    if cluster.slurm != "embedded":
        return SlurmClient(environ, embedded=False)
    # These variables name real clusters.
    own = {name: value for name, value in environ.items() if name not in {"SLURM_CLUSTERS", "SBATCH_CLUSTERS"}}
    client = SlurmClient(embedded_environment(cluster, own), embedded=True)
    if cluster.name in {"", "local"}:
        return client
    return client._replace(typed_prefix=f"{client.typed_prefix} --cluster {cluster.name}")


def unusable_client(environ: Mapping[str, str], error: AnswerNo) -> SlurmClient:
    """Return a client of an embedded Slurm that `open_client` could not set up: each query fails with its error."""
    from hpc_kit.slurm.embedded import STATE_VARIABLE

    def fail(argv: Sequence[str], **_: object) -> NoReturn:  # noqa: ARG001 - the signature of a runner
        raise SlurmUnavailable(error.what, found=error.found, remedy=error.remedy) from error

    own = {name: value for name, value in environ.items() if name != STATE_VARIABLE}
    return SlurmClient(own, embedded=True, runner=fail)


def slurm_version_of(
    cluster: Cluster | None, environ: Mapping[str, str], *, is_present: bool = False
) -> SlurmVersion | None:
    """Return the release of a cluster's Slurm: from its file, else from the Slurm on PATH; None: unknown.

    Without a cluster, the Slurm on PATH is meant. `is_present`: sbatch is about to run anyway, so do not probe whether
    there is a Slurm.
    """
    from hpc_kit.slurm.versions import parse_version

    if cluster is not None and cluster.slurm_version is not None:
        return parse_version(cluster.slurm_version)
    if cluster is not None and cluster.slurm == "embedded":
        from hpc_kit.slurm import embedded

        return parse_version(embedded.VERSION)
    from hpc_kit.slurm.versions import detect_version

    try:
        return detect_version(environ) if is_present or has_slurm(environ) else None
    except SlurmUnavailable:
        return None


def embedded_environment(cluster: Cluster, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the embedded Slurm's commands, with the settings of the cluster file."""
    from hpc_kit.slurm import embedded
    from hpc_kit.slurm.units import parse_memory

    options, node = cluster.embedded, cluster.node
    settings = {
        "nodes": options.nodes,
        "cpus": node.cpus,
        "memory": None if node.mem is None else parse_memory(str(node.mem)),
        "gpus": node.gpus,
        "gpu_type": node.gpu,
        "partitions": list(options.partitions),
        "max_array_size": options.max_array_size,
        "kill_wait": options.kill_wait,
        "mpi_default": options.mpi_default,
        "strict": options.strict,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    # Each cluster file is a cluster of its own, with its own queue.
    return embedded.environment(given, "" if cluster.name == "local" else cluster.name, environ)
