"""A training with dropout, whose ranks are forked from one process.

    python -m tests.runtime.restart.ranks_of_a_training TRAINING

TRAINING is a `Training` as JSON. Rank R writes its losses and its lines to FOLDER/NAME-R.json.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hpc_kit
from hpc_kit.errors import HpcKitError
from tests import preloaded
from tests.conftest import ROOT


class Training(TypedDict, total=False):
    """A training of some ranks."""

    name: str
    folder: str
    ranks: int
    steps: int
    width: int
    sharded: bool
    saver: dict[str, Any]
    """Arguments of the Checkpointer."""
    signal_at: int
    """The step in which rank 1 receives SIGUSR1."""
    fault: str
    """`no space`: rank 1 cannot write. `slow disk`: a write takes a second. `own state`: each rank has its own."""
    environ: dict[str, str]


class Left(TypedDict):
    """Losses and lines of a rank, and its error."""

    losses: list[float]
    lines: list[str]
    stopped: bool
    latest: str
    error: str


def run(training: Training) -> list[Left]:
    """Run a training; returns what each rank left."""
    words = ["-m", "tests.runtime.restart.ranks_of_a_training", json.dumps(training)]
    environ = {"PYTHONPATH": str(ROOT), **training.get("environ", {})}
    outside = Path(training["folder"], "process")  # messages show paths below the current folder without it
    outside.mkdir(exist_ok=True)
    done = preloaded.run(words, outside, 120, **environ)
    files = [Path(training["folder"], f"{training['name']}-{rank}.json") for rank in range(training["ranks"])]
    assert all(file.exists() for file in files), done.stderr
    return [json.loads(file.read_text()) for file in files]


class Position:
    """The order of the data, as a sampler has it."""

    def __init__(self, own: int) -> None:
        self.next, self.own = 0, own

    def take(self) -> int:
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "own": self.own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.own = state["next"], state["own"]


def train(training: Training, rank: int) -> Left:
    """Train a small model; the losses depend on all kinds of random numbers."""
    left = Left(losses=[], lines=[], stopped=False, latest="", error="")
    torch.manual_seed(1)
    width = training.get("width", 8)
    inner = nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    saver = hpc_kit.Checkpointer(
        Path(training["folder"], "checkpoints"), report=left["lines"].append, **training.get("saver", {})
    )
    with hpc_kit.distributed(backend="gloo"):
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        model: Any = fully_shard(inner) if training.get("sharded") else DistributedDataParallel(inner)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        position = Position(rank if training.get("fault") == "own state" else 0)
        first = saver.restore(model=model, optimizer=optimizer, scheduler=scheduler, position=position)
        for step in range(first, training["steps"]):
            if rank == 1 and step == training.get("signal_at"):
                os.kill(os.getpid(), signal.SIGUSR1)
            data = torch.full((4, width), float(position.take())) + torch.rand(4, width)
            loss = (model(data) * (random.random() + np.random.rand())).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            left["losses"].append(loss.item())
            if saver.step(step):
                break
    left["stopped"], left["latest"] = saver.stopped, str(saver.latest or "")
    return left


def break_rank(fault: str, rank: int) -> None:
    """Apply the fault of a training."""
    if fault == "no space" and rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    if fault == "slow disk":
        sync = os.fsync

        def sync_slowly(file: int) -> None:
            time.sleep(0.3)
            sync(file)

        mock.patch("os.fsync", sync_slowly).start()


def main(training: Training) -> None:
    """Fork the ranks and wait for them."""
    torch.set_num_threads(1)
    # Imported now, and not by every rank.
    import_module("torch.distributed.checkpoint")
    torch.optim.AdamW(nn.Linear(1, 1).parameters())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(training["ranks"]):
        if child := os.fork():
            children.append(child)
            continue
        size = str(training["ranks"])
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        left = Left(losses=[], lines=[], stopped=False, latest="", error="")
        try:
            break_rank(training.get("fault", ""), rank)
            left = train(training, rank)
        except HpcKitError as error:
            left["error"] = str(error)
        except BaseException:  # noqa: BLE001  a forked rank ends here, whatever happened
            left["error"] = traceback.format_exc()
        write_left(training, rank, left)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def write_left(training: Training, rank: int, left: Left) -> None:
    """Write what a rank left, even if its disk was full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    Path(training["folder"], f"{training['name']}-{rank}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
