"""What a row of a cases file says, leaves open, contradicts, or spells in its own way."""

from __future__ import annotations

import math

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.planner import cases, hardware
from hpc_kit.planner.cases import parse_case, predict_case
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.memory import Memory
from tests.planner.test_cases import ROW

KNOWN = {**ROW, "tp_overlap": "false", "torch_compile": "false"}
LARGE = {
    **KNOWN,
    "arch": "gpt",
    "layers": "96",
    "hidden": "12288",
    "ffn": "49152",
    "heads": "96",
    "kv_heads": "96",
    "framework": "megatron",
    "gpus": "768",
    "dp": "8",
    "tp": "8",
    "pp": "12",
    "zero_stage": "1",
    "global_batch": "1152",
    "seq_len": "2048",
    "sequence_parallel": "true",
    "tp_overlap": "true",
    "virtual_stages": "",
    "micro_batch": "",
    "recompute": "",
}


def known(row: dict[str, str]) -> tuple[TrainingLayout, tuple[str, ...]]:
    one = parse_case(row)
    assert one.layout is not None, one.assumed
    return one.layout, one.assumed


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"dp": ""}, "dp", 16),
        ({"gpus": ""}, "gpus", 16),
        ({"micro_batch": "", "grad_accum": "2", "global_batch": "64"}, "micro_batch", 2),
        ({"global_batch": "", "grad_accum": "4"}, "global_batch", 64),
    ],
)
def test_what_follows_from_the_other_cells_is_taken_from_them(change: dict[str, str], field: str, value: int) -> None:
    run, assumed = known({**KNOWN, **change})
    assert getattr(run, field) == value
    assert len(assumed) == 1 and field in assumed[0]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"dp": "", "tp": "3"}, "gpus 16 is no multiple of tp x pp x cp = 3"),
        ({"global_batch": "8"}, "less than dp 16 x micro_batch 1"),
        ({"micro_batch": "", "grad_accum": "3"}, "no multiple of dp 16 x grad_accum 3"),
        ({"global_batch": ""}, "global_batch is empty"),
        ({"pp": "33"}, "more than the 32 layers"),
        ({"pp": "16", "virtual_stages": "4", "dp": "1"}, "more than the layers and the two tables"),
        ({"layers": "1000000000"}, "no whole number from 1 to 10000"),
        ({"zero_stage": "4"}, "no whole number from 0 to 3"),
        ({"inter_node_gbps": "0"}, "inter_node_gbps is 0"),
        ({"gpu": "a100", "precision": "fp8"}, "a100 has not"),
        ({"precision": "fp32"}, "none of bf16, fp16, fp8"),
        ({"precision": "nvfp4"}, "none of bf16, fp16, fp8"),
        ({"pp": "2", "dp": "8", "pipeline_schedule": "zbv"}, "zero-bubble schedules are not modelled"),
        ({"arch": "mixtral"}, "mixture of experts"),
    ],
)
def test_a_contradiction_is_not_predicted_and_says_why(change: dict[str, str], part: str) -> None:
    found = predict_case(parse_case({**KNOWN, **change}))
    assert found.step_time is None
    assert part in found.notes[0]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"gpus": "64"}, "gpus is not dp tp pp cp"),
        ({"global_batch": "24"}, "micro-batches rounded"),
        ({"grad_accum": "7"}, "grad_accum is not"),
        ({"framework": "jax"}, "framework 'jax' as torch"),
        ({"arch": "yi"}, "arch 'yi' as llama"),
        ({"precision": "mixed"}, "precision 'mixed' as bf16"),
        ({"grad_dtype": "int4"}, "grad_dtype 'int4' as fp32"),
        ({"sequence_parallel": "perhaps"}, "sequence_parallel 'perhaps' as false"),
        ({"flash_attention": "flash_attention=2"}, "flash_attention 'flash_attention=2' as true"),
        ({"precision": "fp8", "fp8_recipe": "delayed"}, "fp8_recipe 'delayed' as not given"),
        ({"pp": "2", "dp": "8", "pipeline_schedule": "gpipe"}, "pipeline_schedule 'gpipe' as 1f1b"),
        ({"pp": "2", "dp": "8", "pipeline_schedule": "some"}, "pipeline_schedule 'some' as not given"),
    ],
)
def test_a_doubt_is_predicted_and_said(change: dict[str, str], part: str) -> None:
    found = predict_case(parse_case({**KNOWN, **change}))
    assert found.step_time is not None
    assert len(found.notes) == 1 and part in found.notes[0]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"recompute": "Full"}, {"recompute": "full"}),
        ({"precision": "BFloat16"}, {}),
        ({"precision": "bf16-mixed"}, {}),
        ({"precision": "amp_bf16"}, {}),
        ({"recompute": "selective_op"}, {}),
        ({"recompute": "0"}, {"recompute": "none"}),
        ({"fp8_recipe": "none"}, {}),
        ({"pipeline_schedule": "zbv"}, {}),
        ({"pipeline_schedule": "none"}, {}),
        ({"torch_compile": "none"}, {}),
        ({"torch_compile": "1.0"}, {"torch_compile": "true"}),
        ({"precision": "FP8"}, {"precision": "fp8"}),
        ({"grad_dtype": "float32"}, {}),
        ({"grad_dtype": "BF16"}, {"grad_dtype": "bf16"}),
        ({"arch": "GPT-2"}, {"arch": "gpt"}),
        ({"framework": "Megatron-LM"}, {"framework": "megatron"}),
        ({"framework": "mcore"}, {"framework": "megatron"}),
        ({"flash_attention": "yes"}, {}),
        ({"flash_attention": "0"}, {"flash_attention": "false"}),
        ({"inter_node_gbps": "0", "dp": "8", "gpus": "8"}, {"dp": "8", "gpus": "8"}),
    ],
)
def test_other_spellings(change: dict[str, str], same: dict[str, str]) -> None:
    assert known({**KNOWN, **change}) == known({**KNOWN, **same})


