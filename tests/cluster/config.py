"""Writes the text of the configuration files."""

from __future__ import annotations

from pathlib import Path

from . import cgroups
from .settings import CONTROLLER, Names, Settings

DATABASE_PORT = 3306


def gpu_files(count: int) -> list[Path]:
    """Return device files that represent GPUs. Slurm only needs existing files, with numbers for GPU indices."""
    consoles = [Path(f"/dev/tty{index}") for index in range(64)]
    others = [Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom")]
    for candidates in (consoles, others):
        found = [path for path in candidates if path.is_char_device()][:count]
        if len(found) == count:
            return found
    return []


def slurm_values(settings: Settings) -> dict[str, str]:
    """Return the values of slurm.conf without nodes and partitions."""
    own = settings.own_directory
    values = {
        "ClusterName": settings.name,
        "SlurmctldHost": f"{CONTROLLER}({settings.hosts[CONTROLLER]})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        # A requeued job starts again after its old credential has expired: 120 s by default.
        "AuthInfo": f"socket={settings.munge_socket},cred_expire=10",
        "CryptoType": "crypto/munge",
        "StateSaveLocation": f"{own}/state",
        "SlurmdSpoolDir": f"{own}/spool",
        "SlurmctldPidFile": f"{own}/slurmctld.pid",
        "SlurmdPidFile": f"{own}/slurmd.pid",
        "SlurmctldLogFile": f"{own}/slurmctld.log",
        "SlurmdLogFile": f"{own}/slurmd.log",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        "ProctrackType": "proctrack/cgroup" if cgroups.available() else "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "SlurmdParameters": "config_overrides",
        "DefMemPerCPU": "1000",
        "ReturnToService": "2",
        "MpiDefault": "none",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "MaxArraySize": str(settings.max_array_size),
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=5,bf_interval=3",
        "SlurmdTimeout": "20",
        "KillWait": "5",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "5",
        **accounting_values(settings),
    }
    if settings.gpus:
        values["GresTypes"] = "gpu"
    return values | settings.slurm


def accounting_values(settings: Settings) -> dict[str, str]:
    """Return the values of slurm.conf for the accounting."""
    if not settings.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": settings.hosts[CONTROLLER],
        "AccountingStoragePass": str(settings.munge_socket),  # the path of the socket, despite the name of the option
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment",
    }


def node_line(settings: Settings, node: str) -> str:
    """Return one NodeName line, with NodeAddr if the name does not resolve to the host."""
    words = [f"NodeName={node}", f"CPUs={settings.cpus}", f"RealMemory={settings.memory}", "State=UNKNOWN"]
    if settings.names is not Names.HOSTS:
        words.insert(1, f"NodeAddr={settings.hosts[node]}")
    if settings.gpus:
        words.append(f"Gres=gpu:{settings.gpus}")
    return " ".join(words)


def slurm_conf(settings: Settings) -> str:
    """Return slurm.conf with a default partition and one that preempts it."""
    lines = [f"{key}={value}" for key, value in slurm_values(settings).items()]
    lines += [node_line(settings, node) for node in settings.node_names]
    nodes = ",".join(settings.node_names)
    times = "DefaultTime=01:00:00 MaxTime=1-00:00:00 State=UP"
    lines += [
        f"PartitionName=main Default=YES Nodes={nodes} PriorityTier=1 PreemptMode=REQUEUE {times}",
        f"PartitionName=high Nodes={nodes} PriorityTier=10 PreemptMode=OFF {times}",
    ]
    return "\n".join(lines) + "\n"


def cgroup_conf() -> str:
    """Return cgroup.conf, which limits nothing and only tracks processes."""
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def gres_conf(settings: Settings) -> str:
    """Return gres.conf. Slurm accepts any device file as a GPU, so tasks get a real CUDA_VISIBLE_DEVICES."""
    files = gpu_files(settings.gpus)
    return "".join(f"NodeName={node} Name=gpu File={path}\n" for node in settings.node_names for path in files)


def slurmdbd_conf(settings: Settings) -> str:
    """Return slurmdbd.conf, which slurmdbd reads from the directory of slurm.conf."""
    values = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={settings.munge_socket}",
        "DbdHost": CONTROLLER,
        "DbdAddr": settings.hosts[CONTROLLER],
        "SlurmUser": "root",
        "DebugLevel": "info",
        "LogFile": f"{settings.own_directory}/slurmdbd.log",
        "PidFile": f"{settings.own_directory}/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(DATABASE_PORT),
        "StorageUser": "slurm",
        "StoragePass": "slurm",
        "StorageLoc": "slurm_acct",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def hosts_file(settings: Settings, host: str) -> str:
    """Return the /etc/hosts of one host."""
    lines = ["127.0.0.1 localhost"]
    match settings.names:
        case Names.HOSTS:
            lines += [f"{address} {name}" for name, address in settings.hosts.items()]
        case Names.LOOPBACK:
            seen = settings.hosts | {host: "127.0.1.1"}
            lines += [f"{address} {name}" for name, address in seen.items()]
        case Names.ADDRESSES:
            pass
    return "\n".join(lines) + "\n"
