"""Seconds of one optimizer step, term by term."""

from __future__ import annotations

from msgspec import Struct, structs

from hpc_kit.planner import bubble, communication_time
from hpc_kit.planner.compute_time import Work, head, layer
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.layout import Run, Stage, stages
from hpc_kit.planner.machine import Group

LAST_BUCKET = 0.08
"""Share of the gradients that are ready only when the backward pass ends."""


EDGE = 0.88
"""Share of a GPU's memory above which the allocator frees and asks again: of what ran, no run below it lost time so."""


class StepTime(Struct, frozen=True):
    """One step in seconds. The terms add up to `total`.

    Attributes:
        compute: Layers and output of the slowest stage, all micro-batches.
        tensor: Tensor-parallel traffic that is not hidden.
        context: Context-parallel traffic that attention does not hide.
        shard: ZeRO-3's gathering that is not hidden.
        launch: Waiting for kernels to be launched.
        boundary: Activations from stage to stage.
        bubble: Stages that stand idle while the pipeline fills and drains.
        data: Reduction of gradients that is not hidden.
        optimizer: The optimizer's own step.
        fixed: The rest of a step and of its micro-batches.
        allocator: Freeing and asking again where memory is all but full.
    """

    compute: float
    tensor: float
    context: float
    shard: float
    launch: float
    boundary: float
    bubble: float
    data: float
    optimizer: float
    fixed: float
    allocator: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return float(sum(getattr(self, term) for term in self.__struct_fields__))


class _Micro(Struct):
    """One stage, one micro-batch: seconds by what they are spent on."""

    compute: float
    tensor: float
    context: float
    shard: float
    launch: float
    boundary: float

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.context + self.shard + self.launch + self.boundary


def together(one: float, other: float, sharpness: float) -> float:
    """Seconds of two things that run side by side: the slower one, a little more where both are near."""
    if one <= 0 or other <= 0:
        return max(one, other, 0.0)
    low, high = sorted((one, other))
    return float(high * (1 + (low / high) ** sharpness) ** (1 / sharpness))


def tensor_traffic(run: Run, rates: Rates) -> float:
    """Seconds of a layer's tensor-parallel traffic: 4 all-reduces of 2 b s h bytes, 6 with full recomputation."""
    if run.tp == 1:
        return 0.0
    size = 2.0 * run.tokens * run.model.hidden
    one = communication_time.all_reduce(run.machine, rates, run.tensor_group, size)
    count = 6 if run.recompute == "full" else 4
    return count * one * (1 - (rates.tensor_overlap if run.tp_overlap else 0.0))


def context_traffic(run: Run, rates: Rates, work: Work) -> float:
    """Seconds of a layer's keys and values going round the ring that attention does not hide: 3 times 2 s kv d."""
    if run.cp == 1:
        return 0.0
    size = 2.0 * 2 * run.micro_batch * run.seq_len * run.model.kv_heads * run.model.head_dim / run.tp
    passes = 4 if run.recompute == "full" else 3
    seconds = passes * communication_time.gather(run.machine, rates, run.context_group, size)
    return beside(seconds, work.attention + work.back_attention, rates.sharpness)


def shard_traffic(run: Run, rates: Rates, parameters: float, layers: int) -> float:
    """Seconds in which ZeRO-3 gathers 16-bit parameters twice and reduces gradients once, for one micro-batch.

    Layer by layer, so each waits for its own collectives. In a pipeline parameters stay gathered, and these are the
    seconds of the whole step, with one gathering (PyTorch's `reshard_after_forward` is off there).
    """
    if run.zero_stage < 3 or run.data_group.ranks == 1:
        return 0.0
    group = run.data_group
    waits = layers * communication_time.delay(rates, group)
    gathered = communication_time.gather(run.machine, rates, group, 2.0 * parameters / run.tp) + waits
    reduced = communication_time.gather(run.machine, rates, group, float(run.grad_bytes) * parameters / run.tp) + waits
    return (2 if run.pp == 1 else 1) * gathered + reduced


def beside(seconds: float, work: float, sharpness: float) -> float:
    """What `seconds` of something that goes on beside `work` add to it."""
    return together(work, seconds, sharpness) - work


def _shard(run: Run, rates: Rates, stage: Stage, busy: float) -> float:
    """Seconds of ZeRO-3's traffic that `busy` seconds of work, a micro-batch of this stage, do not hide."""
    model = run.model
    tables = (model.embedding_parameters if stage.embedding else 0) + (model.head_parameters if stage.head else 0)
    seconds = shard_traffic(run, rates, stage.layers * model.layer_parameters + tables, stage.layers)
    hidden = beside(seconds * rates.shard_overlap, busy, rates.sharpness)
    return max(hidden + seconds * (1 - rates.shard_overlap), 0.0)


def _micro(run: Run, rates: Rates, stage: Stage, work: Work) -> _Micro:
    compute = stage.layers * (work.forward + work.backward) + (head(run, rates) if stage.head else 0.0)
    tensor = stage.layers * tensor_traffic(run, rates)
    context = stage.layers * context_traffic(run, rates, work)
    busy = compute + tensor + context
    shard = _shard(run, rates, stage, busy) if run.pp == 1 else 0.0
    launch = _launch(run, rates, stage.layers, busy + shard)
    return _Micro(compute, tensor, context, shard, launch, _boundary(run, rates))


