"""One cluster: which Slurm, what its nodes are like, and the defaults of every job there."""

from typing import Annotated, Literal, Self

from msgspec import Meta, Struct, field, structs

from hpc_kit.spec.job import Value
from hpc_kit.spec.resources import Count, Minutes, Number, Resources, Size

Seconds = Annotated[float, Meta(ge=0, lt=1)]
"""A measured time that is shorter than a second."""


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources of one node. None means unknown, so that nothing is checked."""

    cpus: Annotated[Count | None, Meta(description="CPUs that Slurm counts on a node")] = None
    mem: Annotated[Size | None, Meta(description="Memory of a node")] = None
    gpus: Annotated[Number | None, Meta(description="GPUs of a node; 0: GPU options are ignored with a note")] = None
    gpu: Annotated[str | None, Meta(description="Kind of GPU, such as 'a100'")] = None
    network: Annotated[Count | None, Meta(description="Network of a node, Gb/s each way, all its cards together")] = (
        None
    )
    fabric: Annotated[
        Literal["infiniband", "efa", "omnipath", "slingshot", "ethernet"] | None,
        Meta(description="Kind of network between nodes (plan's default: infiniband for GPUs, ethernet for CPUs)"),
    ] = None
    interfaces: Annotated[tuple[str, ...], Meta(description="Network interfaces of a node that are up")] = ()
    nvlinks: Annotated[Number | None, Meta(description="NVLinks between two GPUs of a node")] = None
    link_alpha: Annotated[
        Seconds | None, Meta(description="alpha of an all-reduce in a node: seconds of one pass without data")
    ] = None
    link_beta: Annotated[Seconds | None, Meta(description="beta of it: seconds for a byte past each rank")] = None
    network_alpha: Annotated[
        Seconds | None, Meta(description="alpha of an all-reduce between two nodes with one rank each, in seconds")
    ] = None
    network_beta: Annotated[Seconds | None, Meta(description="beta of it: seconds for a byte past each rank")] = None


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Software that a job activates before its first rank, in this order. A failure ends the job."""

    modules: Annotated[tuple[str, ...], Meta(description="Modules to load, such as 'cuda/12.6'")] = ()
    conda: Annotated[str | None, Meta(description="conda environment, by name or path")] = None
    venv: Annotated[str | None, Meta(description="Folder of a virtual environment")] = None
    uv: Annotated[str | None, Meta(description="Folder of a uv project, brought in line with its lock file")] = None

    apptainer: Annotated[str | None, Meta(description="Image that each rank runs in, by Apptainer")] = None
    pyxis: Annotated[str | None, Meta(description="Image that each rank runs in, by Slurm's plugin Pyxis")] = None
    mounts: Annotated[
        tuple[str, ...], Meta(description="Folders that the container sees in addition to the project")
    ] = ()

    @property
    def is_container(self) -> bool:
        """The ranks run in a container."""
        return bool(self.apptainer or self.pyxis)

    @property
    def activates(self) -> bool:
        """The script has to activate or check something before the first rank."""
        return bool(self.modules) or self.brings_python or self.is_container

    @property
    def brings_python(self) -> bool:
        """The environment puts the job's interpreter on PATH."""
        return bool(self.conda or self.venv or self.uv or self.is_container)


class Embedded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The embedded Slurm's own settings, for slurm = 'embedded'."""

    nodes: Annotated[str, Meta(description="Its virtual nodes")] = "127.0.0.[1-4]"
    partitions: Annotated[tuple[str, ...], Meta(description="Its partitions, the default one first")] = ("local",)
    max_array_size: Annotated[Count, Meta(description="Slurm's MaxArraySize")] = 1001
    kill_wait: Annotated[Number, Meta(description="Seconds between SIGTERM and SIGKILL")] = 30
    mpi_default: Annotated[Literal["none", "pmi2"], Meta(description="Slurm's MpiDefault: srun's --mpi")] = "none"
    strict: Annotated[bool, Meta(description="Refuse names, sizes and options that are not there, as Slurm does")] = (
        False
    )


