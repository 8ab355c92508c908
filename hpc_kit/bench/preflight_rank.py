"""Measures one node of a job before the training: a step with one task on each node runs this module.

The report is written after each measurement, so that it names the measurement in which a node hangs. Nothing waits
longer than its own time limit, and SIGALRM ends a process that hangs in C code.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hpc_kit.bench import machine, preflight_network
from hpc_kit.bench.preflight import (
    DISK,
    GPU_ERRORS,
    IMPORT,
    IMPORT_SECONDS,
    MATRIX,
    MEMORY,
    NAMES,
    RATES,
    SECONDS,
    NodeMeasurement,
)
from hpc_kit.run_files import PREFLIGHT, RUN_VARIABLE
from hpc_kit.runtime import torch_import
from hpc_kit.runtime.launchers import resolve
from hpc_kit.runtime.rendezvous import network
from hpc_kit.runtime.variables import cpus_per_task

PERIODS, PERIOD_SECONDS = 3, 0.4
"""Measured periods, and the seconds of each measurement in one."""

DISK_BYTES, DISK_SECONDS = 64 << 20, 0.5
"""Limits of one write to the disk; the first that is reached ends it."""

PROGRAM_SECONDS = 5.0
"""Time limit of nvidia-smi and dmesg; nvidia-smi hangs if a driver does."""


def main() -> None:
    """Measure this node."""
    signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
    world = resolve({**os.environ, "HPC_KIT_LAUNCHER": "slurm"})
    node = NodeMeasurement(Path(os.environ[RUN_VARIABLE], PREFLIGHT), network.this_node_name(os.environ))
    code = 0
    stages: dict[str, Callable[[], None]] = {
        IMPORT: lambda: describe(node),
        RATES: lambda: measure_rates(node),
        GPU_ERRORS: lambda: find_gpu_errors(node),
        NAMES: lambda: preflight_network.check_host_names(node, world.hosts),
        "network": lambda: preflight_network.measure_network(node, world),
    }
    try:
        for stage, measure in stages.items():
            node.add(stage=stage)
            measure()
        node.add(stage="")
    except Exception as error:  # noqa: BLE001 - any fault of this node belongs in its report
        code = 1
        node.add(error=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300])
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that still wait for a name server or a lost node would delay the end of the step.
    os._exit(code)


def describe(node: NodeMeasurement) -> None:
    """Import torch, start the time limit of the measurement, and report versions, processor and GPUs."""
    torch_import.require_torch()
    torch_import.import_torch_quietly()
    import torch

    node.add(import_seconds=time.monotonic() - node.start)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)

    from hpc_kit.runtime.placement import driver_version

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cpu = machine.parse_processor_name(Path("/proc/cpuinfo").read_text(errors="replace"))
    versions = {
        "python": sys.version.split()[0],
        "torch": torch.__version__.partition("+")[0],
        "driver": driver_version() or "none",
    }
    torch.set_num_threads(min(cpus_per_task(os.environ) or 1, len(os.sched_getaffinity(0))))
    node.add(kind=", ".join([cpu, *sorted(set(gpus))]), gpus=len(gpus), versions=versions)


def measure_rates(node: NodeMeasurement) -> None:
    """Measure matrix products and memory of each GPU, or of the processor, and the local disk.

    The slowest GPU counts. A rate is that of a whole period and not that of its fastest run, because a processor with a
    quota or a hot GPU is fast for a moment.
    """
    import torch

    from hpc_kit.planner.calibration import measure_device

    seconds = PERIOD_SECONDS / max(1, node.report.gpus)
    devices = [torch.device("cuda", index) for index in range(node.report.gpus)] or [torch.device("cpu")]
    periods: dict[str, list[float]] = defaultdict(list)
    for _ in range(PERIODS):
        found = [measure_device(device, seconds, statistics.mean) for device in devices]
        periods[MATRIX].append(min(each.flops or 0.0 for each in found))
        periods[MEMORY].append(min(each.bandwidth or 0.0 for each in found))
        periods[DISK].append(measure_disk())
        node.add(
            rates={name: max(rates) for name, rates in periods.items()},
            typical={name: statistics.median(rates) for name, rates in periods.items()},
        )


def measure_disk() -> float:
    """Return the bytes per second of a file in $TMPDIR or /tmp that is written and reaches the disk.

    Raises:
        OSError: The file cannot be written.
    """
    # tempfile.gettempdir() would choose another folder if this one is full.
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        begun = time.perf_counter()
        while file.tell() < DISK_BYTES and time.perf_counter() - begun < DISK_SECONDS:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return file.tell() / (time.perf_counter() - begun)


_XID = re.compile(r"\[\s*(\d+)\.\d+\].*NVRM: Xid \(PCI:([\w:.]+)\): (\d+)")
HARDWARE_XIDS = {48, 64, 74, 79, 95, 110, 119, 120, 140}
"""Xids of memory errors, NVLink, and GPUs that are lost or do not answer, by NVIDIA's list of Xid errors.

