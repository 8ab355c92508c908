"""Predicts the runs in a CSV file: the batch mode of `hpc-kit plan`.

An empty cell is unknown. If the framework or GPU has a usual value, the row uses that value and a note names it;
otherwise nothing is predicted.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import cast

from msgspec import Struct, structs

from hpc_kit.errors import HpcKitError, SpecError, explain_file_errors, page
from hpc_kit.planner import case_cells, hardware
from hpc_kit.planner.case_cells import CaseRow, parse_architecture, with_link
from hpc_kit.planner.constants import Constants, constants_for
from hpc_kit.planner.hardware import GIB, Machine
from hpc_kit.planner.layout import (
    FRAMEWORKS,
    MICRO_BATCHES,
    VIRTUAL_STAGES,
    Recompute,
    TrainingLayout,
    can_interleave,
    split_stages,
    unsupported_reason,
    zero_stages,
)
from hpc_kit.planner.memory import Memory, peak_memory, stage_memory
from hpc_kit.planner.step_time import step_time
from hpc_kit.planner.transformer import Transformer

PREDICTION_COLUMNS = ("case_id", "step_time_s", "peak_memory_gib", "fits")
REQUIRED_COLUMNS = ("case_id", "layers", "hidden", "seq_len", "gpu", "gpus", "dp", "tp", "pp", "global_batch")
REPORTS_FIRST_STAGE = frozenset({"nanotron"})
"""Frameworks that report the memory of rank 0."""


class Prediction(Struct, frozen=True):
    """Prediction for a row; None: unknown."""

    case_id: str
    step_time: float | None
    memory_gib: float | None
    fits: bool | None
    notes: tuple[str, ...] = ()


def read_cases(path: Path) -> list[dict[str, str]]:
    """Read the rows of a cases file, separated by commas, semicolons or tabs.

    Raises:
        SpecError: The file cannot be read, lacks a column, or contains a case twice.
    """
    remedy = f"a CSV file with the columns that {page('planner.md')} lists"
    failed = explain_file_errors(SpecError, f"cannot read {path}", remedy, also=(UnicodeDecodeError, csv.Error))
    with failed, path.open(newline="", encoding="utf-8-sig") as file:
        separator = max(",;\t", key=file.readline().count)
        file.seek(0)
        reader = csv.DictReader(file, delimiter=separator)
        columns = reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        # Spreadsheets write lines of commas only for empty rows.
        rows = {line: row for line, row in enumerate(reader, start=2) if any(row.values())}
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise SpecError(
            f"{path} has no column {', '.join(missing)}",
            found=", ".join(columns) or "an empty file",
            remedy=f"the columns of {page('planner.md')}",
        )
    seen: set[str] = set()
    for line, row in rows.items():
        row["case_id"] = (row["case_id"] or "").strip()
        if not row["case_id"] or row["case_id"] in seen:
            what = f"case_id {row['case_id']} appears twice" if row["case_id"] else "no case_id"
            raise SpecError(f"{path}, line {line}: {what}", remedy="a name of its own for each row")
        seen.add(row["case_id"])
    return list(rows.values())


def reported_memory(layout: TrainingLayout, fitted: Constants) -> Memory:
    """Return the memory that the framework reports: of rank 0, or of the GPU with the highest peak."""
    if layout.framework in REPORTS_FIRST_STAGE:
        return stage_memory(layout, fitted, split_stages(layout, fitted.by_cost)[0])
    return peak_memory(layout, fitted)


def filled_share(layout: TrainingLayout, fitted: Constants) -> float | None:
    """Return peak memory as a share of the GPU's; None if that is unknown."""
    memory = layout.machine.gpu.memory
    return peak_memory(layout, fitted).total / memory if memory else None


