"""Trains with DistributedDataParallel, fully_shard, a mesh, a pipeline and checkpoints on a given backend."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hpc_kit
from hpc_kit.runtime import Group

STEPS = 4


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(step * 100 + rank)
    return torch.randn(12, 16, generator=numbers), torch.randn(12, 8, generator=numbers)


def train(net: nn.Module, world: Group) -> list[float]:
    """Return the losses of a few steps, averaged over all ranks."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step, world.rank)
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world.world_size)
    return losses


def ddp(world: Group, _folder: Path) -> list[float]:
    # With small buckets, several reductions overlap with the backward pass.
    return train(nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.01), world)


def sharded(world: Group, folder: Path) -> list[float]:
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=init_device_mesh("cpu", (world.world_size,)))
    fully_shard(net)
    losses = train(net, world)
    state: Any = get_model_state_dict(net)
    save(state, checkpoint_id=folder)
    before = [value.to_local().clone() for value in state.values()]
    for value in state.values():
        value.to_local().zero_()
    load(state, checkpoint_id=folder)
    assert all(torch.equal(old, new.to_local()) for old, new in zip(before, state.values(), strict=True))
    return losses


def meshed(world: Group, _folder: Path) -> list[float]:
    """Train with data and tensor parallelism on one mesh. The ranks of a row get the same batch."""
    mesh = init_device_mesh("cpu", (world.world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    net = parallelize_module(model(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step, mesh.get_local_rank("dp"))
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        losses.append(loss.item())
    return losses


def pipelined(world: Group, _folder: Path) -> list[float]:
    layers = list(model())
    cut = len(layers) // world.world_size
    mine = layers[world.rank * cut : None if world.rank == world.world_size - 1 else (world.rank + 1) * cut]
    stage = PipelineStage(nn.Sequential(*mine), world.rank, world.world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    losses: list[float] = []
    for step in range(STEPS):
        inputs, targets = batch(step, 0)
        each: list[torch.Tensor] = []
        schedule.step(*([inputs] if world.rank == 0 else []), target=targets, losses=each)
        if each:
            losses.append(torch.stack(each).mean().item())
    return losses


def main(backend: str, folder: Path) -> None:
    with hpc_kit.distributed(backend=backend, timeout=90) as world:
        for kind in (ddp, sharded, meshed, pipelined):
            losses = kind(world, folder)
            if world.rank == world.world_size - 1:
                print(kind.__name__, *(f"{loss:.5f}" for loss in losses), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
