"""A training with DistributedDataParallel over gloo, which logs the loss of each step of each rank.

Variables: SAVER, `kit` for `hpc_kit.Checkpointer`, or `plain` for a handler and torch.save; HANDLED, the signals of
that handler; SAVED, folder of the checkpoints; EVALUATION_SECONDS, length of the evaluation after each tenth step;
CODE, exit code after a stop.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hpc_kit

EVALUATING = Path("evaluating")
"""Exists while rank 0 evaluates."""


class Saver(Protocol):
    """The part of `hpc_kit.Checkpointer` that the training uses."""

    stopped: bool

    def restore(self, *, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the newest checkpoint; return the next step."""

    def step(self, step: int) -> bool:
        """Save if a save is due; return True if the loop must end."""


class PlainSaver:
    """A handler that sets a flag, on which all ranks agree in each step, and one file of rank 0."""

    def __init__(self, folder: str, every: int) -> None:
        self.path, self.every = Path(folder, "model.pt"), every
        self.stopped = self.requested = False
        for name in os.environ.get("HANDLED", "USR1").split():
            signal.signal(getattr(signal, f"SIG{name}"), self.request)

    def request(self, *_: object) -> None:
        """Ask for a stop."""
        self.requested = True

    def restore(self, *, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the file; return the next step."""
        self.state: dict[str, nn.Module | torch.optim.Optimizer] = {"model": model, "optimizer": optimizer}
        if not self.path.exists():
            return 0
        saved = torch.load(self.path, weights_only=True)
        for name, value in self.state.items():
            value.load_state_dict(saved[name])
        return int(saved["step"])

    def step(self, step: int) -> bool:
        """Save if a save is due or a rank was asked to stop."""
        flag = torch.tensor(float(self.requested))
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        self.stopped = bool(flag)
        if (self.stopped or (step + 1) % self.every == 0) and dist.get_rank() == 0:
            self.path.parent.mkdir(exist_ok=True)
            draft = self.path.with_name(".model.part")
            torch.save({name: value.state_dict() for name, value in self.state.items()} | {"step": step + 1}, draft)
            draft.replace(self.path)
        return self.stopped


def batch_loss(replica: nn.Module, rank: int, step: int) -> Tensor:
    """Return the loss of a batch, which depends on rank and step alone."""
    chance = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 16, generator=chance)
    return nn.functional.mse_loss(replica(inputs), inputs.sin().sum(1, keepdim=True))


def evaluate(rank: int) -> None:
    """Spend the time of an evaluation, during which no rank looks at the stop signal."""
    if rank == 0:
        EVALUATING.touch()
    end = time.monotonic() + float(os.environ.get("EVALUATION_SECONDS", "0"))
    while time.monotonic() < end:
        time.sleep(0.05)
    EVALUATING.unlink(missing_ok=True)


def train(rank: int) -> Saver:
    """Run the steps that are missing."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    replica, optimizer = DistributedDataParallel(model), torch.optim.AdamW(model.parameters(), lr=0.01)
    folder = os.environ.get("SAVED", "saved")
    saver: Saver = (PlainSaver if os.environ.get("SAVER") == "plain" else hpc_kit.Checkpointer)(folder, every=5)
    first = saver.restore(model=model, optimizer=optimizer)
    # The buckets get their final order after one backward pass. With it, all sums have the same order in each attempt.
    batch_loss(replica, rank, 0).backward()
    optimizer.zero_grad()
    Path("losses").mkdir(exist_ok=True)
    host = os.environ.get("SLURMD_NODENAME", "")
    Path("losses", f"process-{rank}").write_text(f"{os.getpid()} {os.getppid()} {host}")
    with Path("losses", f"rank-{rank}").open("a", buffering=1) as log:
        for step in range(first, int(os.environ["STEPS"])):
            time.sleep(float(os.environ.get("SECONDS_A_STEP", "0.1")))
            loss = batch_loss(replica, rank, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{os.environ['HPC_KIT_ATTEMPT']} {step + 1} {float(loss.detach()).hex()} {time.time():.2f}\n")
            if (step + 1) % 10 == 0:
                evaluate(rank)
            if saver.step(step):
                break
    return saver


def main() -> int:
    """Train; return the exit code."""
    with hpc_kit.distributed() as world:
        saver = train(world.rank)
    return int(os.environ.get("CODE", "138")) if saver.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
