"""Rows that nobody has seen: each is predicted or refused in words, and what is predicted is possible."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hpc_kit.planner import hardware
from hpc_kit.planner.cases import REQUIRED_COLUMNS, PlannerCase, Prediction, parse_case, predict_case, read_cases
from hpc_kit.planner.hardware import GIB
from hpc_kit.planner.layout import TrainingLayout
from tests.planner.test_cases import ROW

CELLS: dict[str, tuple[str, ...]] = {
    "arch": ("llama", "gpt", "mpt", "nemotron", "Qwen3", "gemma2", "falcon", "mixtral", "deepseek-moe", ""),
    "layers": ("32", "80", "126", "1", "16", "61", "32.0", "0", "many", ""),
    "hidden": ("768", "2048", "4096", "5120", "8192", "18432", "4097", "1e3", "-4096", ""),
    "ffn": ("3072", "11008", "14336", "28672", "53248", "nan", ""),
    "heads": ("12", "32", "40", "64", "128", "7", "0", ""),
    "kv_heads": ("1", "8", "32", "128", ""),
    "vocab": ("32000", "50257", "128256", "262144", "1", ""),
    "seq_len": ("512", "2048", "4096", "8192", "131072", "1000000", "4,096", ""),
    "tied_embeddings": ("true", "false", "Yes", "perhaps", ""),
    "gpu": (
        "h100-80g",
        "h200-141g",
        "a100",
        "a100-40g",
        "b200-180g",
        "gb200",
        "mi250",
        "Tesla V100-PCIE-32GB",
        "NVIDIA H200 NVL",
        "h100-94g",
        "l40s",
        "rtx4090",
        "",
    ),
    "gpus_per_node": ("8", "4", "16", "1", "72", "0", ""),
    "inter_node_gbps": ("200", "400", "3200", "12.5", "0", "inf", "fast", ""),
    "precision": ("bf16", "fp16", "", "fp8", "FP8-hybrid", "tf32", "mxfp4"),
    "fp8_recipe": ("tensorwise", "rowwise", "delayed", ""),
    "grad_dtype": ("fp32", "bf16", "float16", "8", ""),
    "framework": ("megatron", "Megatron-DeepSpeed", "nanotron", "nemo", "fsdp", "torchtitan", "torch", "jax", ""),
    "torch_compile": ("true", "false", "max-autotune", ""),
    "virtual_stages": ("1", "2", "4", "0", ""),
    "pipeline_schedule": ("1f1b", "interleaved-1f1b", "gpipe", "zbv", "?", ""),
    "sequence_parallel": ("true", "false", ""),
    "tp_overlap": ("true", "false", ""),
    "zero_stage": ("0", "1", "2", "3", "4", ""),
    "cpu_offload": ("false", "", "no", "true"),
    "micro_batch": ("1", "2", "", "3", "16", "0.5"),
    "global_batch": ("1024", "4096", "6144", "1", "100", "1e9", ""),
    "grad_accum": ("", "", "", "1", "8", "7"),
    "recompute": ("none", "selective", "full", "block", "mlp only", ""),
    "flash_attention": ("true", "false", "v3", ""),
    "notes": ("", "EFA", "Omni-Path", "default"),
}
USUAL = {name: values[:3] for name, values in CELLS.items()}
DEGREES = ("dp", "tp", "pp", "cp")


@st.composite
def rows(draw: st.DrawFn) -> dict[str, str]:
    """A row whose cells are mostly usual ones, and a few of which are odd."""
    odd = draw(st.sets(st.sampled_from(sorted(CELLS)), max_size=4))
    row = {name: draw(st.sampled_from((CELLS if name in odd else USUAL)[name])) for name in CELLS}
    degrees = {name: draw(st.sampled_from((1, 1, 2, 4, 8, 3, 64))) for name in DEGREES}
    gpus = math.prod(degrees.values())
    given_gpus = draw(st.sampled_from((str(gpus), str(gpus), str(gpus), "", str(gpus + 1))))
    left_out = draw(st.sets(st.sampled_from(DEGREES), max_size=1))
    words = {name: "" if name in left_out else str(value) for name, value in degrees.items()}
    return {"case_id": "odd", **row, **words, "gpus": given_gpus}


def possible(one: PlannerCase, found: Prediction) -> None:
    """A prediction is all or nothing; no machine is faster than its peak, and what fits is below its memory."""
    if found.step_time is None:
        assert (found.memory_gib, found.fits) == (None, None)
        assert found.notes and all(found.notes)
        return
    run = one.layout
    assert run is not None and found.memory_gib is not None and found.fits is not None
    assert 0 < found.memory_gib < math.inf
    tokens = run.micro_batches * run.dp * run.micro_batch * run.seq_len
    peak = run.machine.gpu.flops8 if run.precision == "fp8" else run.machine.gpu.flops
    assert found.step_time > 6 * run.model.layer_weights * run.model.layers * tokens / run.gpus / peak
    assert not found.fits or found.memory_gib * GIB < hardware.memory_bytes(run.machine.gpu)


@settings(max_examples=75, deadline=None)
@given(rows())
def test_any_row_is_predicted_or_refused_in_words(row: dict[str, str]) -> None:
    one = parse_case(row)
    possible(one, predict_case(one))


# Many rows have no layout.
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(rows())
def test_what_fits_a_card_fits_a_larger_one(row: dict[str, str]) -> None:
    """With all that is open said, so that both are the same run."""

    def fits(gpu: str) -> tuple[TrainingLayout | None, bool | None]:
        one = parse_case({**row, "micro_batch": "1", "recompute": "full", "virtual_stages": "1", "gpu": gpu})
        return one.layout, predict_case(one).fits

    run, small = fits("h100-80g")
    assume(run is not None)
    assert not small or fits("h200-141g")[1]


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(ROW)), st.text(max_size=12)))
def test_any_text_in_any_cell_is_predicted_or_refused_in_words(cells: dict[str, str]) -> None:
    one = parse_case({**ROW, **cells, "case_id": "odd"})
    possible(one, predict_case(one))


def test_a_line_that_is_too_short_or_too_long_does_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    columns = (*REQUIRED_COLUMNS, "zero_stage")
    whole = [ROW[name] for name in columns]
    lines = [[*whole, "more", "and more"], ["short", *whole[1:4]], ["whole", *whole[1:]]]
    path.write_text("\n".join(",".join(line) for line in (columns, *lines)))
    found = [predict_case(parse_case(row)) for row in read_cases(path)]
    assert [one.step_time is not None for one in found] == [True, False, True]
    assert found[1].notes
