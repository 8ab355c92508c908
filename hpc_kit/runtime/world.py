"""`World`: rank, world size and address of this process from one launcher, and a text that explains them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime.variables import TORCH_VARIABLES, launcher_setting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank, world size and address of one process among those that were launched together.

    ================  ===========================================  ==================  ==========================
    field             Slurm step                                   torchrun            Open MPI
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
    """Text that all ranks of this launch have, and no other launch. Port and token are derived from it."""
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
        """Return this World after checking that ranks are below their sizes, and no size is above the world size.

        Raises:
            ContradictoryEnvironment: Two values contradict each other. The message names both variables.
        """
        ranks = (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes"))
        sizes = (("local_world_size", "world_size"), ("nnodes", "world_size"))
        for name, limit_name in (*ranks, *sizes):
            value, limit = getattr(self, name), getattr(self, limit_name)
            is_known = value is not None and limit is not None
            is_above = is_known and (value > limit or ((name, limit_name) in ranks and value == limit))
            if is_above or limit == 0:
                raise ContradictoryEnvironment(
                    f"{name} {value} does not fit {limit_name} {limit}: {self.name}",
                    found=f"{self._describe(name)}\n{self._describe(limit_name)}",
                    remedy=f"start with {launcher_setting(self.sources.get(name, ''))}, which sets both;\n"
                    "or unset those that an earlier launch has left behind",
                )
        return self

    def _describe(self, name: str) -> str:
        return f"{name} = {getattr(self, name)} from {self.sources.get(name, 'no variable')}"


_NAME_WIDTH, _VALUE_WIDTH = 16, 8


def explain_world(world: World) -> str:
    """Return a table of the values and their variables, and lines about confirming and ignored variables.

    An unknown value is shown as `-`.
    """
    values = {name: "-" if (value := getattr(world, name)) is None else str(value) for name in TORCH_VARIABLES}
    width = max(_VALUE_WIDTH, *map(len, values.values()))
    start = "A world of one:" if world.launcher == "single" else f"World of {world.world_size} from"
    lines = [f"{start} {world.name}"]
    for name, value in values.items():
        lines.append(f"  {name:<{_NAME_WIDTH}}  {value:<{width}}  {world.sources.get(name, '')}".rstrip())
    if world.agrees:
        lines.append(f"agrees  {', '.join(world.agrees)}")
    if world.ignored:
        lines.append(f"ignored {'; '.join(world.ignored)}")
    lines += [f"warning: {warning}" for warning in world.warnings]
    return "\n".join(lines) + "\n"


def to_json(world: World) -> dict[str, object]:
    """Return the World as a JSON object."""
    return {name: getattr(world, name) for name in TORCH_VARIABLES} | {
        "launcher": world.launcher,
        "sources": dict(world.sources),
        "warnings": list(world.warnings),
    }
