"""What a rank says of its place, by recorded answers of torch, nvidia-smi and the kernel."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime import placement
from hpc_kit.runtime.placement import Placement
from hpc_kit.runtime.rendezvous import network

SMI = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-48aeb943-9458-4282-da24-e5f49e0db44b)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-fb6c92a8-7ae9-a5eb-ba75-fb8fe2a5b5a4)
  MIG 3g.20gb     Device  0: (UUID: MIG-0fb8d2a6-3a0b-5b5e-9a41-55f0a2f5d5c5)
  MIG 1g.5gb      Device  1: (UUID: MIG-5d2bb0e9-5c4b-5b4f-8d4f-5b7f5c7bd4f5)
"""
DRIVER = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"


def rank(number: int, **others: object) -> Placement:
    values: dict[str, object] = {
        "rank": number,
        "local_rank": number % 2,
        "host": f"n{number // 2 + 1}",
        "device": f"cuda:{number % 2}",
        "uuid": f"GPU-{number}",
        "cpus": (4 * (number % 2), 4 * (number % 2) + 1),
        "numa": (number % 2,),
        "interface": "ib0",
        "python": "3.11.7",
        "torch": "2.13.0",
        "driver": "535.129.03",
    }
    return Placement(**values | others)  # type: ignore[arg-type]


def test_gpus_and_their_instances_have_their_own_names() -> None:
    found = placement.parse_nvidia_smi(SMI)
    assert list(found) == ["0", "1", "1:0", "1:1"]
    assert found["1"].startswith("GPU-fb6c")
    assert found["1:1"].startswith("MIG-5d2b")


@pytest.mark.parametrize(
    ("text", "version"), [(DRIVER, "535.129.03"), (OPEN_DRIVER, "570.86.15"), ("6.7.0\n", "6.7.0")]
)
def test_the_drivers_version_is_read_from_the_kernel(text: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert placement.driver_version([tmp_path / "none", tmp_path / "version"]) == version
    assert placement.driver_version([tmp_path / "none"]) is None


@pytest.mark.parametrize(
    ("visible", "told", "expected"),
    [
        ("0,1", "fb6c92a8-7ae9", "GPU-fb6c92a8-7ae9"),
        ("GPU-48ae,GPU-fb6c", "fb6c", "GPU-fb6c"),
        ("MIG-0fb8,MIG-5d2b", "fb6c", "MIG-5d2b"),
        ("", "GPU-fb6c", "GPU-fb6c"),
    ],
)
def test_the_device_is_known_by_its_uuid(
    visible: str, told: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid=told))
    assert placement.device_uuid(torch.device("cuda", 1), {"CUDA_VISIBLE_DEVICES": visible}) == expected


@pytest.mark.parametrize(
    ("visible", "expected"), [("1", "GPU-fb6c"), ("", "GPU-48ae"), ("GPU-12", "GPU-12"), ("7", "None")]
)
def test_an_older_torch_leaves_it_to_nvidia_smi(
    visible: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace())
    found = placement.device_uuid(torch.device("cuda", 0), {"CUDA_VISIBLE_DEVICES": visible})
    assert str(found).startswith(expected)


def test_without_anybody_who_tells_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace())
    assert placement.device_uuid(torch.device("cuda", 0), {}) is None
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _device: SimpleNamespace(uuid=b"\x01\xff"))
    assert placement.device_uuid(torch.device("xpu", 0), {}) == "01ff"


