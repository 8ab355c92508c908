"""Every term of a plan with its formula and the numbers that went into it."""

from __future__ import annotations

from hpc_kit.planner import communication_time
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.layout import Run
from hpc_kit.planner.machine import GIB, Group
from hpc_kit.planner.memory import in_flight
from hpc_kit.planner.report import link
from hpc_kit.planner.search import Plan
from hpc_kit.planner.step_time import EDGE


def explain(plan: Plan, rates: Rates) -> list[tuple[str, str, str]]:
    """Every term that is not zero: name, value, formula with its numbers."""
    seconds = [(name, getattr(plan.time, name), text) for name, text in time_terms(plan.run, rates).items()]
    held = [(name, getattr(plan.memory, name) / GIB, text) for name, text in memory_terms(plan, rates).items()]
    return [
        *((name, f"{value:.4g} s", text) for name, value, text in seconds if value > 0),
        *((name, f"{value:.2f} GiB", text) for name, value, text in held if value >= 0.005),
    ]


def time_terms(run: Run, rates: Rates) -> dict[str, str]:
    """The formula of each term of the time."""
    m = run.micro_batches
    tensor, data = _over(run, rates, run.tensor_group), _over(run, rates, run.data_group)
    gathered = "two gathers and a reduction of each layer and micro-batch"
    if run.pp > 1:
        gathered = "a gather and a reduction of each layer, once a step"
    more = f", {1e3 * rates.launch_tensor:.2f} ms more with tp" if run.tp > 1 else ""
    scattered = "after each micro-batch" if run.zero_stage == 2 else "once"
    calls = f"; {rates.zero_calls:.1f} collectives a layer each way wait for one another" if rates.zero_calls else ""
    reduced = f"reduced and scattered {scattered}, parameters gathered" if run.zero_stage else "all-reduced"
    return {
        "compute": _compute(run, rates),
        "tensor": f"{6 if run.recompute == 'full' else 4} all-reduces a layer of 2 b s h bytes, "
        f"2 (t-1)/t S/W, {tensor}",
        "context": f"keys and values, 2 x 2 b s h_kv bytes, round the ring {4 if run.recompute == 'full' else 3} "
        f"times a layer, (c-1)/c S/W, {_over(run, rates, run.context_group)}, beside attention",
        "shard": f"ZeRO-3: {gathered}, (n-1)/n S/W, {data}, {rates.shard_overlap:.0%} of it behind compute",
        "launch": f"a layer's kernels take {1e3 * rates.launch:.2f} ms to launch{more}; "
        "counts where the GPU is done sooner" + (f"; {1e3 * rates.wait:.2f} ms a layer besides" if rates.wait else ""),
        "boundary": "2 b s h bytes to the next stage and back, each micro-batch",
        "bubble": f"(p-1)/(v m) = ({run.pp}-1)/({run.virtual_stages} x {m}) = "
        f"{(run.pp - 1) / (run.virtual_stages * m):.1%} of the rest, plus what unequal stages add",
        "data": f"gradients of {run.grad_bytes} bytes, {reduced}, {data}, less what the backward pass hides"
        + (calls if 0 < run.zero_stage < 3 else ""),
        "optimizer": "28 bytes a parameter moved, of the part that a rank owns",
        "fixed": "what a step takes besides",
        "allocator": f"memory is more than {EDGE:.0%} full: {rates.thrash:.1f} s a micro-batch",
    }


def _compute(run: Run, rates: Rates) -> str:
    gpu, share = run.machine.gpu, rates.gemm * rates.quality
    peak = gpu.flops * gpu.measured * share / 1e12
    return (
        f"m = B/(d b) = {run.global_batch}/({run.dp} x {run.micro_batch}) = {run.micro_batches} micro-batches; "
        f"{run.model.flops(1, run.seq_len) / 1e9:.4g} GFLOP a token = 6 W + 12 L h s, recompute {run.recompute}; "
        f"products at {peak:.0f} TFLOP/s = data sheet {gpu.flops / 1e12:.0f} x best measured {gpu.measured:.2f} "
        f"x {share:.2f}"
    )


def _over(run: Run, rates: Rates, group: Group) -> str:
    bandwidth = communication_time.bus(run.machine, rates, group) / 1e9
    return f"W = {bandwidth:.0f} GB/s over {group.ranks} ranks ({link(group)})"


def memory_terms(plan: Plan, rates: Rates) -> dict[str, str]:
    """The formula of each term of the memory."""
    run = plan.run
    shards, zero = f"/{run.dp * run.cp}", run.zero_stage
    held, states = (4, 8) if zero == 3 else (2, 12)
    stage = f"stage {plan.memory.stage + 1} of {run.pp}" if run.pp > 1 else "the only stage"
    each = "2 s b h" if run.recompute == "full" else "s b (outside + inside/t)"
    return {
        "parameters": f"{held} P{shards if zero >= 3 else ''}; P: parameters of {stage} / t",
        "gradients": f"{run.grad_bytes} P{shards if zero >= 2 else ''}",
        "optimizer": f"{states} P{shards if zero >= 1 else ''}: Adam and fp32 weights",
        "activations": f"{in_flight(run):g} micro-batches in flight x layers of the stage x {each}",
        "logits": f"{rates.logit_bytes:.1f} bytes each, s b V/t",
        "buffers": f"{rates.reserve:.1f} GiB and {rates.state_waste:.1f} bytes a parameter"
        + (", one layer gathered" if zero == 3 else ""),
        "ahead": f"2 inputs of 2 s b h (1 - 1/t) of up to {rates.ahead:.0f} layers that the host has launched ahead",
    }
