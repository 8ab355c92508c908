"""One cluster: which Slurm, what its nodes are like, and the defaults of every job there."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpc_kit.spec.job import Value
from hpc_kit.spec.resources import Count, Number, Resources, Size


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one node has; None: not known, nothing is concluded from it."""

    cpus: Annotated[Count | None, Meta(description="CPUs that Slurm counts on a node")] = None
    mem: Annotated[Size | None, Meta(description="Memory of a node")] = None
    gpus: Annotated[Number | None, Meta(description="GPUs of a node; 0: GPU options are left out, and said so")] = None
    gpu: Annotated[str | None, Meta(description="Kind of GPU, such as 'a100'")] = None


class Embedded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The embedded Slurm's own settings, for slurm = 'embedded'."""

    nodes: Annotated[str, Meta(description="Its virtual nodes")] = "127.0.0.[1-4]"
    partitions: Annotated[tuple[str, ...], Meta(description="Its partitions, the default one first")] = ("local",)
    max_array_size: Annotated[Count, Meta(description="Slurm's MaxArraySize")] = 1001
    kill_wait: Annotated[Number, Meta(description="Seconds between SIGTERM and SIGKILL")] = 30


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One cluster file."""

    name: Annotated[str, Meta(description="Name of the cluster (default: the file's)")] = ""
    description: Annotated[str, Meta(description="One line about it")] = ""
    slurm: Annotated[
        Literal["system", "embedded"],
        Meta(description="system: the commands on PATH; embedded: the one that comes along"),
    ] = "system"
    python: Annotated[
        str | None, Meta(description="Interpreter on the nodes (default: the one that renders the script)")
    ] = None
    runs: Annotated[str, Meta(description="Folder of logs and records, on a file system that all nodes see")] = "runs"
    setup: Annotated[
        tuple[str, ...], Meta(description="Lines of shell before every job, such as 'module load cuda'")
    ] = ()
    env: Annotated[dict[str, Value], Meta(description="Environment variables of every job; no secrets")] = field(
        default_factory=dict
    )
    defaults: Annotated[Resources, Meta(description="sbatch options of every job that does not set them")] = field(
        default_factory=Resources
    )
    node: Annotated[Node, Meta(description="What one node has")] = field(default_factory=Node)
    embedded: Annotated[Embedded, Meta(description="Settings of the embedded Slurm")] = field(default_factory=Embedded)
