"""Calibrated constants with their uncertainty, read from `constants.toml`, and the error of predictions.

A plain name applies to all frameworks, GPUs and fabrics; `name.nanotron`, `name.h100` or `name.efa` overrides it.
Anything that was never measured uses the general value.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_kit.planner.layout import TrainingLayout

CONSTANTS_FILE = Path(__file__).with_name("constants.toml")


class Constants(Struct, frozen=True, kw_only=True):
    """Constants for one framework on one kind of GPU and fabric; shares or factors unless a unit is given.

    `hardware.toml` contains the data sheets that they multiply.
    """

    gemm: float  # Share of the best measured matrix product that large products reach
    quality: float  # Factor on that for a framework's way of calling them
    gemm8: float  # The same for 8-bit products, of the data sheet's 8-bit figure
    wave: float  # Part of a wave of tiles that a product wastes at its end
    traffic: float  # Bytes that a product moves, in units of its three matrices
    attention: float  # Share of the measured peak that flash attention reaches
    attention_quality: float  # Factor on that for a framework's kernels
    attention_back: float  # Operations of its backward pass over those of its forward pass
    scores: float  # Bytes moved for each score where the s x s matrix is stored, forward
    unaligned: float  # Factor on attention with stored scores where the head width is no multiple of 8
    elementwise: float  # Times that each kept activation byte is moved, forward: the norms, residuals, activations
    compiled: float  # Factor on that where kernels are fused by a compiler
    cast8: float  # Bytes moved for each input of an 8-bit product
    rowwise: float  # Factor on `cast8` with a scale for each row
    logits: float  # Bytes moved for each logit, forward and backward
    launch: float  # Seconds to launch a layer's kernels, forward and backward, one micro-batch
    launch_tensor: float  # Additional seconds where tensor parallelism adds collectives
    # The same where stored scores go through separate kernels, as fused ones take four matrices of them at a time
    # (Megatron).
    launch_scores: float
    hop: float  # Seconds a rank of a tensor group adds to a layer where pipeline traffic crosses nodes
    gap: float  # Share of the shorter one that is not hidden where launching and computing go side by side
    wait: float  # Additional seconds that each layer of a micro-batch waits for the host, not hidden
    micro: float  # Seconds of a micro-batch in addition to its layers
    step: float  # Seconds of a step in addition to its micro-batches
    link: float  # Share of the link's data sheet that collectives inside a node reach
    network: float  # The same for the network, two nodes
    spread: float  # Nodes over which a ring has lost half of `network`
    rails: float  # Exponent with which the network of a node's GPUs adds up for one group: 1, all of it
    latency: float  # Seconds of a collective without data, inside a node
    latency_network: float  # Seconds for each node that a collective crosses
    tensor_overlap: float  # Share of tensor-parallel traffic hidden behind products where overlap is asked for
    data_overlap: float  # Share of the last backward pass behind which gradients are reduced
    zero_overlap: float  # The same with ZeRO-1 and -2
    context: float  # Share of attention that context parallelism beyond 2 leaves unbalanced
    shard_overlap: float  # Share of compute behind which ZeRO-3 gathers parameters
    zero_cost: float  # Factor on the reduction of gradients with ZeRO-1 and -2
    # Collectives a layer in which ZeRO-1 and -2 scatter gradients, and as many that gather parameters, where each
    # tensor has its own (0: they go in few large ones).
    zero_calls: float
    boundary: float  # Share of pipeline traffic that is not hidden
    # 1: a rank of a tensor group sends its part of a stage's activations; 0: all of them, unless they are split by
    # sequence parallelism anyway.
    scatter: float
    optimizer: float  # Times that optimizer states are moved in a step
    sharpness: float  # Exponent with which two things that overlap share time: large, the slower one alone counts
    selective_again: float  # Share of a layer's products that `selective` recomputes (0: the attention core only)
    gate: float  # Bytes kept for each column of a gated MLP: 8, or 6 where its product is fused with its activation
    activation_scale: float  # Factor on the formula of activations
    selective_share: float  # Share that `selective` keeps where it works by operator
    selective_core: float  # 1: `selective` recomputes the attention core; 0: it works by operator
    ahead: float  # Layers that a host launches ahead of its GPU, whose gathered inputs are held until then
    logit_bytes: float  # Bytes kept for each logit
    logit_kept: float  # Bytes a logit that are still held when the next micro-batch begins
    reserve: float  # Additional GiB: workspaces, communication buffers
    state_waste: float  # Additional bytes a parameter: buckets, temporaries
    usable: float  # Share of the GPU's memory that is full when allocation fails
    thrash: float  # Seconds a micro-batch that the allocator loses where memory is full: it frees, and asks again
    by_cost: float  # 1: stages are cut by cost; 0: by number of layers


def select_constants(values: Mapping[str, float], *kinds: str) -> Constants:
    """Return the constants for some kinds (framework, generation, fabric); later kinds take precedence."""
    chosen: dict[str, float] = {}
    for name in Constants.__struct_fields__:
        value = values[name]
        for kind in kinds:
            value = values.get(f"{name}.{kind}", value)
        chosen[name] = value
    return Constants(**chosen)


@cache
def constants_table() -> dict[str, Any]:
    """Return the parsed file: its origin, and each constant with value, error and whether it was fitted."""
    return tomllib.loads(CONSTANTS_FILE.read_text(encoding="utf-8"))


@cache
def constant_values() -> dict[str, float]:
    """Return the constants by name."""
    found = {}
    for name, entry in constants_table()["constants"].items():
        for kind, row in entry.items():
            if isinstance(row, dict):
                found[name if kind == "all" else f"{name}.{kind}"] = float(row["value"])
    return found


@cache
def constants_for(framework: str, generation: str, fabric: str) -> Constants:
    """Return the calibrated constants for a framework on a kind of GPU and fabric."""
    return select_constants(constant_values(), generation, fabric, framework)


CALIBRATED_GPUS = frozenset({"a100", "h100"})
OTHER_GPU_ERROR = 0.20
"""Additional error on a GPU without measured runs."""
MAX_SHARDED_GPUS = 128
"""Maximum number of GPUs in measured runs with ZeRO-3 alone."""
EXTRAPOLATION_ERROR = 0.05
"""Additional error for each property beyond the measured range."""
QUANTITY_NAMES = {"gpus": "GPUs", "pp": "stages", "cp": "ranks a sequence", "seq_len": "tokens a sequence"}


def time_error(layout: TrainingLayout) -> tuple[float, tuple[str, ...]]:
    """Return the expected relative error of a step time and the reasons for a larger one."""
    entry = constants_table()["error"]
    error = float(entry["frameworks"].get(layout.framework, entry["time"]))
    reasons = []
    if layout.machine.gpu.generation not in CALIBRATED_GPUS:
        error += OTHER_GPU_ERROR
        reasons.append(f"{layout.machine.gpu.name} was not among the measured GPUs")
    if layout.framework not in entry["frameworks"]:
        error += EXTRAPOLATION_ERROR
        reasons.append(f"no measured runs of {layout.framework}: general constants")
    own = f" with {layout.framework}" if layout.framework in entry["most"] else ""
    known: dict[str, dict[str, int]] = entry["most"]
    largest = known.get(layout.framework) or {name: max(one[name] for one in known.values()) for name in QUANTITY_NAMES}
    for name, measured in largest.items():
        if getattr(layout, name) > measured:
            error += EXTRAPOLATION_ERROR
            reasons.append(f"at most {measured} {QUANTITY_NAMES[name]} were measured{own}")
    for kind in _unmeasured_kinds(layout):
        error += EXTRAPOLATION_ERROR
        reasons.append(f"no {kind} was measured{own}")
    if layout.zero_stage == 3 and layout.pp == 1 and layout.tp == 1 and layout.gpus > MAX_SHARDED_GPUS:
        error += EXTRAPOLATION_ERROR
        reasons.append(f"ZeRO-3 was measured on up to {MAX_SHARDED_GPUS} GPUs")
    return error, tuple(reasons)


def _unmeasured_kinds(layout: TrainingLayout) -> list[str]:
    """Return the kinds of GPU, network and precision that no run of the framework had."""
    known: dict[str, list[str]] = constants_table()["error"]["kinds"]
    own = known.get(layout.framework) or [kind for kinds in known.values() for kind in kinds]
    # `time_error` has counted GPUs that no framework was measured on.
    generation = layout.machine.gpu.generation
    kinds = [generation] if generation in CALIBRATED_GPUS else []
    if layout.gpus > layout.machine.gpus_per_node:
        kinds.append(layout.machine.fabric)
    return [kind for kind in (*kinds, layout.precision) if kind not in own]


def memory_error(framework: str) -> float:
    """Return the expected relative error of the peak memory for a framework."""
    entry = constants_table()["error"]
    return float(entry["memory_frameworks"].get(framework, entry["memory"]))
