"""Rules for GPUs and for the network between them: visible devices, device numbers, transports, interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedAssignment
from hpc_kit.check.edits import delete_assignment
from hpc_kit.check.expansion import ExpandedText
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.check.rules.finding import Problem, rule

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_DEVICE_OPTIONS = (
    "device", "gpu", "gpu-id", "gpu-ids", "gpus", "devices", "local-rank", "device-id", "device-ids", "cuda",
)  # fmt: skip


@rule("KIT311", "warning")
def visible_devices_by_hand(script: BatchScript) -> Iterator[Problem]:
    """The script sets CUDA_VISIBLE_DEVICES.

    Slurm sets it to the GPUs of the job or task. Numbers beyond them name no GPU, or one of another job. A list with
    fewer GPUs than the job has leaves the rest idle. With one GPU per task, `CUDA_VISIBLE_DEVICES=$SLURM_LOCALID`
    leaves every task but the first without a GPU. The rule ignores a script that divides its GPUs among programs.

    Fix: remove the line. Request GPUs with --gpus-per-task or --gpus-per-node, and let the program use device
    `local_rank % torch.cuda.device_count()`.
    Documented: slurm.schedmd.com/gres.html.
    """
    for each in script.assignments_of(*_VISIBLE_DEVICES):
        text = each.value.text
        # Empty hides all GPUs on purpose; itself, or Slurm's own list, changes nothing.
        if not text or "VISIBLE_DEVICES" in text or "SLURM_JOB_GPUS" in text or "SLURM_STEP_GPUS" in text:
            continue
        bound = script.options.keys() & {"gpus-per-task", "gpu-bind", "tres-bind"}
        certain = each.in_task and "SLURM_LOCALID" in text and "gpus-per-task" in bound and len(bound) == 1
        gpus, numbers = script.size.gpus_per_node, _numbers_of(each)
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


def _numbers_of(each: TracedAssignment) -> set[int]:
    """Return the numbers that an assignment gives, also those of a loop over numbers; an empty set if unknown."""
    text, name = each.value.text, each.value.variable
    around = [place.compound for place in each.position.outward() if place.compound] if each.position else []
    loop = next((compound for compound in around if compound.kind == "for" and compound.name == name), None)
    if loop is not None:
        text = ",".join(_loop_words(loop.words))
    return set(map(int, text.split(","))) if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text) else set()


def _loop_words(words: tuple[str, ...]) -> Iterator[str]:
    """Yield the words of a `for` loop; ranges such as `{0..3}` and `$(seq 0 3)` one by one."""
    for word in words:
        span = re.fullmatch(r"\{(\d{1,3})\.\.(\d{1,3})\}|\$\(\s*seq\s+(?:(\d{1,3})\s+)?(\d{1,3})\s*\)", word)
        if span is None:
            yield word
        else:
            yield from map(str, range(int(span[1] or span[3] or 1), int(span[2] or span[4]) + 1))


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
    consecutive ranks run on different nodes, and SLURM_PROCID % 4 is no local rank.

    Fix: `cuda:0` with --gpus-per-task=1; the local rank with --gpus-per-node.
    Documented: slurm.schedmd.com/gres.html; pytorch.org/docs/stable/generated/torch.cuda.set_device.html.
    """
    for launch in script.training:
        if _has_several_tasks(script, launch):
            yield from _wrong_local_rank(script, launch)
        yield from _wrong_number(script, launch)


