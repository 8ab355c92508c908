"""Rules for devices: the GPUs that a task sees, and the numbers by which programs name them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from hpc_kit.check.bash_syntax import Origin
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedAssignment
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.python_code import chosen_device
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.steps import waits_inside_loop
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.sizes import read_gpu_counts

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_BEYOND_FIRST_NODE = "SLURM_PROCID counts the tasks of all nodes: beyond the first node, there is no such GPU"
_DEVICE_OPTIONS = (
    "device", "gpu", "gpu-id", "gpu-ids", "gpus", "devices", "local-rank", "local-device", "device-id", "device-ids",
    "cuda",
)  # fmt: skip


@rule("KIT311", "warning")
def visible_devices_by_hand(script: BatchScript) -> Iterator[Problem]:
    """The script sets CUDA_VISIBLE_DEVICES.

    Slurm sets it to the GPUs of the job or task. Numbers beyond them name no GPU, or one of another job. A list with
    fewer GPUs than the job has leaves the rest idle, and so do two programs at the same time on one GPU, also if a loop
    starts them with `--device cuda:0`. An empty one,
    or `--device cpu`, leaves all of them idle. With one GPU per task, `CUDA_VISIBLE_DEVICES=$SLURM_LOCALID` leaves
    every task but the first without a GPU. `CUDA_VISIBLE_DEVICES=$SLURM_PROCID` names no GPU beyond the first node (an
    error). GNU parallel counts its slots, `{%}`, from 1.

    The rule ignores a script that divides its GPUs among programs, and lines with a comment that names a reason.

    Fix: remove the line. Request GPUs with --gpus-per-task or --gpus-per-node, and let the program use device
    `local_rank % torch.cuda.device_count()`.
    Documented: slurm.schedmd.com/gres.html.
    """
    yield from _hidden_devices(script)
    yield from _shared_device(script)
    yield from _same_device_in_loop(script)
    yield from _slots_from_one(script)
    for each in script.assignments_of(*_VISIBLE_DEVICES):
        text = each.value.text
        # Empty hides all GPUs on purpose; itself, or Slurm's own list, changes nothing.
        if not text or "VISIBLE_DEVICES" in text or "SLURM_JOB_GPUS" in text or "SLURM_STEP_GPUS" in text:
            continue
        # KIT204 reports a rank that the batch shell expands.
        early = not each.in_task and re.search("SLURM_(PROC|LOCAL|NODE)ID", text) is not None
        if early or script.has_reason(each.line, named=True):
            continue
        bound = script.options.keys() & {"gpus-per-task", "gpu-bind", "tres-bind"}
        # A task that is bound to one GPU sees it as number 0, whatever its local id.
        certain = each.in_task and "SLURM_LOCALID" in text and "gpus-per-task" in bound and len(bound) == 1
        gpus, numbers = _gpus_on_node(script), _numbers_of(script, each)
        wide = any(script.size_of(launch).has_several_nodes for launch in script.launches_of(each))
        if each.in_task and _RANK_OF_JOB.fullmatch(text) and wide:
            lines = (script.line_of("nodes"), script.line_of_gpus)
            yield Problem(each.value, _BEYOND_FIRST_NODE, "write $SLURM_LOCALID", lines, certain=True)
            continue
        what = f"Slurm sets {each.name}; {text} may name GPUs of another job"
        if numbers and gpus and max(numbers) >= gpus:
            what, certain = f"there is no GPU {max(numbers)}: the job has {gpus} on the node, from 0", True
        elif numbers and gpus:
            if len(numbers) == gpus or not _is_alone(script, each):
                continue
            what = f"the program sees {len(numbers)} of the {gpus} GPUs of the node: the rest is idle"
        elif not numbers and not certain and (each.in_task or "SLURM_" not in text):
            # A variable from outside, or the local rank on a node whose GPUs all tasks see.
            continue
        remedy = "remove the line, and use the local rank as index of the visible devices"
        yield Problem(each.value, what, remedy, (script.line_of_gpus,), certain=certain)


def _gpus_on_node(script: BatchScript) -> int | None:
    """Return the GPUs of the job on each node. With `--gpus=2` and one task, the job most likely has one node."""
    size = script.size
    one_node = not (size.has_several_nodes or size.has_several_tasks)
    return size.gpus_per_node or (read_gpu_counts(script.options).total if one_node else None)


def _shared_device(script: BatchScript) -> Iterator[Problem]:
    """Find programs that run at the same time on one GPU, while others of the job are idle."""
    given = [each for each in script.assignments_of(*_VISIBLE_DEVICES) if each.is_for_one_command]
    running = [(each, launch) for each in given for launch in script.launches_of(each) if launch.command.in_background]
    used = {number for each in given for number in _numbers_of(script, each) or {-1}}
    if -1 in used or len(used) >= (script.size.gpus_per_node or 0) or script.sources_files:
        return
    for (first, launch), (second, other) in itertools.pairwise(running):
        waits = any(launch.line < step.line < other.line for step in script.batch_commands if step.name == "wait")
        if first.value.text == second.value.text and not waits:
            what = f"line {launch.line} uses GPU {first.value.text} at the same time, and the rest of the GPUs is idle"
            yield Problem(second.value, what, "give each program a GPU of its own", (launch.line, script.line_of_gpus))
            return


def _same_device_in_loop(script: BatchScript) -> Iterator[Problem]:
    """Find programs that a loop starts at the same time, with the same number of a GPU in their arguments."""
    gpus = script.size.gpus_per_node or read_gpu_counts(script.options).total or 0
    if gpus < 2 or script.assignments_of(*_VISIBLE_DEVICES) or script.sources_files:
        return
    for launch in script.training:
        device = launch.argument(*_DEVICE_OPTIONS)
        named = device is not None and device.is_known and re.fullmatch(r"(?:cuda|gpu)(?::\d)?", device.text)
        if device is None or not named or not launch.command.in_background or launch.multiplier is not None:
            continue
        if launch.in_loop and not waits_inside_loop(script, launch.command):
            what = f"each program of this loop uses {device.text} at the same time, and the rest of the GPUs is idle"
            remedy = "count the programs, and write CUDA_VISIBLE_DEVICES=$((n % GPUS)) before each"
            yield Problem(device, what, remedy, (script.line_of_gpus,))
            return


_SLOT = r"(?:\\?\$\{?PARALLEL_(?:JOBSLOT|SEQ)\b\}?|\{[%#]\})"
_USES_GPU = r"(?:\b\w+_VISIBLE_DEVICES=|--(?:gpu|device)(?:[-_]ids?|s)?[= ]|\bcuda:)(?:cuda:)?[\"'\\]*"


def _slots_from_one(script: BatchScript) -> Iterator[Problem]:
    """Find a slot of GNU parallel as the number of a GPU: slots count from 1, and GPUs from 0."""
    starts, slots = [step for step in script.batch_commands if step.name == "parallel"], [_SLOT]
    for words in (step.text.split() for step in starts):
        # `parallel run {} {%}` passes the slot on to a function.
        call = next((n for n, text in enumerate(words) if text in script.functions), len(words))
        for n, _ in (pair for pair in enumerate(words[call:]) if re.fullmatch(_SLOT, pair[1])):
            inside = [each for step in script.functions[words[call]] for each in step.written_assignments]
            names = [each.name for each in inside if each.value.unquoted in {f"${n}", f"${{{n}}}"}]
            # `((slot--))` makes it a number of a GPU.
            changed = [each.name for each in inside if each.value.unquoted not in {f"${n}", f"${{{n}}}"}]
            texts = " ".join(each.text for each in script.expressions)
            names = [name for name in names if name not in changed and not re.search(rf"\b{name}\b", texts)]
            slots += [rf"\$\{{?{name}\b\}}?" for name in (n, *names)]
    used, gpus = re.compile(rf"{_USES_GPU}({'|'.join(slots)})(?!\s*[-+*/%]\s*\d|\d)"), _gpus_on_node(script)
    for number, line in script.command_lines if starts else ():
        if (match := used.search(line)) is not None:
            jobs = re.search(r"\s(?:-j|-P|--jobs|--max-procs)[ =]?(\d+)", starts[0].text)
            idle = gpus is not None and jobs is not None and int(jobs[1]) < gpus
            what = f"GNU parallel counts {match[1]} from 1, and GPUs count from 0: "
            what += "GPU 0 is idle" if idle else f"there is no GPU {gpus or 'of the last number'}, and GPU 0 is idle"
            remedy = "write $(({%} - 1))"
            yield Problem(Origin(number, match.start(1) + 1), what, remedy, (starts[0].line,), certain=not idle)
            return


def _hidden_devices(script: BatchScript) -> Iterator[Problem]:
    """Find a job whose only program sees none of its GPUs, or is told to run on the CPU."""
    launch, place = script.only_training, script.directive("gres") or script.directive("gpus-per-node")
    place = place or script.directive("gpus") or script.directive("gpus-per-task")
    if launch is None or place is None or not script.size.has_gpus or script.sources_files:
        return
    assigned = script.assignments_of(*_VISIBLE_DEVICES)
    hidden = assigned[0] if len(assigned) == 1 and assigned[0].value.text in {"", "-1"} else None
    hides = hidden is not None and hidden.is_exported and not hidden.is_conditional and hidden.is_literal
    device = launch.argument("device", "accelerator")
    on_cpus = launch.on_cpus and not (device is not None and device.has_default)
    if (hides or on_cpus) and not any(each.in_background for each in script.batch_commands):
        what = "the job asks for GPUs, but its program does not use them"
        lines = (hidden.line if hides and hidden is not None else None, launch.line)
        yield Problem(place, what, "remove the line, and use a partition without GPUs", lines)


def _numbers_of(script: BatchScript, each: TracedAssignment) -> set[int]:
    """Return the numbers that an assignment gives, also those of a loop over numbers; an empty set if unknown."""
    text, name = each.value.text, each.value.variable or ""
    around = list(each.position.outward()) if each.position else []
    loops = (place.compound for place in around if place.compound and place.kind == "for" and name)
    loop = next((loop for loop in loops if loop.name in {"", name}), None)
    if loop is not None:
        # Not all passes of such a loop start a program.
        outside = next(number for number, place in enumerate(around, start=1) if place.compound is loop)
        branches = any(place.chain_index or place.kind in {"if", "case"} for place in around[:outside])
        if branches or any(step.name in {"break", "continue"} for step in script.commands_in(loop)):
            return set()
        # `for ((i = 0; i < 8; i++))`
        count = re.search(
            rf"\(\( *{name} *= *0; *{name} *< *(\d+); *({name}\+\+|\+\+{name})", script.lines[loop.line - 1]
        )
        text = ",".join(_loop_words(script, (f"$(seq 0 {int(count[1]) - 1})",) if count is not None else loop.texts))
    return set(map(int, text.split(","))) if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text) else set()


def _loop_words(script: BatchScript, words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a `for` loop; ranges such as `{0..3}`, `$(seq 0 3)` and `${!LIST[@]}` one by one."""
    for word in words:
        listed = re.fullmatch(r"\"?\$\{!(\w+)\[@\]\}\"?", word)
        length = script.list_lengths.get(listed[1]) if listed is not None else None
        text = f"{{0..{length - 1}}}" if length else word
        span = re.fullmatch(r"\{(\d{1,3})\.\.(\d{1,3})\}|\$\(\s*seq\s+(?:(\d{1,3})\s+)?(\d{1,3})\s*\)", text)
        numbers = range(int(span[1] or span[3] or 1), int(span[2] or span[4]) + 1) if span is not None else ()
        yield from map(str, numbers) if span is not None else [word]


