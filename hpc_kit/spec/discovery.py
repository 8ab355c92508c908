"""Asks the Slurm of a login node for the facts of a cluster file, each with the command that gave it.

Only explicit text formats are read, which all releases of Slurm print alike; the JSON of each release differs.
A command that is missing or fails leaves a gap; the remaining facts are still found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.errors import SlurmUnavailable, UnitError
from hpc_kit.slurm import partitions, units
from hpc_kit.slurm.client import SlurmClient, user_name
from hpc_kit.slurm.cluster_identity import find_command
from hpc_kit.slurm.partitions import ListedPartition

SECONDS = 20.0
"""Time limit of each command."""

CONFIG_ARGV = ("scontrol", "show", "config")
PARTITION_ARGV = ("scontrol", "--oneliner", "show", "partition")
MPI_ARGV = ("srun", "--mpi=list")
CONTAINERS = ("apptainer", "singularity", "enroot", "podman", "podman-hpc", "shifter", "ch-run", "sarus")


class Fact(NamedTuple):
    """One value of a cluster file: its key, such as `("node", "cpus")`, and the command that printed the value."""

    key: tuple[str, ...]
    value: str | float | bool | list[str]
    source: str

    @property
    def name(self) -> str:
        """The key with dots."""
        return ".".join(self.key)


class Discovery(NamedTuple):
    """The facts that were found, and a line for each command that did not answer. `cluster` is Slurm's own name."""

    cluster: str | None
    facts: tuple[Fact, ...]
    gaps: tuple[str, ...]

    def node_counts(self, partition: str | None) -> tuple[int, int]:
        """Return the GPUs of a node and the number of nodes of a partition; None: of the default one."""
        table = {fact.key: fact.value for fact in self.facts}
        defaults = (key[1] for key in table if key[0] == "partition" and key[2] == "default")
        name = partition or next(defaults, "")
        gpus = table.get(("partition", name, "gpus"), table.get(("node", "gpus"), 0))
        return int(str(gpus)), int(str(table.get(("partition", name, "nodes"), 1)))


def discover_cluster(client: SlurmClient) -> Discovery:
    """Ask Slurm for everything that a cluster file can contain.

    Raises:
        SlurmUnavailable: sinfo lists no partition.
    """
    questions = _Questions(client)
    config = _parse_config(questions.ask(CONFIG_ARGV))
    listed = questions.ask(PARTITION_ARGV)
    found = partitions.parse_partitions(questions.ask(partitions.SINFO_ARGV))
    if not found:
        raise SlurmUnavailable(
            "Slurm lists no partition",
            found="\n".join(questions.gaps) or "sinfo prints nothing",
            remedy="run this on a login node of the cluster",
        )
    rules = {each["PartitionName"]: each for each in partitions.scontrol_records(listed)}
    usual, sizes = _usual_node(found), config.get("MaxArraySize", "")
    facts = [
        Fact(("slurm",), "embedded" if client.embedded else "system", "sbatch on PATH"),
        *_version_facts(questions, config),
        *([Fact(("max_array_size",), int(sizes), _words(CONFIG_ARGV))] if sizes.isdigit() else []),
        *_association_facts(questions, config),
        *_software_facts(questions, client.environ),
        *(Fact(("node", key), value, "sinfo") for key, value in usual.items()),
    ]
    for each in found:
        facts += _partition_facts(each, usual, rules.get(each.name, {}))
    if client.embedded:
        facts += [
            Fact(("embedded", "nodes"), rules[found[0].name]["Nodes"], _words(PARTITION_ARGV)),
            Fact(("embedded", "partitions"), [each.name for each in found], "sinfo"),
        ]
    return Discovery(config.get("ClusterName"), tuple(facts), tuple(questions.gaps))


class _Questions:
    """Runs commands, and collects a line for each one without an answer."""

    def __init__(self, client: SlurmClient) -> None:
        self.client = client
        self.gaps: list[str] = []

    def ask(self, argv: Sequence[str], *, streams: str = "out") -> str:
        """Return the output of a command; the empty string if it fails. `streams="both"` adds its errors."""
        if find_command(argv[0], self.client.environ) is None:
            self.gaps.append(f"{argv[0]}: not on PATH")
            return ""
        try:
            answer = self.client.run(argv, timeout=SECONDS)
        except SlurmUnavailable as error:
            self.gaps.append(f"{_words(argv)}: {error.what}")
            return ""
        if answer.returncode:
            problem = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            self.gaps.append(f"{_words(argv)}: {problem[-1] if problem else f'exit status {answer.returncode}'}")
            return ""
        return answer.stdout + (answer.stderr if streams == "both" else "")


def _words(argv: Sequence[str]) -> str:
    """Return a command for a comment, without options that only shape its output."""
    return " ".join(word for word in argv if word == "--mpi=list" or not word.startswith("-"))


def _parse_config(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)\s*=[ \t]*(.*?)\s*$", text, re.MULTILINE))


