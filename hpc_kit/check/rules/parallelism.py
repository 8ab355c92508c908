"""Rules for the arguments of large trainings: degrees of parallelism, batch sizes, and the shape of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.counts import count_processes
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.lazy_pattern import lazy_pattern

_DEGREES = {
    "tensor": ("tensor-model-parallel-size", "tensor-parallel-size", "tensor-parallel-degree", "tp", "tp-size"),
    "pipeline": ("pipeline-model-parallel-size", "pipeline-parallel-size", "pipeline-parallel-degree", "pp", "pp-size"),
    "context": ("context-parallel-size", "context-parallel-degree", "cp", "cp-size"),
    "replicas": ("data-parallel-replicate-degree",),
}
_DATA = ("dp", "dp-size", "data-parallel-size", "data-parallel-degree", "data-parallel-shard-degree")
"""Options of Megatron-LM, NeMo, torchtitan and programs after them."""
_DEGREE_WORDS = (
    "parallel",
    "heads",
    "tp=",
    "pp=",
    "cp=",
    "-tp",
    "-pp",
    "-cp ",
    *(f"{axis}{dash}size" for axis in ("tp", "pp", "cp") for dash in "-_"),
)
"""Texts of which one of these options, or a part of the model that they divide, has one."""


@rule("KIT216", needs=_DEGREE_WORDS)
def parallel_degrees(script: BatchScript) -> Iterator[Problem]:
    """The degrees of parallelism do not fit the number of ranks, or the model.

    tensor x pipeline x context parallel degree must divide the number of ranks; the rest is data parallel. Otherwise
    the program ends at its start ("world size is not divisible by ..."), as does Megatron-LM with a global batch that
    is no multiple of micro batch x data parallel degree, with layers that the pipeline stages cannot share evenly, or
    with attention heads that the tensor parallel ranks cannot. Tensor parallelism over several nodes works, but sends
    every layer over the network (a warning). Options other than Megatron-LM's --*-model-parallel-size give a warning,
    too: some programs, such as vLLM, start workers of their own. So do numbers that a variable may replace.

    Fix: change the degrees or the size of the job. Keep the tensor parallel degree within a node.
    Documented: Megatron-LM, "Parallelism Strategies Guide".
    """
    for launch in script.training:
        yield from _uneven_model(launch)
        shape = _shape_of(script, launch)
        if shape is not None:
            yield from _degrees_and_ranks(script, launch, *shape)
    yield from _degrees_of_workers(script)


def _shape_of(script: BatchScript, launch: LaunchLine) -> tuple[int, int] | None:
    """Return the nodes of a launch line and the processes on each; None if they are unknown."""
    size, agent = script.size_of(launch), launch.agent
    per_node = count_processes(agent) if agent is not None else size.tasks_per_node
    nodes = size.nodes if size.is_stated else None
    if launch.multiplier is None and agent is not None:
        # Without srun, an agent is on one node, unless its options name further ones.
        hosts = "hostfile" in agent.options or "H" in agent.options
        nodes = agent.node_count.number if agent.node_count is not None else None if hosts else 1
    return None if nodes is None or per_node is None else (nodes, per_node)


def _degrees_and_ranks(script: BatchScript, launch: LaunchLine, nodes: int, per_node: int) -> Iterator[Problem]:
    """Find degrees of parallelism, or batches, that do not fit the number of ranks."""
    texts = {axis: text for axis, names in _DEGREES.items() if (text := launch.argument(*names)) is not None}
    known = {axis: text.number for axis, text in texts.items() if text.number is not None}
    product, world = prod(known.values()), nodes * per_node
    # An unknown degree may make up the difference. A replica degree alone says nothing of the model.
    if len(known) < len(texts) or known.keys() <= {"replicas"} or launch.multiplier is None:
        return
    # vLLM, SGLang and Ray start the workers of the remaining GPUs themselves.
    if launch.agent is None and (world == 1 or per_node < (script.size_of(launch).gpus_per_node or 2)):
        return
    fixed = not launch.has_default_count and not any(text.has_default for text in texts.values())
    lines = (script.line_of("nodes"), script.line_of("ntasks-per-node"), launch.line, *(t.line for t in texts.values()))
    data = launch.argument(*_DATA)
    if product == 0 or world % product:
        shown = " x ".join(f"{axis} {count}" for axis, count in known.items())
        what = f"{shown} = {product} does not divide the {world} ranks"
        certain = fixed and _is_megatron(launch)
        place = next(iter(texts.values()))
        yield Problem(place, what, f"use degrees whose product divides {world}", lines, certain)
    elif data is not None and data.number and data.number * product != world:
        what = f"data {data.number} x {product} = {data.number * product}, but there are {world} ranks"
        yield Problem(data, what, f"write {world // product} for the data parallel degree", lines, certain=False)
    elif (batches := _uneven_batches(launch, world // product)) is not None:
        micro, batch = batches
        what = f"micro batch {micro.text} x data {world // product} does not divide the global batch {batch.text}"
        certain = fixed and not (micro.has_default or batch.has_default)
        yield Problem(batch, what, "make the global batch a multiple of both", (micro.line, *lines), certain)
    # The last and mildest finding: such a layout works, but is slow. A model may need all GPUs of the job for one copy.
    elif per_node < known.get("tensor", 0) < world:
        what = f"tensor parallel degree {known['tensor']} spans nodes of {per_node} ranks"
        yield Problem(texts["tensor"], what, f"use at most {per_node}, and pipeline stages", lines, certain=False)


def _is_megatron(launch: LaunchLine) -> bool:
    """Tell whether a program has the options of Megatron-LM."""
    return any(re.match(r"--\S*model[-_]parallel[-_]size", text) for text in launch.program.texts)


def _uneven_batches(launch: LaunchLine, data: int) -> tuple[ExpandedText, ExpandedText] | None:
    """Return Megatron's micro batch and global batch if the ranks cannot share the global batch evenly."""
    micro, batch = launch.argument("micro-batch-size"), launch.argument("global-batch-size")
    step = (micro.number or 0) * data if micro is not None else 0
    return (micro, batch) if micro and batch and step and batch.number and batch.number % step else None


