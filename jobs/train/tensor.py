"""Tensor parallel: each matrix is split over the ranks of a node, first by columns, the next one by rows.

    srun -N1 --ntasks-per-node=2 python jobs/train/tensor.py --steps 60
    torchrun --nproc-per-node=2 jobs/train/tensor.py --sequence-parallel

A rank computes its own attention heads and its part of the wide matrices. Split by columns, a matrix returns a part of
its output; split by rows, it takes a part of its input, and the ranks add up their outputs (all-reduce). With
--sequence-parallel, the stream between the layers is split along the text: the sum becomes a reduce-scatter, and an
all-gather precedes the next columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from model import GPT, next_byte_loss
from options import Options, among, count, flag, option
from training import Result, SpecError, Training, adamw, autocast, build_model, join_ranks


@dataclass(frozen=True, kw_only=True)
class TensorOptions(Options):
    tp: int | None = option(None, count, "ranks that share each matrix; default: all ranks")
    dp: int = option(1, among(1), "replicas: one; hybrid.py has several")
    sequence_parallel: bool = option(False, flag, "also split the stream between the layers, along the text")


def split_matrices(model: GPT, mesh: DeviceMesh, *, sequence_parallel: bool = False) -> None:
    """Replace the matrices of a model, or of a stage, by this rank's columns and rows."""
    stream = Shard(1) if sequence_parallel else Replicate()
    columns, rows = ColwiseParallel(input_layouts=stream), RowwiseParallel(output_layouts=stream)
    # Query, key and value read the same DTensor, so the ranks exchange it and its gradient once, not three times.
    shared_input = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    plan: dict[str, ParallelStyle] = {}
    for name in model.layers:
        plan[f"layers.{name}.attention"] = shared_input
        plan |= {f"layers.{name}.attention.{each}": ColwiseParallel() for each in ("query", "key", "value")}
        plan |= {f"layers.{name}.attention.out": rows, f"layers.{name}.up": columns, f"layers.{name}.down": rows}
    if model.embed is not None:  # by rows: each rank looks up its own bytes and positions
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


def check_degree(options: Options, degree: int, *, sequence_parallel: bool = False) -> None:
    """Check that each rank gets whole heads and equal parts of the text.

    Raises:
        SpecError: The degree does not divide them.
    """
    divided = {"--heads": options.heads} | ({"--sequence": options.sequence} if sequence_parallel else {})
    for name, number in divided.items():
        if number % degree:
            raise SpecError(
                f"tp does not divide {name}",
                found=f"{name} {number} / tp {degree}",
                remedy=f"a tp that divides it, or {name} {(number // degree + 1) * degree}",
            )


def main(argv: Sequence[str] | None = None) -> Result | None:
    options = TensorOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        degree = options.tp or world.world_size
        check_degree(options, degree, sequence_parallel=options.sequence_parallel)
        mesh = world.mesh(tp=degree)
        if mesh["dp"].size() > 1:
            raise SpecError("tensor.py has one replica", found=f"dp {mesh['dp'].size()}", remedy="use hybrid.py")
        model = build_model(options, world.device)
        split_matrices(model, mesh["tp"], sequence_parallel=options.sequence_parallel)
        optimizer = adamw(model, options)

        def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with autocast(options, world.device):
                return next_byte_loss(model(inputs), targets)

        with Training(options, world, text, model, optimizer, compute_loss) as training:
            for step in training.steps():
                for inputs, targets, _ in step.micro_batches():
                    loss = compute_loss(inputs, targets) / options.accumulate
                    loss.backward()
                    step.add_loss(loss)
                training.clip_gradients()
                optimizer.step()
                optimizer.zero_grad()
        return training.result


if __name__ == "__main__":
    main()
