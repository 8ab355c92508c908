"""What the words of a cases file mean: kinds of models, links, formats, networks, numbers of heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.planner import hardware
from hpc_kit.planner.cases import parse_case, parse_fabric, predict_case, read_cases
from hpc_kit.planner.hardware import GIB
from tests.planner.test_case_rows import KNOWN, known


@pytest.mark.parametrize(
    "change",
    [
        *({"arch": word} for word in ("t5", "T5-XXL", "mamba", "Mamba-2", "falcon-mamba", "bert-large", "rwkv", "ViT")),
        *({"arch": word} for word in ("mixtral", "deepseek-v3", "DeepSeek_V2", "qwen3-moe", "gpt-oss", "llama4")),
        *({"arch": "", "model_name": word} for word in ("Mixtral-8x7B", "qwen3-30b-a3b", "t5-11b")),
        *({"arch": "", "model_name": word} for word in ("DeepSeek-R1", "deepseek-ai/DeepSeek-Coder-V2-Lite")),
        *({"arch": "", "model_name": word} for word in ("our 8x22b", "Ling-16.8B-A2.75B", "x_21B_A3B_fp8", "30ba3b")),
        *({"arch": "", "model_name": word} for word in ("falcon-mamba-7b", "google/flan-t5-xl", "deepseek-vl2")),
    ],
)
def test_what_is_no_dense_decoder_is_refused(change: dict[str, str]) -> None:
    found = predict_case(parse_case({**KNOWN, **change}))
    assert found.step_time is None and "modelled" in found.notes[0]


@pytest.mark.parametrize("word", ["llama", "gpt-3", "Qwen3", "falcon", "gemma2", "phi-3", "starcoder", "bitnet"])
def test_a_decoder_is_predicted(word: str) -> None:
    assert parse_case({**KNOWN, "arch": word}).layout is not None


@pytest.mark.parametrize(
    "name",
    [
        "DeepSeek-R1-Distill-Llama-8B",
        "DeepSeek-R1-0528-Qwen3-8B",
        "deepseek-ai/deepseek-llm-7b-base",
        "llama-7b-a100-bf16",
        "gpt-4x100-bf16",
    ],
)
def test_a_dense_model_is_known_by_its_name(name: str) -> None:
    assert parse_case({**KNOWN, "arch": "", "model_name": name}).layout is not None


@pytest.mark.parametrize("column", ["arch", "model_name"])
@pytest.mark.parametrize("word", ["qwen3-30b-a3b", "rwkv"])
def test_the_column_that_says_it_is_named(column: str, word: str) -> None:
    found = parse_case({**KNOWN, "arch": "", "model_name": "", column: word})
    assert found.assumed[0].startswith(f"{column} is '{word}': ")


def test_a_name_of_experts_beside_a_dense_arch_is_said() -> None:
    _, assumed = known({**KNOWN, "model_name": "mixtral-8x7b"})
    assert "model_name 'mixtral-8x7b' as a dense model, according to arch" in assumed


@pytest.mark.parametrize(
    ("gpu", "word", "link", "bandwidth"),
    [
        ("a100-80g", "pcie4", 32e9, 1.935e12),  # the card for PCIe
        ("h100-80g", "PCIe Gen5 x16", 64e9, 2.0e12),
        ("h200-141g", "pcie5", 64e9, 4.8e12),
        ("b200", "pcie", 64e9, 8e12),  # no such card: the links alone
        ("v100-32g", "pcie3", 16e9, 0.9e12),
        ("h100-94g", "nvlink4", 450e9, 3.35e12),
        ("a100-pcie-80g", "nvlink3", 32e9, 1.935e12),  # bridges of two
        ("h100-80g", "nvlink4", 450e9, 3.35e12),
        ("mi300x", "Infinity Fabric", 448e9, 5.3e12),
        ("a100-80g", "", 300e9, 2.039e12),
        ("a100-80g", "yes", 300e9, 2.039e12),
    ],
)
def test_links_inside_a_node(gpu: str, word: str, link: float, bandwidth: float) -> None:
    run, assumed = known({**KNOWN, "gpu": gpu, "intra_node": word})
    own = hardware.find_gpu(gpu, allow_similar=True)
    assert (run.machine.gpu.link, run.machine.gpu.bandwidth) == pytest.approx((link, bandwidth))
    assert run.machine.gpu.memory == own.memory
    assert any("intra_node" in note for note in assumed) == (link != own.link or word == "yes" or "pcie" in gpu)


def test_memory_of_the_name_is_kept() -> None:
    run, _ = known({**KNOWN, "gpu": "h100-94g", "intra_node": "nvlink4"})
    assert run.machine.gpu.name == "h100-80g" and run.machine.gpu.memory == pytest.approx(93 * GIB, rel=0.01)


@pytest.mark.parametrize("word", ["fp8_hybrid", "mxfp8", "FP8-delayed", "bf16/fp8"])
def test_words_of_8_bits(word: str) -> None:
    run, assumed = known({**KNOWN, "precision": word})
    assert run.precision == "fp8" and f"precision '{word}' as fp8" in assumed


def test_a_card_without_bf16_computes_in_fp16() -> None:
    run, assumed = known({**KNOWN, "gpu": "v100-32g", "grad_dtype": ""})
    assert (run.precision, run.grad_bytes) == ("fp16", 2)
    assert "precision bf16 as fp16: v100-32g has no bf16" in assumed
    assert not any("no bf16" in note for note in known({**KNOWN, "gpu": "v100-32g", "precision": "fp16"})[1])


@pytest.mark.parametrize(("word", "value"), [("y", True), ("T", True), ("N", False), ("f", False)])
def test_letters_are_yes_and_no(word: str, value: bool) -> None:
    run, assumed = known({**KNOWN, "torch_compile": word})
    assert run.compiled == value and not any("torch_compile" in note for note in assumed)


@pytest.mark.parametrize(
    ("notes", "fabric"),
    [
        ("EFA: 400 Gb/s", "efa"),
        ("refactored, defaults", "infiniband"),
        ("4 x 100 Gb/s Omni-Path", "omnipath"),
        ("Omnipath", "omnipath"),
        ("Intel OPA100, OPA", "omnipath"),
        ("opaque", "infiniband"),
    ],
)
def test_networks_by_whole_words(notes: str, fabric: str) -> None:
    assert parse_fabric(notes) == fabric


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"kv_heads": "64"}, "kv_heads 64 do not divide heads 32"),
        ({"kv_heads": "5"}, "kv_heads 5 do not divide heads 32"),
        ({"heads": "7"}, "heads 7 do not divide hidden 4096"),
        ({"tp": "3", "dp": "", "gpus": "6", "global_batch": "12"}, "tp 3 does not divide heads 32"),
        ({"tp": "16", "heads": "8", "kv_heads": "8", "dp": "1"}, "tp 16 does not divide heads 8"),
    ],
)
def test_heads_that_cannot_be(change: dict[str, str], part: str) -> None:
    found = predict_case(parse_case({**KNOWN, **change}))
    assert found.step_time is None and part in found.notes[0]


@pytest.mark.parametrize("separator", [",", ";", "\t", " ; "])
@pytest.mark.parametrize("spelled", [str, str.upper, " {} ".format])
def test_separators_and_spellings_of_the_header(tmp_path: Path, separator: str, spelled: type[str]) -> None:
    path = tmp_path / "cases.csv"
    lines = [separator.join(map(spelled, KNOWN)), separator.join(KNOWN.values())]
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert [predict_case(parse_case(row)) for row in read_cases(path)] == [predict_case(parse_case(KNOWN))]