def _is_alone(script: BatchScript, each: TracedAssignment) -> bool:
    """Tell whether all programs of the script see the same devices."""
    once = len(script.assignments_of(each.name)) == 1
    return once and script.only_training is not None and not script.only_training.in_loop


@rule("KIT314")
def device_numbers(script: BatchScript) -> Iterator[Problem]:
    """An option of the program names a GPU that the process does not have.

    Device numbers count the visible GPUs from 0. With --gpus-per-task=1, each task sees one GPU, number 0:
    `cuda:$SLURM_LOCALID` is an "invalid device ordinal" in all tasks but the first. CUDA_VISIBLE_DEVICES=$SLURM_LOCALID
    has the same effect. If the tasks see all GPUs of the node, `--device cuda:0` puts all of them on the same one.
    LOCAL_RANK=$SLURM_LOCALID with one visible GPU is a warning: the program may reduce it. With --distribution=cyclic,
    consecutive ranks run on different nodes, and SLURM_PROCID % 4 is no local rank. `--gpu-bind=map_gpu:0,1,2,2` gives
    two tasks the same GPU, and `taskset -c 0-15` gives all tasks of a node the same CPUs (a warning). The rule also
    reads Python programs that the script writes.

    Fix: `cuda:0` with --gpus-per-task=1; the local rank with --gpus-per-node.
    Documented: slurm.schedmd.com/gres.html; pytorch.org/docs/stable/generated/torch.cuda.set_device.html.
    """
    for launch in script.training:
        if script.has_reason(launch.line, named=True):
            continue
        srun = launch.stage("srun")
        options = {**script.options, **(srun.option_texts if srun else {})}
        text = launch.argument(*_DEVICE_OPTIONS)
        if (script.size_of(launch).tasks_per_node or script.size_of(launch).ntasks or 1) > 1:
            yield from _local_ranks(script, launch, options, text)
            yield from _mapped_devices(script, launch)
            yield from _same_cpus(script, launch)
        if text is not None:
            yield from _fixed_devices(script, launch, options, text)


