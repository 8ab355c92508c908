"""Callbacks under DistributedDataParallel that wait for another collective, as torch's PowerSGD hook does."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import hpc_kit

with hpc_kit.distributed(backend="mpi", timeout=30) as world:

    def add_results(future: torch.futures.Future[Any]) -> torch.Tensor:
        """Wait for one collective through its future, and for a second one directly."""
        total: torch.Tensor = future.value()[0]
        second: Any = dist.all_reduce(total, async_op=True)
        second.get_future().wait()
        dist.all_reduce(total)
        return total

    first: Any = dist.all_reduce(torch.ones(3), async_op=True)
    chained = first.get_future().then(add_results).wait()
    assert chained.tolist() == [world.world_size**3] * 3

    torch.manual_seed(1)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        numbers = torch.Generator().manual_seed(step * 100 + world.rank)
        loss = net(torch.randn(16, 64, generator=numbers)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    own = torch.cat([each.detach().view(-1) for each in net.parameters()])
    largest = own.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    assert torch.equal(own, largest), "the ranks have different weights"
    os.write(1, f"rank {world.rank} has trained\n".encode())
