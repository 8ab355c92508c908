"""The machine behind the numbers: processors, GPUs, links, versions, and how busy it was with other things."""

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

from msgspec import Struct

from hpc_kit.runtime.rendezvous import network as addresses

_NETWORK, _INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
_NVIDIA = Path("/proc/driver/nvidia/version")
_PACKAGES = ("torch", "numpy", "mpi4py", "horovod", "ray")
_PROGRAMS = {"slurm": ("sinfo", "--version"), "mpi": ("mpirun", "--version")}

LOOK_SECONDS = 0.5
"""How long the processors are watched before a bench begins and after it has ended."""


class Load(Struct, frozen=True, kw_only=True):
    """How busy a host was with other things: load averages, and the busy share of its processors at that moment.

    The averages remember the bench that ran a minute ago; the share does not, so it is what is compared.
    """

    average: tuple[float, float, float]
    busy: float


class Host(Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    cpu: str
    cores: int
    """Processors that this process may use."""
    memory: int
    """Bytes."""
    gpus: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """Network interfaces and InfiniBand devices that are up, with their rates; what lies between two GPUs."""
    before: Load
    after: Load | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """The hosts that took part, the first one's versions."""

    hosts: tuple[Host, ...]
    versions: dict[str, str]
    kernel: str


def load(seconds: float = LOOK_SECONDS) -> Load:
    """Watch this host for some time in which the caller does nothing."""
    before = _processor_times()
    time.sleep(seconds)
    after = _processor_times()
    whole = after[1] - before[1]
    return Load(average=os.getloadavg(), busy=round((after[0] - before[0]) / whole, 3) if whole else 0.0)


def _processor_times() -> tuple[int, int]:
    """Ticks that all processors were busy, stolen ones too, and ticks in all; (0, 0) where the kernel tells none."""
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    return 0, 0


def this_host(seconds: float = LOOK_SECONDS) -> Host:
    """This host as it is now; takes the time of `load`."""
    gpus, pairs = _gpus()
    return Host(
        name=addresses.this_node_name(os.environ),
        cpu=processor(_text(Path("/proc/cpuinfo"))),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=gpus,
        links=(*interfaces(), *pairs),
        before=load(seconds),
    )


def of_hosts(*hosts: Host) -> Machine:
    """The hosts, and the versions of what is installed on this one."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for name, argv in _PROGRAMS.items():
        if said := version_of(_said(*argv)):
            found[name] = said
    return Machine(hosts=hosts, versions=found, kernel=f"{platform.system()} {platform.release()}")


def version_of(said: str) -> str:
    """The line that has a program's version: the first one, but of MPICH, whose mpirun begins with another."""
    first = said.strip().split("\n")[0]
    hydra = re.search(r"^\s*Version:\s+(\S+)", said, re.MULTILINE) if first.startswith("HYDRA") else None
    return f"MPICH {hydra[1]}" if hydra else first


def processor(cpuinfo: str) -> str:
    """The processor's name in /proc/cpuinfo; where it has none there (ARM), the architecture."""
    found = re.search(r"^(?:model name|cpu|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return re.sub(r"\s+", " ", found[1]).strip() if found else platform.machine()


def interfaces(network: Path = _NETWORK, infiniband: Path = _INFINIBAND) -> tuple[str, ...]:
    """Interfaces that are up, but the loopback; then InfiniBand's ports."""
    found = []
    for folder in _entries(network):
        if folder.name == "lo" or _text(folder / "operstate").strip() not in {"up", "unknown"}:
            continue
        speed = _text(folder / "speed").strip()
        found.append(f"{folder.name} {speed} Mb/s" if speed.isdigit() else folder.name)
    for folder in _entries(infiniband):
        rates = [_text(port / "rate").strip() for port in _entries(folder / "ports")]
        found.append(" ".join([folder.name, *filter(None, rates)]))
    return tuple(found)


def _gpus() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """GPUs with their memory, and what links each pair; nothing where no driver of theirs is loaded."""
    if not _NVIDIA.exists():
        return (), ()
    listed = _said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return tuple(filter(None, listed.splitlines())), pairs_of(_said("nvidia-smi", "topo", "-m"))


def pairs_of(topology: str) -> tuple[str, ...]:
    """The pairs of GPUs in the matrix of `nvidia-smi topo -m`: `GPU0-GPU1 NV12`."""
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


def _text(path: Path) -> str:
    # The speed of an interface that is down cannot be read.
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _said(*argv: str) -> str:
    """What a program says; nothing where there is none."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    program = shutil.which(argv[0], path=folders)
    if program is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, check=False, timeout=20)
        return done.stdout if done.returncode == 0 else ""
    return ""
