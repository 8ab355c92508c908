"""Tensor parallel: each matrix cut over the ranks of a node, by columns, then by rows; one sum between the layers.

    srun -N1 --ntasks-per-node=2 python jobs/train/tensor.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/tensor.py --sequence-parallel

A rank computes its own heads of the attention and its own part of the wide matrices. By columns, what comes out is cut;
by rows, what comes in is, and the ranks' outputs are added up (all-reduce). With --sequence-parallel the stream between
the layers is cut along the text: the sum becomes a reduce-scatter, and an all-gather stands before the next columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from hpc_kit.errors import SpecError
from loop import Whole, adamw, train
from model import GPT
from options import Options, among, count, flag, option
from report import Result
from start import gpt, ranks_of


@dataclass(frozen=True, kw_only=True)
class TensorOptions(Options):
    tp: int | None = option(None, count, "ranks that share each matrix; not given: all of them")
    dp: int = option(1, among(1), "replicas: one; hybrid.py has several")
    sequence_parallel: bool = option(False, flag, "cut the stream between the layers, too, along the text")


def cut_matrices(model: GPT, mesh: DeviceMesh, *, sequence_parallel: bool = False) -> None:
    """Put this rank's columns and rows in place of the matrices of a model, or of a stage of it."""
    stream = Shard(1) if sequence_parallel else Replicate()
    columns = ColwiseParallel(input_layouts=stream)
    rows = RowwiseParallel(output_layouts=stream)
    plan: dict[str, ParallelStyle] = {}
    for name in model.layers:
        plan |= {f"layers.{name}.attention.{each}": columns for each in ("query", "key", "value")}
        plan |= {f"layers.{name}.attention.out": rows, f"layers.{name}.up": columns, f"layers.{name}.down": rows}
    if model.embed is not None:  # by rows: each rank looks up its own bytes and places
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
        plan["position"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(0) if sequence_parallel else stream
        )
    if model.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=stream, output_layouts=Replicate())
    if sequence_parallel:
        norms = [f"layers.{name}.{each}_norm" for name in model.layers for each in ("attention", "feed")]
        plan |= {name: SequenceParallel() for name in [*norms, *(["norm"] if model.norm is not None else [])]}
    parallelize_module(model, mesh, plan)


def refuse_degree(options: Options, degree: int, *, sequence_parallel: bool = False) -> None:
    """Whole heads, and equal parts of the text.

    Raises:
        SpecError: the degree does not divide them.
    """
    divided = {"--heads": options.heads} | ({"--sequence": options.sequence} if sequence_parallel else {})
    for name, number in divided.items():
        if number % degree:
            raise SpecError(
                f"tp does not divide {name}",
                found=f"{name} {number} / tp {degree}",
                remedy=f"a tp that divides it, or {name} {(number // degree + 1) * degree}",
            )


def main(argv: Sequence[str] | None = None) -> Result:
    options = TensorOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        degree = options.tp or world.world_size
        refuse_degree(options, degree, sequence_parallel=options.sequence_parallel)
        mesh = world.mesh(tp=degree)
        if mesh["dp"].size() > 1:
            raise SpecError(
                "tensor.py has one replica", found=f"dp {mesh['dp'].size()}", remedy="hybrid.py has several"
            )
        model = gpt(options, world.device)
        cut_matrices(model, mesh["tp"], sequence_parallel=options.sequence_parallel)
        whole = Whole(model, options, world.device)
        return train(options, world, text, whole.split(model, adamw(model, options)))


if __name__ == "__main__":
    main()
