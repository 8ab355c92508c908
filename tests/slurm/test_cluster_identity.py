"""Two clusters are compared by what is known of them."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.cluster_identity import ClusterIdentity, ClusterMatch, compare_clusters

SAME, OTHER, UNKNOWN = ClusterMatch


def real(name: str | None) -> ClusterIdentity:
    return ClusterIdentity(embedded=False, name=name)


def embedded(state: str | None) -> ClusterIdentity:
    return ClusterIdentity(embedded=True, state=state)


@pytest.mark.parametrize(
    ("queried", "owner", "match"),
    [
        (real("alpha"), real("alpha"), SAME),
        (real("alpha"), real("beta"), OTHER),
        (real("alpha,beta"), real("beta"), SAME),
        (real("all"), real("beta"), SAME),
        (real("alpha"), real("alpha,beta"), UNKNOWN),  # sbatch chose one of them
        (real("alpha"), real(None), UNKNOWN),
        (real(None), real("alpha"), UNKNOWN),
        (embedded("/a"), embedded("/a"), SAME),
        (embedded("/a"), embedded("/b"), OTHER),
        (embedded(None), embedded("/b"), OTHER),
        (embedded("/a"), embedded(None), UNKNOWN),
        (embedded("/a"), real("alpha"), UNKNOWN),
        (real("alpha"), embedded("/a"), UNKNOWN),
    ],
)
def test_clusters_are_compared(queried: ClusterIdentity, owner: ClusterIdentity, match: ClusterMatch) -> None:
    assert compare_clusters(queried, owner) is match
