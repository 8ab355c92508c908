"""A row of a cases file as a run, with what had to be taken for granted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.planner import cells as words
from hpc_kit.planner import hardware
from hpc_kit.planner.arch import arch
from hpc_kit.planner.cells import Cells
from hpc_kit.planner.inside import joined
from hpc_kit.planner.layout import Recompute, Run
from hpc_kit.planner.machine import GIB, Machine
from hpc_kit.planner.model import Model
from hpc_kit.planner.odd import odd, refuse
from hpc_kit.planner.unsaid import completed

PADS_VOCABULARY = frozenset({"megatron", "megatron-deepspeed", "nemo"})
OVERLAPS = frozenset({"nemo"})
"""Frameworks whose recipes overlap tensor-parallel traffic unless they say otherwise."""
MOST_LAYERS = 10_000


class Case(Struct, frozen=True):
    """A row as a run, with what was taken for granted; without a run, why there is none."""

    case_id: str
    run: Run | None
    assumed: tuple[str, ...]
    series: str = ""


def case(row: Mapping[str, str]) -> Case:
    """A row as a run."""
    cells = Cells(row)
    try:
        run = _run(cells)
    except HpcKitError as error:
        return Case(row["case_id"], None, (error.what,), row.get("series", ""))
    return Case(row["case_id"], run, tuple(cells.assumed), row.get("series", ""))


def _model(cells: Cells, framework: str, tp: int) -> Model:
    block = arch(cells)
    hidden = cells.count("hidden")
    # Where heads are not published they are taken to be 128 wide, as most are.
    heads = cells.count("heads", max(1, hidden // 128))
    gated, gpt = block not in {"gpt", "mpt", "nemotron"}, block == "gpt"
    _check_heads(cells, hidden, heads, tp)
    vocab = cells.count("vocab", 51200)
    if framework in PADS_VOCABULARY:
        multiple = 128 * tp
        vocab = -(-vocab // multiple) * multiple
    seq_len = cells.count("seq_len")
    return Model(
        name=cells.text("model_name", "model", say=False),
        layers=cells.count("layers", most=MOST_LAYERS),
        hidden=hidden,
        ffn=cells.count("ffn", 4 * hidden),
        heads=heads,
        kv_heads=cells.count("kv_heads", heads, say=False),
        head_dim=max(1, hidden // heads) if cells.text("heads") else 128,
        vocab=vocab,
        seq_len=seq_len,
        gated=gated,
        tied=cells.flag("tied_embeddings", default=gpt),
        biases=gpt,
        norm_biases=gpt,
        positions=seq_len if gpt else 0,
    )


def _check_heads(cells: Cells, hidden: int, heads: int, tp: int) -> None:
    """Whether the numbers of heads go together, as far as the row says them.

    Raises:
        SpecError: They do not.
    """
    if not cells.text("heads"):
        return
    keys = cells.count("kv_heads", heads, say=False)
    if hidden % heads:
        raise SpecError(f"heads {heads} do not divide hidden {hidden}")
    if heads % keys:
        raise SpecError(f"kv_heads {keys} do not divide heads {heads}")
    if heads % tp or (keys % tp and tp % keys):
        raise SpecError(f"tp {tp} does not divide heads {heads}, kv_heads {keys}")


def _framework(cells: Cells) -> str:
    try:
        return cells.known("framework", words.FRAMEWORK, "torch")
    except SpecError:
        cells.assumed.append(f"framework '{cells.text('framework')}': general constants")
        return "torch"


def fabric_of(notes: str) -> str:
    """The kind of network, where a row's notes name it."""
    if re.search(r"\befa\b", notes, re.IGNORECASE):
        return "efa"
    return "omnipath" if re.search(r"\bomni[-_ ]?path\b|\bopa\b", notes, re.IGNORECASE) else "infiniband"


def _machine(cells: Cells, gpus: int) -> Machine:
    gpu = hardware.gpu(cells.text("gpu"), near=True)
    if other := hardware.taken_for(cells.text("gpu"), near=True):
        cells.assumed.append(other)
    usual = hardware.network(gpu) * 8 / 1e9
    gpu = joined(gpu, cells)
    per_node = cells.count("gpus_per_node", 8)
    across = gpus > per_node
    if not gpu.memory:
        cells.assumed.append(f"fits: in the {hardware.memory(gpu) / GIB:g} GiB of {hardware.gpu(gpu.name).name}")
    network = cells.number("inter_node_gbps", usual, say=across)
    if not network and across:
        raise SpecError("inter_node_gbps is 0, and the run crosses nodes")
    return Machine(
        gpu=gpu,
        gpus_per_node=per_node,
        network=(network or usual) * 1e9 / 8,
        fabric=fabric_of(cells.text("notes", say=False)),
    )