def _sees_one_gpu(script: BatchScript, options: Mapping[str, str]) -> bool:
    """Tell whether each task sees one GPU, its own."""
    one_each = options.get("gpus-per-task", "").rpartition(":")[2] == "1"
    return (
        (one_each and options.keys().isdisjoint({"gpu-bind", "tres-bind"}))
        or options.get("gpu-bind", "").startswith(("single:1", "per_task:1"))
        # A task may hide all GPUs but its own.
        or any(each.in_task and _ONE_RANK.match(each.value.text) for each in script.assignments_of(*_VISIBLE_DEVICES))
    )


_ONE_RANK = lazy_pattern(r"(?!.*,).*SLURM_(LOCALID|PROCID)")


def _local_ranks(
    script: BatchScript, launch: LaunchLine, options: Mapping[str, str], text: ExpandedText | None
) -> Iterator[Problem]:
    """Find a rank as the number of a device that the task does not see."""
    lines, wide = (script.line_of("gpus-per-task"), launch.line), script.size_of(launch).has_several_nodes
    local = next((each.value for each in script.assignments_of("LOCAL_RANK") if each.in_task), None)
    rank = next((each for each in (text, local) if each and _RANK_OF_JOB.search(each.text)), None)
    # Consecutive ranks run on different nodes.
    cyclic = options.get("distribution", "").startswith("cyclic")
    bound, one_each = _sees_one_gpu(script, options), "each task sees one GPU, which has the number 0"
    if rank is not None and wide:
        yield Problem(rank, _BEYOND_FIRST_NODE, "write $SLURM_LOCALID", (script.line_of("nodes"), launch.line))
    elif text is not None and "SLURM_LOCALID" in text.text and bound:
        yield Problem(text, one_each, "write cuda:0, or use --gpus-per-node", lines)
    elif local is not None and wide and cyclic and re.search(r"SLURM_PROCID\}?\s*%", local.text):
        what = f"--distribution={options['distribution']} deals the ranks out over the nodes: ranks share a GPU"
        yield Problem(local, what, "write $SLURM_LOCALID", (script.line_of("distribution"), launch.line))
    elif local is not None and bound and local.variable == "SLURM_LOCALID" and not _takes_first_device(script):
        what = "LOCAL_RANK is the number of a GPU for most programs, but each task sees one GPU, number 0"
        remedy = "let each task see all GPUs (--gpus-per-node), or let the program reduce the local rank"
        yield Problem(local, what, remedy, lines, certain=False)
    elif bound and (written := _device_in_program(script, launch)) is not None:
        yield Problem(written, one_each, "write device 0 in the program, or use --gpus-per-node", lines)