def _has_several_tasks(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether several tasks may run on one node."""
    size = script.size_of(launch)
    return (size.tasks_per_node or size.ntasks or 1) > 1


def _options_of(script: BatchScript, launch: LaunchLine) -> dict[str, str]:
    """Return the options of the job, and those of the launch line's own srun, which have priority."""
    srun = launch.stage("srun")
    return {**script.options, **({name: text.text for name, text in srun.options.items()} if srun else {})}


def _sees_one_gpu(script: BatchScript, options: Mapping[str, str]) -> bool:
    """Tell whether each task sees a single GPU, which then has the number 0."""
    one_each = options.get("gpus-per-task", "").rpartition(":")[2] == "1"
    return (
        (one_each and options.keys().isdisjoint({"gpu-bind", "tres-bind"}))
        or options.get("gpu-bind", "").startswith(("single:1", "per_task:1"))
        or any(map(_shows_one_device, script.assignments_of(*_VISIBLE_DEVICES)))
    )


def _wrong_local_rank(script: BatchScript, launch: LaunchLine) -> Iterator[Problem]:
    """Find a GPU that is chosen by the rank of the task, where that rank does not number the visible GPUs."""
    size, options = script.size_of(launch), _options_of(script, launch)
    sees_one = _sees_one_gpu(script, options)
    device, lines = launch.argument(*_DEVICE_OPTIONS), (script.line_of("gpus-per-task"), launch.line)
    local_rank = next((each.value for each in script.assignments_of("LOCAL_RANK") if each.in_task), None)
    rank = next((each for each in (device, local_rank) if each and _RANK_OF_JOB.search(each.text)), None)
    if rank is not None and size.has_several_nodes:
        what = "SLURM_PROCID counts the tasks of all nodes: beyond the first node, there is no such GPU"
        yield Problem(rank, what, "write $SLURM_LOCALID", (script.line_of("nodes"), launch.line))
    elif device is not None and "SLURM_LOCALID" in device.text and sees_one:
        what = "each task sees one GPU, which has the number 0"
        yield Problem(device, what, "write cuda:0, or use --gpus-per-node", lines)
    elif local_rank is not None and size.has_several_nodes and _is_interleaved(options, local_rank):
        what = f"--distribution={options['distribution']} deals the ranks out over the nodes: ranks share a GPU"
        yield Problem(local_rank, what, "write $SLURM_LOCALID", (script.line_of("distribution"), launch.line))
    elif local_rank is not None and sees_one and local_rank.variable == "SLURM_LOCALID":
        what = "LOCAL_RANK is the number of a GPU for most programs, but each task sees one GPU, number 0"
        remedy = "let each task see all GPUs (--gpus-per-node), or let the program reduce the local rank"
        yield Problem(local_rank, what, remedy, lines, certain=False)


def _wrong_number(script: BatchScript, launch: LaunchLine) -> Iterator[Problem]:
    """Find a GPU that is named by a number: one that the node does not have, or one that all tasks of a node use."""
    size, device = script.size_of(launch), launch.argument(*_DEVICE_OPTIONS)
    match = re.fullmatch(r"(?:cuda:)?(\d{1,6}(?:,\d{1,6})*)", device.text) if device is not None else None
    if device is None or match is None or device.has_default:
        return
    numbers = [int(each) for each in match[1].split(",")]
    # `--gpus 4` is a count for most programs, not the number of a GPU.
    is_count = launch.argument("gpus", "devices") is not None and len(numbers) == 1
    if is_count:
        return
    if size.gpus_per_node and max(numbers) >= size.gpus_per_node:
        what = f"there is no GPU {max(numbers)}: the node has {size.gpus_per_node}, from 0"
        yield Problem(device, what, "use the numbers of the GPUs that the job has", (launch.line,))
        return
    options, names_gpu = _options_of(script, launch), device.text.startswith("cuda:") or launch.argument("local-rank")
    if len(numbers) > 1 or not names_gpu or not _has_several_tasks(script, launch):
        return
    if launch.multiplier is None or launch.agent or _sees_one_gpu(script, options) or "gpus-per-task" in options:
        return
    what = f"all {size.tasks_per_node} tasks of a node use GPU {numbers[0]}"
    lines = (script.line_of("ntasks-per-node"), launch.line)
    yield Problem(device, what, "use the local rank, SLURM_LOCALID", lines)


def _is_interleaved(options: Mapping[str, str], local: ExpandedText) -> bool:
    """Tell whether a local rank is a remainder of the rank, but consecutive ranks run on different nodes."""
    cyclic = options.get("distribution", "").startswith("cyclic")
    return cyclic and re.search(r"SLURM_PROCID\}?\s*%", local.text) is not None


def _shows_one_device(each: TracedAssignment) -> bool:
    """Tell whether a task hides all GPUs but its own."""
    return each.in_task and each.value.variable == "SLURM_LOCALID"


_RANK_OF_JOB = re.compile(r"\$\{?SLURM_PROCID\}?\Z")

_TRANSPORTS = {
    "NCCL_P2P_DISABLE": "GPUs of a node exchange data through the memory of the host",
    "NCCL_SHM_DISABLE": "processes of a node exchange data over the network",
    "NCCL_IB_DISABLE": "nodes exchange data over TCP instead of InfiniBand or RoCE",
}
_GLOO = "gloo sends the gradients of the GPUs through the memory of the host"


@rule("KIT315", "warning")
def disabled_transports(script: BatchScript) -> Iterator[Problem]:
    """NCCL's fast transports are switched off.

    These settings help to find the cause of a hang. Left in the script, they make every all-reduce slower, often five
    times. `--backend gloo` sends the gradients of GPUs through the memory of the host. The rule is silent if a comment
    at the line gives a reason.

    Fix: remove the line; or keep it, with the reason as a comment. `--backend nccl` for GPUs.
    Documented: NCCL documentation, "Environment Variables"; pytorch.org/docs/stable/distributed.html, "Which backend to
    use?".
    """
    size = script.size
    for each in script.assignments if size.has_gpus and script.training else ():
        if each.name.endswith("BACKEND") and each.value.text == "gloo" and not script.has_comment(each.line):
            yield Problem(each.value, _GLOO, "write nccl")
    for launch in script.training if size.has_gpus else ():
        backend = launch.argument("backend", "dist-backend", "ddp-backend", "distributed-backend")
        on_cpus = any(re.search(r"\bcpu\b", text) for text in launch.program.texts)
        if backend is not None and backend.text == "gloo" and not on_cpus and not script.has_comment(launch.line):
            yield Problem(backend, _GLOO, "write nccl", (launch.line,))
    for each in script.assignments_of(*_TRANSPORTS):
        if each.value.text != "1" or each.value.has_default or script.has_comment(each.line):
            continue
        if each.name == "NCCL_IB_DISABLE" and not size.has_several_nodes:
            continue
        what, edits = f"{each.name}=1: {_TRANSPORTS[each.name]}", delete_assignment(script.lines, each.line, each.name)
        yield Problem(each.value, what, "remove it, or write the reason as a comment", edits=edits)


_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@rule("KIT316", "warning")
def guessed_interface(script: BatchScript) -> Iterator[Problem]:
    """The name of a network interface that many nodes do not have.

    Cluster nodes call their interfaces ib0, hsn0, bond0 or ens1f0np0. `eth0` and `eno1` come from examples; docker0
    connects containers of one host. A wrong name ends NCCL with "no socket interface found"; Gloo with "Unable to find
    address". The rule is silent if a comment at the line gives a reason.

    Fix: remove the line: NCCL and Gloo find the interface themselves. Or exclude some:
    `NCCL_SOCKET_IFNAME=^lo,docker0`.
    Documented: NCCL documentation, NCCL_SOCKET_IFNAME; pytorch.org/docs/stable/distributed.html, GLOO_SOCKET_IFNAME.
    """
    for each in script.assignments_of(*_INTERFACES, "TP_SOCKET_IFNAME"):
        if each.value.has_default:
            continue
        # `^lo,docker0` excludes both.
        names = each.value.text.lstrip("=").split(",") if not each.value.text.startswith("^") else []
        guess = next((name for name in names if re.fullmatch(r"eth\d?|en0|eno1|wlan\d|docker\d|virbr\d", name)), None)
        if guess is not None and script.size.has_several_nodes and not script.has_comment(each.line):
            what = f"{guess} is a guess: few cluster nodes have an interface of this name between nodes"
            yield Problem(each.value, what, "remove it, or name the interface that `ip -br addr` shows on a node")


@rule("KIT309")
def loopback_interface(script: BatchScript) -> Iterator[Problem]:
    """NCCL or Gloo uses the loopback interface, and the job has several nodes.

    `lo` connects the processes of one node only. Ranks of other nodes time out, or connect to themselves. The virtual
    nodes of the embedded Slurm are one host: the rule is silent if the cluster file says slurm = "embedded".

    Fix: remove the line, or name the interface of the cluster's network (`ip -br addr` on a node).
    Documented: NCCL documentation, NCCL_SOCKET_IFNAME; pytorch.org/docs/stable/distributed.html, GLOO_SOCKET_IFNAME.
    """
    wide = any(script.size_of(launch).has_several_nodes for launch in script.training)
    cluster = script.site.cluster
    one_host = cluster is not None and cluster.slurm == "embedded"
    for each in script.assignments_of(*_INTERFACES) if wide and not one_host else ():
        # Without a cluster file, a job without GPUs may be for the embedded Slurm.
        read = each.name.startswith("NCCL") or script.size.has_gpus
        if read and each.value.text.lstrip("=") == "lo":
            what, remedy = f"{each.name}=lo reaches no other node", "remove it, or name an interface of the network"
            yield Problem(
                each.value,
                what,
                remedy,
                (script.line_of("nodes"),),
                edits=delete_assignment(script.lines, each.line, each.name),
            )