def test_memory_nodes_are_those_of_the_cpus(tmp_path: Path) -> None:
    for node, cpus in enumerate(("0-3,16-19", "4-7", "8")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert placement.numa_nodes([17, 8], tmp_path) == (0, 2)
    assert placement.numa_nodes([99], tmp_path) == ()
    assert placement.numa_nodes([0], tmp_path / "none") == ()


def test_numbers_are_folded_as_the_kernel_writes_them() -> None:
    assert [placement.fold_numbers(numbers) for numbers in ([0, 1, 2, 8], [3], [], [0, 2])] == [
        "0-2,8",
        "3",
        "-",
        "0,2",
    ]


def test_this_process_says_its_place_and_is_read_back() -> None:
    mine = placement.current_placement(3, 1, "n2", torch.device("cpu"), "lo")
    assert (mine.rank, mine.host, mine.device, mine.uuid, mine.driver) == (3, "n2", "cpu", None, None)
    assert mine.cpus
    assert Placement.from_json(mine.to_json().encode()) == mine


def test_the_table_has_a_line_a_rank_and_marks_what_differs() -> None:
    everybody = [rank(0), rank(1), rank(2), rank(3, driver="470.1", interface=None, numa=())]
    assert placement.placement_table(everybody) == (
        "rank  host  device  UUID   CPUs  NUMA  interface  python  torch   driver\n"
        "0     n1    cuda:0  GPU-0  0-1   0     ib0        3.11.7  2.13.0  535.129.03\n"
        "1     n1    cuda:1  GPU-1  4-5   1     ib0        3.11.7  2.13.0  535.129.03\n"
        "2     n2    cuda:0  GPU-2  0-1   0     ib0        3.11.7  2.13.0  535.129.03\n"
        "3     n2    cuda:1  GPU-3  4-5   -     -*         3.11.7  2.13.0  470.1*\n"
        "* differs from most ranks\n"
    )
    assert placement.placement_table(everybody[:2]).count("\n") == 3


def test_where_nccl_takes_another_interface_the_report_says_so_and_how_to_name_one() -> None:
    said = placement.placement_table([rank(number, interface="eth0", nccl="ib0") for number in range(4)])
    assert said.splitlines()[-2:] == [
        "NCCL takes ib0 by itself, and the ranks met on eth0 (n1, n2);",
        "if NCCL does not come up: export NCCL_SOCKET_IFNAME==eth0",
    ]
    for alike in ({"interface": "ib0"}, {"interface": "eth0", "nccl": None}, {"interface": "eth0", "host": "n1"}):
        same = [rank(number, **{"nccl": "ib0", **alike}) for number in range(4)]
        assert "NCCL" not in placement.placement_table(same)


@pytest.mark.parametrize(
    ("interfaces", "taken"),
    [
        (("lo", "eth0", "eth1"), "eth0"),
        (("lo", "docker0", "eno1", "ib1", "ib0"), "ib1"),
        (("lo", "docker0", "virbr0", "enp3s0"), "enp3s0"),
        (("lo", "down0"), "lo"),
        (("down0",), None),
    ],
)
def test_nccls_order_of_interfaces(
    interfaces: tuple[str, ...], taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network.socket, "if_nameindex", lambda: list(enumerate(interfaces)))  # type: ignore[attr-defined]
    monkeypatch.setattr(network, "_ipv4_of", lambda name: None if name == "down0" else "10.0.0.1")
    assert network.nccl_interface() == taken


def test_an_interface_that_is_told_to_nccl_needs_no_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(placement, "device_uuid", lambda *_: "GPU-1")
    monkeypatch.setattr(placement, "_NCCL", tmp_path / "nccl.conf")
    monkeypatch.setenv("HOME", str(tmp_path))
    device = torch.device("cuda", 0)
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_CONF_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nccl.conf").write_text("#NCCL_SOCKET_IFNAME=ib0\nNCCL_DEBUG=WARN\n")
    assert placement.current_placement(0, 0, "n1", device, "eth0").nccl == network.nccl_interface() is not None
    for file in (tmp_path / "nccl.conf", tmp_path / ".nccl.conf", tmp_path / "own"):
        monkeypatch.setenv("NCCL_CONF_FILE", str(file) if file.name == "own" else "")
        file.write_text("NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==eth0\n")
        assert placement.current_placement(0, 0, "n1", device, "eth0").nccl is None
        file.unlink()
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    assert placement.current_placement(0, 0, "n1", device, "eth0").nccl is None


def test_two_ranks_of_a_host_on_one_gpu_are_refused_and_named() -> None:
    everybody = [rank(0), rank(1, uuid="GPU-0"), rank(2, uuid="GPU-0"), rank(3)]
    with pytest.raises(ContradictoryEnvironment) as refused:
        placement._check_own_devices(placement.ranks_sharing_device(everybody))
    assert str(refused.value).splitlines()[:2] == ["two ranks use one GPU", "  found  ranks 0, 1 on n1: GPU-0"]
    assert (
        placement.ranks_sharing_device([rank(0), rank(1), replace(rank(0), uuid=None), replace(rank(1), uuid=None)])
        == []
    )


def test_ranks_of_one_cpu_and_nodes_that_differ_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    everybody = [rank(0, cpus=(0,)), rank(1, cpus=(1,)), rank(2, torch="2.12.0"), rank(3)]
    one_cpu, versions = placement.placement_warnings(everybody, {})
    assert one_cpu.startswith("ranks 0, 1 may run on one CPU only: srun --cpus-per-task=N")
    assert versions == "the nodes differ in torch: 2.13.0 on n1, n2; 2.12.0 on n2"
    assert placement.placement_warnings([rank(0, device="cpu", uuid=None, cpus=(0,))], {}) == []
    (asked,) = placement.placement_warnings([rank(0, device="cpu", uuid=None, cpus=(0,))], {"SLURM_CPUS_PER_TASK": "4"})
    assert asked.startswith("rank 0 may run on one CPU only")


@pytest.mark.parametrize(
    ("said", "variable", "wanted"),
    [(None, "", False), (None, "0", False), (None, "1", True), (True, "0", True), (False, "1", False)],
)
def test_the_program_has_the_last_word_on_the_table(said: bool | None, variable: str, wanted: bool) -> None:
    assert placement.is_requested(said, {"HPC_KIT_REPORT": variable}) is wanted
