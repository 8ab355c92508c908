"""Rules for the resources of a job: time, memory, GPUs, and the limits of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import pairwise
from pathlib import PurePath

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.counts import count_processes
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.errors import HpcKitError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import DirectiveOption
from hpc_kit.slurm.partitions import JobPart, find_partition_obstacle
from hpc_kit.slurm.sizes import GPU_COUNT_OPTIONS, JobSize, parse_count, size_of_job
from hpc_kit.slurm.units import format_count, parse_memory
from hpc_kit.slurm.versions import MIG_SHARED
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job_checks import find_unlisted
from hpc_kit.spec.partition_checks import partitions_of

_MIG = lazy_pattern(r"\d+g\.\d+gb", re.IGNORECASE)


_GPU_PARTITION = lazy_pattern(
    r"(?:.*[-_])?(?:gpus?|a100|a[1-4]0|v100|h[12]00|l40s?|b200|gh200|mi\d{3}\w?)(?:[-_.].*|\d*)?\Z", re.IGNORECASE
)


_OF_GPUS = lazy_pattern(r"gpus|gres|tres|\w+-per-gpu")
"""Options that ask for GPUs."""


@rule("KIT133", "warning")
def no_gpu_requested(script: BatchScript) -> Iterator[Problem]:
    """A training on GPUs in a job that asks for none.

    The partition only selects the nodes. Slurm gives a job the GPUs that it asks for, and hides the others: without
    --gpus, --gpus-per-node or --gres, torch.cuda.is_available() is False. The rule goes by the name of the partition
    and by `--device cuda` or `--use-cuda`, and ignores jobs that take whole nodes.

    Fix: `#SBATCH --gpus-per-node=1`.
    Documented: slurm.schedmd.com/gres.html.
    """
    directive = script.directive("partition")
    # Many sites give all GPUs of a node to a job that takes the whole node.
    whole = script.is_alone_on_nodes or (script.counts_only_nodes and "nodes" in script.options)
    # `--constraint=gpu` selects whole nodes where jobs get no others.
    if whole or script.is_heterogeneous or "gpu" in script.options.get("constraint", "").lower():
        return
    if any(map(_OF_GPUS.match, script.options)):
        return
    steps = [srun for launch in script.launch_lines if (srun := launch.stage("srun")) is not None]
    asks = any(_OF_GPUS.match(name) for each in steps for name in each.options)
    on_cpus = any(launch.on_cpus for launch in script.training)
    python = all(launch.program.kind == "python" for launch in script.training)
    # A comment may tell how to submit the script.
    if asks or on_cpus or not python or re.search(r"\bsbatch\s[^\n]*(--g(pus|res)|-G)", script.text):
        return
    remedy = "add #SBATCH --gpus-per-node=..., or --gres=gpu:..."
    if directive is not None and all(map(_GPU_PARTITION.match, directive.value.split(","))):
        what = f"the job asks for no GPU: the partition {directive.value} alone gives none"
        yield Problem(directive, what, remedy)
        return
    for launch in script.training:
        opens = next((word for stage in launch.stages for word in stage.words if word.text in {"--nv", "--rocm"}), None)
        if opens is not None and launch.is_named_training:
            what = f"{opens.text} gives the container the GPUs of the job, but the job asks for none"
            yield Problem(opens, what, remedy, (launch.line,))
            return
        device = launch.argument("device", "accelerator")
        flag = re.search(r"--((use|enable)[-_](cuda|gpu)|cuda)(?! (0|[Ff]alse|no)\b)(?= |\Z)", launch.program.text)
        if device is None or not re.match(r"(cuda|gpu)\b", device.text):
            device = next((word for word in launch.program.words if flag and word.text == flag[0]), None)
        if device is not None:
            yield Problem(device, "the program needs a GPU, but the job asks for none", remedy, (launch.line,))


@rule("KIT115", "warning", needs=("gb",))
def shared_mig_devices(script: BatchScript) -> Iterator[Problem]:
    """MIG devices that the tasks share, or that one training cannot use together.

    Before Slurm 23.11.4, all tasks of a node silently get the same MIG device of --gpus-per-task and share its memory.
    CUDA shows a process one MIG device, the first, and NCCL connects no two of one GPU: a training with several
    processes ends with "Duplicate GPU detected".

    Fix: request them per node (`--gpus-per-node`) for independent tasks; one larger device, or whole GPUs, for a
    training.
    Documented: Slurm's release notes, 23.11.4; NVIDIA's MIG User Guide, "CUDA Visible Devices".
    """
    requests = [each for each in script.directive_options if each.name in {"gres", *GPU_COUNT_OPTIONS}]
    sliced = [each for each in requests if _MIG.search(each.value)]
    for launch in script.training if sliced else ():
        agent = launch.agent
        count = count_processes(agent) if agent is not None else None
        if agent is None and {"MASTER_ADDR", "MASTER_PORT"} & script.assigned:
            count = script.size_of(launch).tasks_per_node
        each_device = agent.option("nproc-per-node") if agent is not None else None
        if each_device is not None and each_device.text in {"gpu", "auto"}:
            count = parse_count(sliced[0].value.rpartition(":")[2])
        if (count or 1) > 1:
            what = f"{count} processes train together on MIG devices, which NCCL cannot connect"
            remedy, lines = "request one larger device, or whole GPUs", (sliced[0].line, launch.line)
            yield Problem(agent or launch.program, what, remedy, lines)
    for each in sliced if MIG_SHARED.holds(script.slurm_version) is not False else ():
        if each.name == "gpus-per-task":
            what = f"{MIG_SHARED.releases}, all tasks of a node get the same MIG device: {each.value}"
            yield Problem(each, what, "use --gpus-per-node with all devices of a node")


_HOURS = frozenset({12, 24, 36, 48, 72, 96, 120, 168})
_SHORT_TIME = lazy_pattern(r"0?[1-4]:00|0?0:\d\d")
_RATHER_HOURS = lazy_pattern(r"0?[68]:00|1[68]:00")
_BRIEF = lazy_pattern(
    r"(?i)test|debug|short|quick|smoke|dev|express|minute|\bmin\b|bench|tutorial|course|exercise|lecture|demo|example|toy"
    r"|mnist|hello|sanity|profil|warm|\bchecks?\b|\blimit[-_]|max[-_]?(steps|iters)[= ]\d{1,3}\b|epochs?[= ]\d\b"
)
_LONG_WORK = lazy_pattern(r"(?i)train|tun(e|ing)|sft|dpo|distil")
_UNITS = lazy_pattern(
    r"(?i)\b\d*\s*(h|hrs?|hours?|d|days?)\b|\b(one|two|three|four|five|six|eight|ten|twelve)\s+(hours?|days?)"
)


@rule("KIT122", "warning")
def minutes_for_hours(script: BatchScript) -> Iterator[Problem]:
    """A time limit in minutes that was surely meant in hours.

    `--time=24` is 24 minutes, and `--time=24:00` is 24 minutes and no seconds. Slurm ends the job then. A comment that
    speaks of hours or days settles what was meant. `--time=0` asks for no limit: in a partition with a limit, the job
    waits for ever.

    Fix: `--time=24:00:00`, or `--time=1-0` for a day.
    Documented: sbatch(1), --time.
    """
    for each in [each for each in script.directive_options if each.name == "time"]:
        match = re.fullmatch(r"(\d{1,3})(?::(\d\d))?", each.value)
        if re.fullmatch(r"[0:-]+", each.value):
            what = f"--time={each.value} asks for no limit: in a partition with a limit, the job never starts"
            yield Problem(each, what, "write a time limit, or remove the line for the default of the partition")
        elif match is not None:
            minutes, seconds = int(match[1]), match[2] or "00"
            comment = script.lines[each.line - 1].partition(" #")[2]
            meant = bool(_UNITS.search(comment)) and "min" not in comment
            short = _SHORT_TIME.fullmatch(each.value) or (_RATHER_HOURS.fullmatch(each.value) and _is_long(script))
            shown = format_count(minutes, "minute") if minutes else f"{seconds} seconds"
            if meant or (minutes in _HOURS and seconds == "00" and minutes != 120):
                what = f"--time={each.value} is {shown}" + (f" and {seconds} seconds" if seconds != "00" else "")
                yield Problem(each, what, f"write --time={match[1]}:{seconds}:00 for hours")
            elif script.training and short:
                what, remedy = f"--time={each.value} is {shown}", f"write --time={each.value}:00 for hours and minutes"
                yield Problem(each, what, remedy)


def _is_long(script: BatchScript) -> bool:
    """Tell whether the last program is a training by its name, and nothing says that it is a short one."""
    words = [text for launch in script.training[-1:] for text in launch.program.texts[:4] if text[:2] != "--"]
    return any(map(_LONG_WORK.search, words)) and not _BRIEF.search(script.text)


@rule("KIT123", "warning")
def unlikely_memory(script: BatchScript) -> Iterator[Problem]:
    """An amount of memory that was surely not meant.

    `--mem=16` asks for 16 MiB. A Python program does not even start with so little: Slurm ends it as out of memory.
    `--mem-per-cpu=160G` with 24 CPUs asks for 3.75 TiB, which nearly no node has. No node has the 62 TiB of
    `--mem=64000G` either. Files in /dev/shm count as memory of the job: the rule compares --mem with the sizes that
    comments give for the files.

    Fix: write the unit, `--mem=16G`. `--mem=0` is all memory of the node. For the memory of the whole job on a node,
    write --mem.
    Documented: sbatch(1), --mem, --mem-per-cpu, --mem-per-gpu; cgroup.conf(5), ConstrainRAMSpace.
    """
    # CUDA alone takes some hundreds of MiB.
    least = 1000 if script.size.has_gpus else 200
    for each in script.directive_options if script.training or script.size.has_gpus else ():
        bound = 200 if each.name == "mem-per-cpu" else least
        if each.name not in {"mem", "mem-per-cpu", "mem-per-gpu"} or not (amount := _memory(each.value)):
            continue
        gpus = (script.size.gpus_per_node or 1) if each.name == "mem" else 1
        if amount < bound:
            what = f"--{each.name}={each.value} is {amount} MiB"
            yield Problem(each, what, f"write --{each.name}={each.value.rstrip('MKmk')}G")
        elif amount < bound * gpus:
            what = f"--mem={each.value} is {amount // gpus} MiB for the process of each GPU"
            yield Problem(each, what, "write the memory of the whole node", (script.line_of_gpus,))
    if not script.is_heterogeneous:
        yield from _beyond_every_node(script)
        yield from _files_in_memory(script)


_IN_MEMORY = lazy_pattern(r"\A/dev/shm/")


def _files_in_memory(script: BatchScript) -> Iterator[Problem]:
    """Find a copy to /dev/shm of files that are larger than --mem, as comments say."""
    memory, comments = script.directive("mem"), [text for _, text in script.comment_lines]
    most = _memory(memory.value) if memory is not None else None
    for step in script.batch_commands if memory is not None and most else ():
        if step.name not in {"cp", "rsync", "tar"}:
            continue
        targets = step.texts if step.name == "tar" else step.texts[-1:]
        some = any(re.match(r"--(include|exclude|files-from|filter)\b", text) for text in step.texts)
        if some or not any(map(_IN_MEMORY.match, targets)):
            continue
        names = (PurePath(text).name for text in step.texts[1:] if not re.match(_IN_MEMORY.pattern + "|-", text))
        total = sum(
            next((size for text in comments if (size := _size_of(name, text)) is not None), 0) for name in names
        )
        if memory is not None and most and total * 1024 > most:
            what = f"{step.name} puts {total:g} GiB into memory (/dev/shm), but --mem={memory.value}"
            yield Problem(step, what, "request the memory for the files, or use a local disk", (memory.line,))


_SIZE = lazy_pattern(r"(?<![\w.-])(\d+(?:\.\d+)?) ?([GT])(?:i?B)?\b")
_BETWEEN = r"[\s:=~,(|-]*(?:(?:is|are|has|takes|of|about|around|approx\.?|ca\.?)[\s~(]+){0,2}"


def _size_of(name: str, comment: str) -> float | None:
    """Return the GiB that a comment gives for a file right beside its name."""
    file, sizes = rf"(?<![\w.-]){re.escape(name)}(?![\w-])", _SIZE.findall(comment)
    beside = re.search(rf"{file}{_BETWEEN}{_SIZE.pattern}|{_SIZE.pattern}[\s:,)]*{file}", comment)
    # A comment with several sizes may speak of something else, too.
    return None if beside is None or len(sizes) != 1 else float(sizes[0][0]) * (1024 if sizes[0][1] == "T" else 1)


_MOST_MEMORY = 16 * 1024**2
_MOST_MEMORY_WITH_GPUS = 3 * 1024**2
_MOST_MEMORY_OF_CPU = 64 * 1024
"""MiB. Nodes with eight GPUs mostly have up to 2 TiB. A few nodes without GPUs have 12 TiB, and many CPUs."""


def _beyond_every_node(script: BatchScript) -> Iterator[Problem]:
    """Find a request for more memory than a node has."""
    size, partition = script.size, script.options.get("partition", "")
    if re.search(r"(?i)mem|fat|large|big|huge|himem|smp", partition + script.options.get("constraint", "")):
        return
    cpus = (size.cpus_per_task or 1) * (size.tasks_per_node or 1)
    for name, count, unit in (
        ("mem", 1, ""),
        ("mem-per-cpu", cpus, "CPUs"),
        ("mem-per-gpu", size.gpus_per_node, "GPUs"),
    ):
        each = script.directive(name)
        amount = _memory(each.value) if each is not None else None
        if each is None or amount is None or count is None:
            continue
        small = size.has_gpus or (name == "mem-per-cpu" and amount > _MOST_MEMORY_OF_CPU)
        if amount * count > (_MOST_MEMORY_WITH_GPUS if small else _MOST_MEMORY):
            total = f"{amount * count / 1024**2:.3g} TiB"
            what, remedy = f"--mem={each.value} is {total}", "write the unit that you mean"
            if unit:
                what = f"{each.value} for each of {count} {unit} is {total} on a node"
                remedy = f"write --mem={each.value} for all of them"
            lines = (script.line_of("cpus-per-task"), script.line_of("ntasks-per-node", "ntasks"))
            yield Problem(each, what, remedy, lines if name == "mem-per-cpu" else ())
            return


_GPU_MODEL = lazy_pattern(
    r"(?i)(?:gpu[-_]?)?(a(?:10|16|30|40|100|800)|v100s?|[hb](?:20|100|200|300|800)|l(?:4|40s?)|gh200|gb[23]00|mi\d{3}x?"
    r"|p(?:4|40|100)|k[48]0|t4|rtx[-_]?\w*\d\w*|titan\w*)"
)


@rule("KIT140")
def contradicting_features(script: BatchScript) -> Iterator[Problem]:
    """--constraint asks for nodes with two models of GPU.

    A comma and an `&` mean that a node must have both features. Nodes have one model of GPU, so that no node fits: the
    job is refused, or waits for ever.

    Fix: `--constraint="a100|h100"`.
    Documented: sbatch(1), --constraint.
    """
    for each in [each for each in script.directive_options if each.name == "constraint"]:
        # In brackets, the features are those of different nodes.
        for group in each.value.split("|") if not re.search(r"[\[(*]", each.value) else ():
            found = filter(None, (_GPU_MODEL.fullmatch(feature.strip()) for feature in re.split("[,&]", group)))
            models = list({match[1].lower(): match[1] for match in found}.values())
            # l40 may be the family of l40s.
            if any(not second.lower().startswith(first.lower()) for first, second in pairwise(sorted(models))):
                what = f"no node has the GPUs {' and '.join(models)} at the same time"
                yield Problem(each, what, f'write --constraint="{"|".join(models)}" for one of them')
        request = script.directive("gres") or script.directive("gpus-per-node") or script.directive("gpus")
        typed = re.fullmatch(r"(?:gpu:)?([A-Za-z][^:,]*):\d+", request.value) if request is not None else None
        pair = [_GPU_MODEL.fullmatch(text) for text in (typed[1] if typed else "", each.value)]
        names = sorted(match[1].lower() for match in pair if match)
        if request is not None and len(names) == 2 and not names[1].startswith(names[0]):
            what = f"no node has the GPUs {' and '.join(names)} at the same time"
            yield Problem(each, what, "remove the constraint, or the model of the GPUs", (request.line,), certain=False)


@rule("KIT132")
def beyond_the_cluster(script: BatchScript) -> Iterator[Problem]:
    """The job asks for more than the cluster, its partition or one of its nodes has.

    sbatch refuses it ("Requested node configuration is not available", "Invalid job array specification"), or the job
    waits for ever. The sizes are those of the cluster file, of its [partition.NAME] or else of [node]: `hpc-kit check
    --cluster NAME FILE`. A partition, account or QOS that the file does not list is a warning. Without a file, the rule
    only compares an array with Slurm's default MaxArraySize, 1001, which most sites raise or keep (a warning), and
    ignores one whose indexes are all larger.

    Fix: fewer tasks, CPUs, GPUs, memory or time, or another partition. For a long array, let each element do several
    pieces of work.
    Documented: sbatch(1), --ntasks-per-node, --cpus-per-task, --mem; slurm.conf(5), MaxArraySize; docs/cluster-keys.md.
    """
    cluster = script.site.cluster
    yield from _large_array(script, cluster)
    if cluster is None:
        return
    for part in script.components:
        options = {name: each.value for name, each in part.items()}
        size = size_of_job(options)
        node = cluster.for_partition(options.get("partition")).node
        if options.keys().isdisjoint({"clusters", "reservation"}):
            yield from _beyond_partition(script, cluster, part, size)
        if "clusters" not in options:
            yield from _unlisted(cluster, part, options)
        tasks = size.tasks_per_node or (-(-size.ntasks // size.nodes) if size.ntasks and size.nodes else 1)
        cpus = tasks * (size.cpus_per_task or 1)
        memory = _memory(options.get("mem")) or (_memory(options.get("mem-per-cpu")) or 0) * cpus
        most = _memory(str(node.mem)) if node.mem is not None else None
        for count, limit, unit, names in (
            (cpus, node.cpus, "CPUs", ("cpus-per-task", "ntasks-per-node", "ntasks")),
            (size.gpus_per_node or 0, node.gpus, "GPUs", ("gpus-per-node", "gres", "gpus-per-task", "gpus")),
            (memory, most, "MiB of memory", ("mem", "mem-per-cpu")),
        ):
            place = next((part[name] for name in names if name in part), None)
            # The embedded Slurm ignores GPUs. A partition without GPUs never starts the job.
            lacks = limit == 0 and "partition" in options and cluster.slurm != "embedded"
            if place is not None and limit is not None and count > limit and (limit or lacks):
                what = f"{count} {unit} per node, but a node has {limit or 'none'}"
                remedy = f"use at most {limit} {unit} per node" if limit else "use a partition that has some"
                yield Problem(place, what, remedy, (script.line_of("nodes"), script.line_of("partition")))


def _unlisted(cluster: Cluster, part: Mapping[str, DirectiveOption], options: Mapping[str, str]) -> Iterator[Problem]:
    """Find a partition, account or QOS that the cluster file does not list."""
    doubts = list(find_unlisted(cluster, options.get("partition"), options.get("account"), options.get("qos")))
    known = tuple(cluster.partition)
    names = options.get("partition", "").split(",") if known else []
    doubts += [("partition", name, known) for name in names if name and name not in known]
    for option, value, listed in doubts:
        near = get_close_matches(value, listed, n=1)
        what = f"--{option}={value} is not in the file of cluster '{cluster.name}'"
        remedy = f"write {near[0]}" if near else f"use one of {', '.join(listed)}; or add it to the file"
        yield Problem(part[option], what, remedy, certain=False)


def _large_array(script: BatchScript, cluster: Cluster | None) -> Iterator[Problem]:
    array, known = script.directive("array"), cluster.max_array_size if cluster is not None else None
    indexes = re.findall(r"\d{1,9}", re.sub(r"[:%]\d+", "", array.value)) if array is not None else []
    most = max(map(int, indexes), default=0)
    # Indexes such as years are chosen where the limit is larger.
    if known is None and min(map(int, indexes), default=0) >= _MAX_ARRAY_SIZE:
        return
    if array is not None and most >= (known or _MAX_ARRAY_SIZE):
        what = f"index {most}, but {'' if known else 'by default, '}MaxArraySize is {known or _MAX_ARRAY_SIZE}"
        remedy = f"keep every index below {known or _MAX_ARRAY_SIZE}: let each element do several pieces of work"
        yield Problem(array, what, remedy, certain=known is not None)


_MAX_ARRAY_SIZE = 1001
"""Slurm's default MaxArraySize."""


def _beyond_partition(
    script: BatchScript, cluster: Cluster, part: Mapping[str, DirectiveOption], size: JobSize
) -> Iterator[Problem]:
    """Find a job that its partition can never start."""
    named = part.get("partition")
    # KIT132 compares the CPUs of a node by itself.
    job = JobPart(named.value if named is not None else None, size.nodes or size.min_nodes, 1, script.time_limit)
    obstacle = find_partition_obstacle(job, partitions_of(cluster), has_qos="qos" in part)
    place = part.get("time") if obstacle is not None and "--time" in obstacle[1] else part.get("nodes", named)
    if obstacle is not None and place is not None:
        where, found, remedy = obstacle
        yield Problem(place, f"{where} never starts this job: {found}", remedy, (named.line if named else None,))


def _memory(text: str | None) -> int | None:
    """Return a size of memory in MiB."""
    try:
        return parse_memory(text) if text else None
    except HpcKitError:
        return None