@pytest.mark.parametrize("fault", [ZeroDivisionError("division by zero"), OverflowError("too large"), math.inf])
def test_numbers_beyond_reckoning_do_not_stop_the_batch(monkeypatch: pytest.MonkeyPatch, fault: object) -> None:
    def reckoned(*_: object) -> Memory:
        if isinstance(fault, Exception):
            raise fault
        return Memory(math.inf, 0, 0, 0, 0, 0)

    monkeypatch.setattr(cases, "reported_memory", reckoned)
    found = predict_case(parse_case(KNOWN))
    assert (found.step_time, found.memory_gib, found.fits) == (None, None, None)
    assert found.notes[0].startswith("its numbers")


def test_virtual_stages_that_are_not_published_are_as_few_as_keep_the_bubble_short() -> None:
    run, assumed = known(LARGE)
    assert run.virtual_stages > 1 and run.micro_batches % run.pp == 0 and run.recompute == "none"
    assert (run.pp - 1) / (run.micro_batches * run.virtual_stages // 2) >= 0.1
    assert sum("the fastest that fits" in note for note in assumed) == 2
    assert (
        f"virtual_stages = {run.virtual_stages}, the fewest for a bubble below 10%, or the most there can be" in assumed
    )
    assert known({**LARGE, "pp": "2", "dp": "48", "micro_batch": "1"})[0].virtual_stages == 1


def test_a_word_that_is_not_known_leaves_the_cell_open() -> None:
    change = {"micro_batch": "16", "virtual_stages": "1", "recompute": "sometimes"}
    run, assumed = known({**LARGE, **change})
    assert run.recompute == "full"
    assert assumed == ("recompute 'sometimes' as not given", "recompute = full, the fastest that fits")


def test_virtual_stages_of_a_published_schedule_are_the_fastest_that_fit() -> None:
    run, assumed = known({**LARGE, "pipeline_schedule": "interleaved-1f1b"})
    assert run.virtual_stages > 1
    assert sum("the fastest that fits" in note for note in assumed) == 3
    plain, _ = known({**LARGE, "virtual_stages": "1"})
    quick, slow = (
        predict_case(parse_case(LARGE)).step_time,
        predict_case(parse_case({**LARGE, "virtual_stages": "1"})).step_time,
    )
    assert plain.virtual_stages == 1
    assert quick is not None and slow is not None and quick < slow


@pytest.mark.parametrize(
    ("change", "woven"),
    [
        ({"pipeline_schedule": "1f1b"}, False),
        ({"pipeline_schedule": "Interleaved"}, True),
        ({"framework": "fsdp"}, False),
        ({"framework": "fsdp", "pipeline_schedule": "interleaved-1f1b"}, True),
        ({"layers": "97"}, False),
    ],
)
def test_the_schedule_says_whether_there_are_virtual_stages(change: dict[str, str], woven: bool) -> None:
    run, _ = known({**LARGE, **change})
    assert (run.virtual_stages > 1) == woven


def test_recomputation_that_is_not_published_is_what_fits() -> None:
    run, assumed = known({**LARGE, "micro_batch": "16", "virtual_stages": "1"})
    assert run.recompute == "full" and assumed == ("recompute = full, the fastest that fits",)


def test_a_card_without_a_published_memory_still_has_a_limit() -> None:
    change = {"layers": "48", "hidden": "8192", "ffn": "32768", "heads": "64", "kv_heads": "64", "arch": "gpt"}
    run, _ = known({**LARGE, **change, "gpu": "a100", "dp": "64", "tp": "8", "pp": "1", "gpus": "512"})
    assert predict_case(parse_case({**LARGE, "gpu": "a100"})).fits is True
    assert run.micro_batch < 16 or run.recompute == "full"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("h100-80gb", "h100-80g"),
        ("h100-sxm", "h100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("NVIDIA H100 PCIe", "h100-pcie-80g"),
        ("NVIDIA H100 NVL", "h100-nvl-94g"),
        ("a100-sxm4-80gb", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("NVIDIA GH200 480GB", "gh200-96g"),
        ("NVIDIA H200", "h200-141g"),
        ("Tesla V100-SXM2-16GB", "v100-16g"),
        ("v100", "v100-32g"),
        ("H800", "h800-80g"),
        ("AMD Instinct MI300X", "mi300x-192g"),
        ("NVIDIA B200", "b200"),
        ("a100", "a100-80g"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32g"),
        ("NVIDIA H200 NVL", "h200-nvl-141g"),
        ("mi250", "mi250-64g"),
        ("AMD Instinct MI325X OAM", "mi325x-256g"),
        ("GB200 NVL72", "gb200"),
        ("h100sxm5-80gb", "h100-80g"),
        ("H100NVL", "h100-nvl-94g"),
        ("NVIDIA H20", "h20-96g"),
        ("Tesla V100-DGXS-32GB", "v100-32g"),
        ("Tesla V100-SXM3-32GB-H", "v100-32g"),
        ("AMD Instinct MI300X VF", "mi300x-192g"),
        ("mi300", "mi300x-192g"),
    ],
)
def test_a_gpu_by_the_name_that_its_driver_gives(name: str, row: str) -> None:
    assert hardware.find_gpu(name).name == row
    assert hardware.match_gpu(name)[1] == ""


@pytest.mark.parametrize(
    ("name", "row", "gib", "output"),
    [
        ("NVIDIA A100-SXM-64GB", "a100-80g", 63.4, "as a100-80g with 63.4 GiB"),
        ("b200-180g", "b200", 178.2, "as b200 with 178.2 GiB"),
        ("b200-192g", "b200", 190.1, "as b200 with 190.1 GiB"),
        ("gb200-186g", "gb200", 184.1, "as gb200 with 184.1 GiB"),
        ("A100-40", "a100-40g", 39.4, "as a100-40g"),
        ("h100-94g", "h100-nvl-94g", 93.0, "as h100-nvl-94g"),
        ("h100-pcie-96g", "h100-pcie-80g", 95.0, "as h100-pcie-80g with 95.0 GiB"),
    ],
)
def test_a_gpu_that_no_row_names_is_the_nearest_one_and_that_is_said(
    name: str, row: str, gib: float, output: str
) -> None:
    card = hardware.find_gpu(name)
    assert (card.name, round(card.memory / GIB, 1)) == (row, gib)
    assert hardware.match_gpu(name)[1] == f"gpu '{name}' {output}"
    assert any(note.startswith(f"gpu '{name}' as ") for note in known({**KNOWN, "gpu": name})[1])


@pytest.mark.parametrize(
    ("name", "row", "word"),
    [
        ("h100-sxm5-liquid", "h100-80g", "liquid"),
        ("a100-pcie-typo", "a100-pcie-80g", "typo"),
        ("h200-turbo-141gb", "h200-141g", "turbo"),
        ("a100-40gb-ultra-max", "a100-40g", "ultra-max"),
    ],
)
def test_words_that_no_row_has_are_refused_and_in_a_cases_file_left_out(name: str, row: str, word: str) -> None:
    with pytest.raises(SpecError, match=f"no GPU '{name}'") as caught:
        hardware.find_gpu(name)
    assert row in (caught.value.remedy or "")
    run, notes = known({**KNOWN, "gpu": name})
    assert run.machine.gpu.name == row
    assert f"gpu '{name}' as {row}, ignoring '{word}'" in notes


@pytest.mark.parametrize("name", ["", "nvidia", "RTX 4090", "A100-SXM4-80GB MIG 3g.40gb", "h100x-80g"])
def test_a_gpu_that_is_near_none_or_a_slice_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="no GPU"):
        hardware.find_gpu(name)


def test_every_row_of_the_table_is_found_by_its_own_name() -> None:
    for name in hardware.gpu_names():
        assert hardware.find_gpu(name, allow_similar=True).name == name
