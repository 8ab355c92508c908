"""`cluster discover --probe`: the network cards and GPU links of a node become keys of [node]."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import Completed, SlurmClient
from hpc_kit.spec.node_probe import PROGRAM, probe_node


def client(answer: object, status: int = 0, seen: list[Sequence[str]] | None = None) -> SlurmClient:
    """A Slurm whose srun prints an answer behind the message of a login script."""

    def run(
        argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        if seen is not None:
            seen.append(argv)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return Completed(tuple(argv), status, f"welcome\n{text}\n", "srun: error: Invalid account" if status else "")

    return SlurmClient({"PATH": "/usr/bin:/bin"}, embedded=False, runner=run)


def found(**values: object) -> dict[str, object]:
    return {"interfaces": {}, "slingshot": False, "ports": [], "nvlinks": 0, **values}


def values(answer: object) -> dict[str, object]:
    return {fact.name: fact.value for fact in probe_node(client(answer), [])}


def test_infiniband_cards_are_added_up() -> None:
    ports = [["mlx5_core", "InfiniBand", 200], ["mlx5_core", "InfiniBand", 200], ["mlx5_core", "Ethernet", 25]]
    assert values(found(interfaces={"lo": None, "ib0": 200000, "eth0": 25000}, ports=ports, nvlinks=12)) == {
        "node.interfaces": ["eth0", "ib0"],
        "node.network": 400,
        "node.fabric": "infiniband",
        "node.nvlinks": 12,
    }


def test_without_infiniband_the_fastest_interface_counts() -> None:
    assert values(found(interfaces={"lo": None, "eth0": 1000, "eth1": 100000})) == {
        "node.interfaces": ["eth0", "eth1"],
        "node.network": 100,
        "node.fabric": "ethernet",
    }


def test_the_cards_of_slingshot_are_added_up() -> None:
    cards = {f"hsn{number}": 200000 for number in range(4)}
    probed = values(found(interfaces={"nmn0": 1000, **cards}, slingshot=True))
    assert (probed["node.network"], probed["node.fabric"]) == (800, "slingshot")


@pytest.mark.parametrize(
    ("driver", "layer", "fabric"),
    [("hfi1", "InfiniBand", "omnipath"), ("efa", "Unspecified", "efa"), ("mlx5_core", "Ethernet", "ethernet")],
)
def test_the_driver_of_a_port_names_its_fabric(driver: str, layer: str, fabric: str) -> None:
    probed = values(found(interfaces={"eth0": 25000}, ports=[[driver, layer, 100]]))
    assert (probed["node.network"], probed["node.fabric"]) == (100, fabric)


def test_a_node_that_tells_no_speed_adds_its_interfaces_only() -> None:
    assert values(found(interfaces={"eth0": None})) == {"node.interfaces": ["eth0"]}


def test_the_options_reach_srun() -> None:
    seen: list[Sequence[str]] = []
    probe_node(client(found(), seen=seen), ["--account=physics"])
    assert "--account=physics" in seen[0]


@pytest.mark.parametrize(("answer", "status"), [("", 1), ("no json", 0)])
def test_a_job_that_did_not_run_is_an_error(answer: str, status: int) -> None:
    with pytest.raises(SlurmUnavailable, match="the probe did not run") as error:
        probe_node(client(answer, status), [])
    assert "--srun=--account=NAME" in str(error.value.remedy)


def test_the_program_runs_on_this_machine() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert set(json.loads(done.stdout)) == set(found())