def predict_case(one: PlannerCase) -> Prediction:
    """Predict time, memory and fit of a case; non-finite results are no prediction."""
    layout = one.layout
    if layout is None:
        return Prediction(one.case_id, None, None, None, one.assumed)
    fitted = constants_of(layout)
    try:
        time = step_time(layout, fitted, filled_share(layout, fitted) or 0.0).total
        memory = reported_memory(layout, fitted).gib
    except (ArithmeticError, ValueError) as error:
        return Prediction(one.case_id, None, None, None, (f"its numbers cannot be computed with: {error}",))
    if not (0 < time < math.inf and 0 < memory < math.inf):
        return Prediction(one.case_id, None, None, None, (f"its numbers lead to {time:g} s and {memory:g} GiB",))
    return Prediction(one.case_id, time, memory, fits_memory(layout, fitted), one.assumed)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write predictions as a CSV file; unknown values stay empty.

    Raises:
        SpecError: The file cannot be written.
    """
    failed = explain_file_errors(SpecError, f"cannot write {path}", "a folder that exists")
    with failed, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(PREDICTION_COLUMNS)
        for one in predictions:
            numbers = ("" if value is None else f"{value:.6g}" for value in (one.step_time, one.memory_gib))
            writer.writerow([one.case_id, *numbers, "" if one.fits is None else str(one.fits).lower()])


PADS_VOCABULARY = frozenset({"megatron", "megatron-deepspeed", "nemo"})
"""Frameworks that pad the vocabulary to a multiple of 128 t (Megatron's --make-vocab-size-divisible-by)."""
OVERLAPS_BY_DEFAULT = frozenset({"nemo"})
"""Frameworks whose recipes overlap tensor-parallel traffic by default."""
MAX_LAYERS = 10_000


class PlannerCase(Struct, frozen=True):
    """A row as a layout with its assumptions; without a layout, the reason."""

    case_id: str
    layout: TrainingLayout | None
    assumed: tuple[str, ...]


def parse_case(row: Mapping[str, str]) -> PlannerCase:
    """Parse a row into a layout."""
    cells = CaseRow(row)
    try:
        layout = _parse_layout(cells)
    except HpcKitError as error:
        return PlannerCase(row["case_id"], None, (error.what,))
    return PlannerCase(row["case_id"], layout, tuple(cells.assumed))


def _parse_row_model(cells: CaseRow, framework: str, tp: int) -> Transformer:
    block, hidden = parse_architecture(cells), cells.count("hidden")
    # Assume heads of width 128, as in most models.
    heads = cells.count("heads", max(1, hidden // 128))
    kv_heads = cells.count("kv_heads", heads, note=False)
    if cells.text("heads"):
        if hidden % heads:
            raise SpecError(f"heads {heads} do not divide hidden {hidden}")
        if heads % kv_heads:
            raise SpecError(f"kv_heads {kv_heads} do not divide heads {heads}")
        # With more tensor-parallel ranks than key heads, several ranks have a copy of one head.
        if heads % tp or (kv_heads % tp and tp % kv_heads):
            raise SpecError(f"tp {tp} does not divide heads {heads}, kv_heads {kv_heads}")
    vocab = cells.count("vocab", 51200)
    if framework in PADS_VOCABULARY:
        multiple = 128 * tp
        vocab = -(-vocab // multiple) * multiple
    seq_len, is_gpt = cells.count("seq_len"), block == "gpt"
    return Transformer(
        name=cells.text("model_name", "model", note=False),
        layers=cells.count("layers", most=MAX_LAYERS),
        hidden=hidden,
        ffn=cells.count("ffn", 4 * hidden),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=max(1, hidden // heads) if cells.text("heads") else 128,
        vocab=vocab,
        seq_len=seq_len,
        gated=block not in {"gpt", "mpt", "nemotron"},
        tied=cells.flag("tied_embeddings", default=is_gpt),
        biases=is_gpt,
        norm_biases=is_gpt,
        positions=seq_len if is_gpt else 0,
    )


def parse_fabric(notes: str) -> str:
    """Return the kind of network that the notes name."""
    if re.search(r"\befa\b", notes, re.IGNORECASE):
        return "efa"
    return "omnipath" if re.search(r"\bomni[-_ ]?path\b|\bopa\b", notes, re.IGNORECASE) else "infiniband"


def _parse_machine(cells: CaseRow, gpus: int) -> Machine:
    card, note = hardware.match_gpu(cells.text("gpu"), allow_similar=True)
    cells.assumed += [note] if note else []
    usual, gpu = card.usual_network * 8 / 1e9, with_link(card, cells)
    per_node = cells.count("gpus_per_node", 8)
    across = gpus > per_node
    if not gpu.memory:
        cells.assumed.append(
            f"fits: in the {hardware.memory_bytes(gpu) / GIB:g} GiB of {hardware.find_gpu(gpu.name).name}"
        )
    network = cells.number("inter_node_gbps", usual, note=across)
    if not network and across:
        raise SpecError("inter_node_gbps is 0, and the run crosses nodes")
    return Machine(
        gpu=gpu,
        gpus_per_node=per_node,
        network=(network or usual) * 1e9 / 8,
        fabric=parse_fabric(cells.text("notes", note=False)),
    )


def _parse_degrees(cells: CaseRow, layers: int) -> dict[str, int]:
    """Return dp, tp, pp and cp, whose product is `gpus`; an empty dp is computed from it."""
    degrees = {name: cells.count(name, 1) for name in ("tp", "pp", "cp")}
    if degrees["pp"] > layers:
        raise SpecError(f"pp {degrees['pp']} is more than the {layers} layers")
    replica = math.prod(degrees.values())
    gpus, dp = cells.optional_count("gpus"), cells.optional_count("dp")
    if dp is None and gpus is not None and gpus % replica:
        raise SpecError(f"gpus {gpus} is no multiple of tp x pp x cp = {replica}")
    if dp is None:
        dp = (gpus or replica) // replica
        cells.assumed.append("dp = gpus / (tp pp cp)" if gpus else "dp = 1")
    if gpus is None:
        cells.assumed.append("gpus = dp tp pp cp")
    elif gpus != dp * replica:
        cells.assumed.append("gpus is not dp tp pp cp: the degrees are believed")
    return {"dp": dp, **degrees}


def _parse_batch(cells: CaseRow, dp: int) -> tuple[int, int | None]:
    """Return global batch and micro-batch in sequences (micro-batch None: unknown); an empty cell is computed."""
    batch, micro_batch, grad_accum = map(cells.optional_count, ("global_batch", "micro_batch", "grad_accum"))
    if batch is None:
        if micro_batch is None or grad_accum is None:
            raise SpecError("global_batch is empty")
        cells.assumed.append("global_batch = dp micro_batch grad_accum")
        return dp * micro_batch * grad_accum, micro_batch
    if micro_batch is None and grad_accum is not None:
        if batch % (dp * grad_accum):
            raise SpecError(f"global_batch {batch} is no multiple of dp {dp} x grad_accum {grad_accum}")
        micro_batch = batch // (dp * grad_accum)
        cells.assumed.append("micro_batch = global_batch / (dp grad_accum)")
    if batch < dp * (micro_batch or 1):
        raise SpecError(f"global_batch {batch} is less than dp {dp} x micro_batch {micro_batch or 1}")
    if batch % (dp * (micro_batch or 1)):
        cells.assumed.append("micro-batches rounded: global_batch is no multiple of dp x micro_batch")
    elif grad_accum and micro_batch and batch != dp * micro_batch * grad_accum:
        cells.assumed.append("grad_accum is not global_batch / (dp micro_batch): the latter is believed")
    return batch, micro_batch


def _parse_layout(cells: CaseRow) -> TrainingLayout:
    precision = cells.precision()
    framework = cells.choice_or_default("framework", case_cells.FRAMEWORK, "torch")
    degrees = _parse_degrees(cells, cells.count("layers", most=MAX_LAYERS))
    tp = degrees["tp"]
    batch, micro_batch = _parse_batch(cells, degrees["dp"])
    machine = _parse_machine(cells, math.prod(degrees.values()))
    if precision == "bf16" and not machine.gpu.bf16:
        # V100 and older GPUs have no bfloat16.
        cells.assumed.append(f"precision bf16 as fp16: {machine.gpu.name} has no bf16")
        precision = "fp16"
    if precision == "fp8" and not machine.gpu.flops8:
        raise SpecError(f"precision is fp8, which {machine.gpu.name} has not")
    # fp16 gradients are kept as they are; NeMo reduces in bf16, all others in fp32.
    usual_grad_dtype = "bf16" if framework == "nemo" else "fp32"
    if precision == "fp16":
        usual_grad_dtype = "fp16"
    layout = TrainingLayout(
        model=_parse_row_model(cells, framework, tp),
        machine=machine,
        seq_len=cells.count("seq_len"),
        global_batch=batch,
        micro_batch=micro_batch or 1,
        **degrees,
        virtual_stages=cells.optional_count("virtual_stages") or 1,
        zero_stage=cells.count("zero_stage", 0, least=0, most=3),
        sequence_parallel=cells.flag("sequence_parallel") and tp > 1,
        tp_overlap=tp > 1 and cells.flag("tp_overlap", default=framework in OVERLAPS_BY_DEFAULT),
        recompute=cast(Recompute, cells.choice_or_default("recompute", case_cells.RECOMPUTE) or "none"),
        flash=cells.flag("flash_attention", default=True),
        precision=precision,
        rowwise=precision == "fp8" and cells.choice_or_default("fp8_recipe", case_cells.FP8_RECIPE) == "rowwise",
        compiled=cells.flag("torch_compile"),
        grad_bytes=4 if cells.choice_or_default("grad_dtype", case_cells.GRAD_DTYPE, usual_grad_dtype) == "fp32" else 2,
        framework=framework,
        offload=bool(cells.text("cpu_offload")) and cells.flag("cpu_offload"),
    )
    schedule = cells.schedule() if layout.pp > 1 else ""
    if layout.virtual_stages * layout.pp > layout.model.layers + TABLE_COUNT:
        raise SpecError(
            f"virtual_stages {layout.virtual_stages} x pp {layout.pp} are more than the layers and the two tables"
        )
    if schedule == "1f1b" and layout.virtual_stages > 1:
        raise SpecError(
            f"virtual_stages {layout.virtual_stages} contradict pipeline_schedule, which has one chunk a stage"
        )
    layout = complete_layout(layout, cells, schedule, open_batch=micro_batch is None)
    cells.assumed += unusual_properties(layout)
    return layout


TABLE_COUNT = 2
"""Input and output table; in interleaved schedules each may take the place of a layer."""


def unusual_properties(layout: TrainingLayout) -> list[str]:
    """Return properties that the framework does not support or that do not divide evenly."""
    found = [f"{missing}, as far as is known" for missing in [unsupported_reason(layout)] if missing]
    # torch means any framework. With one data-parallel rank, the ZeRO stage has no effect.
    if layout.framework != "torch" and layout.dp * layout.cp > 1 and layout.zero_stage not in zero_stages(layout):
        beside = f" with tp {layout.tp}" if layout.tp > 1 else ""
        beside = " in a pipeline" if layout.pp > 1 else beside
        found.append(f"{layout.framework} has no ZeRO-{layout.zero_stage}{beside}, as far as is known")
    if layout.pp > 1 and layout.virtual_stages > 1 and not FRAMEWORKS[layout.framework].interleaved:
        found.append(f"{layout.framework} has no interleaved schedule, as far as is known")
    chunks = layout.pp * layout.virtual_stages
    if not can_interleave(layout.model.layers, layout.pp, layout.virtual_stages):
        found.append(f"{layout.model.layers} layers do not come out even in {chunks} chunks (pp x virtual_stages)")
    if layout.pp > 1 and layout.virtual_stages > 1 and layout.micro_batches % layout.pp:
        found.append(
            f"{layout.micro_batches} micro-batches are no multiple of pp {layout.pp}, as virtual_stages ask for"
        )
    per_node = layout.machine.gpus_per_node
    if layout.gpus > per_node and layout.gpus % per_node:
        found.append(f"{layout.gpus} GPUs are no multiple of gpus_per_node {per_node}: the last node is not full")
    return [f"unusual, but predicted: {one}" for one in found]


MAX_BUBBLE = 0.1
"""Share of the ideal time; virtual stages are added until the bubble is smaller."""
INTERLEAVES_BY_DEFAULT = frozenset({"megatron", "nemo"})
"""Frameworks that use virtual stages if a row does not contain their number."""


def constants_of(layout: TrainingLayout) -> Constants:
    """Return the calibrated constants of a layout."""
    return constants_for(layout.framework, layout.machine.gpu.generation, layout.machine.fabric)


def complete_layout(layout: TrainingLayout, cells: CaseRow, schedule: str, *, open_batch: bool) -> TrainingLayout:
    """Fill in missing micro-batch, virtual stages and recomputation with the fastest choice that fits.

    A schedule "" is unknown. `open_batch`: the micro-batch is missing and cannot be computed.
    """
    sequences = layout.global_batch // layout.dp
    open_stages = layout.pp > 1 and not cells.text("virtual_stages")
    open_recompute = not cells.text("recompute")
    micro_batches = [b for b in MICRO_BATCHES if sequences % b == 0] if open_batch else [layout.micro_batch]
    virtual_stages = _possible_virtual_stages(layout, schedule) if open_stages else [layout.virtual_stages]
    recompute: list[Recompute] = ["none", "full"] if open_recompute else [layout.recompute]
    options = [
        structs.replace(layout, micro_batch=b, virtual_stages=v, recompute=r)
        for b, v, r in product(micro_batches, virtual_stages, recompute)
    ]
    # Interleaved schedules need a multiple of p micro-batches.
    options = [one for one in options if one.virtual_stages == 1 or one.micro_batches % one.pp == 0] or options
    # Without a known schedule, recipes use few virtual stages and not the fastest number.
    by_bubble = open_stages and not schedule
    chosen = choose_fastest(_fewest_virtual_stages(options) if by_bubble else options)
    fastest = (
        "the fastest that fits"
        if fits_memory(chosen, constants_of(chosen))
        else "which needs the least memory; nothing fits"
    )
    fewest = f"the fewest for a bubble below {MAX_BUBBLE:.0%}, or the most there can be"
    for name, is_open, reason in (
        ("micro_batch", open_batch, fastest),
        ("virtual_stages", open_stages, fewest if by_bubble else fastest),
        ("recompute", open_recompute, fastest),
    ):
        if is_open:
            cells.assumed.append(f"{name} = {getattr(chosen, name)}, {reason}")
    return chosen


def _fewest_virtual_stages(options: list[TrainingLayout]) -> list[TrainingLayout]:
    """Choose for each micro-batch and recomputation the fewest virtual stages with a small bubble.

    If no number makes the bubble small, choose the largest.
    """
    found: dict[tuple[int, str], TrainingLayout] = {}
    for one in sorted(options, key=lambda one: one.virtual_stages):
        best = found.get((one.micro_batch, one.recompute))
        if best is None or (best.pp - 1) / (best.micro_batches * best.virtual_stages) >= MAX_BUBBLE:
            found[one.micro_batch, one.recompute] = one
    return list(found.values())


def _possible_virtual_stages(layout: TrainingLayout, schedule: str) -> list[int]:
    """Return possible numbers of virtual stages for a schedule; "": unknown."""
    if schedule == "1f1b" or (not schedule and layout.framework not in INTERLEAVES_BY_DEFAULT):
        return [1]
    known = [
        v
        for v in (*VIRTUAL_STAGES, layout.model.layers // layout.pp)
        if can_interleave(layout.model.layers, layout.pp, v)
    ]
    # A known schedule here is the interleaved one, which has at least two virtual stages.
    return sorted(set(known))[bool(schedule) :] or [1]


def fits_memory(layout: TrainingLayout, fitted: Constants) -> bool:
    """Return whether a layout fits; with unknown GPU memory, that of the family's usual card counts."""
    return peak_memory(layout, fitted).total <= fitted.usable * hardware.memory_bytes(layout.machine.gpu)


def choose_fastest(options: list[TrainingLayout]) -> TrainingLayout:
    """Return the fastest layout that fits, or the one with the least memory if none fits."""
    if len(options) == 1:
        return options[0]
    fitted = constants_of(options[0])
    if good := [one for one in options if fits_memory(one, fitted)]:
        return min(good, key=lambda one: step_time(one, fitted).total)
    return min(options, key=lambda one: peak_memory(one, fitted).total)
