"""Terms of time and memory that a layout turns on or off."""

from __future__ import annotations

import pytest
from msgspec import structs

from hpc_kit.planner.compute_time import attention_seconds, matmul_seconds
from hpc_kit.planner.constants import constants_for
from hpc_kit.planner.memory import activation_bytes, micro_batches_in_flight, peak_memory
from hpc_kit.planner.step_time import PRESSURE_THRESHOLD, step_time
from tests.planner.runs import fitted, run


def test_zero_3_in_a_pipeline_gathers_once_a_step_and_keeps_what_it_gathered() -> None:
    """PyTorch's default there: parameters stay gathered, gradients are reduced after the last micro-batch."""
    known = fitted("dgx-h100")
    few, many = (
        run("llama3-405b", "dgx-h100", dp=8, tp=8, pp=8, zero_stage=3, global_batch=8 * m, sequence_parallel=True)
        for m in (8, 32)
    )
    assert step_time(many, known).shard == pytest.approx(step_time(few, known).shard, rel=0.3)
    flat = [structs.replace(one, pp=1, dp=64) for one in (few, many)]
    assert step_time(flat[1], known).shard == pytest.approx(4 * step_time(flat[0], known).shard, rel=0.3)
    held = peak_memory(few, known)
    owned = held.parameters * 8 / 4
    assert 6 * owned < held.buffers < 6.5 * owned + 4 * 2**30


def test_nanotron_s_zero_1_waits_for_each_tensor_however_small() -> None:
    known = fitted("efa-h100", "nanotron")
    one = run("llama3.2-1b", "efa-h100", dp=32, tp=8, zero_stage=1, global_batch=256)

    def waits(dp: int) -> float:
        other = structs.replace(one, dp=dp, global_batch=8 * dp)
        each, none = (step_time(other, structs.replace(known, zero_calls=n)).data for n in (known.zero_calls, 0.0))
        return each - none

    few, many = waits(16), waits(32)
    assert many == pytest.approx(2 * known.zero_calls * 16 * (known.latency + 31 * known.latency_network))
    assert 1.5 * few < many < 2.1 * few
    assert fitted("efa-h100", "torch").zero_calls == 0


def test_zero_3_waits_for_the_collectives_of_each_layer() -> None:
    known = structs.replace(fitted("dgx-h100"), latency=1.0, latency_network=0.0, shard_overlap=0.0, launch=0.0)
    one = run("llama3-8b", "dgx-h100", dp=8, zero_stage=3, global_batch=8)
    assert step_time(one, known).shard == pytest.approx(3 * (one.model.layers + 1), rel=0.1)


def test_a_cpu_hides_no_message_behind_its_own_work() -> None:
    known = constants_for("torch", "cpu", "ethernet")
    assert (known.data_overlap, known.zero_overlap, known.shard_overlap) == (0, 0, 0)


def test_deepspeed_sends_a_stage_s_activations_in_parts_without_sequence_parallelism_too() -> None:
    known = fitted("dgx-a100", "megatron-deepspeed")
    split, whole = (
        step_time(run(dp=1, tp=8, pp=8, global_batch=64), structs.replace(known, scatter=each, latency=0.0)).boundary
        for each in (1.0, 0.0)
    )
    assert whole > 4 * split
    assert known.scatter == 1 and fitted("dgx-a100", "nanotron").scatter == 0


def test_launching_that_is_not_hidden_costs_a_share_of_the_shorter() -> None:
    known = fitted("dgx-a100", "megatron-deepspeed")
    one = run("gpt2", dp=8, global_batch=64, micro_batch=8)
    without, with_gap = (step_time(one, structs.replace(known, gap=gap)) for gap in (0.0, 0.2))
    assert with_gap.total > without.total and with_gap.launch > without.launch
    assert with_gap.compute == without.compute


def test_a_fused_mlp_keeps_less() -> None:
    llama = run("llama3-8b", global_batch=8).model
    eight, six = (
        activation_bytes(
            llama, 8192, 1, sequence_parallel=False, recompute="none", flash=True, dropout=False, gate=gate
        )
        for gate in (8.0, 6.0)
    )
    assert eight - six == 2 * llama.ffn
    assert fitted(framework="megatron").gate == fitted(framework="nemo").gate == 6
    assert fitted(framework="torch").gate == 8


@pytest.mark.parametrize(("virtual_stages", "index", "micro_batches", "kept"), [
    (1, 0, 16, 8.0), (1, 7, 16, 1.0), (1, 0, 3, 3.0), (1, 6, 1, 1.0),
    (2, 0, 16, 11.5), (2, 7, 16, 4.5), (4, 0, 16, 9.75), (4, 7, 16, 6.25), (8, 7, 16, 7.125), (4, 0, 8, 8.0),
])  # fmt: skip
def test_micro_batches_that_a_stage_keeps(virtual_stages: int, index: int, micro_batches: int, kept: float) -> None:
    """Chunks in flight, counted in Megatron's order: 2 (p - i - 1) + (v - 1) p before the first backward, and one."""
    layout = run(pp=8, virtual_stages=virtual_stages, global_batch=micro_batches)
    assert micro_batches_in_flight(layout, index) == pytest.approx(kept)


