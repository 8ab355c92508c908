from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from model import GPT, Config, initialize, next_byte_loss
from tensor import split_matrices

LAYERS = 3


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Rank 0 of two. The fake backend sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of torch: the embedding's input needs no gradient
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_layer_exchanges_its_input_and_its_gradient_twice(mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Once for attention and once for the two wide matrices; and the ends: two embeddings, and the head."""
    model = GPT(Config(layers=LAYERS, width=8, heads=2, sequence=4))
    initialize(model, 1)
    split_matrices(model, mesh, sequence_parallel=sequence_parallel)
    text = torch.zeros(1, 5, dtype=torch.long)
    with CommDebugMode() as forward:
        loss = next_byte_loss(model(text[:, :-1]), text[:, 1:])
    with CommDebugMode() as backward:
        loss.backward()
    ops = torch.ops.c10d_functional
    if sequence_parallel:
        assert forward.get_comm_counts()[ops.all_gather_into_tensor] == 2 * LAYERS + 2
        assert backward.get_comm_counts()[ops.reduce_scatter_tensor] == 2 * LAYERS + 1
    else:
        assert backward.get_comm_counts()[ops.all_reduce] == 2 * LAYERS + 1
