"""The cluster of a run is compared with the queried one by what is known of both."""

from __future__ import annotations

import pytest

from hpc_kit.runs.cluster_match import ClusterMatch, match_cluster
from hpc_kit.runs.logs import LogPatterns
from hpc_kit.runs.record import RecordedEnvironment, RunRecord
from hpc_kit.slurm.client import SlurmClient

SAME, OTHER, UNKNOWN = ClusterMatch


def real(names: str | None) -> SlurmClient:
    # Without this SLURM_CONF, the name would come from the slurm.conf of this machine.
    environ = {"SLURM_CONF": "/nowhere"} | ({"SLURM_CLUSTERS": names} if names else {})
    return SlurmClient(environ, embedded=False)


def embedded(state: str | None) -> SlurmClient:
    return SlurmClient({"HPC_KIT_SLURM_STATE": state} if state else {}, embedded=True)


def record(slurm: str, *, name: str | None = None, state: str | None = None) -> RunRecord:
    return RunRecord(
        job_id="12",
        job_name="train",
        submitted="",
        logs=LogPatterns(batch="", ranks=""),
        slurm=slurm,
        slurm_cluster=name,
        environment=RecordedEnvironment(slurm_state=state),
    )


@pytest.mark.parametrize(
    ("queried", "owner", "match"),
    [
        (real("alpha"), record("system", name="alpha"), SAME),
        (real("alpha"), record("system", name="beta"), OTHER),
        (real("alpha,beta"), record("system", name="beta"), SAME),
        (real("all"), record("system", name="beta"), SAME),
        (real("alpha"), record("system", name="alpha,beta"), UNKNOWN),  # sbatch chose one of them
        (real("alpha"), record("system"), UNKNOWN),
        (real(None), record("system", name="alpha"), UNKNOWN),
        (embedded("/a"), record("embedded", state="/a"), SAME),
        (embedded("/a"), record("embedded", state="/b"), OTHER),
        (embedded(None), record("embedded", state="/b"), UNKNOWN),  # it could not be set up
        (embedded("/a"), record("embedded"), UNKNOWN),
        (embedded("/a"), record("system", name="alpha"), UNKNOWN),
        (real("alpha"), record("embedded", state="/a"), UNKNOWN),
        (real("alpha"), record("ssh"), UNKNOWN),
    ],
)
def test_clusters_are_compared(queried: SlurmClient, owner: RunRecord, match: ClusterMatch) -> None:
    assert match_cluster(owner, queried) is match
