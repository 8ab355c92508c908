"""Host names, addresses and network interfaces."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpc_kit.runtime.rendezvous import network


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.3", True), ("::1", True), ("localhost.localdomain", True), ("n1", False)],
)
def test_the_loopback_is_recognized_by_name_and_by_address(host: str, expected: bool) -> None:
    assert network.is_loopback(host) is expected


def test_the_workers_of_torchrun_have_the_name_of_their_agents_node_unless_slurm_names_it() -> None:
    worker = {"HPC_KIT_AGENT_HOST": "b", "GROUP_RANK": "1"}
    assert network.this_node_name(worker) == "b"
    assert network.this_node_name(worker | {"SLURMD_NODENAME": "n2"}) == "n2"
    # mpiexec of MPICH 4 passes the first node's variables to the agents of all nodes.
    assert network.this_node_name(worker | {"SLURMD_NODENAME": "n1", "MPI_LOCALRANKID": "0"}) == "b"


@pytest.mark.parametrize(
    ("answer", "address"),
    [
        (b"NodeName=n1 NodeAddr=10.0.0.7 State=DRAIN Reason=L\xfcfter [root@2026]", "10.0.0.7"),
        (b"NodeName=n1 NodeAddr=n1 State=IDLE", None),
        (b"Node n1 not found", None),
    ],
    ids=["a reason in Latin-1", "only the name", "unknown"],
)
def test_slurm_gives_the_address_of_a_node(
    answer: bytes, address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answer").write_bytes(answer)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\ncat '{tmp_path}/answer'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    network.slurm_address.cache_clear()
    assert network.slurm_address("n1") == address
    network.slurm_address.cache_clear()


def test_a_busy_port_returns_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert network.listen(taken.getsockname()[1], network.ALL_ADDRESSES) is None
        assert network.listen(taken.getsockname()[1], network.LOOPBACK) is None


@pytest.mark.parametrize("dual", [True, False])
def test_a_listener_on_all_interfaces_is_reached_by_any_address(dual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual and socket.has_ipv6)
    listener = network.listen(0, network.ALL_ADDRESSES)
    assert listener is not None
    with listener:
        port = listener.getsockname()[1]
        assert [network.is_reachable(host, port) for host in ("127.0.0.1", "127.0.0.3")] == [True, True]
    assert not network.is_reachable("127.0.0.1", port)


def test_the_interface_of_the_loopback_is_lo() -> None:
    assert network.source_address("127.0.0.2") == "127.0.0.1"
    assert network.interface_with("127.0.0.1") == "lo"


def test_an_address_of_no_interface_returns_none() -> None:
    assert network.interface_with("192.0.2.1") is None


def test_an_interface_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_ipv4_of", {"lo": "127.0.0.1", "eth0": "10.1.0.3", "ib0": "10.2.0.3"}.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "ib0")])
    assert network.interface_with("10.2.0.3") == "ib0"


def test_ipv4_comes_before_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::3", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.0.3", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: [six, four])
    assert network.lookup("n3")[0] == "10.1.0.3"
