"""Compares torch's variables (RANK, WORLD_SIZE, ...) with the launcher that started the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime.variables import optional_int

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.runtime.world import World

CHOICE = "HPC_KIT_LAUNCHER"
"""Environment variable that names a launcher. The runtime then uses this launcher and asks no other."""

TORCH_VARIABLES = {
    "RANK": "rank",
    "WORLD_SIZE": "world_size",
    "LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_world_size",
}
"""torch's variables, which a job script or a library may have set, and the fields of `World` that they describe."""


_STARTERS = (
    ("the step", "or start the step with --ntasks-per-node=1 and torchrun"),
    ("mpirun", "or start one process a node with mpirun, and torchrun there"),
)


def check_agreement(environ: Mapping[str, str], world: World) -> tuple[str, ...]:
    """Return those of RANK, WORLD_SIZE, ... that are set and agree with `world`.

    A LOCAL_RANK that differs is left out where `has_own_gpu` allows it.

    Raises:
        ContradictoryEnvironment: A variable contradicts `world`.
    """
    if environ.get(CHOICE, "").strip() == world.launcher:
        return ()
    torch_values = {name: value for name in TORCH_VARIABLES if (value := optional_int(environ, name)) is not None}
    wrong = [name for name, value in torch_values.items() if getattr(world, TORCH_VARIABLES[name]) not in {value, None}]
    if wrong and not has_own_gpu(environ, world):
        began, instead = _STARTERS[world.launcher == "mpi"]
        raise ContradictoryEnvironment(
            "two launchers claim this process",
            found=f"{world.name} says {_describe_world(world, wrong)}\n"
            f"the environment says {_describe_variables(torch_values)}, set before {began} began",
            remedy=f"unset {' '.join(torch_values)} in the batch script; {instead};\n"
            f"or HPC_KIT_LAUNCHER=env, where a launcher inside of {began} has set them",
            everywhere="WORLD_SIZE" in wrong,
        )
    return tuple(f"{name} = {value}" for name, value in torch_values.items() if name not in wrong)


def has_own_gpu(environ: Mapping[str, str], world: World) -> bool:
    """Return whether LOCAL_RANK = 0 is valid although the local rank is another one.

    Job scripts set it in tasks that see only their own GPU. RANK and WORLD_SIZE must then agree with `world`.
    """
    if not environ.get("LOCAL_RANK") or environ.get(CHOICE, "").strip() == world.launcher:
        return False
    values = {name: optional_int(environ, name) for name in TORCH_VARIABLES}
    rest = all(values[name] == getattr(world, TORCH_VARIABLES[name]) for name in ("RANK", "WORLD_SIZE"))
    others = values["LOCAL_WORLD_SIZE"] is None or world.local_world_size in {values["LOCAL_WORLD_SIZE"], None}
    return rest and others and values["LOCAL_RANK"] == 0 and world.local_rank not in {0, None}


def _describe_world(world: World, wrong: list[str]) -> str:
    variables = [world.sources[TORCH_VARIABLES[name]] for name in wrong]
    text = f"rank {world.rank} of {world.world_size}"
    if any(name.startswith("LOCAL") for name in wrong):
        text += f", local rank {world.local_rank} of {world.local_world_size}"
    return f"{text} ({', '.join(variables)})"


def _describe_variables(values: Mapping[str, int]) -> str:
    both = {"RANK", "WORLD_SIZE"} <= values.keys()
    words = [f"rank {values['RANK']} of {values['WORLD_SIZE']} (RANK, WORLD_SIZE)"] if both else []
    words += [f"{name} = {value}" for name, value in values.items() if not both or name.startswith("LOCAL")]
    return ", ".join(words)
