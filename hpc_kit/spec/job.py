"""The structs of a job file: `Job`, `Launch`, `Watchdog`, `Preflight`, `Component`, `Layout` and `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpc_kit.spec.resources import Count, Number, Resources
from hpc_kit.spec.restart import Restart

Axis = Literal["pp", "dp", "cp", "tp"]


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Degrees of parallelism, whose product must be the number of ranks, and the division of a batch."""

    dp: Annotated[Count | None, Meta(description="Data parallel degree (default: what fills the job)")] = None
    pp: Annotated[Count, Meta(description="Pipeline stages")] = 1
    tp: Annotated[Count, Meta(description="Tensor parallel degree; best kept inside a node")] = 1
    cp: Annotated[Count, Meta(description="Context parallel degree")] = 1
    zero: Annotated[
        int, Meta(ge=0, le=3, description="ZeRO stage over dp: 1 optimizer state, 2 and gradients, 3 and parameters")
    ] = 0
    dp_shard: Annotated[
        Count | None, Meta(description="With zero: ranks of dp that share one replica (default: all of them)")
    ] = None
    global_batch: Annotated[Count | None, Meta(description="Samples of a step, over all ranks")] = None
    micro_batches: Annotated[
        Count | None, Meta(description="Parts of a replica's samples that follow one another through the stages")
    ] = None

    def size(self, world_size: int) -> int:
        """Return the number of ranks of the layout. An unset `dp` is computed from `world_size`."""
        return self.pp * self.tp * self.cp * self.replicas(world_size)

    def replicas(self, world_size: int) -> int:
        """Return the data parallel degree in a world of that size."""
        return self.dp if self.dp is not None else max(1, world_size // (self.pp * self.tp * self.cp))

    def degrees(self, world_size: int) -> dict[Axis, int]:
        """Return the axes of the mesh, slowest first: consecutive ranks differ in tp, and stages are farthest apart."""
        return {"pp": self.pp, "dp": self.replicas(world_size), "cp": self.cp, "tp": self.tp}

    def groups(self, axis: Axis, world_size: int) -> list[range]:
        """Return the groups of ranks that differ in this axis only."""
        degrees = self.degrees(world_size)
        order = list(degrees)
        step = 1  # between two ranks of a group
        for faster in order[order.index(axis) + 1 :]:
            step *= degrees[faster]
        size = degrees[axis]
        starts = [block * step * size + inner for block in range(world_size // (step * size)) for inner in range(step)]
        return [range(start, start + step * size, step) for start in starts]

    def __str__(self) -> str:
        named = [("dp", self.dp), ("pp", self.pp), ("tp", self.tp), ("cp", self.cp)]
        shown = [f"{name} {degree}" for name, degree in named if degree is not None and (degree > 1 or name == "dp")]
        return " x ".join(shown) or "dp"


def idle_share(stages: int, micro_batches: int, per_rank: int = 1) -> float:
    """Return the idle share of a pipeline step if all stages take the same time.

    (p - 1) / (v m + p - 1): Huang et al., 2019 (arXiv:1811.06965), section 2.3. `stages` is p, `micro_batches` is m,
    and `per_rank` is v, the interleaved stages of each rank.
    """
    return (stages - 1) / (per_rank * micro_batches + stages - 1)


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Numbers of the model, for checks and for the program. Missing numbers are not checked."""

    layers: Annotated[Count | None, Meta(description="Layers; a pipeline stage needs one at least")] = None
    heads: Annotated[Count | None, Meta(description="Attention heads; tp must divide them")] = None
    width: Annotated[Count | None, Meta(description="Width of the stream between the layers")] = None
    sequence: Annotated[Count | None, Meta(description="Tokens of a sample; cp must divide them")] = None
    parameters: Annotated[
        Count | None, Meta(description="Numbers that it learns (default: 12 x layers x width squared)")
    ] = None

    def count_parameters(self) -> int | None:
        """Return the number of parameters, or an estimate for a transformer; None without layers and width."""
        if self.parameters is not None or self.layers is None or self.width is None:
            return self.parameters
        return 12 * self.layers * self.width**2


def format_layout(layout: Layout, model: Model, own: Mapping[str, object] | None = None) -> str:
    """Return layout and model as text for the program: `dp=2 pp=2 heads=4`. Default values are left out.

    `own` are default values of the program, as far as they are known.
    """
    tables = (layout, Layout()), (model, Model())
    return " ".join(
        f"{name}={value}"
        for table, usual in tables
        for name in table.__struct_fields__
        if (value := getattr(table, name)) != getattr(usual, name)
        or (own and value is not None and value != own.get(name, value))
    )


Value = str | int | float


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start and rendezvous of the ranks."""

    launcher: Annotated[
        Literal["srun", "torchrun", "mpirun", "ray"],
        Meta(
            description="srun: a task a rank; torchrun: a task a node, which starts nproc_per_node ranks; "
            "mpirun: a rank a task, started by MPI; ray: a task a node, on which Ray starts nproc_per_node ranks"
        ),
    ] = "srun"
    mpi: Annotated[
        Literal["auto", "openmpi", "mpich"],
        Meta(
            description="MPI that provides mpirun; auto: the job asks `mpirun --version`; mpich: also Intel MPI and "
            "MVAPICH2, which take the same options"
        ),
    ] = "auto"
    nproc_per_node: Annotated[Count, Meta(description="Ranks that torchrun or Ray starts on each node")] = 1
    options: Annotated[tuple[str, ...], Meta(description="More options of torchrun, such as '--max-restarts=3'")] = ()
    backend: Annotated[
        Literal["auto", "gloo", "nccl", "mpi"],
        Meta(description="torch.distributed's backend; auto: nccl where there is CUDA, gloo elsewhere"),
    ] = "auto"
    timeout: Annotated[Count | None, Meta(description="Seconds that a rank waits for other ranks")] = None
    bootstrap: Annotated[
        bool,
        Meta(description="Start the program through `python -m hpc_kit.runtime`: for one that imports nothing of ours"),
    ] = False
    ranks_by: Annotated[
        Literal["launcher", "program"] | None,
        Meta(
            description="With bootstrap, in a job of one task. launcher: the task is the only rank, and RANK, "
            "WORLD_SIZE and LOCAL_RANK are set. program: they are not set, and the program starts its own ranks "
            "(Lightning with devices=2, mp.spawn). Default: program for several GPUs, otherwise launcher"
        ),
    ] = None
    output: Annotated[
        str | None, Meta(description="File of each of srun's tasks (default: <run folder>/rank-%t.log)")
    ] = None
    error: Annotated[
        str | None, Meta(description="File of the stderr of each of srun's tasks (default: with its stdout)")
    ] = None

    @property
    def starts_agents(self) -> bool:
        """Each task is the agent of a node, which starts the ranks."""
        return self.launcher in {"torchrun", "ray"}


class Watchdog(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Detects training that makes no progress."""

    action: Annotated[
        Literal["report", "stop", "off"],
        Meta(
            description="If no step ends for a long time: report which rank the others wait for, or also stop the job"
        ),
    ] = "report"
    timeout: Annotated[
        Count | None,
        Meta(description="Shortest stall in seconds (default: 600); never less than 10 times the usual step"),
    ] = None


class Preflight(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The measurement of all nodes before the training, which excludes slow and broken ones."""

    enabled: Annotated[bool, Meta(description="Measure the nodes before the program starts")] = False
    threshold: Annotated[
        float, Meta(gt=0, lt=1, description="A node is slow if a rate is below this part of the median over the nodes")
    ] = 0.7
    requeues: Annotated[
        Number,
        Meta(
            description="How often the job may be requeued without the excluded nodes if no spare node replaces them;"
            " then it fails"
        ),
    ] = 2


class Component(Resources, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One component of a heterogeneous job. Its sbatch options replace those of [resources]."""

    command: Annotated[
        tuple[str, ...] | None, Meta(description="Program of this component's ranks (default: the job's)")
    ] = None

    def without_command(self) -> Resources:
        """Return the sbatch options without `command`."""
        return Resources(**{name: getattr(self, name) for name in Resources.__struct_fields__})


class Program(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a program that checks and plans use. They apply to jobs whose command runs this file."""

    file: Annotated[str, Meta(description="Path of the program in the command: `python FILE ...`")]
    defaults: Annotated[
        dict[str, int], Meta(description="Numbers that the program uses if neither the job nor the command sets them")
    ] = field(default_factory=dict)
    all_ranks: Annotated[
        tuple[str, ...], Meta(description="Degrees that use, by default, all ranks that the other degrees leave")
    ] = ()
    only: Annotated[
        dict[str, tuple[int, ...]], Meta(description="The only values that the program accepts, by option")
    ] = field(default_factory=dict)
    options: Annotated[
        tuple[str, ...], Meta(description="Its other options that a plan may set, such as bf16, '_' for '-'")
    ] = ()

    @property
    def names(self) -> frozenset[str]:
        """All options that the table names."""
        return frozenset({*self.defaults, *self.all_ranks, *self.only, *self.options})


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One job file."""

    name: Annotated[str, Meta(description="Name of the job (default: the file's)")] = ""
    description: Annotated[str, Meta(description="One line: what the job is for")] = ""
    extends: Annotated[str | None, Meta(description="Job file that this one starts from")] = None
    template: Annotated[str, Meta(description="templates/<template>.sbatch.j2")] = "ddp"
    command: Annotated[
        tuple[str, ...], Meta(description="The program and its arguments; 'python' is the cluster's interpreter")
    ] = ()
    setup: Annotated[
        tuple[str, ...], Meta(description="Lines of shell before the program, after the cluster's own")
    ] = ()
    resources: Annotated[Resources, Meta(description="The long sbatch options, '_' for '-'")] = field(
        default_factory=Resources
    )
    component: Annotated[
        tuple[Component, ...], Meta(description="Components of a heterogeneous job, whose ranks form one world")
    ] = ()
    layout: Annotated[Layout, Meta(description="Degrees of parallelism")] = field(default_factory=Layout)
    model: Annotated[Model, Meta(description="Numbers of the model, for checks and for the program")] = field(
        default_factory=Model
    )
    program: Annotated[Program | None, Meta(description="What the program of the command supports")] = None
    launch: Annotated[Launch, Meta(description="How the ranks are started")] = field(default_factory=Launch)
    watchdog: Annotated[Watchdog, Meta(description="Action when training makes no progress")] = field(
        default_factory=Watchdog
    )
    restart: Annotated[
        Restart | None, Meta(description="Start the job again after its time limit, a preemption or a failure")
    ] = None
    preflight: Annotated[Preflight, Meta(description="Measure the nodes before the program starts")] = field(
        default_factory=Preflight
    )
    env: Annotated[dict[str, Value], Meta(description="Environment variables of the job; no secrets")] = field(
        default_factory=dict
    )
