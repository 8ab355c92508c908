"""All-reduce of sparse tensors, which DistributedDataParallel asks for where an embedding has sparse gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hpc_kit.runtime.mpi.collectives import Collectives
    from hpc_kit.runtime.mpi.reductions import Reduction
    from hpc_kit.runtime.mpi.waiting import Deadline


def all_reduce(do: Collectives, clock: Deadline, tensors: Sequence[Tensor], reduction: Reduction) -> None:
    """Every rank's tensors become the sum of all: each rank gathers the others' indices and values.

    Raises:
        ValueError: Another reduction than a sum: what is not there has no value.
    """
    if reduction.name != "SUM":
        raise ValueError(f"{reduction.name} means nothing for sparse tensors")
    for tensor in tensors:
        mine = tensor.detach().cpu().coalesce()
        indices, values = mine.indices(), mine.values()
        counts = torch.empty(do.size, dtype=torch.int64)
        do.all_gather_single(clock, [(counts, torch.tensor([indices.shape[1]]))])
        numbers = counts.tolist()
        all_indices = [indices.new_empty(indices.shape[0], number) for number in numbers]
        all_values = [values.new_empty(number, *values.shape[1:]) for number in numbers]
        do.all_gather(clock, all_indices, indices)
        do.all_gather(clock, all_values, reduction.pre_scale(values))
        total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), mine.shape).coalesce()
        reduction.post_scale(total.values(), do.size)
        with torch.no_grad():  # not detach(): a copy into that would leave the tensor's own indices as they are
            tensor.copy_(total)