def _takes_first_device(script: BatchScript) -> bool:
    """Tell whether an option of a program names the first device, so that it does not choose by LOCAL_RANK."""
    options = (launch.argument(*_DEVICE_OPTIONS) for launch in script.training)
    return any(text is not None and re.fullmatch(r"(cuda:)?0", text.text) for text in options)


def _fixed_devices(
    script: BatchScript, launch: LaunchLine, options: Mapping[str, str], text: ExpandedText
) -> Iterator[Problem]:
    """Find the number of a device that the node does not have, or that all tasks of the node use."""
    match = re.fullmatch(r"(?:cuda:)?(\d{1,6}(?:,\d{1,6})*)", text.text)
    size = script.size_of(launch)
    numbers = [int(each) for each in match[1].split(",")] if match is not None else []
    # `--gpus 2` and `--devices 2` are a number of GPUs, `--gpus 0,1` a list.
    counted = launch.argument("gpus", "devices") is not None and len(numbers) == 1
    several, names_one = (size.tasks_per_node or size.ntasks or 1) > 1, text.text.startswith("cuda:")
    if numbers and size.gpus_per_node and not counted and max(numbers) >= size.gpus_per_node:
        what = f"there is no GPU {max(numbers)}: the node has {size.gpus_per_node}, from 0"
        yield Problem(text, what, "use the numbers of the GPUs that the job has", (launch.line,), not text.has_default)
    elif len(numbers) == 1 and several and (names_one or launch.argument("local-rank")):
        own = counted or "gpus-per-task" in options or _sees_one_gpu(script, options)
        own = own or any(each.in_task for each in script.assignments_of(*_VISIBLE_DEVICES))
        if launch.multiplier is not None and not own and not launch.agent:
            what = f"all {size.tasks_per_node} tasks of a node use GPU {numbers[0]}"
            lines = (script.line_of("ntasks-per-node"), launch.line)
            yield Problem(text, what, "use the local rank, SLURM_LOCALID", lines, not text.has_default)