def test_scores_that_fused_kernels_do_not_take_cost_more_launches() -> None:
    """Megatron's softmax takes four matrices of scores at a time."""
    known = fitted("dgx-a100", "megatron-deepspeed")
    one = run("gpt2", dp=1, tp=4, global_batch=8, flash=False)  # 12 heads: 3 a rank

    def more(micro_batch: int, **change: bool) -> float:
        other = structs.replace(one, micro_batch=micro_batch, **change)
        each, none = (step_time(other, structs.replace(known, launch_scores=n)).total for n in (1.0, 0.0))
        return each - none

    assert more(1) > 8 * 12 * 0.9
    assert more(4) == 0
    assert more(1, flash=True) == 0
    assert known.launch_scores > 0


def test_a_host_ahead_of_its_gpu_holds_gathered_inputs() -> None:
    known = fitted("efa-h100", "nanotron")
    one = run("llama3-8b", "efa-h100", dp=2, tp=8, pp=4, global_batch=64, sequence_parallel=True)
    vector = 8192 * 4 * 4096 * 7 / 8  # two inputs of a layer in 16 bits

    def layers(**change: int | bool) -> float:
        return peak_memory(structs.replace(one, **change), known).ahead / vector

    assert layers() == pytest.approx(2 * 8, rel=0.2)  # of two micro-batches before anything comes back; cut by cost
    assert layers(pp=2) == 0
    assert layers(pp=8) == pytest.approx(known.ahead)
    assert layers(pp=1) == pytest.approx(known.ahead)
    assert layers(pp=1, global_batch=2) == pytest.approx(known.ahead / 2)
    assert layers(dp=16, global_batch=512) == 0  # 512 GPUs: the pipeline stands still
    assert layers(sequence_parallel=False) == 0
    assert fitted("efa-h100", "torch").ahead == 0


def test_what_is_held_ahead_makes_room_before_memory_is_full() -> None:
    known = fitted("efa-h100", "nanotron")
    one = run("llama3-8b", "efa-h100", dp=2, tp=8, pp=1, global_batch=64, sequence_parallel=True, zero_stage=1)
    small = peak_memory(one, known)
    card = structs.replace(one.machine.gpu, memory=(small.total - small.ahead / 2) / known.usable)
    tight = peak_memory(structs.replace(one, machine=structs.replace(one.machine, gpu=card)), known)
    assert small.ahead > 0 and tight.ahead == pytest.approx(small.ahead / 2)
    assert tight.total == pytest.approx(small.total - small.ahead / 2)
    assert tight.total == pytest.approx(card.memory * known.usable)


def test_the_allocator_loses_time_only_where_memory_is_all_but_full() -> None:
    known = fitted("efa-h100", "nanotron")
    one = run("llama3.2-1b", "efa-h100", dp=8, global_batch=64)
    assert [step_time(one, known, filled).allocator for filled in (0.5, PRESSURE_THRESHOLD)] == [0, 0]
    assert step_time(one, known, 0.95).allocator == pytest.approx(8 * known.thrash)


def test_a_larger_batch_takes_no_less_time_with_zero_3_in_a_pipeline() -> None:
    """What travels once a step stands in no micro-batch, and so not in the bubble."""
    known = fitted("dgx-h100", "torchtitan")
    one = run("llama3-70b", "dgx-h100", dp=8, tp=8, pp=16, zero_stage=3, sequence_parallel=True, global_batch=8)
    times = [step_time(structs.replace(one, global_batch=8 * m), known).total for m in (1, 2, 4, 8)]
    assert times == sorted(times)


def test_a_product_of_one_row_more_is_no_faster() -> None:
    known, one = fitted("dgx-h100"), run("llama3-8b", "dgx-h100")
    for m in (128, 1024, 4096, 132 * 128):
        assert matmul_seconds(one, known, m + 1, 4096, 4096) > matmul_seconds(one, known, m, 4096, 4096)


def test_flash_attention_fills_heads_up_and_is_no_faster_than_a_product() -> None:
    known = fitted("dgx-a100")
    one = run("llama3-8b", "dgx-a100")
    narrow = structs.replace(one, model=structs.replace(one.model, head_dim=100))
    wide = structs.replace(one, model=structs.replace(one.model, head_dim=104))
    assert attention_seconds(narrow, known)[0] == pytest.approx(attention_seconds(wide, known)[0])
    stored = [attention_seconds(structs.replace(each, flash=False), known)[0] for each in (narrow, wide)]
    assert stored[0] > 3 * stored[1]
    quick = structs.replace(known, attention_quality=9.0)
    flops = one.tokens * one.model.attention_flops(one.seq_len) / 2
    peak = one.machine.gpu.flops * one.machine.gpu.measured
    assert attention_seconds(one, quick)[0] == pytest.approx(flops / (peak * known.gemm * known.quality))


def test_selective_recomputation_needs_the_scores_of_the_layer_at_work() -> None:
    known = fitted("dgx-a100", "megatron")
    stored = run("gpt3-175b", "dgx-a100", tp=8, pp=8, flash=False, recompute="selective", global_batch=8)
    flash = structs.replace(stored, flash=True)
    more = peak_memory(stored, known).activations - peak_memory(flash, known).activations
    scores = known.activation_scale * 5 * stored.tokens * stored.model.heads * stored.seq_len / 8
    assert more == pytest.approx(scores)
