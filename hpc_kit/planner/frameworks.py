"""What each training framework can do: layouts that it has no means for are not offered."""

from __future__ import annotations

from msgspec import Struct

from hpc_kit.planner.run import Run

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sequences of one forward pass that are tried."""
CHUNKS = (1, 2, 3, 4, 6, 8)
"""Virtual stages that are tried."""


class Framework(Struct, frozen=True):
    """Means of one framework.

    Attributes:
        zero: ZeRO stages without a pipeline.
        zero_piped: The same within one.
        degrees: Of tensor, pipeline and context parallelism those that it has.
    """

    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_piped: tuple[int, ...] = (0, 1)
    degrees: tuple[str, ...] = ("tp", "pp", "cp")


FRAMEWORKS = {
    "torch": Framework(),
    "megatron": Framework(zero=(0, 1)),
    "nemo": Framework(zero=(0, 1)),
    "nanotron": Framework(zero=(0, 1), degrees=("tp", "pp")),
    "megatron-deepspeed": Framework(degrees=("tp", "pp")),
    # Fully sharded, or with parameters left gathered after the forward pass (ZeRO-2); in a pipeline they always are.
    "torchtitan": Framework(zero=(0, 2, 3), zero_piped=(0, 3)),
    "fsdp": Framework(zero=(0, 2, 3), degrees=()),
}


def stages(run: Run) -> tuple[int, ...]:
    """The ZeRO stages that a layout's framework has for its degrees."""
    if run.dp * run.cp == 1:
        return (0,)
    own = FRAMEWORKS.get(run.framework, Framework())
    return own.zero_piped if run.pp > 1 else own.zero


def lacks(run: Run) -> str:
    """Why a layout's framework cannot have its degrees, or an empty text."""
    own = FRAMEWORKS.get(run.framework, Framework())
    missing = [name for name in ("tp", "pp", "cp") if getattr(run, name) > 1 and name not in own.degrees]
    return f"{run.framework} has no {' and no '.join(missing)}" if missing else ""


def interleaves(layers: int, pp: int, chunks: int) -> bool:
    """Whether a pipeline's stages can hold so many chunks each.

    Evenly, or with the input and the output table in the place of a layer (Llama 3's 126 layers in 16 x 8 chunks).
    """
    return chunks == 1 or any((layers + tables) % (pp * chunks) == 0 for tables in (0, 1, 2))
