"""The placement that a rank reports, from recorded answers of torch and the kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime import placement
from hpc_kit.runtime.placement import Placement
from hpc_kit.runtime.rendezvous import network

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
def test_the_device_is_identified_by_its_uuid(
    visible: str, told: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid=told))
    assert placement.device_uuid(torch.device("cuda", 1), {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_the_uuid_of_an_intel_gpu_is_read_if_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _device: SimpleNamespace())
    assert placement.device_uuid(torch.device("xpu", 0), {}) is None
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _device: SimpleNamespace(uuid=b"\x01\xff"))
    assert placement.device_uuid(torch.device("xpu", 0), {}) == "01ff"


def test_memory_nodes_follow_from_the_cpus(tmp_path: Path) -> None:
    for node, cpus in enumerate(("0-3,16-19", "4-7", "8")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert placement.numa_nodes([17, 8], tmp_path) == (0, 2)
    assert placement.numa_nodes([99], tmp_path) == ()
    assert placement.numa_nodes([0], tmp_path / "none") == ()


def test_numbers_are_abbreviated_to_ranges_like_the_kernels() -> None:
    assert [placement.fold_numbers(numbers) for numbers in ([0, 1, 2, 8], [3], [], [0, 2])] == [
        "0-2,8",
        "3",
        "-",
        "0,2",
    ]


def test_the_placement_of_this_process_reads_back() -> None:
    mine = placement.current_placement(3, 1, "n2", torch.device("cpu"), "lo")
    assert (mine.rank, mine.host, mine.device, mine.uuid, mine.driver) == (3, "n2", "cpu", None, None)
    assert mine.cpus
    assert Placement.from_json(mine.to_json().encode()) == mine


def test_the_table_has_one_line_per_rank_and_marks_differences() -> None:
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


def test_if_nccl_uses_another_interface_the_report_names_the_variable_to_set() -> None:
    table = placement.placement_table([rank(number, interface="eth0", nccl="ib0") for number in range(4)])
    assert table.splitlines()[-2:] == [
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


def test_an_interface_chosen_for_nccl_needs_no_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_two_ranks_on_one_gpu_are_refused_by_name() -> None:
    everybody = [rank(0), rank(1, uuid="GPU-0"), rank(2, uuid="GPU-0"), rank(3)]
    with pytest.raises(ContradictoryEnvironment) as refused:
        placement._check_own_devices(placement.ranks_sharing_device(everybody))
    assert str(refused.value).splitlines()[:2] == ["two ranks use one GPU", "  found  ranks 0, 1 on n1: GPU-0"]
    assert (
        placement.ranks_sharing_device([rank(0), rank(1), replace(rank(0), uuid=None), replace(rank(1), uuid=None)])
        == []
    )


def test_ranks_with_one_cpu_and_different_nodes_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    everybody = [rank(0, cpus=(0,)), rank(1, cpus=(1,)), rank(2, torch="2.12.0"), rank(3)]
    one_cpu, versions = placement.placement_warnings(everybody, {})
    assert one_cpu.startswith("ranks 0, 1 may run on one CPU only: srun --cpus-per-task=N")
    assert versions == "the nodes differ in torch: 2.12.0 on n2; 2.13.0 on n1, n2"
    assert placement.placement_warnings([rank(0, device="cpu", uuid=None, cpus=(0,))], {}) == []
    (asked,) = placement.placement_warnings([rank(0, device="cpu", uuid=None, cpus=(0,))], {"SLURM_CPUS_PER_TASK": "4"})
    assert asked.startswith("rank 0 may run on one CPU only")


@pytest.mark.parametrize(
    ("requested", "variable", "with_table"),
    [(None, "", False), (None, "0", False), (None, "1", True), (True, "0", True), (False, "1", False)],
)
def test_the_program_decides_about_the_table(requested: bool | None, variable: str, with_table: bool) -> None:
    assert placement.is_requested(requested, {"HPC_KIT_REPORT": variable}) is with_table
