"""Seconds of computation: one layer, one output head, for one micro-batch on one GPU."""

from __future__ import annotations

import math

from msgspec import Struct

from hpc_kit.planner.constants import Constants
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import kept_bytes

TILE_ROWS, TILE_COLUMNS = 128, 256
"""Usual tile of the output that one multiprocessor computes in cuBLAS."""


class LayerTime(Struct, frozen=True):
    """Seconds of one layer's forward and backward pass by kind of work.

    `recomputation` repeats work of the forward pass and belongs to the backward pass.
    """

    products: float
    attention: float
    elementwise: float
    back_products: float
    back_attention: float
    back_elementwise: float
    recomputation: float

    @property
    def forward(self) -> float:
        """Seconds of the forward pass."""
        return self.products + self.attention + self.elementwise

    @property
    def backward(self) -> float:
        """Seconds of the backward pass, including recomputation."""
        return self.back_products + self.back_attention + self.back_elementwise + self.recomputation


def matmul_seconds(
    layout: TrainingLayout, fitted: Constants, m: float, n: float, k: float, *, eight_bit: bool = False
) -> float:
    """Return the seconds of a matrix product (m x k)(k x n).

    The time grows with the tiles wasted in a partly filled last wave and with the bytes of the three matrices. Large
    products come near the peak rate, thin and small ones do not. `eight_bit` means 8-bit numbers.
    """
    gpu = layout.machine.gpu
    peak = gpu.measured * fitted.quality * (gpu.flops8 * fitted.gemm8 if eight_bit else gpu.flops * fitted.gemm)
    waves = math.ceil(math.ceil(m / TILE_ROWS) * math.ceil(n / TILE_COLUMNS) / gpu.units)
    idle = 1 + fitted.wave * (waves * gpu.units * TILE_ROWS * TILE_COLUMNS / (m * n) - 1)
    # The inputs have 8 or 16 bits, the output always 16.
    size = 1 if eight_bit else 2
    moved = fitted.traffic * (size * (m * k + k * n) + 2 * m * n)
    cast = 0.0
    if eight_bit:
        cast = fitted.cast8 * (fitted.rowwise if layout.rowwise else 1.0) * (m * k + k * n)
    # Operations and memory traffic overlap: the larger one counts, and both if they are similar.
    return math.hypot(2 * m * n * k / peak * idle, moved / gpu.bandwidth) + cast / gpu.bandwidth


def matrix_shapes(layout: TrainingLayout) -> tuple[tuple[float, float], ...]:
    """Return columns and rows (n, k) of each of a layer's matrices on one tensor-parallel rank."""
    model, tp = layout.model, layout.tp
    width, keys = model.heads * model.head_dim / tp, model.kv_heads * model.head_dim / tp
    up = (2 if model.gated else 1) * model.ffn / tp
    return (
        (width + 2 * keys, model.hidden),
        (model.hidden, width),
        (up, model.hidden),
        (model.hidden, model.ffn / tp),
    )


def attention_seconds(layout: TrainingLayout, fitted: Constants) -> tuple[float, float]:
    """Return the seconds of a layer's attention core, forward and backward.

    Flash attention skips the masked half and pads heads to a multiple of eight columns; its kernels are never faster
    than a plain product. Without it, products run in full and the scores go through memory.
    """
    gpu, model = layout.machine.gpu, layout.model
    flops = layout.tokens * model.attention_flops(layout.seq_len) / layout.tp
    peak, product_share = gpu.flops * gpu.measured, fitted.gemm * fitted.quality
    # A causal mask gives the ranks of a sequence unequal work.
    slowdown = 1 + fitted.context * (1 - 2 / layout.cp) if layout.cp > 2 else 1.0
    if layout.flash:
        padding = math.ceil(model.head_dim / 8) * 8 / model.head_dim
        share = min(fitted.attention * fitted.attention_quality, product_share)
        forward = flops / 2 / (peak * share) * padding * slowdown
        return forward, forward * fitted.attention_back
    if model.head_dim % 8:
        slowdown *= fitted.unaligned
    moved = fitted.scores * layout.tokens * layout.seq_len * model.heads / layout.tp / gpu.bandwidth
    forward = slowdown * (flops / (peak * product_share) + moved)
    return forward, 2 * forward


def layer_time(layout: TrainingLayout, fitted: Constants) -> LayerTime:
    """Return the computation time of one layer for one micro-batch."""
    tokens, eight_bit = layout.tokens, layout.precision == "fp8"
    forward = backward = 0.0
    for n, k in matrix_shapes(layout):
        forward += matmul_seconds(layout, fitted, tokens, n, k, eight_bit=eight_bit)
        # The gradients of the inputs and of the weights.
        backward += matmul_seconds(layout, fitted, tokens, k, n, eight_bit=eight_bit) + matmul_seconds(
            layout, fitted, k, n, tokens, eight_bit=eight_bit
        )
    core, core_back = attention_seconds(layout, fitted)
    # Without the scores, whose traffic `attention_seconds` counts.
    kept = kept_bytes(layout, fitted, "selective")
    bandwidth = layout.machine.gpu.bandwidth
    elementwise = fitted.elementwise * (fitted.compiled if layout.compiled else 1.0) * tokens * kept / bandwidth
    if layout.micro_batches > 1:
        # The 16-bit gradient of each micro-batch is read and added to the accumulated one.
        backward += (2 + 2 * layout.grad_bytes) * layout.model.layer_weights / layout.tp / bandwidth
    again = 0.0
    if layout.recompute == "full":
        again = forward + core + elementwise
    elif layout.recompute == "selective":
        again = core if fitted.selective_core else fitted.selective_again * forward + elementwise
    return LayerTime(forward, core, elementwise, backward, core_back, 2 * elementwise, again)


def head_seconds(layout: TrainingLayout, fitted: Constants) -> float:
    """Return the seconds of the output matrix and the loss, forward and backward, in 16 bits."""
    tokens, hidden, vocab = layout.tokens, layout.model.hidden, layout.model.vocab / layout.tp
    products = (
        matmul_seconds(layout, fitted, tokens, vocab, hidden)
        + matmul_seconds(layout, fitted, tokens, hidden, vocab)
        + matmul_seconds(layout, fitted, hidden, vocab, tokens)
    )
    return products + fitted.logits * tokens * vocab / layout.machine.gpu.bandwidth