_SHARED = (
    ("num-layers", "pipeline-model-parallel-size", "pipeline stages cannot share {} layers evenly"),
    (
        "num-attention-heads",
        "tensor-model-parallel-size",
        "tensor parallel ranks cannot share {} attention heads evenly",
    ),
    ("hidden-size", "num-attention-heads", "attention heads cannot share a hidden size of {} evenly"),
    ("num-experts", "expert-model-parallel-size", "expert parallel ranks cannot share {} experts evenly"),
)
"""Megatron-LM's arguments of which one must be a multiple of the other."""
_UNEVEN = lazy_pattern(
    r"--(decoder-(first|last)-pipeline|account-for-|pipeline-model-parallel-layout|kv-channels|head-dim)"
)
"""Options that split unevenly."""


def _uneven_model(launch: LaunchLine) -> Iterator[Problem]:
    """Find a part of the model that Megatron-LM must split evenly, but cannot."""
    if any(_UNEVEN.match(text.replace("_", "-")) for text in launch.program.texts):
        return
    for whole_name, parts_name, effect in _SHARED:
        whole, parts = launch.argument(whole_name), launch.argument(parts_name)
        if whole is None or parts is None or not whole.number or not parts.number or whole.number % parts.number == 0:
            continue
        what = f"{parts.number} {effect.format(whole.number)}"
        remedy = f"make --{whole_name} a multiple of --{parts_name}"
        certain = _is_megatron(launch) and not (whole.has_default or parts.has_default)
        yield Problem(whole, what, remedy, (parts.line, launch.line), certain)


_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_TRAINER = ((_MICRO, "per-device-train-batch-size"), (_STEPS, "gradient-accumulation-steps"))
"""Settings of DeepSpeed, and the options of Hugging Face's Trainer with the same meaning."""


