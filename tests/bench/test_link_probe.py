"""`cluster discover --probe`: the all-reduces of `bench comm` become alpha and beta of the links."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from hpc_kit.bench.link_probe import LinkProbe, probe_links
from hpc_kit.slurm.client import Completed, SlurmClient

ALPHA, BETA = 2e-5, 1e-10


def all_reduces(backend: str, ranks: int) -> str:
    """A result of `bench comm`, whose all-reduces are two passes around a ring of `ranks`."""
    rows = [
        {
            "collective": "all_reduce",
            "algorithm": "library",
            "backend": backend,
            "ranks": ranks,
            "bytes": size,
            "seconds": 2 * ALPHA + 2 * (ranks - 1) / ranks * size * BETA,
        }
        for size in (4 << 10, 4 << 20, 64 << 20)
    ]
    return "welcome\n" + json.dumps({"results": rows}, indent=1)


class Site:
    """A Slurm whose srun prints the result of the backend that the command asks for."""

    def __init__(self, errors: str = "") -> None:
        self.errors = errors
        self.seen: list[str] = []

    def run(
        self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        self.seen.append(" ".join(argv))
        if self.errors:
            return Completed(tuple(argv), 1, "", self.errors)
        words = dict(word.lstrip("-").split("=") for word in argv if word.startswith("--") and "=" in word)
        ranks = int(words["nodes"]) * int(words["ntasks-per-node"])
        return Completed(tuple(argv), 0, all_reduces(argv[argv.index("--backends") + 1], ranks), "")

    def probe(self, *, gpus: int, nodes: int) -> LinkProbe:
        client = SlurmClient({"PATH": "/usr/bin:/bin"}, embedded=False, runner=self.run)
        return probe_links(client, "python", ["--account=physics"], gpus=gpus, nodes=nodes)


@pytest.mark.parametrize(("gpus", "backend"), [(4, "nccl"), (0, "gloo")])
def test_alpha_and_beta_come_from_two_jobs(gpus: int, backend: str) -> None:
    site = Site()
    found = site.probe(gpus=gpus, nodes=10)
    assert {fact.name: fact.value for fact in found.facts} == {
        "node.link_alpha": pytest.approx(ALPHA),
        "node.link_beta": pytest.approx(BETA),
        "node.network_alpha": pytest.approx(ALPHA),
        "node.network_beta": pytest.approx(BETA),
    }
    assert found.gaps == ()
    inside, across = site.seen
    assert f"--nodes=1 --ntasks-per-node={gpus or 2} " in inside
    assert "--nodes=2 --ntasks-per-node=1 " in across
    assert all(f"--backends {backend}" in line and "--account=physics" in line for line in site.seen)
    assert [line.count("--gpus-per-node") for line in site.seen] == ([1, 1] if gpus else [0, 0])
    sources = {fact.name: fact.source for fact in found.facts}
    assert sources["node.network_alpha"] == f"bench comm by srun: all-reduce of {backend}, 2 nodes: 20 us"
    assert sources["node.link_beta"].endswith("ranks on a node: 10 GB/s")


def test_one_gpu_and_one_node_have_no_links() -> None:
    assert Site().probe(gpus=1, nodes=1) == LinkProbe((), ())


def test_nodes_without_torch_leave_a_gap() -> None:
    errors = (
        "hpc-kit: the backend nccl is not built in\n  found  torch\nsrun: error: n1: task 0: Exited with exit code 2\n"
    )
    found = Site(errors).probe(gpus=8, nodes=2)
    assert found.facts == ()
    assert found.gaps == (
        "link_alpha, link_beta: the backend nccl is not built in",
        "network_alpha, network_beta: the backend nccl is not built in",
    )