class Partition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One partition: its limits, its nodes where they differ from [node], and settings for its jobs only.

    None means unknown, unlimited, or as in the rest of the file.
    """

    default: Annotated[bool, Meta(description="Jobs that name no partition go here")] = False
    nodes: Annotated[Count | None, Meta(description="Nodes of the partition")] = None
    cpus: Annotated[Count | None, Meta(description="CPUs of its largest nodes")] = None
    mem: Annotated[Size | None, Meta(description="Memory of its largest nodes")] = None
    gpus: Annotated[Number | None, Meta(description="GPUs of a node; 0: none")] = None
    gpu: Annotated[str | None, Meta(description="Kind of GPU, such as 'a100'")] = None
    max_time: Annotated[Minutes | None, Meta(description="Longest time limit of a job")] = None
    default_time: Annotated[Minutes | None, Meta(description="Time limit of a job that sets none")] = None
    max_nodes: Annotated[Count | None, Meta(description="Most nodes of one job")] = None
    accounts: Annotated[tuple[str, ...], Meta(description="The only accounts that may use it")] = ()
    qos: Annotated[tuple[str, ...], Meta(description="The only QOS that may use it")] = ()
    python: Annotated[str | None, Meta(description="Interpreter on its nodes")] = None
    setup: Annotated[tuple[str, ...], Meta(description="Lines of shell, instead of those of the cluster")] = ()
    environment: Annotated[Environment, Meta(description="Modules and Python environment of its jobs")] = field(
        default_factory=Environment
    )
    env: Annotated[dict[str, Value], Meta(description="Environment variables of its jobs; no secrets")] = field(
        default_factory=dict
    )
    defaults: Annotated[Resources, Meta(description="sbatch options of its jobs that do not set them")] = field(
        default_factory=Resources
    )

    @property
    def has_settings(self) -> bool:
        """True if it replaces settings of the whole file."""
        empty = Partition()
        return any(getattr(self, key) != getattr(empty, key) for key in (*PARTITION_OVERRIDES, *_NODE_KEYS))


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One cluster file."""

    extends: Annotated[str | None, Meta(description="Cluster file to start from, by name or path")] = None
    name: Annotated[str, Meta(description="Name of the cluster (default: the file's)")] = ""
    description: Annotated[str, Meta(description="One line about it")] = ""
    slurm: Annotated[
        Literal["system", "embedded"],
        Meta(description="system: the commands on PATH; embedded: the embedded Slurm of this package"),
    ] = "system"
    slurm_version: Annotated[
        str | None,
        Meta(description="Its release, such as '23.11.10' (default: asked of sinfo where there is one)"),
    ] = None
    python: Annotated[
        str | None, Meta(description="Interpreter on the nodes (default: the one that renders the script)")
    ] = None
    runs: Annotated[str, Meta(description="Folder of logs and records, on a file system that all nodes see")] = "runs"
    setup: Annotated[
        tuple[str, ...], Meta(description="Lines of shell before every job, such as 'module load cuda'")
    ] = ()
    environment: Annotated[Environment, Meta(description="Modules and Python environment of every job")] = field(
        default_factory=Environment
    )
    env: Annotated[dict[str, Value], Meta(description="Environment variables of every job; no secrets")] = field(
        default_factory=dict
    )
    defaults: Annotated[Resources, Meta(description="sbatch options of every job that does not set them")] = field(
        default_factory=Resources
    )
    node: Annotated[Node, Meta(description="What one node has")] = field(default_factory=Node)
    partition: Annotated[dict[str, Partition], Meta(description="Partitions, by name")] = field(default_factory=dict)
    max_array_size: Annotated[
        Count | None, Meta(description="Slurm's MaxArraySize: every index of an array is below it")
    ] = None
    accounts: Annotated[tuple[str, ...], Meta(description="Accounts of the user; a job with another gets a note")] = ()
    qos: Annotated[tuple[str, ...], Meta(description="QOS of the user; a job with another gets a note")] = ()
    mpi: Annotated[tuple[str, ...], Meta(description="Values of srun's --mpi, such as 'pmix'")] = ()
    containers: Annotated[
        tuple[str, ...], Meta(description="Container tools: apptainer, singularity, pyxis, enroot, podman, shifter")
    ] = ()
    embedded: Annotated[Embedded, Meta(description="Settings of the embedded Slurm")] = field(default_factory=Embedded)

    def for_partition(self, names: str | None) -> Self:
        """Return the cluster with the nodes of a partition in `node`.

        `names` is sbatch's --partition; None: the default partition. Of several, Slurm chooses one later, so that
        [node] counts.
        """
        chosen = [self.partition[name] for name in (names or "").split(",") if name in self.partition]
        if names is None:
            chosen = [each for each in self.partition.values() if each.default]
        if len(chosen) != 1:
            return self
        own = {key: value for key in _NODE_KEYS if (value := getattr(chosen[0], key)) is not None}
        # Many sites move a job that asks for GPUs to another partition than the default one.
        if names is None and own.get("gpus") == 0:
            del own["gpus"]
        return structs.replace(self, node=structs.replace(self.node, **own))


PARTITION_OVERRIDES = ("python", "setup", "environment", "env", "defaults")
"""Keys of a partition that replace those of the whole file for its jobs."""

_NODE_KEYS = ("cpus", "mem", "gpus", "gpu")
"""Keys that a partition may have in place of [node]."""
