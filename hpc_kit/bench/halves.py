"""A ResNet-50 in two halves: whole on one device, and the halves on two, by messages between ranks or between GPUs.

This is the experiment of PyTorch's tutorial "Single-Machine Model Parallel Best Practices": random images, mean squared
error against random classes, SGD. The time is that of forward, backward and update of some batches; what the images are
is made before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812  torch's own habit
from torch.optim import SGD

from hpc_kit.bench import resnet

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

_RATE = 0.001
_SEED = 1


class Way(Protocol):
    """A network that learns from the same batch again and again."""

    def step(self, split: int) -> None:
        """Forward, backward and update; `split` images go through the halves at once."""


class Batch:
    """Images and what they should give, drawn alike on every rank."""

    def __init__(self, images: int, size: int) -> None:
        stream = torch.Generator().manual_seed(_SEED)
        self.images = torch.randn(images, 3, size, size, generator=stream)
        classes = torch.randint(resnet.CLASSES, (images,), generator=stream)
        self.targets = F.one_hot(classes, resnet.CLASSES).float()


class OneDevice:
    """Both halves on one device; the splits follow one another, and their gradients are added up."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.network = nn.Sequential(resnet.first_half(), resnet.second_half()).to(device)
        self.images, self.targets = batch.images.to(device), batch.targets.to(device)
        self.optimizer = SGD(self.network.parameters(), lr=_RATE)

    def step(self, split: int) -> None:
        """Forward, backward and update."""
        for images, targets in zip(self.images.split(split), self.targets.split(split), strict=True):
            part_of_loss(self.network(images), targets, len(self.images)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Messages:
    """A half on each of two ranks: activations go, gradients come back, split by split."""

    def __init__(self, batch: Batch, world: Group) -> None:
        self.rank, self.device, self.batch = world.rank, world.device, batch
        half = resnet.first_half() if self.rank == 0 else resnet.second_half()
        self.half = half.to(self.device)
        self.images, self.targets = batch.images.to(self.device), batch.targets.to(self.device)
        self.optimizer = SGD(self.half.parameters(), lr=_RATE)

    def step(self, split: int) -> None:
        """Forward, backward and update of this rank's half."""
        if self.rank == 0:
            self._first(split)
        else:
            self._second(split)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _first(self, split: int) -> None:
        """Send each split on and go on with the next; gradients come back in that order."""
        sent = []
        for images in self.images.split(split):
            middle = self.half(images)
            sent.append((middle, cast("dist.Work", dist.isend(middle.detach(), 1))))
        for middle, work in sent:
            work.wait()
            gradient = torch.empty_like(middle)
            dist.recv(gradient, 1)
            middle.backward(gradient)

    def _second(self, split: int) -> None:
        """The loss of each split, as a part of the batch's; its gradient travels while the next split comes."""
        sending = []
        shape = resnet.middle_shape(self.images.shape[-1])
        for targets in self.targets.split(split):
            middle = torch.empty(len(targets), *shape, device=self.device, requires_grad=True)
            dist.recv(middle.detach(), 0)
            part_of_loss(self.half(middle), targets, len(self.targets)).backward()
            sending.append(cast("dist.Work", dist.isend(cast("Tensor", middle.grad), 0)))
        for work in sending:
            work.wait()


class Streams:
    """A half on each of two GPUs of one process: what is queued on one runs while the other one works."""

    def __init__(self, batch: Batch) -> None:
        self.second_device = torch.device("cuda", 1)
        self.first, self.second = resnet.first_half().cuda(0), resnet.second_half().cuda(1)
        self.images, self.targets = batch.images.cuda(0), batch.targets.cuda(1)
        self.optimizer = SGD([*self.first.parameters(), *self.second.parameters()], lr=_RATE)

    def step(self, split: int) -> None:
        """Forward, backward and update of both halves."""
        scores = []
        first, *others = self.images.split(split)
        middle = self._middle(first)
        for images in others:
            scores.append(self.second(middle))
            middle = self._middle(images)
        scores.append(self.second(middle))
        part_of_loss(torch.cat(scores), self.targets, len(self.targets)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _middle(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.first(images)).to(self.second_device, non_blocking=True)


def part_of_loss(scores: Tensor, targets: Tensor, batch: int) -> Tensor:
    """What these images add to the mean squared error of a batch."""
    return F.mse_loss(scores, targets, reduction="sum") / (batch * targets.shape[1])