def _version_facts(questions: _Questions, config: Mapping[str, str]) -> Iterator[Fact]:
    from hpc_kit.slurm.versions import parse_version

    version = config.get("SLURM_VERSION")
    text = version or questions.ask(("sinfo", "--version"))
    try:
        found = str(parse_version(text))
    except UnitError:
        return
    yield Fact(("slurm_version",), found, _words(CONFIG_ARGV) if version else "sinfo --version")


def _association_facts(questions: _Questions, config: Mapping[str, str]) -> Iterator[Fact]:
    """Yield the accounts and QOS of the user. Many sites have no accounting, or do not show it to users."""
    if config.get("AccountingStorageType") == "accounting_storage/none":
        questions.gaps.append(
            "sacctmgr: the cluster keeps no accounts (AccountingStorageType is accounting_storage/none)"
        )
        return
    format_ = "format=Cluster,Account,QOS"
    text = questions.ask(
        ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user_name()}", format_)
    )
    # One slurmdbd may serve several clusters, and stores their names in small letters.
    cluster = config.get("ClusterName", "").lower()
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    rows = [row for row in rows if row[0].lower() == cluster or not cluster]
    for key, names in (
        ("accounts", [account for _, account, _ in rows]),
        ("qos", [name for *_, listed in rows for name in listed.split(",")]),
    ):
        if known := sorted({name for name in names if name}):
            yield Fact((key,), known, "sacctmgr show associations")


def _software_facts(questions: _Questions, environ: Mapping[str, str]) -> Iterator[Fact]:
    # Releases before 21.08 print the list on stderr, with `srun: ` before each line.
    text = questions.ask(MPI_ARGV, streams="both")
    lines = [line.removeprefix("srun:").strip() for line in text.splitlines()]
    if plugins := [line for line in lines if re.fullmatch(r"[a-z]\w*", line)]:
        yield Fact(("mpi",), plugins, _words(MPI_ARGV))
    tools = [name for name in CONTAINERS if find_command(name, environ)]
    plugin = find_command("srun", environ) and "--container-image" in questions.ask(("srun", "--help"), streams="both")
    if plugin:
        tools.append("pyxis")
    if tools:
        yield Fact(("containers",), tools, "programs on PATH" + (", srun --help" if plugin else ""))


def _usual_node(found: Sequence[ListedPartition]) -> dict[str, str | int]:
    """Return the keys of [node]: the largest node of the default partition, else of the first one.

    A cluster with GPUs elsewhere gets no `gpus = 0` there: this would drop the GPU options of jobs without partition.
    """
    keys = _node_keys(next((each for each in found if each.is_default), found[0]))
    if keys.get("gpus") == 0 and any(kind.gpus for each in found for kind in each.kinds):
        del keys["gpus"]
    return keys


def _node_keys(partition: ListedPartition) -> dict[str, str | int]:
    """Return the largest number of each resource that a node of a partition has."""
    keys: dict[str, str | int] = {}
    # sinfo lists a partition without nodes as one of 0 nodes with 0 CPUs.
    kinds = [kind for kind in partition.kinds if kind.nodes and kind.cpus]
    if kinds:
        keys["cpus"] = max(kind.cpus for kind in kinds)
    if memories := [kind.mem for kind in kinds if kind.mem and kind.mem > 1]:  # Slurm's default is 1 MiB
        most = max(memories)
        keys["mem"] = f"{most}M" if most % 1024 else f"{most // 1024}G"
    if counts := [kind.gpus for kind in kinds if kind.gpus is not None]:
        keys["gpus"] = max(counts)
    if len(types := {kind.gpu for kind in kinds if kind.gpus}) == 1 and (only := types.pop()):
        keys["gpu"] = only
    return keys


def _partition_facts(
    partition: ListedPartition, usual: Mapping[str, object], rules: Mapping[str, str]
) -> Iterator[Fact]:
    """Yield the keys of one partition. Its nodes need a key only where they differ from [node]."""
    keys: dict[str, str | int | bool] = {"default": True} if partition.is_default else {}
    if partition.nodes:
        keys["nodes"] = partition.nodes
    keys |= {key: value for key, value in _node_keys(partition).items() if usual.get(key) != value}
    for key, seconds in (("max_time", partition.time), ("default_time", partition.default_time)):
        if seconds is not None:
            keys[key] = units.format_time(seconds)
    if partition.most_nodes is not None:
        keys["max_nodes"] = partition.most_nodes
    for key, value in keys.items():
        yield Fact(("partition", partition.name, key), value, "sinfo")
    # sinfo prints neither accounts nor QOS.
    for key, name in (("accounts", "AllowAccounts"), ("qos", "AllowQos")):
        allowed = rules.get(name, "ALL")
        if allowed.upper() not in {"", "ALL", "N/A", "(NULL)"}:
            yield Fact(("partition", partition.name, key), allowed.split(","), _words(PARTITION_ARGV))


def file_name(cluster: str | None) -> str:
    """Return the name of the file for a cluster: Slurm's own name if it is fit for a file."""
    return cluster if cluster and PurePath(cluster).name == cluster and re.fullmatch(r"[\w.-]+", cluster) else "cluster"
