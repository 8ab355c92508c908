"""Rules for counts: nodes, tasks, GPUs and processes must agree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from hpc_kit.check.bash_grammar import NAME
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import FIRST_NODE, ExpandedText
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage, is_known_program
from hpc_kit.check.programs import AGENTS, HELPER_PROGRAMS, MPIRUN_WORDS
from hpc_kit.check.rules.finding import Place, Problem, rule
from hpc_kit.errors import HpcKitError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import DirectiveOption, suggest_fix
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, JobSize, count_nodes, parse_count, size_of_job
from hpc_kit.slurm.units import is_number

_OWN_HOSTS = frozenset({"H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"})


@rule("KIT201")
def contradicting_task_counts(script: BatchScript) -> Iterator[Problem]:
    """--ntasks is not nodes x tasks per node.

    If all three are given, Slurm uses --ntasks, and --ntasks-per-node becomes an upper bound. With more tasks than fit,
    sbatch adds nodes or refuses the job. With fewer, some nodes get fewer ranks. With fewer tasks than nodes, the job
    gets only as many nodes as tasks, and sbatch prints one line about it.

    Fix: remove one of the three, or make them agree.
    Documented: sbatch(1), --ntasks-per-node.
    """
    for part in script.components:
        yield from _fewer_than_nodes(part)
        options = [part[name] for name in ("nodes", "ntasks", "ntasks-per-node") if name in part]
        counts = [int(each.value) for each in options if is_number(each.value)]
        if len(counts) < 3 or counts[1] == counts[0] * counts[2]:
            continue
        nodes, ntasks, per_node = counts
        last, lines = max(options, key=lambda each: each.line), tuple(each.line for each in options)
        what = f"{nodes} nodes x {per_node} tasks = {nodes * per_node}, but --ntasks={ntasks}"
        remedy = f"use --ntasks={nodes * per_node}, or remove --ntasks"
        # An uneven split may be meant: 7 tasks on 2 nodes of 4. So may an upper bound, if all tasks are on one node.
        bound = nodes == 1 and ntasks < per_node
        yield Problem(last, what, remedy, lines, certain=not bound and -(-ntasks // nodes) != per_node)


def _fewer_than_nodes(part: Mapping[str, DirectiveOption]) -> Iterator[Problem]:
    nodes, ntasks = part.get("nodes"), part.get("ntasks")
    if nodes is None or ntasks is None or not is_number(ntasks.value) or "ntasks-per-node" in part:
        return
    least = count_nodes(nodes.value, None)[1]
    if 0 < int(ntasks.value) < least:
        what = f"{least} nodes, but --ntasks={ntasks.value}: the job gets only {ntasks.value}"
        yield Problem(ntasks, what, "use --ntasks-per-node instead of --ntasks", (nodes.line,))


@rule("KIT117")
def too_many_hosts(script: BatchScript) -> Iterator[Problem]:
    """--nodelist contradicts --nodes or --exclude.

    Slurm allocates all hosts of --nodelist; the list is not a choice. With more hosts than --nodes, sbatch refuses the
    script ("invalid number of nodes"). With a host in both --nodelist and --exclude, the job never starts.

    Fix: request as many nodes as hosts. To choose among hosts, use --exclude, --constraint or a partition.
    Documented: sbatch(1), --nodelist.
    """
    for part in script.components:
        nodes, hosts, excluded = part.get("nodes"), part.get("nodelist"), part.get("exclude")
        if hosts is None:
            continue
        most = count_nodes(nodes.value, None)[0] if nodes is not None else None
        listed = count_nodes(None, hosts.value)[0]
        if nodes is not None and most is not None and listed is not None and listed > most:
            what = f"--nodelist names {listed} hosts, but --nodes={nodes.value}: Slurm allocates all of them or none"
            yield Problem(hosts, what, f"use --nodes={listed}, or name fewer hosts", (nodes.line,))
        if excluded is not None and (both := _hosts(hosts.value) & _hosts(excluded.value)):
            what = f"--nodelist and --exclude both name {min(both)}: the job never starts"
            yield Problem(excluded, what, f"remove {min(both)} from one of them", (hosts.line,))


def _hosts(text: str) -> set[str]:
    from hpc_kit.slurm import nodelist

    try:
        return set() if "/" in text else set(nodelist.expand(text))
    except HpcKitError:
        return set()


@rule("KIT119")
def contradicting_gpu_counts(script: BatchScript) -> Iterator[Problem]:
    """--gpus contradicts the GPUs per task or per node.

    --gpus counts the GPUs of the whole job. With --gpus-per-task it implies the number of tasks, with --gpus-per-node
    the number of nodes. sbatch refuses the script if --ntasks or --nodes gives another number ("Failed to validate job
    spec"), or if --gpus is less than one per node. --nodes and --gpus-per-task alone give no number of tasks (a
    warning). The tasks of a node cannot have more GPUs than --gres or --gpus-per-node gives it.

    Fix: remove --gpus; of --gres and --gpus-per-task, keep one.
    Documented: sbatch(1), --gpus, --gpus-per-task; slurm.schedmd.com/gres.html.
    """
    for part in (each for each in script.components if not each.keys().isdisjoint({"gpus", "gpus-per-task"})):
        total, of_task = _gpus(part, "gpus"), _gpus(part, "gpus-per-task")
        job = size_of_job({name: each.value for name, each in part.items()})
        on_node = "gres" if "gres" in part and part["gres"].value.startswith("gpu") else "gpus-per-node"
        have, need = _gpus(part, on_node), (of_task or 0) * (job.tasks_per_node or 0)
        if have is not None and need > have:
            place = part["gpus-per-task"]
            what = f"{job.tasks_per_node} tasks x {of_task} GPUs = {need}, but --{on_node}={part[on_node].value}"
            lines = (part[on_node].line, script.line_of("ntasks-per-node", "ntasks"))
            yield Problem(place, what, f"use --gpus-per-task={max(1, have // (job.tasks_per_node or 1))}", lines)
        if (
            of_task
            and "nodes" in part
            and part.keys().isdisjoint({"gpus", "ntasks", "ntasks-per-node", "ntasks-per-gpu", on_node})
            # A comment may tell how to submit the script.
            and not re.search(r"\bsbatch\s[^\n]*(--ntasks|-n\b)", script.text)
        ):
            what = "--gpus-per-task needs a number of tasks: without one, sbatch refuses the job"
            yield Problem(part["gpus-per-task"], what, "add --ntasks-per-node=...", certain=False)
        if total is None or (have is not None and need > have):
            continue
        nodes, tasks = job.nodes if "nodes" in part else None, job.ntasks if job.is_stated else None
        problems = []
        for name, count, unit in (("gpus-per-task", tasks, "tasks"), (on_node, nodes, "nodes")):
            each = _gpus(part, name)
            given = f"--{name}={part[name].value}" if name in part else ""
            if each is not None and total % each:
                problems.append((name, f"--gpus={total} is not a multiple of {given}"))
            elif each is not None and count is not None and total // each != count:
                what = f"--gpus={total} with {given} is {total // each} {unit}, but the job has {count}"
                problems.append((name, what))
        if nodes is not None and total < nodes:
            problems.append(("nodes", f"--gpus={total} is fewer than one on each of {nodes} nodes"))
        # The contradictions have one cause: one message is enough.
        for name, what in problems[:1]:
            yield Problem(part["gpus"], what, "remove --gpus", (part[name].line,))


def _gpus(part: Mapping[str, DirectiveOption], name: str) -> int | None:
    """Return the number that an option for GPUs gives; None if it gives several types."""
    text = part[name].value.rpartition(":")[2] if name in part and "," not in part[name].value else ""
    return parse_count(text)


@rule("KIT208")
def more_processes_than_gpus(script: BatchScript) -> Iterator[Problem]:
    """More processes per node than GPUs.

    A process without a GPU fails with "invalid device ordinal", or shares a GPU, which NCCL refuses ("Duplicate GPU
    detected"). With fewer processes than GPUs, some GPUs are idle (a warning).

    Fix: start one process per GPU: `--nproc-per-node=$SLURM_GPUS_ON_NODE`, or --ntasks-per-node equal to
    --gpus-per-node.
    Documented: pytorch.org/docs/stable/elastic/run.html; slurm.schedmd.com/gres.html.
    """
    training = [launch for launch in script.training if not script.is_cut_short(launch)]
    if len(training) != 1 or any("VISIBLE_DEVICES" in name for name in script.assigned):
        return
    (launch,) = training
    size, agent = script.size_of(launch), launch.agent
    gpus, processes = size.gpus_per_node, _processes_on_node(launch, size)
    if (told := _told_fewer(script, launch, size)) is not None:
        used = "one" if launch.argument(*_ONE_DEVICE) is told else told.text
        what = f"the program is told to use {used} of the {gpus} GPUs of the node: the rest is idle"
        yield Problem(told, what, "request fewer GPUs", (script.line_of_gpus, launch.line), certain=False)
        return
    by_variable = agent is not None and script.sets_torchrun_option(agent, "nproc-per-node")
    # Each of several tasks sees the GPUs of its own.
    bound = "gpus-per-task" in script.options and (agent is None or size.tasks_per_node != 1)
    if not gpus or processes is None or processes == gpus or bound or by_variable or launch.on_cpus:
        return
    if processes < gpus:
        yield from _idle_gpus(script, launch, size, processes, gpus)
        return
    # A line with both the launcher and its count shows the count.
    option = agent.word_of(AGENTS[agent.kind].processes) if agent is not None else None
    what = f"{processes} processes per node, but {_count_gpus(gpus)}: some processes have no device"
    lines, certain = (script.line_of_gpus, launch.line), agent is not None and not launch.has_default_count
    yield Problem(
        option or agent or launch.multiplier or launch.program, what, "start one process per GPU", lines, certain
    )


def _count_gpus(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus > 1)}"


def _idle_gpus(script: BatchScript, launch: LaunchLine, size: JobSize, processes: int, gpus: int) -> Iterator[Problem]:
    """Find a launch of fewer processes per node than the node has GPUs."""
    agent, lines, count = launch.agent, (script.line_of_gpus, launch.line), _count_gpus(gpus)
    if agent is not None:
        option = agent.word_of(AGENTS[agent.kind].processes)
        what = f"{processes} process{'es' * (processes > 1)} per node, but {count}: the remaining GPUs are idle"
        remedy = f"start {gpus} processes per node, or request fewer GPUs"
        # accelerate shares --num_processes out over the nodes: its value is that of the whole job.
        total = agent.word_of("num-processes") if agent.kind == "accelerate" and size.has_several_nodes else None
        if total is not None and size.nodes:
            remedy = f"write --num_processes={size.nodes * gpus}, which counts the processes of all nodes"
        yield Problem(total or option or agent, what, remedy, (*lines, agent.line), certain=False)
        return
    # A program that starts processes of its own has a larger WORLD_SIZE.
    by_world = any(each.value.text == str(size.ntasks) for each in script.assignments_of("WORLD_SIZE"))
    # An option such as `--launcher slurm` makes each task of srun one rank.
    init = launch.argument("launcher", "dist-init", "init", "init-method", "env", "cluster", "dist-launcher")
    of_slurm = script.options.keys() & {"ntasks", "ntasks-per-node"} and init is not None and init.text == "slurm"
    if by_world or of_slurm or _is_total_of_node(script, launch, size):
        shown = f"{processes} task{'s' * (processes > 1)} per node" + ", as WORLD_SIZE says" * by_world
        what = f"{shown}, but {count}: the rest is idle"
        remedy = f"use --ntasks-per-node={gpus}, or request fewer GPUs"
        place = launch.multiplier or launch.program
        yield Problem(place, what, remedy, (*lines, script.line_of("ntasks")), certain=False)


_ONE_DEVICE = ("device", "gpu", "gpu-id", "device-id")
"""Options of programs for the number of the only GPU that they use."""


def _told_fewer(script: BatchScript, launch: LaunchLine, size: JobSize) -> ExpandedText | None:
    """Return the option by which a single process uses fewer GPUs than its node has."""
    if launch.agent is not None or size.tasks_per_node != 1:
        return None
    one = launch.argument(*_ONE_DEVICE)
    if one is not None and re.fullmatch(r"(cuda:)?\d", one.text) and (size.gpus_per_node or 0) > 1:
        # A server in the background may have the other GPUs, and so may further processes of the program.
        others = [each for each in script.launch_lines if each.program.name not in HELPER_PROGRAMS]
        shared = any(each.command.in_background for each in others) or launch.in_loop
        forks = re.search(r"parallel|distributed|ddp|gpus|world|devices", " ".join(launch.program.texts[1:]))
        return None if one.has_default or shared or forks else one
    told = launch.argument("gpus", "devices", "num-gpus", "n-gpus", "ngpus")
    counts = told is not None and not told.has_default and 0 < (told.number or 0) < (size.gpus_per_node or 0)
    return told if counts else None


def _is_total_of_node(script: BatchScript, launch: LaunchLine, size: JobSize) -> bool:
    """Tell whether --ntasks, which counts the tasks of all nodes, is the number of GPUs of one."""
    per_node = "ntasks-per-node" in script.options or any("ntasks-per-node" in stage.options for stage in launch.stages)
    several = size.nodes is not None and size.nodes > 1 and (size.tasks_per_node or 0) > 1
    return several and not per_node and size.ntasks == size.gpus_per_node and launch.program.kind == "python"


@rule("KIT210")
def wrong_world_size(script: BatchScript) -> Iterator[Problem]:
    """WORLD_SIZE is not the number of started processes, or RANK is the same in several of them.

    With `init_method="env://"`, rank 0 waits for WORLD_SIZE processes and refuses a rank beyond them. torchrun and
    similar launchers set the variable themselves. A value that counts GPUs may be right if the program starts
    processes. Under torchrun, SLURM_NTASKS counts launchers: an accumulation computed from it is too large.
    SLURM_LOCALID counts the tasks of one node, so that `RANK=$SLURM_LOCALID` gives each node the same ranks.

    Fix: `export WORLD_SIZE=$SLURM_NTASKS` and `export RANK=$SLURM_PROCID`; for the number of ranks under torchrun,
    `$((SLURM_NTASKS * NPROC_PER_NODE))`.
    Documented: pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
    """
    launch = script.only_training
    if launch is not None and launch.agent is not None:
        yield from _world_of_composer(script, launch, launch.agent)
        yield from _batches_of_launchers(script, launch, launch.agent)
    if launch is None or launch.agent is not None or launch.multiplier is None or launch.in_loop:
        return
    size = script.size_of(launch)
    yield from _same_ranks(script, launch, size)
    if size.ntasks is None or not size.is_stated:
        return
    lines, effect = (script.line_of_tasks, launch.line), f"but {launch.multiplier.name} starts {size.ntasks} processes"
    # One task for each node may start one process for each GPU.
    known = {size.ntasks, (size.nodes or 0) * (size.gpus_per_node or 0)}
    argument = launch.argument("world-size") if launch.program.kind == "python" else None
    world = argument.number if argument is not None else None
    # Processes that the program starts itself are ranks, too.
    forks = "multiprocessing" in launch.command.text
    if argument is not None and world is not None and world not in {*known, size.nodes} and not forks:
        yield Problem(argument, f"world size {world}, {effect}", "write $SLURM_NTASKS", lines, certain=False)
    for each in script.assignments_of("WORLD_SIZE"):
        world = each.value.number
        # Each task is a training of its own.
        if world is None or (world == 1 and each.in_task):
            continue
        # The program may start the processes of its node, and be given all GPUs of it without asking.
        spawns = size.gpus_per_node is None and size.tasks_per_node == 1 and world > 0 == world % size.ntasks
        if world not in known and not spawns:
            remedy = "write export WORLD_SIZE=$SLURM_NTASKS"
            yield Problem(each, f"WORLD_SIZE={world}, {effect}", remedy, lines, certain=not each.value.has_default)


def _same_ranks(script: BatchScript, launch: LaunchLine, size: JobSize) -> Iterator[Problem]:
    """Find a rank that is the same on all nodes, or in all tasks of a node."""
    given = [each.value for each in script.assignments_of("RANK") if each.in_task]
    for rank in (*given, *filter(None, [launch.argument("rank")])):
        of_node = rank.variable == "SLURM_LOCALID" and size.has_several_nodes
        if of_node or (rank.variable == "SLURM_NODEID" and (size.tasks_per_node or 1) > 1):
            what = (
                f"{rank.text} is the same {'on each node' if of_node else 'in all tasks of a node'}: ranks exist twice"
            )
            yield Problem(rank, what, "write $SLURM_PROCID", (script.line_of("nodes"), launch.line))


_BATCH_OF_RANK = (
    "gradient-accumulation-steps", "accumulate-grad-batches", "accumulation-steps", "grad-accum", "grad-accum-steps",
    "accum", "accum-iter", "accum-steps", "update-freq", "per-device-train-batch-size", "micro-batch-size",
    "train-micro-batch-size-per-gpu", "batch-size-per-gpu",
)  # fmt: skip
"""Options for the share of each rank in the global batch."""
_COUNTS_RANKS = lazy_pattern(r"(?i)(?!.*(batch|bs|micro))\w*(gpu|nproc|local|per_?node|device|procs)")


def _batches_of_launchers(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> Iterator[Problem]:
    """Find the share of a rank in the global batch that is computed from the number of agents."""
    written = {each.name: each.value.raw for each in script.written_assignments}
    processes = count_processes(agent) or 0
    for word, following in pairwise([*launch.inner_command.syntax.words, *launch.inner_command.syntax.words[-1:]]):
        name, equals, code = word.raw.partition("=")
        if processes < 2 or name.lstrip("-").rpartition(".")[2].replace("_", "-") not in _BATCH_OF_RANK:
            continue
        code, names = code if equals else following.raw, set[str]()
        while more := {each for each in re.findall(NAME, code) if each in written} - names:
            names |= more
            code = " ".join([code, *(written[each] for each in more)])
        agents = re.search(r"\bSLURM_(NTASKS|NPROCS)\b", code)
        counted = re.search(rf"\b{processes}\s*\*\s*[${{]*SLURM_N|SLURM_N\w+\}}?\s*\*\s*{processes}\b", code)
        # Without a batch, the number may be one that was chosen for one node.
        divides = re.search(r"(?i)batch|global", code) and not any(map(_COUNTS_RANKS.match, re.findall(NAME, code)))
        if agents is not None and divides and not counted:
            what = f"{name} is computed from {agents[0]}, but {agent.kind} starts {processes} ranks in each task"
            lines = (launch.line, *(each.value.line for each in script.written_assignments if each.name in names))
            yield Problem(word, what, f"compute it from the number of ranks, {agents[0]} * {processes}", lines)


def _world_of_composer(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> Iterator[Problem]:
    """Find a --world_size of composer that is not the processes of all nodes."""
    world, each, nodes = agent.option("world-size"), count_processes(agent), script.size_of(launch).nodes
    if agent.kind != "composer" or world is None or world.number is None or not each or not nodes:
        return
    if world.number != each * nodes:
        what = f"world size {world.number}, but composer starts {each} processes on each of {nodes} nodes"
        lines = (script.line_of("nodes"), launch.line)
        yield Problem(agent, what, f"write --world_size={each * nodes}", lines, certain=not launch.has_default_count)


_FOLDED = lazy_pattern(r"SLURM_(?:STEP_)?TASKS_PER_NODE|SLURM_JOB_CPUS_PER_NODE")


@rule("KIT228", needs=("tasks_per_node", "cpus_per_node", "slurm_gpus", "%0", "date", "{0", "seq", "${#"))
def folded_counts(script: BatchScript) -> Iterator[Problem]:
    """A list of counts, a count with a type, or the length of a text is used as a number.

    With several nodes, Slurm folds the counts of all nodes into one text: SLURM_TASKS_PER_NODE is `4(x2)`, and
    SLURM_JOB_CPUS_PER_NODE is `64(x2)`. With `--gpus-per-node=a100:4`, SLURM_GPUS_PER_NODE is `a100:4`. Arithmetic with
    such a text is a syntax error, and no program reads it as a number. In arithmetic, a leading zero begins an octal
    number: `$((ID + 1))` fails for the 08 of `printf %02d` or `date +%m`. `${#CUDA_VISIBLE_DEVICES}` counts characters:
    of `0,1,2,3` it is 7.

    Fix: SLURM_NTASKS for all tasks; SLURM_NTASKS_PER_NODE, SLURM_CPUS_ON_NODE and SLURM_GPUS_ON_NODE for one node. For
    leading zeros, `$((10#$ID + 1))`. For a list, `IFS=, read -ra GPUS <<< "$CUDA_VISIBLE_DEVICES"` and `${#GPUS[@]}`.
    Documented: sbatch(1), OUTPUT ENVIRONMENT VARIABLES; bash(1), ARITHMETIC EVALUATION; awslabs/awsome-distributed-ai
    issue 71.
    """
    for part in script.parts:
        name = _no_number(script, part.text) if part.kind == "arithmetic" else None
        if name is not None:
            yield _folded(script, part.origin, name)
    yield from _padded_numbers(script)
    yield from _lengths(script)
    given: list[tuple[ExpandedText | None, Place]] = [
        (agent.option(name), agent.word_of(name) or agent)
        for agent in script.agents
        for name in ("nproc-per-node", "num-processes")
    ]
    given += [(each.value, each) for each in script.assignments_of("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    for text, place in given:
        if text is None or "$((" in text.text:
            continue
        typed = re.fullmatch(r"[A-Za-z]\w*:\d+", text.text)
        name = "SLURM_GPUS_PER_NODE" if typed else _no_number(script, text.text)
        if name is not None:
            yield _folded(script, place, name)


_PADDED = lazy_pattern(
    r"[\"']?\$\(\s*(printf\s+[\"']?%0\d+[di][\"']?\s[^)]*|date\s+\+[\"']?%[dHjmMS][\"']?)\)[\"']?|[\"']?\{0\d+\.\.\d+\}"
    r"|\$\(\s*seq\s+-w\s[^)]*\)"
)


_LISTS = lazy_pattern(r"(CUDA|ROCR|HIP)_VISIBLE_DEVICES|SLURM_(JOB|STEP)_GPUS|SLURM_(JOB_|STEP_)?NODELIST")


def _lengths(script: BatchScript) -> Iterator[Problem]:
    """Find `${#NAME}` of a text with several items, or of a list, where the number of items is meant."""
    # In zsh, it is the number of elements.
    if script.interpreter == "zsh":
        return
    texts = {each.name for each in script.written_assignments if each.value.elements is None and not each.indexed}
    lists = {each.name for each in script.written_assignments if each.value.elements is not None} - texts
    for step, part in [(each, part) for each in script.commands for part in each.syntax.parts]:
        name = part.detail if part.kind == "variable" and part.text == "#" and step.name not in _LOOK_AT_LENGTH else ""
        values = [each.value.text for each in script.assignments_of(name)] if name else []
        # A program may want the length of a text. `$(((${#NAME} + 1) / 2))` counts the GPUs.
        items = values and all(re.fullmatch(r"\d+([, ]+\d+)+", text) for text in values)
        of_text = (_LISTS.fullmatch(name) or items) and (not step.words or step.name in {"declare", "export", "local"})
        if name in lists:
            what = f"${{#{name}}} is the length of the first element of {name}, and not the number of elements"
            yield Problem(part.origin, what, f"write ${{#{name}[@]}}", (step.line,))
        elif of_text:
            what = f"${{#{name}}} counts characters, and not the items of {name}: of 0,1,2,3 it is 7"
            yield Problem(part.origin, what, "read the items into a list, and write ${#LIST[@]}", (step.line,))


_LOOK_AT_LENGTH = frozenset({"[", "echo", "printf", "test"})

_PRINTED = lazy_pattern(r"printf\s+-v\s+(\w+)\s+[\"']?%0\d+[di][\"']?\s")


def _padded_numbers(script: BatchScript) -> Iterator[Problem]:
    """Find arithmetic with a number that has leading zeros."""
    padded = {each.name: each.value.line for each in script.written_assignments if _PADDED.fullmatch(each.value.raw)}
    printing = [step for step in script.batch_commands if step.name == "printf"]
    padded |= {match[1]: step.line for step in printing if (match := _PRINTED.match(step.text))}
    padded |= {loop.name: loop.line for loop in script.compounds("for") if any(map(_PADDED.fullmatch, loop.texts))}
    # A second assignment may remove the zeros.
    several = {each.name for each in script.written_assignments if not _PADDED.fullmatch(each.value.raw)}
    for part in script.parts if padded.keys() - several else ():
        text = part.text if part.kind == "arithmetic" else part.detail if part.detail.startswith("[") else ""
        names = re.findall(r"(?<!10#)(?<!10#\$)(?<!10#\$\{)\b[A-Za-z_]\w*", text)
        name = next((name for name in names if name in padded.keys() - several), None)
        if name is not None:
            what = f"{name} has leading zeros: for the shell, 010 is 8, and 08 is an error"
            yield Problem(part.origin, what, f"write 10#${name} in arithmetic", (padded[name],))


def _no_number(script: BatchScript, text: str) -> str | None:
    """Return the variable in an expression whose value is no number in this job."""
    names: list[str] = re.findall(r"(?<!\w)SLURM_\w+(?![\w%:/#])", text)
    for name in names:
        folded = script.size.has_several_nodes and _FOLDED.fullmatch(name)
        typed = _option_of(name) in GPU_COUNT_OPTIONS and ":" in script.options.get(_option_of(name), "")
        if (folded or typed) and name not in script.assigned:
            return name
    return None


def _option_of(name: str) -> str:
    """Return the option whose value a variable of Slurm has."""
    return name.removeprefix("SLURM_").lower().replace("_", "-")


def _folded(script: BatchScript, place: Place, name: str) -> Problem:
    if "GPUS" in name:
        value, remedy = script.options.get(_option_of(name), "a type and a number"), "use SLURM_GPUS_ON_NODE"
        return Problem(place, f"{name} is no number, but {value}", remedy, (script.line_of(_option_of(name)),))
    what = f"{name} is no number, but a list such as 4(x{script.size.min_nodes})"
    remedy = "use SLURM_NTASKS, SLURM_NTASKS_PER_NODE or SLURM_CPUS_ON_NODE"
    return Problem(place, what, remedy, (script.line_of("nodes"),))


@rule("KIT213", "warning", needs=MPIRUN_WORDS)
def processes_of_mpirun(script: BatchScript) -> Iterator[Problem]:
    """More or fewer processes under mpirun than the job has tasks.

    With fewer, the remaining tasks and their CPUs are idle. With more, Open MPI treats the tasks of a job as its slots
    and ends with "There are not enough slots available". Intel MPI and MPICH start all processes, several on the CPUs
    of one task.

    Fix: request as many tasks as processes (--ntasks, or --nodes and --ntasks-per-node); mpirun needs no -n then.
    Documented: docs.open-mpi.org, "Launching with Slurm".
    """
    if "exclusive" in script.options and not script.options.keys() & {"ntasks", "ntasks-per-node"}:
        # Whole nodes: the site may give a task for each of their CPUs.
        return
    tasks = script.size.ntasks
    if tasks is None or not script.size.is_stated:
        return
    threads = (script.size.cpus_per_task or 1) > 1 or "OMP_NUM_THREADS" in script.assigned
    # With one GPU for each task, the GPUs of the missing processes are idle, wherever the others run.
    paired = script.size.gpus_per_node is not None and script.size.gpus_per_node == script.size.tasks_per_node
    for launch in script.launch_lines:
        mpirun, lines = launch.stage("mpirun"), (script.line_of_tasks, launch.line)
        if mpirun is None or launch.stage("ssh"):
            continue
        yield from _per_node(script, launch, mpirun)
        text = mpirun.option("n", "np", "c")
        count = text.number if text is not None else None
        if text is None or count is None:
            continue
        what = f"{mpirun.name} starts {count} processes, but the job has {tasks} task{'s' * (tasks > 1)}"
        placed = bool(mpirun.options.keys() & {"map-by", "npernode", "N", "ppn", "perhost", "bind-to", *_OWN_HOSTS})
        if count < tasks and script.only_training is launch and not (launch.agent or launch.in_loop):
            if paired or not (placed or threads):
                yield Problem(text, f"{what}: the rest is idle", "remove the option, or request fewer tasks", lines)
        elif count > tasks and not _oversubscribes(script, mpirun) and not mpirun.options.keys() & _OWN_HOSTS:
            yield Problem(text, what, f"write #SBATCH --ntasks={count}", lines)


def _oversubscribes(script: BatchScript, mpirun: LaunchStage) -> bool:
    """Tell whether an option or a variable allows more processes than slots."""
    settings = [f"{each.name}={each.value.text}" for each in script.assignments if "_MCA_" in each.name]
    return "oversubscribe" in " ".join([*mpirun.texts, *settings]).lower()


def _per_node(script: BatchScript, launch: LaunchLine, mpirun: LaunchStage) -> Iterator[Problem]:
    """Find more processes on each node than the job has tasks there, or all processes on one node."""
    host = mpirun.option("host", "H", "hosts")
    one = host is not None and re.sub(r":\d+\Z", "", host.text) in {"localhost", FIRST_NODE}
    if host is not None and one and script.size.has_several_nodes:
        what = f"{mpirun.name} starts all processes on this node; the job has {script.size.min_nodes}"
        yield Problem(host, what, f"remove the option: {mpirun.name} knows the nodes of the job", (launch.line,))
    placed, have = mpirun.option("npernode", "N", "ppn", "perhost", "map-by"), script.size.tasks_per_node
    match = re.fullmatch(r"(?:ppr:)?(\d+)(?::node.*)?", placed.text) if placed is not None else None
    count = parse_count(match[1]) if match is not None else None
    if placed is not None and count and have is not None and count > have and not _oversubscribes(script, mpirun):
        what = f"{mpirun.name} starts {count} processes per node, but the job has {have} tasks there"
        lines = (script.line_of("ntasks-per-node"), launch.line)
        yield Problem(placed, what, f"request --ntasks-per-node={count}", lines)


def _processes_on_node(launch: LaunchLine, size: JobSize) -> int | None:
    agent = launch.agent
    if agent is None:
        return size.tasks_per_node if launch.multiplier and launch.program.kind == "python" else None
    # KIT203 reports several agents on a node.
    if agent.may_hide_options or ((size.tasks_per_node or 1) != 1 and launch.multiplier):
        return None
    if agent.kind == "accelerate" and "num-machines" not in agent.options and size.has_several_nodes:
        return None
    return count_processes(agent)


def count_processes(agent: LaunchStage) -> int | None:
    """Return the number of processes that an agent starts on its node; None if it is unknown."""
    if agent.kind == "torchrun":
        return agent.number("nproc-per-node") if "nproc-per-node" in agent.options else 1
    slots = agent.option("include", "i") if agent.kind == "deepspeed" else None
    if slots is not None:
        # `--include localhost:0,1`, or `node1:0,1@node2:0,1`
        counts = {len(set(host.partition(":")[2].split(","))) for host in slots.text.split("@") if ":" in host}
        return counts.pop() if len(counts) == 1 and slots.is_known else None
    if agent.kind == "composer":
        return agent.number("nproc", "n")
    count, one = agent.number("num-processes", "num-gpus"), "num-machines" not in agent.options
    nodes = 1 if one else agent.number("num-machines")
    if count is None or nodes is None or (one and "config-file" in agent.options):
        return None
    return max(1, count // max(1, nodes)) if agent.kind == "accelerate" else count


def _may_hide_options(srun: LaunchStage) -> bool:
    """Tell whether a variable before the program may contain options, or the value of the option before it."""
    for word in srun.words[1:]:
        if is_known_program(word):
            return False
        if word.is_unknown or "$" in word.text.partition("=")[0]:
            return True
    return False


_OF_SRUN = lazy_pattern(
    r"--(ntasks-per-(node|gpu)|cpus-per-task|gpus-per-task|gres|(cpu|gpu|mem)-bind|kill-on-bad-exit)(=|\Z)"
)
"""Options that only srun has."""


@rule("KIT206")
def refused_srun_options(script: BatchScript) -> Iterator[Problem]:
    """A launch line with an option that srun does not accept.

    The job waits in the queue, starts, and fails immediately with "unrecognized option". An option that resembles no
    option of srun is only a warning: it may belong to a plugin of the site. Behind the program, srun does not read its
    options: `srun python train.py --cpu-bind=none` passes the option to the program.

    Fix: follow the message. Put options of the program after the program, and those of srun before it.
    Documented: srun(1), OPTIONS.
    """
    for launch in script.launch_lines:
        srun = launch.stage("srun")
        words = launch.program.words if srun is not None and launch.program.kind == "python" else ()
        behind = next((word for word in words if _OF_SRUN.match(word.text)), None)
        if behind is not None:
            what = f"srun does not read {behind.text} behind the program: the program gets it"
            yield Problem(behind, what, "write it directly behind srun", (launch.line,), certain=False)
        if srun is None or srun.error is None or _may_hide_options(srun):
            continue
        remedy, certain = suggest_fix(srun.error, "srun")
        yield Problem(srun, srun.error.what, remedy, (launch.line,), certain, srun.error.found)


@rule("KIT211")
def step_inherits_all_gpus(script: BatchScript) -> Iterator[Problem]:
    """A step on fewer nodes inherits --gpus of the whole job.

    srun inherits --gpus of the job. One node of several has fewer GPUs, so that the step ends with "Invalid generic
    resource (gres) specification", even if it only looks up the address of a host.

    Fix: `srun --gpus=0 --nodes=1 ...` for a step without GPUs; or --gpus-per-node for the job, which fits any step.
    Documented: srun(1), INPUT ENVIRONMENT VARIABLES, SLURM_GPUS; seen with Slurm 22.05.
    """
    nodes = script.size.nodes
    if "gpus" not in script.options or nodes is None or nodes < 2 or script.changes("SLURM_GPUS"):
        return
    places: list[Place] = []
    for launch in script.launch_lines:
        srun = launch.stage("srun")
        if srun is None or srun.may_hide_options or "gpus" in srun.options:
            continue
        if (script.size_of(launch).nodes or nodes) < nodes:
            places.append(srun)
    # Steps in $(...), of which the trace knows the text alone.
    for part in [part for command in script.batch_commands for part in command.substitutions]:
        step = re.match(r"\s*srun\s[^|;&]*", part.text)
        one_node = step and re.search(r"\s(-N\s*1|--nodes[= ]1)\s", step[0])
        if step and one_node and not re.search(r"\s(-G|--gpus[= ])", step[0]):
            places.append(part.origin)
    what = f"this step inherits --gpus={script.options['gpus']} of the job, but one node has fewer GPUs"
    remedy = "add --gpus=... to this srun, or use --gpus-per-node for the job"
    for place in places:
        yield Problem(place, what, remedy, (script.line_of("gpus"),))
