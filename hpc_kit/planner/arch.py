"""Kinds of models by the words of a cases file: which block each has, and which are not modelled."""

from __future__ import annotations

import re

from hpc_kit.errors import SpecError
from hpc_kit.planner.cells import ARCH, Cells, plain

EXPERTS = re.compile(
    r"moe|mixtral|dbrx|grok|gshard|gptoss|kimi|llama4|switchtransformer|deepseek(v[23]|r1|ai)|\d+x\d+b|\d+ba\d+b|experts"
)
"""In a name without punctuation: a mixture of experts."""
OTHERS = (
    "t5", "mt5", "flant5", "ul2", "bart", "bert", "roberta", "electra", "deberta", "modernbert", "whisper", "vit",
    "clip", "siglip", "dit", "unet", "diffusion", "resnet", "mamba", "falconmamba", "rwkv", "hyena", "retnet", "jamba",
    "zamba", "xlstm", "lstm", "nemotronh", "encoder", "encoderdecoder", "seq2seq", "ssm", "gnn", "cnn", "mlp",
)  # fmt: skip
"""Without their numbers: networks that are no decoder-only transformers."""


def arch(cells: Cells) -> str:
    """The kind of block; one that is not known is taken for a Llama's, which is said.

    Raises:
        SpecError: It is a mixture of experts, or no decoder-only transformer.
    """
    value, name = cells.text("arch", say=False), cells.text("model_name", say=False)
    word = value or name
    if EXPERTS.search(plain(word)):
        raise SpecError(f"arch is '{word}': a mixture of experts is not modelled")
    if _is_other(word):
        raise SpecError(f"arch is '{word}': no decoder-only transformer, others are not modelled")
    if EXPERTS.search(plain(name)):
        cells.assumed.append(f"model_name '{name}' as a dense model, as arch says")
    try:
        return cells.known("arch", ARCH, "llama")
    except SpecError:
        cells.assumed.append(f"arch '{value}' as llama")
        return "llama"


def _is_other(word: str) -> bool:
    """Whether a name starts with that of another kind of network: `mamba2`, `T5-XXL`, `bert-large`, `state-space`."""
    first = re.split(r"[\s_/-]+", word.strip().lower())[0]
    names = {plain(word), plain(first), plain(first).rstrip("0123456789"), plain(word).rstrip("0123456789")}
    return not names.isdisjoint(OTHERS) or plain(word).startswith("statespace")
