"""Models by name, by numbers, or from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs

from hpc_kit.errors import SpecError, explain_file_errors
from hpc_kit.planner.hardware import unknown_name_error
from hpc_kit.planner.transformer import Transformer, gpt

MODELS_FILE = Path(__file__).with_name("models.toml")
MAX_NUMBER = 10**7
"""Numbers of a model are smaller."""
MAX_ASSUMED_SEQ_LEN = 8192
"""Maximum assumed tokens per sequence: a config contains the context limit, not the training length."""

EXAMPLE = "--model layers=32,hidden=4096,heads=32,ffn=14336,vocab=128256,seq_len=8192"

LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "smollm3", "olmo", "internlm2", "phi3"})
GPT_LIKE = frozenset({"gpt2", "opt", "bloom", "gpt_neox", "gpt_bigcode", "mpt"})
"""Values of `model_type` in a `config.json`, by kind of block."""

CONFIG_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size",),
    "seq_len": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "head_dim": ("head_dim",),
}
"""Keys of a `config.json` for each number: model types name the same number differently."""
OPTIONAL_FIELDS: dict[str, int] = {
    field.name: field.default for field in structs.fields(Transformer) if isinstance(field.default, int)
}
"""Optional fields of a model with their defaults."""


@cache
def _model_table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(MODELS_FILE.read_text(encoding="utf-8"))


def model_names() -> tuple[str, ...]:
    """Return the names of all models."""
    return tuple(_model_table())


def model_by_name(name: str) -> Transformer:
    """Return a model by its name.

    Raises:
        SpecError: The model is unknown; the error lists similar names.
    """
    table = _model_table()
    key = name.lower().replace("_", "-")
    key = key if key in table else key.replace("llama-", "llama").replace("llama3.1-", "llama3-")
    if key not in table:
        other = f"or the path of its config.json;\nor its numbers: {EXAMPLE}"
        raise unknown_name_error("model", name, key, table, other)
    row = {field: value for field, value in table[key].items() if field != "parameters"}
    if "gpt" in row:
        return gpt(key, **row["gpt"])
    return Transformer(name=key, **{"head_dim": row["hidden"] // row["heads"], **row})


def parse_model(text: str) -> Transformer:
    """Parse a model: a name, the path of a `config.json`, or numbers such as `layers=32,hidden=4096`.

    Raises:
        SpecError: The text is invalid, or the numbers are impossible.
    """
    if "=" in text:
        return model_from_numbers(text)
    path = Path(text)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.suffix == ".json":
        return model_from_config(path)
    return model_by_name(text)


def model_from_numbers(text: str) -> Transformer:
    """Build a Llama-like model from `name=number` pairs; `gpt=1` selects a GPT, other fields are allowed.

    Raises:
        SpecError: A name is unknown, a value is not a number, or numbers are inconsistent.
    """
    given: dict[str, int] = {}
    for pair in text.split(","):
        name, _, value = pair.strip().partition("=")
        if name not in {*CONFIG_KEYS, *OPTIONAL_FIELDS, "gpt"}:
            raise SpecError(
                f"no number '{name}' of a model",
                found=text,
                remedy=f"{', '.join([*CONFIG_KEYS, 'tied=1', 'gpt=1'])}, separated by commas",
            )
        if not value.isdigit():
            raise SpecError(f"{name} of --model is no whole number", found=f"{name}={value}", remedy=f"{name}=4096")
        given[name] = int(value)
    missing = [name for name in ("layers", "hidden", "heads") if name not in given]
    if missing:
        raise SpecError(f"--model lacks {', '.join(missing)}", found=text, remedy="layers=32,hidden=4096,heads=32")
    is_gpt = bool(given.pop("gpt", 0))
    flags = {
        name: bool(given.pop(name))
        for name, default in OPTIONAL_FIELDS.items()
        if isinstance(default, bool) and name in given
    }
    return _build_model(given, "numbers", text, is_gpt=is_gpt, **{"tied": False, **flags})


def format_model(model: Transformer) -> str:
    """Format a model for `parse_model`: its name if it has one, otherwise its numbers."""
    if model.name in model_names() and model_by_name(model.name) == model:
        return model.name
    values = structs.asdict(model)
    config = {name: values[name] for name in CONFIG_KEYS} | {
        name: int(values[name]) for name, default in OPTIONAL_FIELDS.items() if values[name] != default
    }
    return ",".join(f"{name}={value}" for name, value in config.items())


def default_seq_len(model: Transformer, text: str) -> tuple[int, str]:
    """Return the default tokens per sequence, and a note if the model allows more."""
    if "=" in text or model.seq_len <= MAX_ASSUMED_SEQ_LEN:
        return model.seq_len, ""
    return (
        MAX_ASSUMED_SEQ_LEN,
        f"{MAX_ASSUMED_SEQ_LEN} tokens a sequence are assumed; the model reads {model.seq_len}: --seq-len",
    )


def model_from_config(path: Path) -> Transformer:
    """Build a model from its Hugging Face `config.json`.

    Raises:
        SpecError: The file cannot be read, has an unknown model type, or lacks a number.
    """
    with explain_file_errors(SpecError, f"cannot read {path}", "a Hugging Face config.json", also=(ValueError,)):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise SpecError(f"{path} is no config.json", found=type(config).__name__, remedy="a JSON object")
    config = {**config, **(config["text_config"] if isinstance(config.get("text_config"), dict) else {})}
    kind = str(config.get("model_type", "llama"))
    if any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")):
        raise SpecError(
            f"{path} is a mixture of experts", found=kind, remedy="dense models only: give the numbers of a dense one"
        )
    if kind not in LLAMA_LIKE | GPT_LIKE:
        raise SpecError(
            f"{path}: model_type '{kind}' is not known here",
            found=f"known: {', '.join(sorted(LLAMA_LIKE | GPT_LIKE))}",
            remedy=f"its numbers: {EXAMPLE}",
        )
    return _parse_model_config(config, kind, path)


def _parse_model_config(config: Mapping[str, Any], kind: str, path: Path) -> Transformer:
    given: dict[str, int] = {}
    for name, keys in CONFIG_KEYS.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise SpecError(f"{path}: {name} is no whole number", found=repr(value), remedy="as published")
        given[name] = value
    missing = [name for name in ("layers", "hidden", "heads", "vocab") if name not in given]
    if missing:
        raise SpecError(
            f"{path} lacks {', '.join('/'.join(CONFIG_KEYS[name]) for name in missing)}",
            found=", ".join(config),
            remedy="the config.json of the model itself",
        )
    is_gpt = kind in GPT_LIKE
    tied = bool(config.get("tie_word_embeddings", is_gpt or kind == "gemma"))
    if is_gpt:
        given.setdefault("seq_len", 2048)
        # BLOOM and MPT have ALiBi, GPT-NeoX has rotary positions: no table. OPT's table has an offset of 2.
        given["positions"] = {"bloom": 0, "gpt_neox": 0, "mpt": 0, "opt": given["seq_len"] + 2}.get(
            kind, given["seq_len"]
        )
    if kind == "gpt_bigcode" and config.get("multi_query", True):
        given["kv_heads"] = 1
    # In transformers, Qwen2 always has biases of queries, keys and values only, and Mistral has none.
    has_bias = bool(config.get("attention_bias")) and kind != "mistral"
    other = {
        "qkv_biases": kind == "qwen2" or has_bias,
        "output_bias": has_bias and kind != "qwen2",
        "qk_norms": kind == "qwen3",
        "embedding_norm": kind == "bloom",
    }
    return _build_model(given, path.parent.name or kind, str(path), is_gpt=is_gpt, tied=tied, **other)


def _build_model(
    given: dict[str, int], name: str, place: str, *, is_gpt: bool, tied: bool, **other: bool
) -> Transformer:
    for key, value in given.items():
        if not 0 < value < MAX_NUMBER and not (key in OPTIONAL_FIELDS and value == 0):
            raise SpecError(f"{key} of the model is out of range", found=f"{key} = {value} in {place}", remedy="from 1")
    hidden, heads = given["hidden"], given["heads"]
    kv_heads = given.get("kv_heads", heads)
    if "head_dim" not in given and hidden % heads:
        raise SpecError(
            f"{heads} heads do not divide a hidden size of {hidden}", found=place, remedy="heads that do, or head_dim"
        )
    if heads % kv_heads:
        raise SpecError(f"{kv_heads} kv_heads do not divide {heads} heads", found=place, remedy="a divisor of heads")
    # Llama's rule: 8/3 h, so that three matrices have the parameters of two of 4 h, in multiples of 256.
    ffn = 4 * hidden if is_gpt else 256 * -(-8 * hidden // 3 // 256)
    defaults = {"kv_heads": kv_heads, "ffn": ffn, "vocab": 32000, "seq_len": 4096, "head_dim": hidden // heads}
    fields: dict[str, Any] = {**defaults, **given}
    if is_gpt:
        return gpt(name, **{**fields, "tied": tied, **other})
    return Transformer(name=name, tied=tied, **other, **fields)
