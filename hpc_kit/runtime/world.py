"""`World`: rank, world size and address of this process, from one launcher, and its explanation for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime.variables import TORCH_VARIABLES, launcher_setting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank, world size and address of one process among those that were launched together.

    ================  ===========================================  ==================  ==========================
    here              Slurm step                                   torchrun            Open MPI
    ================  ===========================================  ==================  ==========================
    rank              SLURM_PROCID                                 RANK                OMPI_COMM_WORLD_RANK
    world_size        SLURM_STEP_NUM_TASKS                         WORLD_SIZE          OMPI_COMM_WORLD_SIZE
    local_rank        SLURM_LOCALID                                LOCAL_RANK          OMPI_COMM_WORLD_LOCAL_RANK
    local_world_size  SLURM_STEP_TASKS_PER_NODE at SLURM_NODEID    LOCAL_WORLD_SIZE    OMPI_COMM_WORLD_LOCAL_SIZE
    node_rank         SLURM_NODEID                                 GROUP_RANK          none
    nnodes            SLURM_STEP_NUM_NODES                         GROUP_WORLD_SIZE    none
    master_addr       first of SLURM_STEP_NODELIST                 MASTER_ADDR         MASTER_ADDR
    ================  ===========================================  ==================  ==========================

    A value that the launcher's variables do not contain is None. `hpc_kit.distributed()` asks the other ranks for it.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    nnodes: int | None
    master_addr: str | None = None
    """Host of rank 0."""
    master_port: int | None = None
    launcher: str
    """slurm, torchrun, ssh, mpi, submitit (its local executor), env (RANK and WORLD_SIZE, set by hand or by an unknown
    launcher), single, or the name of a plug-in.
    """
    name: str
    """Description of the launch, such as `the srun step 1234.0`."""
    key: str = ""
    """Text that all ranks of this launch share, and no other launch. Port and token are derived from it."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The variable from which each value comes."""
    warnings: tuple[str, ...] = ()
    agrees: tuple[str, ...] = ()
    """Other variables that confirm the values."""
    ignored: tuple[str, ...] = ()
    """Variables that were ignored, each with the reason."""
    hosts: tuple[str, ...] = ()
    """Nodes of the launch, if known."""
    tasks_per_node: tuple[int, ...] = ()
    """Number of ranks on each of `hosts`."""
    reach: tuple[str, ...] = ()
    """Addresses and names of rank 0's host, if rank 0 has sent them."""

    @property
    def is_main(self) -> bool:
        """True for rank 0, which writes files and prints for all ranks."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} in {self.name}"

    def checked(self) -> World:
        """Return this World after checking that each rank is below its size.

        Raises:
            ContradictoryEnvironment: A rank is not below its size. The message names both variables.
        """
        pairs = (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes"))
        for index_name, size_name in (*pairs, ("local_world_size", "world_size"), ("nnodes", "world_size")):
            index, size = getattr(self, index_name), getattr(self, size_name)
            fits = index is None or size is None or index < size + (not index_name.endswith("rank"))
            if not fits or size == 0:
                raise ContradictoryEnvironment(
                    f"{index_name} {index} does not fit {size_name} {size}: {self.name}",
                    found=f"{self._describe(index_name)}\n{self._describe(size_name)}",
                    remedy=f"start with {launcher_setting(self.sources.get(index_name, ''))}, which sets both;\n"
                    "or unset those that an earlier launch has left behind",
                )
        return self

    def _describe(self, name: str) -> str:
        return f"{name} = {getattr(self, name)} from {self.sources.get(name, 'no variable')}"


_NAME_WIDTH, _VALUE_WIDTH = 16, 8


class ExplainedValue(NamedTuple):
    """One value of a World."""

    name: str
    value: str
    source: str


def explained_values(world: World) -> list[ExplainedValue]:
    """Return the table of values, one row per value. `-` is an unknown value."""
    values = ((name, getattr(world, name)) for name in TORCH_VARIABLES)
    texts = ((name, "-" if value is None else str(value)) for name, value in values)
    return [ExplainedValue(name, text, world.sources.get(name, "")) for name, text in texts]


def explain_world(world: World) -> str:
    """Return the printed table with confirming variables, ignored variables and warnings."""
    wide = max(_VALUE_WIDTH, *(len(row.value) for row in explained_values(world)))
    lines = [heading(world)]
    lines += [
        f"  {row.name:<{_NAME_WIDTH}}  {row.value:<{wide}}  {row.source}".rstrip() for row in explained_values(world)
    ]
    if world.agrees:
        lines.append(f"agrees  {', '.join(world.agrees)}")
    if world.ignored:
        lines.append(f"ignored {'; '.join(world.ignored)}")
    lines += [f"warning: {warning}" for warning in world.warnings]
    return "\n".join(lines) + "\n"


def heading(world: World) -> str:
    """Return a line such as `World of 4 from the srun step 1234.0`."""
    if world.launcher == "single":
        return f"A world of one: {world.name}"
    return f"World of {world.world_size} from {world.name}"


def to_json(world: World) -> dict[str, object]:
    """Return the World as a JSON object."""
    return {name: getattr(world, name) for name in TORCH_VARIABLES} | {
        "launcher": world.launcher,
        "sources": dict(world.sources),
        "warnings": list(world.warnings),
    }
