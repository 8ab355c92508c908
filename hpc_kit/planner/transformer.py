"""A transformer by its numbers: parameters and floating-point operations, exactly.

Letters as in the papers: L layers, h hidden, f ffn, a heads, d head width, s tokens a sequence, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Transformer(Struct, frozen=True, kw_only=True):
    """A decoder-only transformer, described by these numbers.

    Attributes:
        gated: Three matrices in the MLP (SwiGLU), else two.
        biases: Biases in every matrix; `qkv_biases`: only in those of queries, keys and values; `output_bias`: in that
            of attention's output.
        norm_biases: LayerNorm (weight and bias) rather than RMSNorm.
        qk_norms: A norm of one head's width for queries and one for keys.
        positions: Rows of a learned position table; 0: none.
        final_norm: A norm behind the last layer; the published formulas leave it out.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    head_dim: int
    gated: bool = True
    tied: bool = False
    biases: bool = False
    qkv_biases: bool = False
    output_bias: bool = False
    norm_biases: bool = False
    qk_norms: bool = False
    positions: int = 0
    embedding_norm: bool = False
    final_norm: bool = True

    @property
    def layer_weights(self) -> int:
        """Weights in the matrix products of a layer: attention 2 h d (a + kv), MLP 2 h f, gated 3 h f."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """All parameters of a layer."""
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) if self.biases or self.qkv_biases else 0
        biases += self.hidden if self.biases or self.output_bias else 0
        biases += (2 if self.gated else 1) * self.ffn + self.hidden if self.biases else 0
        norms = 2 * self.hidden * (2 if self.norm_biases else 1)
        norms += 2 * self.head_dim if self.qk_norms else 0
        return self.layer_weights + biases + norms

    @property
    def embedding_parameters(self) -> int:
        """The input table, with the position table and its norm."""
        norm = 2 * self.hidden if self.embedding_norm else 0
        return (self.vocab + self.positions) * self.hidden + norm

    @property
    def head_parameters(self) -> int:
        """Parameters of the output: its own matrix unless tied, and the final norm."""
        norm = self.hidden * (2 if self.norm_biases else 1) if self.final_norm else 0
        return norm + (0 if self.tied else self.vocab * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters; a tied table counts once."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.head_parameters

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest part that a pipeline cannot split: a layer or a table."""
        return max(self.layer_parameters, self.vocab * self.hidden)

    def attention_flops(self, seq_len: int) -> float:
        """Return the operations of a layer's attention core for one token, forward: QK^T and PV in full, 4 a d s."""
        return 4.0 * self.heads * self.head_dim * seq_len

    def flops(self, tokens: float, seq_len: int, recompute: str = "none") -> float:
        """Return the operations of forward and backward over `tokens` tokens; attention in full, not causal.

        `none` gives the model's operations, 72 B L s h^2 (1 + s/(6h) + V/(12 L h)) for a GPT (arXiv 2104.04473);
        `selective` counts the attention core twice, as arXiv 2205.05198 does; `full` adds every layer's forward pass.
        """
        attention = self.attention_flops(seq_len)
        layer, head = 2.0 * self.layer_weights + attention, 2.0 * self.vocab * self.hidden
        again = {"none": 0.0, "selective": 3 * attention, "full": layer}[recompute]
        return tokens * (self.layers * (3 * layer + again) + 3 * head)


def gpt(name: str, *, layers: int, hidden: int, heads: int, vocab: int, seq_len: int, **other: Any) -> Transformer:
    """Return a GPT: MLP of 4 h, LayerNorm, biases, learned positions, tied table."""
    fields: dict[str, Any] = {
        "ffn": 4 * hidden,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "gated": False,
        "tied": True,
        "biases": True,
        "norm_biases": True,
        "positions": seq_len,
    }
    return Transformer(
        name=name, layers=layers, hidden=hidden, heads=heads, vocab=vocab, seq_len=seq_len, **{**fields, **other}
    )
