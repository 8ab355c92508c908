"""The machine as files of the kernel and nvidia-smi tell it."""

from __future__ import annotations

from pathlib import Path

from hpc_kit.bench import machine

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0
GPU1\tNV12\t X \tSYS\tSYS\t0-31\t0
GPU2\tSYS\tSYS\t X \tPXB\t32-63\t1
NIC0\tPXB\tSYS\tPXB\t X

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_the_link_between_two_gpus_is_read_from_the_topology() -> None:
    assert machine.parse_gpu_links(TOPOLOGY) == ("GPU0-GPU1 NV12", "GPU0-GPU2 SYS", "GPU1-GPU2 SYS")
    assert machine.parse_gpu_links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n") == ()
    assert machine.parse_gpu_links("") == ()


def test_the_version_of_an_mpi() -> None:
    assert machine.parse_program_version("mpirun (Open MPI) 4.1.4\n\nReport bugs\n") == "mpirun (Open MPI) 4.1.4"
    assert machine.parse_program_version("HYDRA build details:\n    Version:      5.0.2\n    CC: cc\n") == "MPICH 5.0.2"
    assert machine.parse_program_version("") == ""


def test_interfaces_that_are_up_are_listed(tmp_path: Path) -> None:
    for name, state, speed in (("lo", "unknown", ""), ("eth0", "up", "25000"), ("eth1", "down", ""), ("ib0", "up", "")):
        folder = tmp_path / "net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")
        if speed:
            (folder / "speed").write_text(f"{speed}\n")
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    found = machine.list_interfaces(tmp_path / "net", tmp_path / "infiniband")
    assert found == ("eth0 25000 Mb/s", "ib0", "mlx5_0 200 Gb/sec (4X HDR)")
    assert machine.list_interfaces(tmp_path / "none", tmp_path / "none") == ()


def test_the_processor_has_a_name() -> None:
    assert machine.parse_processor_name("processor\t: 0\nmodel name\t: A  CPU @ 2 GHz\n") == "A CPU @ 2 GHz"
    assert machine.parse_processor_name("")


def test_this_host_is_described() -> None:
    found = machine.describe_this_host(0)
    assert found.cores >= 1
    assert found.memory > 1 << 20
    assert 0 <= found.before.busy <= 1
