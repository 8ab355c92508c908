"""`cluster discover`: the text formats of Slurm from 20.11 to 26.05 become facts, and facts become a cluster file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable, SpecError
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.spec.cluster_document import facts_file, merge_facts, write_facts
from hpc_kit.spec.discovery import Discovery, discover_cluster
from hpc_kit.spec.load import load_cluster

CONFIG = """\
Configuration data as of 2024-03-01T10:00:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = Alpine
MaxArraySize            = 5001
MpiDefault              = pmix
SLURM_VERSION           = 23.11.4
"""

SINFO = """\
cpu*|100|128|2-00:00:00|1-infinite|1:00:00|515000|(null)
gpu|8|64|1-00:00:00|1-4|n/a|1031000|gpu:a100:4(S:0-1),nvme:1
gpu|2|96|1-00:00:00|1-4|n/a|2063000|gpu:a100:8(S:0-3)
mixed|4|32|infinite|1-infinite|n/a|257000|gpu:v100:2(S:0),gpu:a100:2(S:1)
plain|4|32|infinite|1-infinite|n/a|257000|gpu:4(IDX:0-3)
"""

PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES DefaultTime=01:00:00 MaxNodes=UNLIMITED \
MaxTime=2-00:00:00 Nodes=c[001-100] State=UP TotalNodes=100
PartitionName=gpu AllowGroups=ALL AllowAccounts=physics,ml AllowQos=gpu,long Default=NO DefaultTime=NONE MaxNodes=4 \
MaxTime=1-00:00:00 Nodes=g[01-10] State=UP TotalNodes=10
"""

NODES = """\
NodeName=c001 Arch=x86_64 CoresPerSocket=64 CPUTot=128 Gres=(null) RealMemory=515000 State=IDLE Partitions=cpu
NodeName=c002 Arch=x86_64 CoresPerSocket=64 CPUTot=128 Gres=(null) RealMemory=515000 State=DOWN Partitions=cpu
NodeName=g01 CPUTot=64 Gres=gpu:a100:4(S:0-1) OS=Linux 5.14 #1 SMP RealMemory=1031000 Partitions=gpu
"""

ASSOCIATIONS = "alpine|physics|normal,long\nalpine|ml|normal\nother|chemistry|special\n"

MPI = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n"

ANSWERS: dict[str, Mapping[str, str]] = {
    "sbatch": {},
    "sinfo": {"--version": "slurm 23.11.4\n", "": SINFO},
    "scontrol": {"config": CONFIG, "partition": PARTITIONS, "node": NODES},
    "sacctmgr": {"": ASSOCIATIONS},
    "srun": {"--mpi=list": MPI, "--help": "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"},
    "apptainer": {},
}


