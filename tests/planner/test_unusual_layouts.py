"""Layouts of a cases file: chunks that leave room for the tables, what contradicts itself, what is odd and said."""

from __future__ import annotations

import pytest

from hpc_kit.planner.cases import parse_case, predict_case
from tests.planner.test_case_rows import KNOWN, known

PIPED = {
    **KNOWN,
    "framework": "megatron",
    "gpus": "64",
    "dp": "8",
    "pp": "8",
    "global_batch": "128",
    "zero_stage": "1",
}


@pytest.mark.parametrize(("layers", "pp"), [("30", "4"), ("31", "4"), ("32", "4"), ("126", "16")])
def test_a_table_may_have_a_chunk_of_its_own(layers: str, pp: str) -> None:
    change = {"layers": layers, "pp": pp, "gpus": str(8 * int(pp)), "virtual_stages": "8"}
    run, assumed = known({**PIPED, **change, "pipeline_schedule": "interleaved-1f1b"})
    assert run.virtual_stages == 8 and not any("unusual" in note for note in assumed)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"layers": "29", "pp": "4", "gpus": "32", "virtual_stages": "8"}, "more than the layers and the two tables"),
        ({"pipeline_schedule": "1f1b", "virtual_stages": "4"}, "virtual_stages 4 contradict pipeline_schedule"),
        ({"pipeline_schedule": "gpipe", "virtual_stages": "2"}, "virtual_stages 2 contradict pipeline_schedule"),
    ],
)
def test_chunks_that_cannot_be(change: dict[str, str], part: str) -> None:
    found = predict_case(parse_case({**PIPED, **change}))
    assert found.step_time is None and part in found.notes[0]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"framework": "nanotron", "zero_stage": "3"}, "nanotron has no ZeRO-3 in a pipeline"),
        ({"framework": "nanotron", "zero_stage": "3", "pp": "1", "dp": "64"}, "nanotron has no ZeRO-3"),
        ({"framework": "fsdp", "zero_stage": "3", "pp": "1", "tp": "2", "dp": "32"}, "fsdp has no tp"),
        ({"framework": "megatron-deepspeed", "zero_stage": "3"}, "megatron-deepspeed has no ZeRO-3 in a pipeline"),
        ({"virtual_stages": "3"}, "32 layers do not come out even in 24 chunks"),
        ({"virtual_stages": "2", "global_batch": "24"}, "3 micro-batches are no multiple of pp 8"),
        ({"framework": "nanotron", "virtual_stages": "4"}, "nanotron has no interleaved schedule"),
        ({"framework": "torchtitan", "zero_stage": "0", "pp": "1", "tp": "2", "dp": "32"}, "no ZeRO-0 with tp 2"),
        ({"gpus_per_node": "3"}, "64 GPUs are no multiple of gpus_per_node 3"),
    ],
)
def test_what_is_odd_is_predicted_and_said(change: dict[str, str], part: str) -> None:
    found = predict_case(parse_case({**PIPED, **change}))
    assert found.step_time is not None
    notes = [note for note in found.notes if note.startswith("unusual, but predicted: ")]
    assert len(notes) == 1 and part in notes[0]


def test_one_rank_has_nothing_to_shard_and_torch_stands_for_others() -> None:
    change = {"gpus": "8", "dp": "1", "global_batch": "16", "framework": "nanotron", "zero_stage": "3"}
    for row in ({**PIPED, **change}, {**PIPED, "framework": "jax", "zero_stage": "3"}):
        assert not any("unusual" in note for note in known(row)[1])


def test_what_is_taken_where_nothing_fits_is_not_called_the_fastest_that_fits() -> None:
    change = {"gpu": "v100-16g", "hidden": "16384", "recompute": "", "micro_batch": ""}
    found = predict_case(parse_case({**PIPED, **change, "ffn": "65536", "heads": "128", "kv_heads": "128"}))
    assert found.fits is False
    assert {"micro_batch = 1, which needs the least memory; nothing fits"} <= set(found.notes)
    assert {"recompute = full, which needs the least memory; nothing fits"} <= set(found.notes)
    assert not any("that fits" in note for note in found.notes)
