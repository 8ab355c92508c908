"""Collects and reports where each rank runs: device, CPUs, memory nodes, interface and versions."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime.rendezvous import network
from hpc_kit.runtime.rendezvous.meeting import wait_until
from hpc_kit.runtime.rendezvous.node_comparison import find_differences, list_some
from hpc_kit.runtime.variables import cpus_per_task
from hpc_kit.slurm import nodelist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from hpc_kit.runtime.rendezvous.meeting import Meeting


_NODES = Path("/sys/devices/system/node")
_NCCL = Path("/etc/nccl.conf")
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"), Path("/sys/module/xe/version"))


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of one rank."""

    rank: int
    local_rank: int
    host: str
    device: str
    """`cpu`, `cuda:0` or `xpu:1`."""
    uuid: str | None
    """Identity of the device or MIG instance; None for the CPU or if it is unknown."""
    cpus: tuple[int, ...]
    """CPU affinity mask of this process."""
    numa: tuple[int, ...]
    """NUMA nodes of these CPUs."""
    interface: str | None
    """Network interface that leads to the other nodes."""
    python: str
    torch: str
    driver: str | None
    """Version of the GPU driver."""
    nccl: str | None = None
    """Interface that NCCL chooses by default; None if it is configured, or without NCCL."""

    def to_json(self) -> str:
        """Encode for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> Placement:
        """Decode from the store."""
        values = json.loads(data)
        return cls(**values | {name: tuple(values[name]) for name in ("cpus", "numa")})


def current_placement(rank: int, local_rank: int, host: str, device: torch.device, interface: str | None) -> Placement:
    """Return the placement of this process."""
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
    """Return whether a variable or one of NCCL's configuration files names its interface."""
    if environ.get("NCCL_SOCKET_IFNAME"):
        return True
    for file in (Path(environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"), _NCCL):
        with suppress(OSError, RuntimeError):  # RuntimeError: this user has no home directory
            if re.search(r"^NCCL_SOCKET_IFNAME=", file.expanduser().read_text(errors="replace"), re.MULTILINE):
                return True
    return False


def device_uuid(device: torch.device, environ: Mapping[str, str]) -> str | None:
    """Return the identity of a device on its node, independent of its index in this process."""
    import torch

    named = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    index = device.index or 0
    # A MIG instance is visible only by its own name. CUDA may report the UUID of its GPU.
    if device.type == "cuda" and index < len(named) and named[index].startswith("MIG-"):
        return named[index]
    uuid = getattr(getattr(torch, device.type).get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    text = uuid.hex() if isinstance(uuid, bytes) else str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) or device.type != "cuda" else f"GPU-{text}"


def driver_version(files: Iterable[Path] = _DRIVERS) -> str | None:
    """Return the version of the loaded GPU driver, or None if it is unknown."""
    for file in files:
        with suppress(OSError):
            text = file.read_text()
            if match := re.search(r"(?:Kernel Module.*?|\A\s*)(\d+(?:\.\d+)+)", text):
                return match[1]
    return None


def numa_nodes(cpus: Iterable[int], folder: Path = _NODES) -> tuple[int, ...]:
    """Return the NUMA nodes of these CPUs, or () if the kernel does not list them."""
    nodes = []
    for path in folder.glob("node[0-9]*/cpulist"):
        with suppress(OSError, ValueError):
            if parse_ranges(path.read_text().strip()).intersection(cpus):
                nodes.append(int(path.parent.name.removeprefix("node")))
    return tuple(sorted(nodes))


def parse_ranges(text: str) -> set[int]:
    """Parse the kernel's notation `0-3,8`."""
    ranges = (part.partition("-") for part in filter(None, text.split(",")))
    return {number for low, _, high in ranges for number in range(int(low), int(high or low) + 1)}


def fold_numbers(numbers: Iterable[int]) -> str:
    """Format numbers as `0-3,8`."""
    text = nodelist.fold([f"c{number}" for number in numbers])
    return text.removeprefix("c").strip("[]") or "-"


REPORT = "HPC_KIT_REPORT"
"""Environment variable for the default of `report`. Any value but 0 means yes."""

COLUMNS = ("rank", "host", "device", "UUID", "CPUs", "NUMA", "interface", "python", "torch", "driver")
_COMPARED = ("python", "torch", "driver", "interface")
"""Values that should be equal on all nodes."""
_TIMEOUT = 60.0
"""Seconds to wait for the placement of all ranks."""

_MAX_LISTED = 8


def report_placement(meeting: Meeting, device: torch.device, *, with_table: bool) -> None:
    """Report problems of the placement at the start and, if `with_table`, print the table of all ranks on rank 0.

    Raises:
        ContradictoryEnvironment: Two ranks use one GPU. Only rank 0 reports the details.
    """
    world = meeting.world
    if device.type == "cpu" and not with_table:
        # The first rank of each node warns about its own CPUs, without asking other ranks.
        cpus = tuple(os.sched_getaffinity(0))
        if not world.local_rank and _is_bound_to_one(cpus, "cpu", os.environ):
            sys.stderr.write(f"hpc-kit: warning: {_describe_one_cpu(f'rank {world.rank}')}\n")
        return
    mine = current_placement(
        world.rank, world.local_rank or 0, network.this_node_name(os.environ), device, meeting.interface
    )
    store = meeting.substore("placement")
    store.set(f"rank/{world.rank}", mine.to_json())
    if world.is_main:
        keys = [f"rank/{rank}" for rank in range(world.world_size)]
        wait_until(lambda: store.check(keys), time.monotonic() + _TIMEOUT, world.world_size)
        placements = [Placement.from_json(data) for data in store.multi_get(keys)]
        shared = ranks_sharing_device(placements)
        store.set("verdict", "shared" if shared else "fine")
        if with_table:
            sys.stdout.write(placement_table(placements))
            sys.stdout.flush()
        for line in placement_warnings(placements, os.environ):
            sys.stderr.write(f"hpc-kit: warning: {line}\n")
        _check_own_devices(shared)
        return
    deadline = time.monotonic() + _TIMEOUT
    has_verdict = wait_until(lambda: store.check(["verdict"]), deadline, world.world_size)
    if has_verdict and store.get("verdict") == b"shared":
        raise ContradictoryEnvironment("two ranks use one GPU: rank 0 lists them")


def is_requested(report: bool | None, environ: Mapping[str, str]) -> bool:
    """Return whether to print the table: the program's choice, or HPC_KIT_REPORT."""
    return report if report is not None else environ.get(REPORT, "0").strip() not in {"", "0"}


def placement_table(placements: Sequence[Placement]) -> str:
    """Return one line per rank. `*` marks values that differ from those of most nodes."""
    usual = {name: Counter(getattr(place, name) for place in placements).most_common(1)[0][0] for name in _COMPARED}
    rows = [COLUMNS] + [_table_row(place, usual) for place in placements]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if any("*" in line for line in lines[1:]):
        lines.append("* differs from most ranks")
    return "\n".join([*lines, *_nccl_hints(placements)]) + "\n"


def _nccl_hints(placements: Sequence[Placement]) -> list[str]:
    """Return a hint if NCCL chooses another interface than the one on which the ranks met.

    This is not an error. NCCL prefers InfiniBand and may be right, so no variable is set.
    """
    other = [place for place in placements if place.nccl and place.interface and place.nccl != place.interface]
    if not other or len({place.host for place in placements}) == 1:
        return []
    nccl, met = (",".join(sorted({getattr(place, name) for place in other})) for name in ("nccl", "interface"))
    hosts = list_some(dict.fromkeys(place.host for place in other))
    return [
        f"NCCL takes {nccl} by itself, and the ranks met on {met} ({hosts});",
        f"if NCCL does not come up: export NCCL_SOCKET_IFNAME=={met}",
    ]


def _table_row(placement: Placement, usual: Mapping[str, object]) -> tuple[str, ...]:
    cells = [placement.rank, placement.host, placement.device, placement.uuid or "-"]
    cells += [fold_numbers(placement.cpus), fold_numbers(placement.numa)]
    for name in COLUMNS[-4:]:
        value = getattr(placement, name)
        cells.append(("-" if value is None else str(value)) + ("" if value == usual[name] else "*"))
    return tuple(map(str, cells))


def ranks_sharing_device(placements: Iterable[Placement]) -> list[list[Placement]]:
    """Return groups of ranks of one host that use the same device."""
    of_device: dict[tuple[str, str], list[Placement]] = defaultdict(list)
    for place in placements:
        if place.uuid:
            of_device[place.host, place.uuid].append(place)
    return [ranks for ranks in of_device.values() if len(ranks) > 1]


def _check_own_devices(shared: list[list[Placement]]) -> None:
    if shared:
        raise ContradictoryEnvironment(
            "two ranks use one GPU",
            found="\n".join(
                f"ranks {list_some(place.rank for place in ranks)} on {ranks[0].host}: {ranks[0].uuid}"
                for ranks in shared[:_MAX_LISTED]
            ),
            remedy="--gpus-per-node with as many GPUs as ranks on a node, or --gpus-per-task=1;\n"
            "where each task sees one GPU, it must be another one for each (Slurm below 23.11.4: --gres=gpu:N instead)",
        )


def placement_warnings(placements: Sequence[Placement], environ: Mapping[str, str]) -> list[str]:
    """Return warnings about placements that slow a training down or make it irregular."""
    lines = []
    bound = [place for place in placements if _is_bound_to_one(place.cpus, place.device, environ)]
    if bound:
        ranks = list_some(place.rank for place in bound)
        lines.append(_describe_one_cpu(f"ranks {ranks}" if len(bound) > 1 else f"rank {ranks}"))
    versions = [(place.host, {name: str(getattr(place, name)) for name in _COMPARED[:3]}) for place in placements]
    lines += [f"the nodes differ in {difference}" for difference in find_differences(versions)]
    return lines


def _is_bound_to_one(cpus: Sequence[int], device: str, environ: Mapping[str, str]) -> bool:
    """Return whether a rank has too few CPUs: one CPU for a GPU, or one although more were requested."""
    requested = cpus_per_task(environ) or 1
    return len(cpus) == 1 and (device != "cpu" or requested > 1) and (os.cpu_count() or 1) > 1


def _describe_one_cpu(ranks: str) -> str:
    return f"{ranks} may run on one CPU only: srun --cpus-per-task=N (Slurm 22.05 to 23.02 does not hand sbatch's on)"
