"""Where a rank runs: its device and that device's identity, its CPUs and memory nodes, and the versions it finds."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.runtime.rendezvous import network
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

_NODES = Path("/sys/devices/system/node")
_NCCL = Path("/etc/nccl.conf")
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"), Path("/sys/module/xe/version"))


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What one rank says of its place."""

    rank: int
    local_rank: int
    host: str
    device: str
    """`cpu`, `cuda:0`, `xpu:1`."""
    uuid: str | None
    """The identity of the device or of the MIG instance; None for the CPU, or where nobody tells."""
    cpus: tuple[int, ...]
    """CPUs on which this process may run: its affinity mask."""
    numa: tuple[int, ...]
    """Memory nodes of those CPUs."""
    interface: str | None
    """The network interface that leads to the other nodes."""
    python: str
    torch: str
    driver: str | None
    """Version of the GPU's driver."""
    nccl: str | None = None
    """The interface that NCCL takes by itself; None where it is told one, and where there is no NCCL."""

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> Placement:
        """Read it back."""
        values = json.loads(data)
        return cls(**values | {name: tuple(values[name]) for name in ("cpus", "numa")})


def current_placement(rank: int, local_rank: int, host: str, device: torch.device, interface: str | None) -> Placement:
    """This process's own."""
    import torch

    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return Placement(
        rank=rank,
        local_rank=local_rank,
        host=host,
        device=str(device),
        uuid=None if device.type == "cpu" else device_uuid(device, os.environ),
        cpus=cpus,
        numa=numa_nodes(cpus),
        interface=interface,
        python=platform.python_version(),
        torch=torch.__version__,
        driver=None if device.type == "cpu" else driver_version(),
        nccl=None if device.type != "cuda" or _is_nccl_configured(os.environ) else network.nccl_interface(),
    )


def _is_nccl_configured(environ: Mapping[str, str]) -> bool:
    """Whether a variable names NCCL its interface, or one of the files that NCCL reads."""
    own = Path(environ.get("NCCL_CONF_FILE") or "~/.nccl.conf")
    found = bool(environ.get("NCCL_SOCKET_IFNAME"))
    for file in (own, _NCCL):
        with suppress(OSError, RuntimeError):  # RuntimeError: this user has no home
            lines = file.expanduser().read_text(errors="replace").splitlines()
            found = found or any(line.startswith("NCCL_SOCKET_IFNAME=") for line in lines)
    return found


def device_uuid(device: torch.device, environ: Mapping[str, str]) -> str | None:
    """What identifies the device on its node, whatever number it has in this process."""
    import torch

    named = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    index = device.index or 0
    # An instance of a divided GPU is only ever visible by its own name; CUDA may tell its GPU's.
    if device.type == "cuda" and index < len(named) and named[index].startswith("MIG-"):
        return named[index]
    properties = getattr(torch, device.type).get_device_properties(device)
    told = getattr(properties, "uuid", None)
    if told is not None:
        text = told.hex() if isinstance(told, bytes) else str(told)
        return text if text.startswith(("GPU-", "MIG-")) or device.type != "cuda" else f"GPU-{text}"
    return _by_nvidia_smi(index, named) if device.type == "cuda" else None


def _by_nvidia_smi(index: int, named: list[str]) -> str | None:
    entry = named[index] if index < len(named) and named[index] else str(index)
    if entry.startswith("GPU-"):
        return entry
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    import subprocess

    with suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run([smi, "-L"], check=False, capture_output=True, text=True, timeout=20)
        return parse_nvidia_smi(listed.stdout).get(entry)
    return None


def parse_nvidia_smi(listing: str) -> dict[str, str]:
    """The GPUs of `nvidia-smi -L` by their number, and divided ones' instances as `0:1`, each with its UUID."""
    found: dict[str, str] = {}
    gpu = ""
    for line in listing.splitlines():
        match = re.match(r"(GPU|\s+MIG\s.*?Device)\s+(\d+):.*\(UUID:\s*(\S+?)\)", line)
        if match and match[1] == "GPU":
            gpu = match[2]
            found[gpu] = match[3]
        elif match:
            found[f"{gpu}:{match[2]}"] = match[3]
    return found


def driver_version(files: Iterable[Path] = _DRIVERS) -> str | None:
    """Version of the driver that is loaded; None where none tells."""
    for file in files:
        with suppress(OSError):
            text = file.read_text()
            found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", text) or re.match(r"\s*(\d+(?:\.\d+)+)", text)
            if found:
                return found[1]
    return None


def numa_nodes(cpus: Iterable[int], folder: Path = _NODES) -> tuple[int, ...]:
    """The memory nodes to which these CPUs belong; none where the kernel does not tell."""
    mine, found = set(cpus), []
    for path in folder.glob("node[0-9]*/cpulist"):
        with suppress(OSError, ValueError):
            if mine & parse_ranges(path.read_text().strip()):
                found.append(int(path.parent.name.removeprefix("node")))
    return tuple(sorted(found))


def parse_ranges(text: str) -> set[int]:
    """`0-3,8` as the kernel writes it."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found


def fold_numbers(numbers: Iterable[int]) -> str:
    """`0-3,8`."""
    text = nodelist.fold([f"c{number}" for number in numbers])
    return text.removeprefix("c").strip("[]") or "-"
