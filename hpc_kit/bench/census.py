"""What a rank holds of a model that it trains: bytes of the storages behind tensors, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class Held(NamedTuple):
    """Bytes of one rank at one moment."""

    parameters: int
    gradients: int
    optimizer: int
    on_device: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer


class Trained(NamedTuple):
    """A model, what updates it, and what its forward is called by."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    optimizer: Optimizer


def held(trained: Trained, device: torch.device) -> Held:
    """Bytes of this rank at this moment."""
    parameters = list(_locals([*trained.model.parameters(), *_of_groups(trained.optimizer)]))
    gradients = [
        local for each in trained.model.parameters() if each.grad is not None for local in _locals([each.grad])
    ]
    states = [value for state in inner(trained.optimizer).state.values() for value in state.values() if value.dim() > 0]
    here = [tensor for tensor in (*parameters, *gradients, *states) if tensor.device.type == device.type]
    return Held(*map(storage_bytes, (parameters, gradients, states, here)))


def _of_groups(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters that are updated: of fully_shard the shards, which stay beside what is gathered."""
    for group in optimizer.param_groups:
        yield from group["params"]


def inner(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds this rank's state."""
    # ZeroRedundancyOptimizer's own; the class itself takes a second to import.
    within: Optimizer = getattr(optimizer, "optim", optimizer)
    return within


def _locals(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        yield tensor.to_local() if isinstance(tensor, DTensor) else tensor


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors; what several share counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