class Site:
    """A folder of commands that print fixed texts."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, answers in ANSWERS.items():
            self.set(name, **answers)

    def set(self, command: str, **answers: str) -> None:
        lines = ["#!/bin/bash", 'case "$*" in']
        for number, (word, text) in enumerate(answers.items()):
            (self.bin.parent / f"{command}.{number}").write_text(text)
            lines.append(f'  *{word}*) /bin/cat "{self.bin.parent}/{command}.{number}" ;;')
        (self.bin / command).write_text("\n".join([*lines, "esac", ""]))
        (self.bin / command).chmod(0o755)

    def fail(self, command: str, message: str) -> None:
        (self.bin / command).write_text(f"#!/bin/bash\necho '{message}' >&2\nexit 1\n")

    def remove(self, command: str) -> None:
        (self.bin / command).unlink()

    def discover(self) -> Discovery:
        return discover_cluster(SlurmClient({"PATH": str(self.bin)}, embedded=False))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def values(found: Discovery) -> dict[str, object]:
    return {fact.name: fact.value for fact in found.facts}


def test_each_command_gives_its_facts(site: Site) -> None:
    found = site.discover()
    assert found.cluster == "Alpine"
    assert found.gaps == ()
    assert values(found) == {
        "slurm": "system",
        "slurm_version": "23.11.4",
        "max_array_size": 5001,
        "accounts": ["ml", "physics"],
        "qos": ["long", "normal"],
        "mpi": ["none", "pmi2", "pmix"],
        "containers": ["apptainer", "pyxis"],
        "node.cpus": 128,
        "node.mem": "515000M",
        "partition.cpu.default": True,
        "partition.cpu.nodes": 100,
        "partition.cpu.gpus": 0,
        "partition.cpu.max_time": "2-00:00:00",
        "partition.cpu.default_time": "01:00:00",
        "partition.gpu.nodes": 10,
        "partition.gpu.cpus": 96,
        "partition.gpu.mem": "2063000M",
        "partition.gpu.gpus": 8,
        "partition.gpu.gpu": "a100",
        "partition.gpu.max_time": "1-00:00:00",
        "partition.gpu.max_nodes": 4,
        "partition.gpu.accounts": ["physics", "ml"],
        "partition.gpu.qos": ["gpu", "long"],
        "partition.mixed.nodes": 4,
        "partition.mixed.cpus": 32,
        "partition.mixed.mem": "257000M",
        "partition.mixed.gpus": 4,
        "partition.plain.nodes": 4,
        "partition.plain.cpus": 32,
        "partition.plain.mem": "257000M",
        "partition.plain.gpus": 4,
    }
    sources = {fact.name: fact.source for fact in found.facts}
    assert sources["partition.gpu.max_time"] == "sinfo"
    assert sources["partition.gpu.qos"] == "scontrol show partition"
    assert sources["accounts"] == "sacctmgr show associations"
    assert sources["mpi"] == "srun --mpi=list"


def test_a_partition_without_nodes_has_no_nodes_to_describe(site: Site, project: Path) -> None:
    odd = "idle|0|0|infinite|1-infinite|n/a|0|(null)\nparts|4|32+|infinite|1-4|n/a|64000+|gpu:l40s:4,shard:l40s:16\n"
    site.set("sinfo", **{"--version": "slurm 23.11.4\n", "": SINFO + odd})
    found = site.discover()
    assert {key: value for key, value in values(found).items() if "idle" in key or "parts" in key} == {
        "partition.parts.nodes": 4,
        "partition.parts.cpus": 32,
        "partition.parts.mem": "64000M",
        "partition.parts.gpus": 4,
        "partition.parts.gpu": "l40s",
        "partition.parts.max_nodes": 4,
    }
    write(project / "env" / "alpine.toml", found)
    assert load_cluster("alpine").for_partition("parts").node.cpus == 32


def test_the_nodes_of_a_partition_are_counted(site: Site) -> None:
    found = site.discover()
    assert found.node_counts(None) == (0, 100)
    assert found.node_counts("gpu") == (8, 10)


def test_the_mpi_list_of_old_releases_is_on_stderr(site: Site) -> None:
    text = "echo 'srun: MPI types are...' >&2; echo 'srun: none' >&2; echo 'srun: pmix_v3' >&2"
    (site.bin / "srun").write_text(f"#!/bin/bash\n{text}\n")
    assert values(site.discover())["mpi"] == ["none", "pmix_v3"]


@pytest.mark.parametrize("command", ["scontrol", "sacctmgr", "srun", "apptainer"])
def test_a_missing_command_leaves_a_gap(site: Site, command: str) -> None:
    site.remove(command)
    found = site.discover()
    assert values(found)["partition.gpu.nodes"] == 10
    assert values(found)["slurm_version"] == "23.11.4"
    assert [gap for gap in found.gaps if gap.startswith(command)] or command == "apptainer"


def test_without_sinfo_nothing_is_found(site: Site) -> None:
    site.remove("sinfo")
    with pytest.raises(SlurmUnavailable) as error:
        site.discover()
    assert "sinfo: not on PATH" in str(error.value.found)


def test_without_accounting_nothing_is_asked(site: Site) -> None:
    site.set("scontrol", config=CONFIG.replace("slurmdbd", "none"), partition=PARTITIONS)
    site.fail("sacctmgr", "must not run")
    found = site.discover()
    assert "accounts" not in values(found)
    assert found.gaps == ("sacctmgr: the cluster keeps no accounts (AccountingStorageType is accounting_storage/none)",)


def test_an_accounting_that_refuses_is_a_gap(site: Site) -> None:
    site.fail("sacctmgr", "sacctmgr: error: Access/permission denied")
    assert "sacctmgr show associations user=" in site.discover().gaps[0]
    assert "denied" in site.discover().gaps[0]


def test_a_slurm_that_lists_nothing_is_an_error(site: Site) -> None:
    for command in ("sinfo", "scontrol"):
        site.fail(command, "slurm_load_partitions: Unable to contact slurm controller")
    with pytest.raises(SlurmUnavailable, match="lists no partition") as error:
        site.discover()
    assert "Unable to contact" in str(error.value.found)


def write(path: Path, found: Discovery) -> str:
    merged = merge_facts(path, found.facts, "Alpine")
    write_facts(path, merged, found.facts)
    return merged.after


def test_the_file_loads_and_names_the_source_of_each_value(site: Site, project: Path) -> None:
    path = project / "env" / "alpine.toml"
    found = site.discover()
    text = write(path, found)
    cluster = load_cluster("alpine")
    assert cluster.partition["gpu"].qos == ("gpu", "long")
    assert cluster.for_partition("gpu").node.gpus == 8
    assert cluster.for_partition("cpu").node.gpus == 0
    # A job without partition keeps its GPU options: the site may choose another partition for it.
    assert cluster.for_partition(None).node.gpus is None
    lines = [line for line in text.splitlines() if " = " in line and not line.startswith("description")]
    assert len(lines) == len(found.facts)
    assert all(" # " in line for line in lines)


def test_a_second_discovery_keeps_what_the_user_changed(site: Site, project: Path) -> None:
    path = project / "env" / "alpine.toml"
    text = write(path, site.discover())
    text = text.replace('max_time = "1-00:00:00"', 'max_time = "06:00:00"').replace("max_nodes = 4", "# no limit")
    path.write_text(text.replace("[node]", "# ours\n[node]\nnetwork = 400"))
    site.set(
        "sinfo",
        **{"--version": "slurm 23.11.9", "": SINFO.replace("1-00:00:00", "3-00:00:00").replace("100|128", "120|192")},
    )
    merged = merge_facts(path, site.discover().facts, "")
    assert [(kept.fact.name, kept.own, kept.fact.value) for kept in merged.kept] == [
        ("partition.gpu.max_time", "06:00:00", "3-00:00:00"),
        ("partition.gpu.max_nodes", None, 4),
    ]
    after = tomllib.loads(merged.after)
    assert after["node"] == {"network": 400, "cpus": 192, "mem": "515000M"}
    assert after["partition"]["cpu"]["nodes"] == 120
    assert "# ours\n[node]" in merged.after
    assert "cpus = 192 # sinfo" in merged.after


def test_without_the_last_discovery_every_value_is_the_users(site: Site, project: Path) -> None:
    path = project / "env" / "alpine.toml"
    write(path, site.discover())
    facts_file(path).unlink()
    path.write_text(path.read_text().replace("nodes = 100", "nodes = 99"))
    merged = merge_facts(path, site.discover().facts, "")
    assert merged.after == merged.before
    assert [kept.fact.name for kept in merged.kept] == ["partition.cpu.nodes"]


@pytest.mark.parametrize("text", ["node = 3\n", 'partition = "cpu"\n', "[partition]\ncpu = true\n"])
def test_a_value_in_the_place_of_a_table_is_refused(site: Site, project: Path, text: str) -> None:
    path = project / "env" / "alpine.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match="in the cluster file is no table"):
        merge_facts(path, site.discover().facts, "")


def test_a_file_that_is_no_toml_is_left_alone(site: Site, project: Path) -> None:
    path = project / "env" / "alpine.toml"
    path.write_text("[node\n")
    with pytest.raises(SpecError, match="is not TOML"):
        merge_facts(path, site.discover().facts, "")