def _degrees(cells: Cells, layers: int) -> dict[str, int]:
    """dp, tp, pp, cp: their product is `gpus`, from which a dp that is empty follows."""
    found = {name: cells.count(name, 1) for name in ("tp", "pp", "cp")}
    if found["pp"] > layers:
        raise SpecError(f"pp {found['pp']} is more than the {layers} layers")
    rest = math.prod(found.values())
    gpus, dp = cells.maybe("gpus"), cells.maybe("dp")
    if dp is None and gpus is not None and gpus % rest:
        raise SpecError(f"gpus {gpus} is no multiple of tp x pp x cp = {rest}")
    if dp is None:
        dp = (gpus or rest) // rest
        cells.assumed.append("dp = gpus / (tp pp cp)" if gpus else "dp = 1")
    if gpus is None:
        cells.assumed.append("gpus = dp tp pp cp")
    elif gpus != dp * rest:
        cells.assumed.append("gpus is not dp tp pp cp: the degrees are believed")
    return {"dp": dp, **found}


def _batch(cells: Cells, dp: int) -> tuple[int, int | None]:
    """Sequences a step, and of a forward pass (None: nothing says), each from the others where it is empty."""
    batch, size, steps = (cells.maybe(name) for name in ("global_batch", "micro_batch", "grad_accum"))
    if batch is None:
        if size is None or steps is None:
            raise SpecError("global_batch is empty")
        cells.assumed.append("global_batch = dp micro_batch grad_accum")
        return dp * size * steps, size
    if size is None and steps is not None:
        if batch % (dp * steps):
            raise SpecError(f"global_batch {batch} is no multiple of dp {dp} x grad_accum {steps}")
        size = batch // (dp * steps)
        cells.assumed.append("micro_batch = global_batch / (dp grad_accum)")
    if batch < dp * (size or 1):
        raise SpecError(f"global_batch {batch} is less than dp {dp} x micro_batch {size or 1}")
    if batch % (dp * (size or 1)):
        cells.assumed.append("micro-batches rounded: global_batch is no multiple of dp x micro_batch")
    elif steps and size and batch != dp * size * steps:
        cells.assumed.append("grad_accum is not global_batch / (dp micro_batch): the latter is believed")
    return batch, size


def _run(cells: Cells) -> Run:
    if cells.text("cpu_offload") and cells.flag("cpu_offload"):
        raise SpecError("cpu_offload is not modelled")
    precision = cells.precision()
    framework = _framework(cells)
    degrees = _degrees(cells, cells.count("layers", most=MOST_LAYERS))
    tp = degrees["tp"]
    batch, micro_batch = _batch(cells, degrees["dp"])
    machine = _machine(cells, math.prod(degrees.values()))
    if precision == "bf16" and not machine.gpu.bf16:
        cells.assumed.append(f"precision bf16 as fp16: {machine.gpu.name} has no bf16")
        precision = "fp16"
    if precision == "fp8" and not machine.gpu.flops8:
        raise SpecError(f"precision is fp8, which {machine.gpu.name} has not")
    usual = "fp16" if precision == "fp16" else "bf16" if framework == "nemo" else "fp32"
    run = Run(
        model=_model(cells, framework, tp),
        machine=machine,
        seq_len=cells.count("seq_len"),
        global_batch=batch,
        micro_batch=micro_batch or 1,
        **degrees,
        virtual_stages=cells.maybe("virtual_stages") or 1,
        zero_stage=cells.count("zero_stage", 0, least=0, most=3),
        sequence_parallel=cells.flag("sequence_parallel") and tp > 1,
        tp_overlap=tp > 1 and cells.flag("tp_overlap", default=framework in OVERLAPS),
        recompute=cast(Recompute, cells.usual("recompute", words.RECOMPUTE) or "none"),
        flash=cells.flag("flash_attention", default=True),
        precision=precision,
        rowwise=precision == "fp8" and cells.usual("fp8_recipe", words.FP8_RECIPE) == "rowwise",
        compiled=cells.flag("torch_compile"),
        grad_bytes=4 if cells.usual("grad_dtype", words.GRAD_DTYPE, usual) == "fp32" else 2,
        framework=framework,
    )
    schedule = cells.schedule() if run.pp > 1 else ""
    refuse(run, schedule)
    run = completed(run, cells, schedule, open_batch=micro_batch is None)
    cells.assumed += odd(run)
    return run