def _device_in_program(script: BatchScript, launch: LaunchLine) -> Origin | None:
    """Return the place where a Python program that the script writes chooses the local rank as its device."""
    file = launch.program.option("file") if launch.program.kind == "python" else None
    body = script.file_written_to(file.text) if file is not None else None
    choice = chosen_device(body.text) if body is not None else None
    if body is None or choice is None or "LOCALID" not in choice.variable:
        return None
    return Origin(body.line + choice.line - 1)


_MAP = lazy_pattern(r"(?:\A|,)map_(?:gpu|cpu):(\d{1,4}(?:,\d{1,4})*)\Z")


def _mapped_devices(script: BatchScript, launch: LaunchLine) -> Iterator[Problem]:
    """Find a list of --gpu-bind or --cpu-bind that gives two tasks of a node the same GPU or CPU."""
    srun, size = launch.stage("srun"), script.size_of(launch)
    tasks = size.tasks_per_node or 1
    for name, unit in (("gpu-bind", "GPU"), ("cpu-bind", "CPU")):
        text = srun.option(name) if srun is not None else None
        directive = script.directive(name)
        place = text if text is not None else directive
        match = _MAP.search(text.text if text is not None else directive.value if directive is not None else "")
        if place is None or match is None:
            continue
        numbers = [int(number) for number in match[1].split(",")]
        # Slurm takes the list from its beginning again for further tasks.
        used = [numbers[task % len(numbers)] for task in range(tasks)]
        twice = next((number for number in used if used.count(number) > 1), None)
        # With more tasks than GPUs, sharing is intended.
        shared = unit == "GPU" and size.gpus_per_node is not None and tasks > size.gpus_per_node
        if twice is not None and not shared:
            what = f"{used.count(twice)} of the {tasks} tasks of a node get {unit} {twice}"
            lines = (script.line_of("ntasks-per-node", "ntasks"), launch.line)
            yield Problem(place, what, f"write one {unit} for each task", lines, certain=unit == "GPU")


_CPUS_OF_WRAPPER = {
    "numactl": re.compile(r"(?:-C|--physcpubind|-N|--cpunodebind)[= ]?(\d[\d,-]*)(?= |\Z)"),
    "taskset": re.compile(r"(?:-c|-ac|--cpu-list)[= ](\d[\d,:-]*)(?= |\Z)"),
}


def _same_cpus(script: BatchScript, launch: LaunchLine) -> Iterator[Problem]:
    """Find a `taskset` or `numactl` that gives all tasks of a node the same CPUs."""
    tasks = script.size_of(launch).tasks_per_node or 1
    started = itertools.dropwhile(lambda stage: stage is not launch.multiplier, launch.stages)
    for stage, following in itertools.pairwise(started):
        pattern = _CPUS_OF_WRAPPER.get(stage.name)
        # An agent is one task for all processes of its node.
        if pattern is None or launch.agent is not None:
            continue
        match = pattern.search(" ".join(stage.texts[: len(stage.words) - len(following.words)]))
        if match is not None:
            what = f"{stage.name} puts all {tasks} tasks of a node on the same CPUs, {match[1]}"
            remedy = f"remove {stage.name}: with --cpus-per-task, srun gives each task CPUs of its own"
            yield Problem(stage, what, remedy, (script.line_of_tasks, launch.line), certain=False)


_RANK_OF_JOB = lazy_pattern(r"\$\{?SLURM_PROCID\}?\Z")