def _launch(run: Run, rates: Rates, layers: int, busy: float) -> float:
    """Seconds of a micro-batch in which the GPU, `busy` for so long, waits for kernels to be launched."""
    again = 4 / 3 if run.recompute == "full" else 1.0
    each = rates.launch * (rates.compiled if run.compiled else 1.0)
    if not run.flash and run.micro_batch * run.model.heads // run.tp % 4:
        each += rates.launch_scores
    if run.tp > 1:
        each += rates.launch_tensor + (rates.hop * run.tp if run.pipeline_crosses_nodes else 0.0)
    host = again * each * layers + rates.micro
    return beside(host, busy, rates.sharpness) + rates.gap * min(busy, host) + again * rates.wait * layers


def _boundary(run: Run, rates: Rates) -> float:
    """Seconds a stage spends on a micro-batch's activations and their gradients, sent to its neighbours."""
    if run.pp == 1:
        return 0.0
    size = 2.0 * run.tokens * run.model.hidden / (run.tp if run.sequence_parallel or rates.scatter else 1)
    crosses = run.pipeline_crosses_nodes
    speed = run.machine.network * rates.network if crosses else run.machine.gpu.link * rates.link
    wait = rates.latency + (rates.latency_network if crosses else 0.0)
    return 2 * run.virtual_stages * rates.boundary * (size / speed + wait)


def gradient_traffic(run: Run, rates: Rates, parameters: float, layers: int, back: float, ahead: float) -> float:
    """Seconds a step in which gradients are reduced that no computation hides.

    Once a step: all-reduced; with ZeRO-1 reduced and scattered, then parameters gathered. ZeRO-2 keeps only its share
    of them, and so reduces and scatters after every micro-batch. A framework that does so for each tensor by itself
    waits for each of these collectives, the longer the more nodes they cross.

    Args:
        run: The layout.
        rates: The constants.
        parameters: Parameters of one rank.
        layers: Layers of one rank.
        back: Seconds of the backward pass of one micro-batch, behind a share of which gradients travel.
        ahead: Seconds of its forward pass, behind a share of which ZeRO-1 and -2 gather parameters.
    """
    group: Group = run.data_group
    if group.ranks == 1 or run.zero_stage == 3:
        return 0.0
    size = run.grad_bytes * parameters
    if run.zero_stage == 0:
        return _exposed(communication_time.all_reduce(run.machine, rates, group, size), rates.data_overlap * back)
    scattered = rates.zero_cost * communication_time.gather(run.machine, rates, group, size)
    gathered = rates.zero_cost * communication_time.gather(run.machine, rates, group, 2.0 * parameters)
    scattered = _exposed(scattered, rates.zero_overlap * back)
    gathered = _exposed(gathered, rates.zero_overlap * ahead)
    calls = rates.zero_calls * layers * communication_time.delay(rates, group)
    return (run.micro_batches if run.zero_stage == 2 else 1) * (scattered + calls) + gathered + calls


def _exposed(seconds: float, hidden: float) -> float:
    """What is left of traffic behind computation: the last bucket always is."""
    return max(seconds - hidden, LAST_BUCKET * seconds)


def pressure(rates: Rates, filled: float) -> float:
    """Seconds that a micro-batch takes longer because the allocator works at its edge.

    All of `thrash` from 4 points above EDGE; `filled`: peak over the GPU's memory.
    """
    return rates.thrash * min(1.0, max(0.0, (filled - EDGE) / 0.04))


def step_time(run: Run, rates: Rates, filled: float = 0.0, work: Work | None = None) -> StepTime:
    """Seconds of one optimizer step: micro-batches through the pipeline, gradients, optimizer.

    Args:
        run: The layout.
        rates: The constants.
        filled: Peak memory as a share of the GPU's; a step that fills it waits for the allocator.
        work: `layer(run, rates)`, where it is known already: it is the same for many layouts.
    """
    model, m = run.model, run.micro_batches
    parts = stages(model, run.pp, by_cost=bool(rates.by_cost))
    work = work or layer(run, rates)
    micros = {part: _micro(run, rates, part, work) for part in set(parts)}
    times = [micros[part].total for part in parts]
    slowest = max(micros.values(), key=lambda micro: micro.total)
    whole = bubble.step(times, m, run.virtual_stages)
    tables = model.embedding_parameters + (0 if run.pp > 1 else model.head_parameters)
    owned = (max(part.layers for part in parts) * model.layer_parameters + tables) / run.tp
    most = max(part.layers for part in parts)
    data = gradient_traffic(run, rates, owned, most, most * work.backward, most * work.forward)
    once = 0.0 if run.pp == 1 else max(_shard(run, rates, part, micros[part].compute) for part in micros)
    shards = run.dp * run.cp if run.zero_stage else 1
    moved = rates.optimizer * 28.0 * owned / shards + 2.0 * run.grad_bytes * owned / (
        shards if run.zero_stage > 1 else 1
    )
    time = StepTime(
        compute=m * slowest.compute,
        tensor=m * slowest.tensor,
        context=m * slowest.context,
        shard=m * slowest.shard + once,
        launch=m * slowest.launch,
        boundary=m * slowest.boundary,
        bubble=whole - m * slowest.total,
        data=data,
        optimizer=moved / run.machine.gpu.bandwidth,
        fixed=rates.step,
    )
    return structs.replace(time, allocator=m * pressure(rates, filled)) if filled > EDGE else time
