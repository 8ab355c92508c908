"""ResNet-50 (He et al., 2015, arXiv:1512.03385), whole or one of the two halves that the tutorial puts on two devices.

As in PyTorch's own tutorial of model parallelism, the cut lies between the second and the third stage of blocks. The
stride of a block stands in its 3 x 3 convolution, as in torch's well-known implementation, whose count of parameters
this one has: 25 557 032 with 1000 classes.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own habit

CLASSES = 1000
PARAMETERS = 25_557_032
"""Of the whole network with 1000 classes."""

_EXPANSION = 4
_BLOCKS = (3, 4, 6, 3)
_WIDTHS = (64, 128, 256, 512)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1: down to `width` channels, across, and up to four times as many; the input is added."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.body = nn.Sequential(
            *_convolved(channels, width, 1),
            nn.ReLU(inplace=True),
            *_convolved(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolved(width, out, 1),
        )
        changes = stride != 1 or channels != out
        self.shortcut = nn.Sequential(*_convolved(channels, out, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, 4 width, height / stride, width / stride)."""
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def first_half() -> nn.Sequential:
    """Images to the output of the second stage: (batch, 3, s, s) -> (batch, 512, s / 8, s / 8)."""
    stem = (*_convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, _stage(0), _stage(1))


def second_half(classes: int = CLASSES) -> nn.Sequential:
    """The third stage to the scores: (batch, 512, s / 8, s / 8) -> (batch, classes)."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1] * _EXPANSION, classes))
    return nn.Sequential(_stage(2), _stage(3), *head)


def middle_shape(size: int) -> tuple[int, int, int]:
    """What travels between the halves for an image of `size` x `size`: channels, height, width."""
    for _ in range(3):  # the stem halves twice, the second stage once more; each rounds up
        size = -(-size // 2)
    return _WIDTHS[1] * _EXPANSION, size, size


def parameters(*parts: nn.Module) -> int:
    """How many numbers the parts learn."""
    return sum(each.numel() for part in parts for each in part.parameters())


def _stage(number: int) -> nn.Sequential:
    """Blocks of one width; the first one halves the image, but not after the stem, which has halved it twice."""
    width = _WIDTHS[number]
    before = (64, *(each * _EXPANSION for each in _WIDTHS))[number]
    channels = [before, *[width * _EXPANSION] * _BLOCKS[number]]
    strides = [1 if number == 0 else 2, *[1] * (_BLOCKS[number] - 1)]
    blocks = zip(pairwise(channels), strides, strict=True)
    return nn.Sequential(*(Bottleneck(given, width, stride) for (given, _), stride in blocks))


def _convolved(given: int, made: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made)
