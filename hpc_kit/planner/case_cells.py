"""Typed cells of a cases file, in any spelling, with a list of assumptions; architectures and links of GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import structs

from hpc_kit.errors import SpecError
from hpc_kit.planner import hardware
from hpc_kit.planner.hardware import GIB, Gpu

MAX_COUNT = 10**9
"""Larger counts are rejected."""

ARCH = {
    "gpt": ("gpt2", "gpt3", "opt", "bloom", "gptneox"),
    "llama": ("llama2", "llama3", "llama31", "mistral", "qwen2"),
    "mpt": (),
    "nemotron": ("nemotron4",),
}
PRECISION = {
    "bf16": ("bfloat16", "bf16mixed", "ampbf16"),
    "fp16": ("float16", "half", "fp16mixed", "16mixed", "ampfp16"),
    "fp8": ("float8", "e4m3", "hybrid"),
}
GRAD_DTYPE = {"fp32": ("float32", "float"), "bf16": ("bfloat16",), "fp16": ("float16", "half")}
RECOMPUTE = {
    "none": ("false", "no", "off", "0"),
    "selective": ("core", "selectiveop"),
    "full": ("true", "yes", "on", "1", "block", "uniform"),
}
FP8_RECIPE = {"tensorwise": (), "rowwise": ()}
SCHEDULE = {"1f1b": (), "interleaved-1f1b": ("interleaved", "interleaved1f1b")}
UNSUPPORTED_SCHEDULES = ("zb", "zerobubble", "dualpipe")
UNSUPPORTED_PRECISIONS = ("32", "64", "fp4", "int")
"""Parts of the names of schedules and precisions that are not modelled."""
FRAMEWORK = {
    "megatron": ("megatronlm", "megatroncore", "mcore"),
    "megatron-deepspeed": ("deepspeed",),
    "nanotron": (),
    "nemo": ("nemo2", "nemoframework"),
    "fsdp": ("composer", "llmfoundry", "pytorchfsdp"),
    "torchtitan": (),
    "torch": ("pytorch",),
}
"""Values of these cells and their other spellings; case, `-`, `_`, `.` and blanks are ignored."""

FLAGS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1", "1.0", "on"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0", "0.0", "off", "none"), False),
}


def normalize_word(text: str) -> str:
    """Return a word without case and punctuation."""
    return "".join(char for char in text.lower() if char.isalnum())


class CaseRow:
    """Cells of a row; `assumed` lists the assumptions."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.row = row
        self.assumed: list[str] = []

    def text(self, name: str, default: str = "", *, note: bool = True) -> str:
        """Return the text of a cell, or its default."""
        value = (self.row.get(name) or "").strip()
        if value:
            return value
        if default and note:
            self.assumed.append(f"{name} = {default}")
        return default

    def choice(self, name: str, table: Mapping[str, tuple[str, ...]], default: str = "") -> str:
        """Return a word of a table in any spelling; "" for an empty cell without default.

        Raises:
            SpecError: The word is not in the table.
        """
        value = self.text(name, default)
        if not value:
            return ""
        for word, others in table.items():
            if normalize_word(value) in {normalize_word(word), *others}:
                return word
        raise SpecError(f"{name} is '{value}', none of {', '.join(table)}")

    def choice_or_default(self, name: str, table: Mapping[str, tuple[str, ...]], default: str = "") -> str:
        """Like `choice`, but treat an unknown word as an empty cell and note it."""
        try:
            return self.choice(name, table, default)
        except SpecError:
            self.assumed.append(f"{name} '{self.text(name)}' as {default or 'not given'}")
            self.row = {**self.row, name: ""}
            return default

    def schedule(self) -> str:
        """Return the pipeline's schedule; "": unknown.

        Raises:
            SpecError: The value is known but not modelled.
        """
        value = normalize_word(self.text("pipeline_schedule"))
        if value.startswith(UNSUPPORTED_SCHEDULES):
            raise SpecError(f"pipeline_schedule is '{value}': zero-bubble schedules are not modelled")
        # GPipe has the bubble of 1F1B, but keeps the activations of all micro-batches.
        if value in {"gpipe", "afab"}:
            self.assumed.append(f"pipeline_schedule '{value}' as 1f1b")
            return "1f1b"
        return self.choice_or_default("pipeline_schedule", SCHEDULE)

    def precision(self) -> str:
        """Return the precision of matrix products.

        Raises:
            SpecError: The value is known but not modelled.
        """
        value = normalize_word(self.text("precision"))
        if "fp8" in value and value != "fp8":
            self.assumed.append(f"precision '{self.text('precision')}' as fp8")
            return "fp8"
        # A precision that is known but not modelled is an error, any other unknown word counts as bf16.
        read = self.choice if any(part in value for part in UNSUPPORTED_PRECISIONS) else self.choice_or_default
        return read("precision", PRECISION, "bf16")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return yes or no; anything else counts as the default and is noted."""
        value = self.text(name, str(default).lower())
        if value.lower() not in FLAGS:
            self.assumed.append(f"{name} '{value}' as {str(default).lower()}")
        return FLAGS.get(value.lower(), default)

    def number(self, name: str, default: float | None = None, *, note: bool = True) -> float:
        """Return a number from 0.

        Raises:
            SpecError: The cell is not a number, or is empty without default.
        """
        value = self.text(name)
        if not value:
            if default is None:
                raise SpecError(f"{name} is empty", remedy="a number")
            if note:
                self.assumed.append(f"{name} = {default:g}")
            return default
        try:
            number = float(value)
        except ValueError:
            raise SpecError(f"{name} is no number", found=value, remedy="a number") from None
        if not 0 <= number < 1e18:
            raise SpecError(f"{name} is out of range", found=value, remedy="a positive number")
        return number

    def count(
        self, name: str, default: int | None = None, *, note: bool = True, least: int = 1, most: int = MAX_COUNT
    ) -> int:
        """Return a whole number.

        Raises:
            SpecError: The cell is not a whole number, or is out of range.
        """
        number = self.number(name, default, note=note)
        if number != int(number) or not least <= number <= most:
            raise SpecError(f"{name} is {number:g}, no whole number from {least} to {most}")
        return int(number)

    def optional_count(self, name: str) -> int | None:
        """Return a whole number from 1; None for an empty cell."""
        return self.count(name) if self.text(name) else None


EXPERT_NAMES = re.compile(
    r"moe|mixtral|dbrx|grok|gshard|gptoss|kimi|llama4|switchtransformer|experts"
    # DeepSeek's first model and models distilled from R1 into others are dense.
    r"|deepseek(coder)?v[2-9]|deepseekvl2|deepseekr1(?!.*(distill|qwen|llama))"
)
"""Names, without punctuation, of mixtures of experts."""
EXPERT_SIZES = re.compile(r"\d+x\d+(\.\d+)?b(?![a-z0-9])|\d+b[\W_]*a\d+(\.\d+)?b(?![a-z0-9])")
"""Sizes in a name that mean a mixture of experts: `8x7b`, `30B-A3B`, but not `7b-a100-bf16`."""
OTHER_NETWORKS = re.compile(
    # As the first word of a name: `T5-XXL`, `bert-large`.
    r"^(mt5|flan-?t5|ul2|bart|electra|deberta|modernbert|vit|clip|siglip|dit|unet|diffusion|resnet|falconmamba|jamba|zamba"
    r"|xlstm|lstm|nemotron-?h|encoder|seq2seq|ssm|gnn|cnn|mlp|state-?space\w*)\d*(?![a-z0-9])"
    # As any word of a name: `falcon-mamba-7b`.
    r"|(?<![a-z0-9])(t5|mamba|rwkv|hyena|retnet|bert|roberta|whisper)\d*(?![a-z0-9])"
)
"""Networks that are not decoder-only transformers."""


def parse_architecture(cells: CaseRow) -> str:
    """Return the kind of block; an unknown one counts as a Llama's and is noted.

    Raises:
        SpecError: The model is a mixture of experts, or is not a decoder-only transformer.
    """
    value, name = cells.text("arch", note=False), cells.text("model_name", note=False)
    column, word = ("arch", value) if value else ("model_name", name)
    if _has_experts(word):
        raise SpecError(f"{column} is '{word}': a mixture of experts is not modelled")
    if OTHER_NETWORKS.search(word.lower()):
        raise SpecError(f"{column} is '{word}': no decoder-only transformer, and only these are modelled")
    if _has_experts(name):
        cells.assumed.append(f"model_name '{name}' as a dense model, according to arch")
    return cells.choice_or_default("arch", ARCH, "llama")


def _has_experts(word: str) -> bool:
    return bool(EXPERT_NAMES.search(normalize_word(word)) or EXPERT_SIZES.search(word.lower()))


FAST_LINK_NAMES = re.compile(r"nvlink|nvswitch|nvl|infinityfabric|xgmi|sxm")


def with_link(card: Gpu, cells: CaseRow) -> Gpu:
    """Return the GPU with the links of the cell `intra_node`; note a difference from its own links.

    In most families a PCIe card has a row of its own with its measured rates.
    """
    word = normalize_word(cells.text("intra_node", note=False))
    if not word:
        return card
    through_pcie = card.link <= hardware.PCIE_BANDWIDTH[5]
    if word.startswith("pci"):
        return card if through_pcie else _with_pcie(card, word, cells)
    if not FAST_LINK_NAMES.search(word):
        cells.assumed.append(f"intra_node '{cells.text('intra_node')}' as {card.name}'s own")
        return card
    return _with_fast_links(card, cells) if through_pcie else card


def _with_pcie(card: Gpu, word: str, cells: CaseRow) -> Gpu:
    number = re.search(r"[3-6]", word)
    speed = hardware.PCIE_BANDWIDTH[int(number[0]) if number else hardware.PCIE_GENERATION.get(card.generation, 4)]
    family, _, size = card.name.rpartition("-")
    names = (f"{family}-pcie-{size}", f"{family}-nvl-{size}")
    if found := next((name for name in names if name in hardware.gpu_names()), None):
        cells.assumed.append(f"gpu '{card.name}' as {found}, for intra_node is {word}")
        return structs.replace(hardware.find_gpu(found), link=speed, memory=card.memory)
    cells.assumed.append(f"gpu '{card.name}' without its links, for intra_node is {word}")
    return structs.replace(card, link=speed)


def _with_fast_links(card: Gpu, cells: CaseRow) -> Gpu:
    """Return the family's card with fast links and this memory size, unless the name itself means a PCIe card."""
    name = hardware.normalize_gpu_name(cells.text("gpu"))
    family = card.name.partition("-")[0]
    usual = hardware.find_gpu(family)
    if "pcie" in name or "nvl" in name or usual.link <= hardware.PCIE_BANDWIDTH[5]:
        cells.assumed.append(
            f"intra_node '{cells.text('intra_node')}' as {card.name}'s own, without NVLink beyond a pair"
        )
        return card
    cells.assumed.append(f"gpu '{name}' as {usual.name} with {card.memory / GIB:.1f} GiB, for intra_node has links")
    return structs.replace(usual, memory=card.memory)
