"""ResNet-50 in two halves: on one device, on two ranks with messages, or on two GPUs of one process.

This is the experiment of PyTorch's tutorial "Single-Machine Model Parallel Best Practices": random images, mean squared
error against random classes, SGD. The time covers forward pass, backward pass and update; the images are made before.
The network (He et al., 2015, arXiv:1512.03385) is cut between the second and the third stage, as in the tutorial. The
stride of a block is in its 3 x 3 convolution, as in torchvision, so the number of parameters is the same: 25 557 032
with 1000 classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812  torch's own habit
from torch.optim import SGD

if TYPE_CHECKING:
    from hpc_kit.runtime import Group


_LEARNING_RATE = 0.001
_SEED = 1
CLASSES = 1000
"""Classes of ImageNet."""

_EXPANSION = 4
"""Output channels of a block, divided by its width."""
_BLOCKS = (3, 4, 6, 3)
_WIDTHS = (64, 128, 256, 512)
"""Number of blocks and width of each stage: table 1 of the paper, 50 layers."""


class Variant(Protocol):
    """A network that trains repeatedly on the same batch."""

    def step(self, split: int) -> None:
        """Run forward pass, backward pass and update with `split` images at a time."""


class Batch:
    """Images and targets, identical on every rank."""

    def __init__(self, images: int, size: int) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        self.images = torch.randn(images, 3, size, size, generator=generator)
        classes = torch.randint(CLASSES, (images,), generator=generator)
        self.targets = F.one_hot(classes, CLASSES).float()


class OneDevice:
    """Both halves on one device; gradients of the splits are accumulated."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.network = nn.Sequential(first_half(), second_half()).to(device)
        self.images, self.targets = batch.images.to(device), batch.targets.to(device)
        self.optimizer = SGD(self.network.parameters(), lr=_LEARNING_RATE)

    def step(self, split: int) -> None:
        """Run forward pass, backward pass and update."""
        for images, targets in zip(self.images.split(split), self.targets.split(split), strict=True):
            partial_loss(self.network(images), targets, len(self.images)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class TwoRanks:
    """One half on each of two ranks, which exchange activations and gradients split by split."""

    def __init__(self, batch: Batch, world: Group) -> None:
        self.rank, self.device = world.rank, world.device
        self.half = (first_half() if self.rank == 0 else second_half()).to(self.device)
        self.images, self.targets = batch.images.to(self.device), batch.targets.to(self.device)
        self.optimizer = SGD(self.half.parameters(), lr=_LEARNING_RATE)

    def step(self, split: int) -> None:
        """Run forward pass, backward pass and update of this rank's half."""
        if self.rank == 0:
            self._first(split)
        else:
            self._second(split)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _first(self, split: int) -> None:
        """Send the activations of each split without waiting; gradients return in the same order."""
        sent = []
        for images in self.images.split(split):
            middle = self.half(images)
            # The type says that isend may return None, which it does only for ranks outside of the group.
            sent.append((middle, cast("dist.Work", dist.isend(middle.detach(), 1))))
        for middle, work in sent:
            work.wait()
            gradient = torch.empty_like(middle)
            dist.recv(gradient, 1)
            middle.backward(gradient)

    def _second(self, split: int) -> None:
        """Compute the loss of each split; its gradient is sent while the next split arrives."""
        sending = []
        shape = middle_shape(self.images.shape[-1])
        for targets in self.targets.split(split):
            middle = torch.empty(len(targets), *shape, device=self.device, requires_grad=True)
            dist.recv(middle.detach(), 0)
            partial_loss(self.half(middle), targets, len(self.targets)).backward()
            sending.append(cast("dist.Work", dist.isend(cast("Tensor", middle.grad), 0)))
        for work in sending:
            work.wait()


class TwoGpus:
    """One half on each of two GPUs of one process; both GPUs work at the same time."""

    def __init__(self, batch: Batch) -> None:
        self.second_device = torch.device("cuda", 1)
        self.first, self.second = first_half().cuda(0), second_half().cuda(1)
        self.images, self.targets = batch.images.cuda(0), batch.targets.cuda(1)
        self.optimizer = SGD([*self.first.parameters(), *self.second.parameters()], lr=_LEARNING_RATE)

    def step(self, split: int) -> None:
        """Run forward pass, backward pass and update of both halves."""
        scores = []
        first, *others = self.images.split(split)
        middle = self._middle(first)
        # The kernels of both GPUs are only queued here, so the first GPU works on the next split meanwhile.
        for images in others:
            scores.append(self.second(middle))
            middle = self._middle(images)
        scores.append(self.second(middle))
        partial_loss(torch.cat(scores), self.targets, len(self.targets)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _middle(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.first(images)).to(self.second_device, non_blocking=True)


def partial_loss(scores: Tensor, targets: Tensor, batch: int) -> Tensor:
    """Return the contribution of these images to the mean squared error of a batch."""
    # A mean of each split would give splits of different sizes the same weight.
    return F.mse_loss(scores, targets, reduction="sum") / (batch * targets.shape[1])


class Bottleneck(nn.Module):
    """Convolutions 1 x 1, 3 x 3 and 1 x 1 with `width`, `width` and 4 `width` channels, plus the input."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * _EXPANSION
        self.body = nn.Sequential(
            *_convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, out_channels, 1),
        )
        changes_shape = stride != 1 or channels != out_channels
        self.shortcut = (
            nn.Sequential(*_convolution(channels, out_channels, 1, stride)) if changes_shape else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, 4 width, height / stride, width / stride)."""
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def first_half() -> nn.Sequential:
    """Build the stem to the second stage: (batch, 3, s, s) -> (batch, 512, s / 8, s / 8)."""
    stem = (*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, _stage(0), _stage(1))


def second_half() -> nn.Sequential:
    """Build the third stage to the scores: (batch, 512, s / 8, s / 8) -> (batch, CLASSES)."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1] * _EXPANSION, CLASSES))
    return nn.Sequential(_stage(2), _stage(3), *head)


def middle_shape(size: int) -> tuple[int, int, int]:
    """Return channels, height and width of the activations between the halves."""
    for _ in range(3):  # the stem halves twice, the second stage once more; each rounds up
        size = -(-size // 2)
    return _WIDTHS[1] * _EXPANSION, size, size


def _stage(number: int) -> nn.Sequential:
    """Build the blocks of one width.

    The first block halves the image, except after the stem, which has halved it twice.
    """
    width = _WIDTHS[number]
    in_channels = 64 if number == 0 else _WIDTHS[number - 1] * _EXPANSION
    first = Bottleneck(in_channels, width, stride=1 if number == 0 else 2)
    others = (Bottleneck(width * _EXPANSION, width, stride=1) for _ in range(_BLOCKS[number] - 1))
    return nn.Sequential(first, *others)


def _convolution(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution and its normalisation, which has a bias of its own and would remove that of the former."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(out_channels)
