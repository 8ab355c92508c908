"""What each training framework can do: layouts that it has no means for are not offered."""

from __future__ import annotations

from msgspec import Struct

from hpc_kit.planner.layout import Run

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Sequences of one forward pass that are tried."""
CHUNKS = (1, 2, 3, 4, 6, 8)
"""Virtual stages that are tried."""


class Framework(Struct, frozen=True):
    """Means of one framework, in the releases that were measured or later ones.

    Attributes:
        zero: ZeRO stages without a pipeline.
        zero_piped: The same within one.
        replicas_alone: Whether ZeRO-0 goes with no other kind of parallelism.
        tensor, pipeline, context: Which of these kinds it has.
        interleaved: Whether a pipeline's stages can hold several chunks.
    """

    zero: tuple[int, ...] = (0, 1, 2, 3)
    zero_piped: tuple[int, ...] = (0, 1)
    replicas_alone: bool = False
    tensor: bool = True
    pipeline: bool = True
    context: bool = True
    interleaved: bool = True


FRAMEWORKS = {
    "torch": Framework(),
    # Megatron's distributed optimizer is ZeRO-1; its newer FSDP was not measured, and stands for no other stage here.
    "megatron": Framework(zero=(0, 1)),
    "nemo": Framework(zero=(0, 1)),
    "nanotron": Framework(zero=(0, 1), interleaved=False),
    "megatron-deepspeed": Framework(context=False, interleaved=False),
    # Fully sharded, or with parameters left gathered after the forward pass (ZeRO-2); in a pipeline they always are.
    "torchtitan": Framework(zero=(0, 2, 3), zero_piped=(3,), replicas_alone=True),
    "fsdp": Framework(zero=(0, 2, 3), tensor=False, pipeline=False, context=False),
}


def zero_stages(run: Run) -> tuple[int, ...]:
    """The ZeRO stages that a layout's framework has for its degrees."""
    if run.dp * run.cp == 1:
        return (0,)
    own = FRAMEWORKS[run.framework]
    known = own.zero_piped if run.pp > 1 else own.zero
    return known if run.dp == run.gpus or not own.replicas_alone else tuple(stage for stage in known if stage)


def lacks(run: Run) -> str:
    """Why a layout's framework cannot have its degrees, or an empty text."""
    own = FRAMEWORKS[run.framework]
    kinds = (("tp", run.tp, own.tensor), ("pp", run.pp, own.pipeline), ("cp", run.cp, own.context))
    missing = [name for name, degree, has in kinds if degree > 1 and not has]
    return f"{run.framework} has no {' and no '.join(missing)}" if missing else ""


def chunks(run: Run) -> list[int]:
    """The virtual stages that are tried in a layout's pipeline: its micro-batches must fill it by rounds of p."""
    if run.pp == 1 or run.micro_batches % run.pp or not FRAMEWORKS[run.framework].interleaved:
        return [1]
    return [v for v in CHUNKS if interleaves(run.model.layers, run.pp, v)]


def interleaves(layers: int, pp: int, each: int) -> bool:
    """Whether a pipeline's stages can hold so many chunks each.

    Evenly, or with the input and the output table in the place of a layer (Llama 3's 126 layers in 16 x 8 chunks).
    """
    return each == 1 or any((layers + tables) % (pp * each) == 0 for tables in (0, 1, 2))
