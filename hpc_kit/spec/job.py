"""One job: a program, how it is launched, and what it asks of Slurm."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpc_kit.spec.layout import Layout, Model
from hpc_kit.spec.resources import Count, Resources

Value = str | int | float


class Launch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the ranks are started and meet."""

    launcher: Annotated[
        Literal["srun", "torchrun", "mpirun", "ray"],
        Meta(
            description="srun: a task a rank; torchrun: a task a node, which starts nproc_per_node ranks; "
            "mpirun: a rank a task, started by MPI; ray: a task a node, on which Ray starts nproc_per_node ranks"
        ),
    ] = "srun"
    mpi: Annotated[
        Literal["openmpi", "mpich"],
        Meta(description="Whose mpirun it is; mpich: also Intel MPI and MVAPICH2, which take the same options"),
    ] = "openmpi"
    nproc_per_node: Annotated[Count, Meta(description="Ranks that torchrun or Ray starts on each node")] = 1
    backend: Annotated[
        Literal["auto", "gloo", "nccl", "mpi"],
        Meta(description="torch.distributed's backend; auto: nccl where there is CUDA, gloo elsewhere"),
    ] = "auto"
    timeout: Annotated[Count | None, Meta(description="Seconds after which a rank gives up waiting for the others")] = (
        None
    )
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
        """A task is a node's agent, which starts the ranks itself."""
        return self.launcher in {"torchrun", "ray"}


class Component(Resources, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One component of a heterogeneous job: its own sbatch options, over those of [resources]."""

    command: Annotated[
        tuple[str, ...] | None, Meta(description="Program of this component's ranks (default: the job's)")
    ] = None

    def options(self) -> Resources:
        """The sbatch options alone."""
        return Resources(**{name: getattr(self, name) for name in Resources.__struct_fields__})


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
    model: Annotated[Model, Meta(description="What the checks and the program are told of the model")] = field(
        default_factory=Model
    )
    launch: Annotated[Launch, Meta(description="How the ranks are started")] = field(default_factory=Launch)
    env: Annotated[dict[str, Value], Meta(description="Environment variables of the job; no secrets")] = field(
        default_factory=dict
    )