@rule("KIT230", needs=("deepspeed",))
def deepspeed_batches(script: BatchScript) -> Iterator[Problem]:
    """The batch sizes of a DeepSpeed configuration contradict each other, the job, or the command line.

    train_batch_size must be train_micro_batch_size_per_gpu x gradient_accumulation_steps x number of ranks. Otherwise
    DeepSpeed stops ("Check batch related parameters"). Hugging Face's Trainer also stops if its own options say
    something else than the configuration ("mismatch TrainingArguments values"). The rule reads configurations that the
    script writes.

    Fix: give two of the three, or "auto" with the Trainer.
    Documented: www.deepspeed.ai/docs/config-json, "Batch Size Related Parameters"; huggingface.co/docs/transformers,
    "DeepSpeed".
    """
    for launch in script.training:
        path = launch.argument("deepspeed-config") or launch.argument("deepspeed")
        text = script.file_written_to(path.text) if path is not None else None
        if text is None:
            continue
        settings = {name: number for name in (_TOTAL, _MICRO, _STEPS) if (number := _number_in(text, name)) is not None}
        for name, option in _TRAINER:
            given = launch.argument(option)
            if name in settings and given is not None and given.number not in {None, settings[name].number}:
                what = f"--{option} is {given.number}, but {name} is {settings[name].number} in the configuration"
                certain = not given.has_default
                yield Problem(given, what, 'make them equal, or write "auto"', (settings[name].line,), certain)
        shape = _shape_of(script, launch)
        # With model parallelism, fewer ranks share the batch. Elastic training computes it.
        shared = any(launch.argument(*names) is not None for names in _DEGREES.values())
        if shape is None or len(settings) < 3 or shared or '"elasticity"' in text.text:
            continue
        total, micro, steps = (settings[name].number or 0 for name in (_TOTAL, _MICRO, _STEPS))
        world = prod(shape)
        if total != micro * steps * world:
            what = f"{micro} per GPU x {steps} steps x {world} ranks = {micro * steps * world}, but {_TOTAL} is {total}"
            lines = (*(each.line for each in settings.values()), script.line_of("nodes"), launch.line)
            remedy, certain = f"write {micro * steps * world}, or remove {_TOTAL}", not launch.has_default_count
            yield Problem(settings[_TOTAL], what, remedy, lines, certain)


def _number_in(text: ExpandedText, name: str) -> ExpandedText | None:
    """Return the number of a setting of a JSON text."""
    match = re.search(rf'"{name}"\s*:\s*(\d{{1,9}})\b', text.text)
    return text.slice_of(*match.span(1)) if match is not None else None


def _degrees_of_workers(script: BatchScript) -> Iterator[Problem]:
    """Find a program that starts its own workers, such as vLLM, with more of them than the job has GPUs."""
    # With Ray, the workers may be on all nodes of its cluster.
    if any(launch.program.name == "ray" for launch in script.launch_lines):
        return
    for launch in script.launch_lines:
        program, gpus = launch.program, script.size_of(launch).gpus_per_node or script.size.gpus_per_node
        module = program.option("module")
        serves = program.name == "vllm" or (module is not None and module.text.startswith("vllm."))
        tensor = launch.argument(*_DEGREES["tensor"]) or _nested_degree(launch)
        degrees = [text for text in (tensor, launch.argument(*_DEGREES["pipeline"])) if text is not None]
        known = [text.number for text in degrees if text.number is not None]
        total = (gpus or 0) * (script.size.nodes or 1)
        if known and len(known) == len(degrees) and prod(known) > total > 0:
            shown = " x ".join(map(str, known))
            what = f"parallel degree {shown}, but the job has {total} GPU{'s' * (total > 1)}"
            certain = serves and not any(text.has_default for text in degrees)
            yield Problem(degrees[0], what, f"use at most {total}", (script.line_of_gpus, launch.line), certain)


def _nested_degree(launch: LaunchLine) -> ExpandedText | None:
    """Return the degree in a list of settings: `--model_args pretrained=X,tensor_parallel_size=4`."""
    for word in launch.program.words:
        match = re.search(r"\btensor_parallel_size=(\d+)", word.text) if "parallel" in word.text else None
        if match is not None:
            return word.slice_of(match.start(1), match.end(1))
    return None
