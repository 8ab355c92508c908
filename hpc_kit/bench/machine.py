"""Describes the measured hosts: processors, GPUs, links, versions, and load by other work."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from hpc_kit.runtime.process_group import Group


_NETWORK, _INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
_NVIDIA = Path("/proc/driver/nvidia/version")
_PACKAGES = ("torch", "numpy", "mpi4py", "horovod", "ray")
_PROGRAMS = {"slurm": ("sinfo", "--version"), "mpi": ("mpirun", "--version")}

LOAD_SECONDS = 0.5
"""Seconds for which the processors are watched before and after a benchmark."""


class HostLoad(Struct, frozen=True, kw_only=True):
    """Load by other work: load averages and the busy share of the processors.

    Comparisons use the share, because load averages still contain a benchmark that ran a minute ago.
    """

    average: tuple[float, float, float]
    busy: float


class MeasuredHost(Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    cpu: str
    cores: int
    """Processors that this process may use."""
    memory: int
    """Bytes."""
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """Active network interfaces and InfiniBand devices with their rates, and links between GPUs."""
    before: HostLoad
    after: HostLoad | None = None


class MeasuredMachine(Struct, frozen=True, kw_only=True):
    """The hosts that took part, and the software versions of the first one."""

    hosts: tuple[MeasuredHost, ...]
    versions: dict[str, str]
    kernel: str


def measure_load(seconds: float = LOAD_SECONDS) -> HostLoad:
    """Measure the load of this host while the caller is idle."""
    before = _processor_times()
    time.sleep(seconds)
    after = _processor_times()
    whole = after[1] - before[1]
    return HostLoad(average=os.getloadavg(), busy=round((after[0] - before[0]) / whole, 3) if whole else 0.0)


def _processor_times() -> tuple[int, int]:
    """Return busy ticks, including stolen ones, and all ticks; (0, 0) if the kernel does not report them."""
    with suppress(OSError, ValueError):
        # The first line has user, nice, system, idle, iowait, irq, softirq and steal, in this order: proc(5).
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    return 0, 0


def describe_this_host(seconds: float = LOAD_SECONDS) -> MeasuredHost:
    """Describe this host; takes as long as `measure_load`."""
    gpus, pairs = _list_gpus()
    return MeasuredHost(
        name=network.this_node_name(os.environ),
        cpu=parse_processor_name(_read_if_readable(Path("/proc/cpuinfo"))),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=gpus,
        links=(*list_interfaces(), *pairs),
        before=measure_load(seconds),
    )


def describe_machine(*hosts: MeasuredHost) -> MeasuredMachine:
    """Combine the hosts with the versions of the software on this one."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for name, argv in _PROGRAMS.items():
        if version := parse_program_version(command_output(*argv)):
            found[name] = version
    return MeasuredMachine(hosts=hosts, versions=found, kernel=f"{platform.system()} {platform.release()}")


def parse_program_version(output: str) -> str:
    """Return the output line with a program's version: the first line, except for MPICH's mpirun."""
    first = output.strip().split("\n")[0]
    hydra = re.search(r"^\s*Version:\s+(\S+)", output, re.MULTILINE) if first.startswith("HYDRA") else None
    return f"MPICH {hydra[1]}" if hydra else first


def parse_processor_name(cpuinfo: str) -> str:
    """Return the processor's name in /proc/cpuinfo, or the architecture if the file has none (ARM)."""
    # `model name` on x86, `cpu` on POWER, `Model` on small ARM boards.
    found = re.search(r"^(?:model name|cpu|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return re.sub(r"\s+", " ", found[1]).strip() if found else platform.machine()


def list_interfaces(network: Path = _NETWORK, infiniband: Path = _INFINIBAND) -> tuple[str, ...]:
    """List active interfaces except the loopback, then InfiniBand ports."""
    found = []
    for folder in _entries(network):
        # Virtual interfaces have the state `unknown` while they work.
        if folder.name == "lo" or _read_if_readable(folder / "operstate").strip() not in {"up", "unknown"}:
            continue
        speed = _read_if_readable(folder / "speed").strip()
        found.append(f"{folder.name} {speed} Mb/s" if speed.isdigit() else folder.name)
    for folder in _entries(infiniband):
        rates = [_read_if_readable(port / "rate").strip() for port in _entries(folder / "ports")]
        found.append(" ".join([folder.name, *filter(None, rates)]))
    return tuple(found)


def _list_gpus() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List GPUs with their memory and the links between them; nothing without the NVIDIA driver."""
    if not _NVIDIA.exists():
        return (), ()
    listed = command_output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return tuple(filter(None, listed.splitlines())), parse_gpu_links(command_output("nvidia-smi", "topo", "-m"))


def parse_gpu_links(topology: str) -> tuple[str, ...]:
    """Parse the pairs of GPUs in the matrix of `nvidia-smi topo -m`: `GPU0-GPU1 NV12`."""
    # nvidia-smi underlines the header with escape sequences, even in a pipe. Rows of network cards are skipped.
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in topology.splitlines()]
    table = {words[0]: words[1:] for words in rows if words and re.fullmatch(r"GPU\d+", words[0]) and "X" in words}
    names = list(table)
    return tuple(
        f"{one}-{other} {table[one][names.index(other)]}"
        for place, one in enumerate(names)
        for other in names[place + 1 :]
    )


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _read_if_readable(path: Path) -> str:
    # The speed of an interface that is down cannot be read.
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def find_executable(name: str) -> str | None:
    """Find a program on PATH or beside this Python."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    return shutil.which(name, path=folders)


def command_output(*argv: str, timeout: float = 20.0) -> str:
    """Return the output of a program; empty if it is missing, fails or exceeds the timeout in seconds."""
    program = find_executable(argv[0])
    if program is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, *argv[1:]], capture_output=True, text=True, errors="replace", check=False, timeout=timeout
        )
        return done.stdout if done.returncode == 0 else ""
    return ""


def gather_hosts(world: Group) -> tuple[list[MeasuredHost], list[str]]:
    """Return the hosts and the host name of each rank. Every rank must call this collective.

    The first rank of each host describes it while all ranks are idle.
    """
    from torch import distributed as dist

    dist.barrier()
    mine: MeasuredHost | None = None
    if world.local_rank == 0:
        mine = describe_this_host()
    else:
        # A rank that waits in an MPI collective polls, and would count as load.
        time.sleep(LOAD_SECONDS)
    found: list[tuple[str, MeasuredHost | None]] = [("", None)] * world.world_size
    dist.all_gather_object(found, (network.this_node_name(os.environ), mine))
    return [host for _, host in found if host is not None], [name for name, _ in found]
