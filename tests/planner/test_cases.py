"""The batch mode: a cases file in, predictions in the scorer's format out; what is not known stays empty."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.planner import model_catalogue
from hpc_kit.planner.cases import PREDICTION_COLUMNS, parse_case, predict_case, read_cases, write_predictions

ROW = {
    "case_id": "one",
    "set": "mine",
    "arch": "llama",
    "layers": "32",
    "hidden": "4096",
    "ffn": "14336",
    "heads": "32",
    "kv_heads": "8",
    "vocab": "128256",
    "seq_len": "8192",
    "tied_embeddings": "false",
    "gpu": "h100-80g",
    "gpus": "16",
    "gpus_per_node": "8",
    "inter_node_gbps": "400",
    "precision": "bf16",
    "grad_dtype": "fp32",
    "framework": "torchtitan",
    "dp": "16",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "virtual_stages": "1",
    "zero_stage": "3",
    "micro_batch": "1",
    "global_batch": "16",
    "recompute": "selective",
    "flash_attention": "true",
    "sequence_parallel": "false",
}


def test_a_run_that_is_known_well() -> None:
    one = parse_case({**ROW, "tp_overlap": "false", "torch_compile": "false"})
    found = predict_case(one)
    assert one.assumed == ()
    assert found.fits is True
    assert found.step_time is not None and 0.5 < found.step_time < 4
    assert found.memory_gib is not None and 10 < found.memory_gib < 80


def test_what_is_taken_for_granted_is_said() -> None:
    one = parse_case({**ROW, "micro_batch": "", "inter_node_gbps": "", "zero_stage": ""})
    assert any("micro_batch" in note for note in one.assumed)
    assert any("inter_node_gbps = 400" in note for note in one.assumed)
    assert any("zero_stage = 0" in note for note in one.assumed)


def test_memory_of_an_unknown_card_is_that_of_the_usual_one_and_said() -> None:
    one = parse_case({**ROW, "gpu": "a100"})
    assert any("a100-80g" in note for note in one.assumed)
    assert predict_case(one).fits is True
    assert predict_case(parse_case({**ROW, "gpu": "a100", "zero_stage": "0"})).fits is False


@pytest.mark.parametrize("broken", [{"layers": ""}, {"gpu": "abacus"}, {"hidden": "many"}, {"dp": "0"}, {"tp": "1.5"}])
def test_a_row_that_says_too_little_is_not_predicted(broken: dict[str, str]) -> None:
    found = predict_case(parse_case({**ROW, **broken}))
    assert (found.step_time, found.memory_gib, found.fits) == (None, None, None)
    assert found.notes


def test_the_file_is_that_of_the_scorer(tmp_path: Path) -> None:
    source, target = tmp_path / "cases.csv", tmp_path / "predictions.csv"
    with source.open("w", newline="") as file:
        out = csv.DictWriter(file, ROW)
        out.writeheader()
        out.writerows([ROW, {**ROW, "case_id": "two", "layers": ""}])
    write_predictions(target, [predict_case(parse_case(row)) for row in read_cases(source)])
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert tuple(rows[0]) == PREDICTION_COLUMNS
    assert float(rows[0]["step_time_s"]) > 0 and rows[0]["fits"] == "true"
    assert rows[1] == {"case_id": "two", "step_time_s": "", "peak_memory_gib": "", "fits": ""}


@pytest.mark.parametrize(
    ("text", "part"),
    [("case_id,layers\n1,2\n", "no column hidden"), ("", "no column"), (None, "cannot read")],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, part: str) -> None:
    path = tmp_path / "cases.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=part):
        read_cases(path)


def test_a_case_twice(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(",".join(ROW) + "\n" + 2 * (",".join(ROW.values()) + "\n"))
    with pytest.raises(SpecError, match="appears twice"):
        read_cases(path)


def test_lines_without_a_word_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    empty, row = "," * (len(ROW) - 1), ",".join(ROW.values())
    path.write_text("\n".join([",".join(ROW), row, empty, empty]))
    assert read_cases(path) == [ROW]
    path.write_text("\n".join([",".join(ROW), empty, row, row]))
    with pytest.raises(SpecError, match="line 4: case_id one appears twice"):
        read_cases(path)


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}


STARCODER = {
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_layer": 40,
    "n_positions": 8192,
    "vocab_size": 49152,
}
BLOOM = {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (STARCODER, 15_517_456_384),  # one key head, unless it says otherwise
        ({**STARCODER, "multi_query": False}, 15_517_456_384 + 40 * 2 * 47 * 128 * (6144 + 1)),
        (BLOOM, 559_214_592),
        ({**LLAMA, "attention_bias": True}, 8_030_261_248 + 32 * 2 * (4096 + 1024)),  # of queries, keys, values, output
        ({**LLAMA, "attention_bias": True, "model_type": "qwen2"}, 8_030_261_248 + 32 * (4096 + 2 * 1024)),
    ],
)
def test_parameters_of_a_config(tmp_path: Path, config: dict[str, object], parameters: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert model_catalogue.parse_model(str(path)).parameters == parameters


@pytest.mark.parametrize(("config", "name"), [(LLAMA, "llama3-8b"), (GPT2, "gpt2")])
def test_a_config_of_hugging_face(tmp_path: Path, config: dict[str, object], name: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert model_catalogue.parse_model(str(path)).parameters == model_catalogue.model_by_name(name).parameters
    assert model_catalogue.parse_model(str(tmp_path)).parameters == model_catalogue.model_by_name(name).parameters


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"num_hidden_layers": None}, "lacks"),
        ({"num_hidden_layers": "many"}, "no whole number"),
    ],
)
def test_a_config_that_cannot_be(tmp_path: Path, change: dict[str, object], part: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(SpecError, match=part):
        model_catalogue.parse_model(str(path))
    path.write_text("[]")
    with pytest.raises(SpecError, match=r"no config\.json"):
        model_catalogue.parse_model(str(path))
