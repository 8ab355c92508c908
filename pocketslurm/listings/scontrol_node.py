"""`scontrol show node` and `show partition`: a paragraph each."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED, format_time
from pocketslurm.listings.views import format_timestamp, megabytes
from pocketslurm.queue import nodes
from pocketslurm.queue.state import now
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from pocketslurm.listings.node_view import NodeView
    from pocketslurm.queue.state import State
    from pocketslurm.settings import Partition, Settings


def node_text(state: State, view: NodeView) -> str:
    """A node, as a paragraph with an empty line behind it."""
    settings, uname, load = state.settings, os.uname(), os.getloadavg()[0]
    gpus = f"gpu:{settings.gpus}" if settings.gpus else "(null)"
    booted = format_timestamp(now() - time.clock_gettime(time.CLOCK_BOOTTIME))
    partitions = ",".join(partitions_of(settings, view.name))
    reason = f"   Reason={view.out.reason} [{view.out.user}@{format_timestamp(view.out.since)}]\n" if view.out else ""
    return (
        f"NodeName={view.name} Arch={uname.machine} CoresPerSocket=1 \n"
        f"   CPUAlloc={view.cpus_used} CPUEfctv={settings.cpus} CPUTot={settings.cpus} CPULoad={load:.2f}\n"
        f"   AvailableFeatures=(null)\n   ActiveFeatures=(null)\n   Gres={gpus}\n"
        f"   NodeAddr={view.name} NodeHostName={view.name} Version={SLURM_VERSION}\n"
        f"   OS={uname.sysname} {uname.release} {uname.version} \n"
        f"   RealMemory={settings.memory_of_node} AllocMem={view.mem_used} FreeMem={free_memory()} "
        f"Sockets={settings.cpus} Boards=1\n"
        f"   State={view.long_state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
        f"   Partitions={partitions} \n   BootTime={booted} SlurmdStartTime={booted}\n"
        f"   LastBusyTime={format_timestamp(now())}\n"
        f"   CfgTRES={tres_of(settings)}\n"
        f"   AllocTRES={tres_used(view)}\n   CapWatts=n/a\n   CurrentWatts=0 AveWatts=0\n"
        f"   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s\n{reason}"
    )


def tres_of(settings: Settings) -> str:
    """What a node has: `cpu=8,mem=16000M,billing=8`."""
    gres = f",gres/gpu={settings.gpus}" if settings.gpus else ""
    return f"cpu={settings.cpus},mem={megabytes(settings.memory_of_node)},billing={settings.cpus}{gres}"


def tres_used(view: NodeView) -> str:
    """What jobs have of it, empty for nothing."""
    counts = (("cpu", view.cpus_used), ("mem", view.cpus_used and view.mem_used), ("gres/gpu", view.gpus_used))
    return ",".join(f"{name}={megabytes(count) if name == 'mem' else count}" for name, count in counts if count)


def partitions_of(settings: Settings, name: str) -> list[str]:
    """The partitions that a node is in."""
    return [each.name for each in settings.partitions if name in nodes.of_partition(settings, each)]


def free_memory() -> int:
    """MiB of the machine that nobody uses."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2**20


def partition_text(state: State, each: Partition) -> str:
    """A partition, as a paragraph with an empty line behind it."""
    settings = state.settings
    names = nodes.of_partition(settings, each)
    default = "NONE" if each.default_time is None else _limit(each.default_time)
    cpus, count = settings.cpus * len(names), len(names)
    gres = f",gres/gpu={settings.gpus * count}" if settings.gpus else ""
    first = "YES" if each == settings.partitions[0] else "NO"
    return (
        f"PartitionName={each.name}\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n"
        f"   AllocNodes=ALL Default={first} QoS=N/A\n"
        f"   DefaultTime={default} DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO\n"
        f"   MaxNodes=UNLIMITED MaxTime={_limit(each.max_time)} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED\n"
        f"   Nodes={fold(names)}\n"
        "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO\n"
        "   OverTimeLimit=NONE PreemptMode=OFF\n"
        f"   State=UP TotalCPUs={cpus} TotalNodes={count} SelectTypeParameters=NONE\n   JobDefaults=(null)\n"
        "   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
        f"   TRES=cpu={cpus},mem={megabytes(settings.memory_of_node * count)},node={count},billing={cpus}{gres}\n"
    )


def _limit(seconds: int) -> str:
    return "UNLIMITED" if seconds == UNLIMITED else format_time(seconds)
