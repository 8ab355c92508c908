"""A GPT over bytes, small enough to read in one sitting. It needs torch alone: copy it into your own project.

Every parameter starts from its own random numbers, seeded by (seed, its name). So a rank that has the whole model, some
layers, or a part of each matrix starts from the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own habit
from torch.utils.checkpoint import checkpoint

BYTES = 256
IGNORED = -100
"""A target that the loss ignores."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The sizes of the model."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    sequence: int = 64

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide width {self.width}")

    @property
    def parameters(self) -> int:
        """The number of parameters: a layer has 12 squares of `width` and two norms."""
        layer = 12 * self.width**2 + 2 * self.width
        ends = (BYTES + self.sequence + 1 + BYTES) * self.width
        return self.layers * layer + ends

    @property
    def flops_per_token(self) -> int:
        """Matrix products of forward and backward pass: Chowdhery et al., 2022 (arXiv:2204.02311), appendix B."""
        matrices = 12 * self.layers * self.width**2 + self.width * BYTES
        return 6 * matrices + 12 * self.layers * self.width * self.sequence


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention: each position attends to itself and to the positions before it."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Causal self-attention. Three matrices, not one fused: each can be split over ranks by whole heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = attend_causally  # context.py sets another one

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attend(*(self.split_heads(matrix(x)) for matrix in (self.query, self.key, self.value)))
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def split_heads(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> (batch, heads, sequence, head_width)."""
        # -1, not the number of heads: under tensor parallelism a rank has some of the heads only.
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)


class Block(nn.Module):
    """One layer: attention, then two matrices. Each reads the stream through a norm and adds to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=False)
        self.attention = Attention(config)
        self.feed_norm = nn.LayerNorm(config.width, bias=False)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.down(F.gelu(self.up(self.feed_norm(x))))
        return x  # noqa: RET504  the stream after both additions


class GPT(nn.Module):
    """Reads bytes; returns, at each position, the logits of the next byte.

    A stage of a pipeline has some of the layers. The first stage also has the embeddings, the last one the head.
    The stages exchange the stream: (batch, sequence, width).
    """

    def __init__(self, config: Config, layers: range | None = None) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        first, last = layers.start == 0, layers.stop == config.layers
        self.embed = nn.Embedding(BYTES, config.width) if first else None
        self.position = nn.Embedding(config.sequence, config.width) if first else None
        # By number, not a list: the layers of a stage keep their names, such as "layers.2" and "layers.3".
        self.layers = nn.ModuleDict({str(number): Block(config) for number in layers})
        self.norm = nn.LayerNorm(config.width, bias=False) if last else None
        # Not tied to `embed`: otherwise the two ends of a pipeline would share a matrix.
        self.head = nn.Linear(config.width, BYTES, bias=False) if last else None
        self.first_position = 0
        """Position of the first byte in its window; context.py gives each rank another part of the window."""
        self.recompute = False
        """Keep only the input of each layer, and compute the layer again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None and self.position is not None:
            positions = torch.arange(self.first_position, self.first_position + x.shape[1], device=x.device)
            x = self.embed(x) + self.position(positions)
        for layer in self.layers.values():
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per byte, in float32 whatever the model computes in."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Fill the parameters that this rank has with their first values."""
    # With a head near zero, the first loss is that of a uniform guess, ln 256 = 5.55.
    spreads = {"embed.weight": 1.0, "position.weight": 1.0, "head.weight": 1e-3}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1)  # a norm
            continue
        # On the CPU for every device: the generator of a GPU draws other numbers.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
        spread = spreads.get(name, parameter.shape[1] ** -0.5)
        values = torch.normal(0.0, spread, parameter.shape, generator=generator)
        sharded: Any = parameter
        if hasattr(sharded, "placements"):  # a DTensor: all ranks draw the same numbers and keep their part
            from torch.distributed.tensor import distribute_tensor  # takes half as long to import as all of torch

            values = values.to(sharded.device_mesh.device_type)
            values = distribute_tensor(values, sharded.device_mesh, sharded.placements, src_data_rank=None)
        parameter.copy_(values)
