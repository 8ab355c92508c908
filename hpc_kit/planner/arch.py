"""Kinds of models by the words of a cases file: which block each has, and which are not modelled."""

from __future__ import annotations

import re

from hpc_kit.errors import SpecError
from hpc_kit.planner.cells import ARCH, Cells, plain

EXPERTS = re.compile(
    r"moe|mixtral|dbrx|grok|gshard|gptoss|kimi|llama4|switchtransformer|experts"
    # Of DeepSeek's the first and what is distilled into another model are dense.
    r"|deepseek(coder)?v[2-9]|deepseekvl2|deepseekr1(?!.*(distill|qwen|llama))"
)
"""In a name without punctuation: a mixture of experts."""
SIZES = re.compile(r"\d+x\d+(\.\d+)?b(?![a-z0-9])|\d+b[\W_]*a\d+(\.\d+)?b(?![a-z0-9])")
"""In a name as it stands: `8x7b`, `30B-A3B`, but not `7b-a100-bf16`."""
OTHERS = (
    "t5", "mt5", "flant5", "ul2", "bart", "bert", "roberta", "electra", "deberta", "modernbert", "whisper", "vit",
    "clip", "siglip", "dit", "unet", "diffusion", "resnet", "mamba", "falconmamba", "rwkv", "hyena", "retnet", "jamba",
    "zamba", "xlstm", "lstm", "nemotronh", "encoder", "encoderdecoder", "seq2seq", "ssm", "gnn", "cnn", "mlp",
)  # fmt: skip
"""Without their numbers: networks that are no decoder-only transformers."""
ANYWHERE = frozenset(
    {"t5", "mamba", "rwkv", "hyena", "retnet", "jamba", "zamba", "xlstm", "bert", "roberta", "whisper"}
)
"""Those of them that mean one as any word of a name, and nothing else."""


def arch(cells: Cells) -> str:
    """The kind of block; one that is not known is taken for a Llama's, which is said.

    Raises:
        SpecError: It is a mixture of experts, or no decoder-only transformer.
    """
    value, name = cells.text("arch", say=False), cells.text("model_name", say=False)
    column, word = ("arch", value) if value else ("model_name", name)
    if _has_experts(word):
        raise SpecError(f"{column} is '{word}': a mixture of experts is not modelled")
    if _is_other(word):
        raise SpecError(f"{column} is '{word}': no decoder-only transformer, others are not modelled")
    if _has_experts(name):
        cells.assumed.append(f"model_name '{name}' as a dense model, as arch says")
    try:
        return cells.known("arch", ARCH, "llama")
    except SpecError:
        cells.assumed.append(f"arch '{value}' as llama")
        return "llama"


def _has_experts(word: str) -> bool:
    return bool(EXPERTS.search(plain(word)) or SIZES.search(word.lower()))


def _is_other(word: str) -> bool:
    """Whether a name has that of another kind of network: `mamba2`, `T5-XXL`, `bert-large`, `falcon-mamba-7b`."""
    words = [part for part in re.split(r"[\s_/-]+", word.strip().lower()) if part]
    names = {plain(word), *map(plain, words[:1])}
    names |= {one.rstrip("0123456789") for one in names}
    anywhere = {plain(one) for one in words} | {one.rstrip("0123456789") for one in words}
    return bool(names & {*OTHERS} or anywhere & ANYWHERE) or plain(word).startswith("statespace")
