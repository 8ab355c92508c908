"""One norm over all gradients, however they are spread, and the same factor for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor], most: float, *, stages: int = 1, device: torch.device | None = None
) -> Tensor:
    """Scale the gradients down to a norm of `most`, and return the norm that they had.

    Every rank adds up the squares that it holds. A gradient that several ranks hold whole would be counted by each of
    them, so it counts by that much less; of a sharded one each part lies on fewer ranks, so it counts for more.

    Args:
        parameters: Those of this rank, with their gradients.
        most: The largest norm.
        stages: Into how many sets of layers the ranks divide; the ranks of one set share its gradients.
        device: Where the ranks' messages come from; gradients that are offloaded lie elsewhere. Default: there.
    """
    ranks = dist.get_world_size() // stages
    by_parts = defaultdict[int, list[Tensor]](list)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        parts = 1
        if is_spread(gradient):
            if any(placement.is_partial() for placement in gradient.placements):
                # Of a norm in a stream that is cut along the text: each rank has the sum over its own part of it.
                gradient = gradient.redistribute(placements=cast("DTensor", parameter).placements)
                parameter.grad = gradient
            sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
            for placement, size in sizes:
                parts *= 1 if placement.is_replicate() else size
            gradient = gradient.to_local()
        by_parts[parts].append(gradient)
    squares = [(get_total_norm(held) ** 2 * parts / ranks).to(device) for parts, held in by_parts.items()]
    square = torch.stack(squares).sum()
    if stages == 1 and set(by_parts) == {1}:
        square *= ranks  # every rank holds every gradient: nothing need be sent
    else:
        dist.all_reduce(square)
    norm = square.sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for held in by_parts.values():
        torch._foreach_mul_(held, factor.to(held[0].device))
    return norm


def is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether ranks hold parts of it, asked without the class: it takes half as long to import as all of torch."""
    return hasattr(tensor, "placements")
