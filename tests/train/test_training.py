from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from data import read_text
from model import next_byte_loss
from options import Options
from training import Training, adamw, build_model

SMALL = "--steps 2 --layers 1 --width 8 --heads 2 --sequence 8 --global-batch 4 --eval-windows 4"


@pytest.fixture
def world() -> Iterator[Any]:
    """A world of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield SimpleNamespace(rank=0, world_size=1, is_main=True, device=torch.device("cpu"))
    dist.destroy_process_group()


def test_an_evaluation_runs_the_model_in_evaluation_mode(
    world: Any, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a model with dropout would be evaluated with dropout."""
    monkeypatch.delenv("HPC_KIT_RUN", raising=False)
    options = Options.parse("", SMALL.split())
    model = build_model(options, world.device)
    modes = []

    def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        modes.append(model.training)
        return next_byte_loss(model(inputs), targets)

    with Training(options, world, read_text(source), model, adamw(model, options), compute_loss) as training:
        for step in training.steps():
            loss = compute_loss(step.inputs, step.targets)
            loss.backward()
            step.add_loss(loss)
            training.clip_gradients()
    assert modes == [False, True, True, False]
