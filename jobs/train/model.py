"""A GPT over bytes, small enough to read in one sitting. Plain torch: copy it into your own project.

Every parameter starts from a random stream of its own, seeded by (seed, its name). A rank that holds the whole model,
some of its layers or a slice of each therefore starts from the same numbers.
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
"""A target that is no byte: the loss passes over it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of the model."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    sequence: int = 64

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide width {self.width}")

    @property
    def parameters(self) -> int:
        """How many numbers the model learns: in a layer 12 squares of `width` and two norms."""
        layer = 12 * self.width**2 + 2 * self.width
        ends = (BYTES + self.sequence + 1 + BYTES) * self.width
        return self.layers * layer + ends

    @property
    def flops_per_token(self) -> int:
        """Of forward and backward, the matrix products alone: Chowdhery et al., 2022 (arXiv:2204.02311), appendix B."""
        matrices = 12 * self.layers * self.width**2 + self.width * BYTES
        return 6 * matrices + 12 * self.layers * self.width * self.sequence


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each position looks at itself and those before it."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Causal self-attention. Three matrices, not a fused one: each can be split over ranks by whole heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.look: Callable[[Tensor, Tensor, Tensor], Tensor] = causal  # context.py puts another in its place

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.look(self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x)))
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def heads(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> (batch, heads, sequence, head_width)."""
        # -1 and not the number of heads: under tensor parallelism a rank sees its own share of them only.
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)


class Block(nn.Module):
    """One layer: attention, then two matrices; each reads the stream through a norm and adds to it."""

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
        return x  # noqa: RET504  the stream, twice added to


class GPT(nn.Module):
    """Bytes in; out, at each position, the logits of the byte that comes next.

    A stage of a pipeline holds some of the layers; the first one has the embeddings, too, and the last one the head.
    Between them travels the stream: (batch, sequence, width).
    """

    def __init__(self, config: Config, part: range | None = None) -> None:
        super().__init__()
        part = range(config.layers) if part is None else part
        first, last = part.start == 0, part.stop == config.layers
        self.embed = nn.Embedding(BYTES, config.width) if first else None
        self.position = nn.Embedding(config.sequence, config.width) if first else None
        # By number, not a list: a rank that keeps two of the layers still calls them "layers.2" and "layers.3".
        self.layers = nn.ModuleDict({str(number): Block(config) for number in part})
        self.norm = nn.LayerNorm(config.width, bias=False) if last else None
        # Not tied to `embed`: the two ends of a pipeline need not share a matrix.
        self.head = nn.Linear(config.width, BYTES, bias=False) if last else None
        self.begins = 0
        """Place in the text of the first byte of a window; context.py gives each rank another part of it."""
        self.recompute = False
        """Keep only what goes into a layer, and compute the rest again in backward."""

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None and self.position is not None:
            places = torch.arange(self.begins, self.begins + x.shape[1], device=x.device)
            x = self.embed(x) + self.position(places)
        for layer in self.layers.values():
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats a byte; in float32 whatever the model computes in."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Fill the parameters that `model` holds, whichever of the whole model's they are."""
    # A head near zero makes the first loss that of an even guess, ln 256 = 5.55.
    spreads = {"embed.weight": 1.0, "position.weight": 1.0, "head.weight": 1e-3}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1)  # a norm
            continue
        # On the CPU for every device: a GPU's generator draws other numbers.
        stream = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
        spread = spreads.get(name, parameter.shape[1] ** -0.5)
        values = torch.normal(0.0, spread, parameter.shape, generator=stream)
        part: Any = parameter
        if hasattr(part, "placements"):  # a DTensor: this rank's part; all draw the same numbers, so none are sent
            from torch.distributed.tensor import distribute_tensor  # takes half as long to import as all of torch

            values = values.to(part.device_mesh.device_type)
            values = distribute_tensor(values, part.device_mesh, part.placements, src_data_rank=None)
        parameter.copy_(values)
