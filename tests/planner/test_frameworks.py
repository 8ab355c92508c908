"""What a framework cannot do is not offered; chunks of a pipeline may be uneven; how sure a layout is."""

from __future__ import annotations

import pytest
from msgspec import structs

from hpc_kit.planner import explain
from hpc_kit.planner.constants import memory_error, time_error
from hpc_kit.planner.layout import can_interleave
from hpc_kit.planner.search import search_layouts
from tests.planner.runs import fitted, run, task


@pytest.mark.parametrize(
    ("framework", "stages"),
    [("nanotron", {0, 1}), ("megatron", {0, 1}), ("nemo", {0, 1}), ("torchtitan", {0, 2, 3}), ("torch", {0, 1, 2, 3})],
)
def test_only_the_zero_stages_of_the_framework_are_offered(framework: str, stages: set[int]) -> None:
    asked = structs.replace(task("llama3.2-1b", gpus=32, global_batch=256), framework=framework)
    assert {plan.layout.zero_stage for plan in search_layouts(asked, fitted("dgx-h100", framework)).plans} == stages


def test_a_framework_that_only_shards_parameters_says_so_of_other_ways() -> None:
    asked = structs.replace(task("llama3-8b", gpus=32, global_batch=256), framework="fsdp")
    answer = search_layouts(asked, fitted("dgx-h100", "fsdp"))
    assert {(plan.layout.tp, plan.layout.pp, plan.layout.cp) for plan in answer.plans} == {(1, 1, 1)}
    assert {"fsdp has no tp", "fsdp has no tp and no pp and no cp"} <= {one.reason for one in answer.rejected}


def test_chunks_may_leave_room_for_the_tables() -> None:
    assert can_interleave(126, 16, 8)  # Llama 3's 405B: a layer less in the first and in the last chunk
    assert can_interleave(32, 4, 8) and can_interleave(7, 3, 1)
    assert not can_interleave(125, 16, 8) and not can_interleave(32, 4, 3)
    asked = structs.replace(task("llama3-405b", gpus=512, global_batch=512), framework="megatron")
    plans = search_layouts(asked, fitted("dgx-h100", "megatron")).plans
    assert any(plan.layout.pp == 16 and plan.layout.virtual_stages == 8 for plan in plans)


def test_a_layout_with_room_fits_even_if_memory_is_larger_than_expected() -> None:
    found = search_layouts(task("llama3-70b", gpus=64, global_batch=512), fitted("dgx-h100"))
    first, safe, error = found.plans[0], found.with_margin, 1 + memory_error("torch")
    assert safe is not None and safe is not first
    assert first.memory.total * error > found.limit >= safe.memory.total * error
    assert found.describe_margin(first, safe).startswith("the first layout needs 9")
    assert found.describe_margin(safe, safe) == ""
    assert found.describe_margin(first, None).endswith("and may not fit; no layout leaves a margin")


def test_a_framework_without_interleaving_has_stages_of_one_chunk() -> None:
    for framework in ("nanotron", "megatron-deepspeed"):
        asked = structs.replace(task("llama3-70b", gpus=128, global_batch=256), framework=framework)
        assert {plan.layout.virtual_stages for plan in search_layouts(asked, fitted("dgx-h100", framework)).plans} == {
            1
        }


def test_torchtitan_s_plain_data_parallelism_goes_with_nothing_else() -> None:
    asked = structs.replace(task("llama3.2-1b", gpus=32, global_batch=256), framework="torchtitan")
    plain = [
        plan.layout
        for plan in search_layouts(asked, fitted("dgx-h100", "torchtitan")).plans
        if plan.layout.zero_stage == 0
    ]
    assert plain and all(one.dp in {1, 32} for one in plain)


def test_more_than_was_ever_measured_is_less_sure() -> None:
    known = run("llama3-8b", "dgx-h100", framework="nemo", dp=4, cp=2, seq_len=8192)
    error, reasons = time_error(known)
    assert reasons == ()
    beyond = structs.replace(known, pp=2, cp=16, seq_len=131072)
    assert time_error(beyond)[0] == pytest.approx(error + 0.15)
    assert " ".join(time_error(beyond)[1]).count("with nemo") == 3
    older = run("llama3-8b", "jz", framework="nemo", dp=16, precision="fp16", seq_len=8192)
    assert [reason for reason in time_error(older)[1] if "nemo" in reason] == [
        f"no {kind} was measured with nemo" for kind in ("a100", "omnipath", "fp16")
    ]
    assert memory_error("nanotron") < memory_error("torch") < memory_error("torchtitan")


def test_context_parallel_traffic_is_told_with_its_own_link() -> None:
    one = run("llama3-8b", "ethernet-a100", dp=2, cp=16, seq_len=131072)
    plan = next(
        p
        for p in search_layouts(task("llama3-8b", gpus=32), fitted("dgx-h100")).plans
        if p.layout.cp > 1 == p.layout.tp
    )
    output = explain.exposed_traffic(one, plan.time)
    assert output["context"] == {"seconds": plan.time.context, "link": "network, 2 nodes"}
    assert "tensor" not in output