Others may come from programs, or report a repair.
"""

XID_SECONDS = 86400.0
"""Older messages may be of a GPU that was repaired since."""


def find_gpu_errors(node: NodeMeasurement) -> None:
    """Report the job's GPUs that wait for a repair, and warn of memory errors and Xids in the kernel's log.

    Without permission to read the kernel's log, Xids are unknown.
    """
    if not node.report.gpus:
        return
    import torch

    from hpc_kit.runtime.placement import device_uuid

    own = {device_uuid(torch.device("cuda", index), os.environ) for index in range(node.report.gpus)}
    query = "uuid,pci.bus_id,ecc.errors.uncorrected.volatile.total,remapped_rows.pending,retired_pages.pending"
    query_argv = ("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    states = parse_gpu_query(machine.command_output(*query_argv, timeout=PROGRAM_SECONDS))
    states = [state for state in states if state.uuid in own]
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    xids = parse_xids(machine.command_output("dmesg", timeout=PROGRAM_SECONDS), since=uptime - XID_SECONDS)
    node.add(
        gpu_errors=tuple(
            f"GPU {each.address} waits for a reset to repair its memory" for each in states if each.needs_reset
        ),
        warnings=(
            *(f"GPU {each.address} has {each.errors} uncorrected memory errors" for each in states if each.errors),
            *(f"Xid {xid} of GPU {address}" for each in states for xid, address in xids if address == each.address),
        ),
    )


class GpuState(NamedTuple):
    """The state of one GPU, from nvidia-smi."""

    uuid: str
    address: str
    """Its PCI address as the kernel's log has it, without the function: `0000:3b:00`."""
    errors: int
    needs_reset: bool
    """A reset is necessary to repair its memory."""


def parse_gpu_query(text: str) -> list[GpuState]:
    """Return the answer of nvidia-smi, one line for each GPU. A GPU may support none of the values."""
    states = []
    for line in text.splitlines():
        # Newer GPUs remap rows and older ones retire pages; nvidia-smi prints [N/A] for the other value.
        uuid, address, errors, *pending = [word.strip() for word in line.split(",")] + [""] * 3
        count = int(errors) if errors.isdigit() else 0
        states.append(GpuState(uuid, short_address(address), count, any(each.lower() == "yes" for each in pending)))
    return states


def short_address(address: str) -> str:
    """Return `0000:3b:00` for `00000000:3B:00.0`: with a domain of four digits, and without the function."""
    return address.lower().partition(".")[0][-10:]


def parse_xids(log: str, *, since: float) -> list[tuple[int, str]]:
    """Return the hardware Xids in the kernel's log with the addresses, since a time in seconds after the boot."""
    found = {
        (int(xid), short_address(address))
        for moment, address, xid in _XID.findall(log)
        if int(xid) in HARDWARE_XIDS and float(moment) >= since
    }
    return sorted(found)


if __name__ == "__main__":
    main()
