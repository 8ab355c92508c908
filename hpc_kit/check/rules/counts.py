"""Rules for counts: nodes, tasks, GPUs and processes must agree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage, is_known_program
from hpc_kit.check.rules.finding import RuleFinding, RuleInput, Severity, rule
from hpc_kit.slurm.directives import DirectiveOption, suggest_fix
from hpc_kit.slurm.sizes import JobSize, count_nodes, size_of_job
from hpc_kit.slurm.versions import CPUS_NOT_HANDED_ON

_OWN_HOSTS = frozenset({"H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"})


@rule("KIT201")
def contradicting_task_counts(subject: RuleInput) -> Iterator[RuleFinding]:
    """--ntasks is not nodes x tasks per node.

    If all three are given, Slurm uses --ntasks, and --ntasks-per-node becomes an upper bound. With more tasks than fit,
    sbatch adds nodes or refuses the job. With fewer, some nodes get fewer ranks. With fewer tasks than nodes, the job
    gets only as many nodes as tasks, and sbatch prints one line about it.

    Fix: remove one of the three, or make them agree.
    Documented: sbatch(1), --ntasks-per-node.
    """
    for part in subject.script.components:
        given = [part[name] for name in ("nodes", "ntasks", "ntasks-per-node") if name in part]
        yield from _fewer_than_nodes(part)
        if len(given) < 3 or not all(each.value.isdigit() for each in given):
            continue
        nodes, ntasks, per_node = (int(each.value) for each in given)
        if ntasks == nodes * per_node:
            continue
        last = max(given, key=lambda each: each.line)
        yield RuleFinding(
            last.line,
            last.column,
            f"{nodes} nodes x {per_node} tasks = {nodes * per_node}, but --ntasks={ntasks}",
            f"use --ntasks={nodes * per_node}, or remove --ntasks",
            tuple(each.line for each in given),
            # As many as an uneven split needs: 7 tasks on 2 nodes of 4.
            "warning" if -(-ntasks // nodes) == per_node else "error",
        )


def _fewer_than_nodes(part: Mapping[str, DirectiveOption]) -> Iterator[RuleFinding]:
    nodes, ntasks = part.get("nodes"), part.get("ntasks")
    if nodes is None or ntasks is None or not ntasks.value.isdigit() or "ntasks-per-node" in part:
        return
    least = count_nodes(nodes.value, None)[1]
    if 0 < int(ntasks.value) < least:
        what = f"{least} nodes, but --ntasks={ntasks.value}: the job gets only {ntasks.value}"
        remedy = "use --ntasks-per-node instead of --ntasks"
        yield RuleFinding(ntasks.line, ntasks.column, what, remedy, (nodes.line,))


@rule("KIT117")
def too_many_hosts(subject: RuleInput) -> Iterator[RuleFinding]:
    """--nodelist names more hosts than --nodes.

    Slurm allocates all hosts of --nodelist; the list is not a choice. sbatch refuses the script ("invalid number of
    nodes").

    Fix: request as many nodes as hosts. To choose among hosts, use --exclude, --constraint or a partition.
    Documented: sbatch(1), --nodelist.
    """
    for part in subject.script.components:
        nodes, hosts = part.get("nodes"), part.get("nodelist")
        if nodes is None or hosts is None:
            continue
        asked, named = count_nodes(nodes.value, None), count_nodes(None, hosts.value)
        if asked[0] is not None and named[0] is not None and named[0] > asked[0]:
            what = (
                f"--nodelist names {named[0]} hosts, but --nodes={nodes.value}: Slurm allocates all named hosts or none"
            )
            yield RuleFinding(
                hosts.line, hosts.column, what, f"use --nodes={named[0]}, or name fewer hosts", (nodes.line,)
            )


@rule("KIT119")
def contradicting_gpu_counts(subject: RuleInput) -> Iterator[RuleFinding]:
    """--gpus contradicts the GPUs per task or per node.

    --gpus counts the GPUs of the whole job. With --gpus-per-task it implies the number of tasks, with --gpus-per-node
    the number of nodes. sbatch refuses the script if --ntasks or --nodes gives another number ("Failed to validate job
    spec"), or if --gpus is less than one per node.

    Fix: remove --gpus.
    Documented: sbatch(1), --gpus, --gpus-per-task; slurm.schedmd.com/gres.html.
    """
    for part in subject.script.components:
        found = _disagreement(part)
        if found is not None:
            what, other = found
            gpus = part["gpus"]
            yield RuleFinding(gpus.line, gpus.column, what, "remove --gpus", (other.line if other else None,))


def _disagreement(part: Mapping[str, DirectiveOption]) -> tuple[str, DirectiveOption | None] | None:
    total = _gpus(part, "gpus")
    if total is None:
        return None
    job = size_of_job({name: each.value for name, each in part.items()})
    nodes, tasks = job.nodes if "nodes" in part else None, job.ntasks if job.is_stated else None
    for name, asked, things in (("gpus-per-task", tasks, "tasks"), ("gpus-per-node", nodes, "nodes")):
        each = _gpus(part, name)
        if each is None:
            continue
        if total % each:
            return f"--gpus={total} is not a multiple of --{name}={each}", part[name]
        if asked is not None and total // each != asked:
            return f"--gpus={total} with --{name}={each} is {total // each} {things}, but the job has {asked}", part[
                name
            ]
    if nodes is not None and total < nodes:
        return f"--gpus={total} is fewer than one on each of {nodes} nodes", part["nodes"]
    return None


def _gpus(part: Mapping[str, DirectiveOption], name: str) -> int | None:
    """Return the number that an option for GPUs gives; None if it gives several types."""
    text = part[name].value.rpartition(":")[2] if name in part and "," not in part[name].value else ""
    return int(text) if text.isdigit() and int(text) else None


@rule("KIT208")
def more_processes_than_gpus(subject: RuleInput) -> Iterator[RuleFinding]:
    """More processes per node than GPUs.

    A process without a GPU fails with "invalid device ordinal", or shares a GPU, which NCCL refuses ("Duplicate GPU
    detected"). With fewer processes than GPUs, some GPUs are idle (a warning).

    Fix: start one process per GPU: `--nproc-per-node=$SLURM_GPUS_ON_NODE`, or --ntasks-per-node equal to
    --gpus-per-node.
    Documented: pytorch.org/docs/stable/elastic/run.html; slurm.schedmd.com/gres.html.
    """
    script = subject.script
    training = [launch for launch in script.launch_lines if launch.is_training and not script.is_cut_short(launch)]
    if len(training) != 1 or any("VISIBLE_DEVICES" in each.name for each in script.assignments):
        return
    (launch,) = training
    geometry, agent = script.geometry_of(launch), launch.agent
    gpus, processes = geometry.gpus_per_node, _processes_on_node(launch, geometry)
    if agent is not None and script.sets_torchrun_option(agent, "nproc-per-node"):
        return
    if not gpus or processes is None or processes == gpus:
        return
    first = (agent or launch.multiplier or launch.program).words[0]
    lines = (script.line_of("gpus-per-node", "gres", "gpus-per-task", "gpus"), launch.command.line)
    count = f"{gpus} GPU{'s' * (gpus > 1)}"
    if processes > gpus:
        what = f"{processes} processes per node, but {count}: some processes have no device"
        sure: Severity | None = None if agent and not launch.has_default_count else "warning"
        yield RuleFinding(first.line, first.column, what, "start one process per GPU", lines, sure)
    elif agent is not None:
        what = f"{processes} process{'es' * (processes > 1)} per node, but {count}: the remaining GPUs are idle"
        yield RuleFinding(
            first.line, first.column, what, f"start {gpus} processes per node, or request fewer GPUs", lines, "warning"
        )


@rule("KIT210")
def wrong_world_size(subject: RuleInput) -> Iterator[RuleFinding]:
    """WORLD_SIZE is not the number of started processes.

    With `init_method="env://"`, rank 0 waits for WORLD_SIZE processes and refuses a rank beyond them. torchrun and
    similar launchers set the variable themselves. A value that counts GPUs may be right if the program starts
    processes.

    Fix: `export WORLD_SIZE=$SLURM_NTASKS`.
    Documented: pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
    """
    script = subject.script
    training = [launch for launch in script.launch_lines if launch.is_training]
    if len(training) != 1 or training[0].agent is not None or training[0].multiplier is None or training[0].in_loop:
        return
    geometry = script.geometry_of(training[0])
    own = {(geometry.nodes or 0) * (geometry.gpus_per_node or 0), geometry.ntasks}
    for each in script.assignments:
        if (
            each.name != "WORLD_SIZE"
            or not each.value.text.isdigit()
            or geometry.ntasks is None
            or not geometry.is_stated
        ):
            continue
        size = int(each.value.text)
        # The program may start the processes of its node, and be given all GPUs of it without asking.
        spawns = (
            geometry.gpus_per_node is None and geometry.tasks_per_node == 1 and size and size % geometry.ntasks == 0
        )
        if size not in own and not spawns:
            what = f"WORLD_SIZE={each.value.text}, but {training[0].multiplier.name} starts {geometry.ntasks} processes"
            lines = (script.line_of("ntasks", "ntasks-per-node", "nodes"), training[0].command.line)
            severity: Severity | None = "warning" if each.value.has_default else None
            yield RuleFinding(each.line, each.column, what, "write export WORLD_SIZE=$SLURM_NTASKS", lines, severity)


@rule("KIT213", "warning")
def too_many_by_mpirun(subject: RuleInput) -> Iterator[RuleFinding]:
    """More processes under mpirun than the job has tasks.

    Open MPI treats the tasks of a job as its slots and ends with "There are not enough slots available". Intel MPI and
    MPICH start all processes, several on the CPUs of one task.

    Fix: request as many tasks as processes (--ntasks, or --nodes and --ntasks-per-node); mpirun needs no -n then.
    Documented: docs.open-mpi.org, "Launching with Slurm".
    """
    script = subject.script
    if "exclusive" in script.options and not script.options.keys() & {"ntasks", "ntasks-per-node"}:
        # Whole nodes: the site may give a task for each of their CPUs.
        return
    settings = [f"{each.name}={each.value.text}".lower() for each in script.assignments if "_MCA_" in each.name]
    for launch in script.launch_lines:
        mpirun, tasks = launch.stage("mpirun"), script.geometry.ntasks
        named = mpirun.option("n", "np", "c") if mpirun is not None else None
        if (
            mpirun is None
            or named is None
            or not named.text.isdigit()
            or tasks is None
            or not script.geometry.is_stated
        ):
            continue
        if launch.stage("ssh"):
            continue
        told = " ".join([*(word.text.lower() for word in mpirun.words), *settings])
        if int(named.text) > tasks and "oversubscribe" not in told and not mpirun.options.keys() & _OWN_HOSTS:
            what = f"{mpirun.name} starts {named.text} processes, but the job has {tasks} task{'s' * (tasks > 1)}"
            lines = (script.line_of("ntasks", "ntasks-per-node", "nodes"), launch.command.line)
            yield RuleFinding(named.line, named.column, what, f"write #SBATCH --ntasks={named.text}", lines)


def _processes_on_node(launch: LaunchLine, geometry: JobSize) -> int | None:
    agent = launch.agent
    if agent is None:
        return geometry.tasks_per_node if launch.multiplier and launch.program.kind == "python" else None
    if agent.may_hide_options or ((geometry.tasks_per_node or 1) != 1 and launch.multiplier):
        return None
    if agent.kind == "torchrun" and agent.option("nproc-per-node") is None:
        return 1
    if agent.kind == "accelerate" and "num-machines" not in agent.options and geometry.has_several_nodes:
        return None
    return count_processes(agent)


def count_processes(agent: LaunchStage) -> int | None:
    """Return the number of processes that an agent starts on its node; None if it is unknown."""
    if agent.kind == "torchrun":
        text = agent.option("nproc-per-node")
        if text is None:
            return 1
        return int(text.text) if text.text.isdigit() else None
    text, machines = agent.option("num-processes", "num-gpus"), agent.option("num-machines")
    in_file = machines is None and "config-file" in agent.options
    if text is None or not text.text.isdigit() or in_file:
        return None
    nodes = int(machines.text) if machines and machines.text.isdigit() else 1
    return max(1, int(text.text) // max(1, nodes)) if agent.kind == "accelerate" else int(text.text)


@rule("KIT205", "warning")
def step_without_cpus(subject: RuleInput) -> Iterator[RuleFinding]:
    """A launch line without --cpus-per-task in a job that requests several CPUs per task.

    In Slurm 22.05 and 23.02, srun no longer inherits --cpus-per-task from the job. Every task gets one CPU, which its
    data loaders and threads share. Slurm prints no message.

    Fix: repeat the option on the srun line: `srun --cpus-per-task=$SLURM_CPUS_PER_TASK ...`.
    Documented: Slurm release notes 22.05; srun(1), --cpus-per-task.
    """
    script = subject.script
    if CPUS_NOT_HANDED_ON.holds(subject.version) is False:
        return
    if any(each.name == "SRUN_CPUS_PER_TASK" for each in script.assignments):
        return
    for launch in script.launch_lines:
        srun = launch.stage("srun")
        if srun is None or srun.may_hide_options or srun.error or not launch.is_training:
            continue
        given = [script.components[index].get("cpus-per-task") for index in script.components_of(launch)]
        asked = next((each for each in given if each and each.value.isdigit() and int(each.value) > 1), None)
        if asked is not None and not srun.options.keys() & {"cpus-per-task", "cpus-per-gpu"}:
            first, cpus = srun.words[0], asked.value
            yield RuleFinding(
                first.line,
                first.column,
                f"--cpus-per-task={cpus} does not reach this step on Slurm {CPUS_NOT_HANDED_ON.releases}:"
                " each task gets one CPU",
                f"write srun --cpus-per-task={cpus} ...",
                (asked.line,),
            )


def _may_hide_options(srun: LaunchStage) -> bool:
    """Tell whether a variable before the program may contain options, or the value of the option before it."""
    for word in srun.words[1:]:
        if is_known_program(word):
            return False
        if word.is_unknown or "$" in word.text.partition("=")[0]:
            return True
    return False


@rule("KIT206")
def refused_srun_options(subject: RuleInput) -> Iterator[RuleFinding]:
    """A launch line with an option that srun does not accept.

    The job waits in the queue, starts, and fails immediately with "unrecognized option". An option that resembles no
    option of srun is only a warning: it may belong to a plugin of the site.

    Fix: follow the message. Put options of the program after the program.
    Documented: srun(1), OPTIONS.
    """
    for launch in subject.script.launch_lines:
        srun = launch.stage("srun")
        if srun is None or srun.error is None or _may_hide_options(srun):
            continue
        first, fault = srun.words[0], srun.error
        remedy, certain = suggest_fix(fault, "srun")
        severity: Severity | None = None if certain else "warning"
        yield RuleFinding(first.line, first.column, fault.what, remedy, (launch.command.line,), severity, fault.found)


def _unset(script: BatchScript) -> bool:
    """Tell whether the script itself sets or unsets SLURM_GPUS."""
    unset = [word.text for step in script.commands if step.name == "unset" for word in step.words]
    return "SLURM_GPUS" in unset or any(each.name == "SLURM_GPUS" for each in script.assignments)


@rule("KIT211")
def step_inherits_all_gpus(subject: RuleInput) -> Iterator[RuleFinding]:
    """A step on fewer nodes inherits --gpus of the whole job.

    srun inherits --gpus of the job. One node of several has fewer GPUs, so that the step ends with "Invalid generic
    resource (gres) specification", even if it only looks up the address of a host.

    Fix: `srun --gpus=0 --nodes=1 ...` for a step without GPUs; or --gpus-per-node for the job, which fits any step.
    Documented: srun(1), INPUT ENVIRONMENT VARIABLES, SLURM_GPUS; seen with Slurm 22.05.
    """
    script = subject.script
    nodes = script.geometry.nodes
    if "gpus" not in script.options or nodes is None or nodes < 2 or _unset(script):
        return
    places = []
    for launch in script.launch_lines:
        srun = launch.stage("srun")
        taken = script.geometry_of(launch).nodes if srun is not None and not srun.may_hide_options else None
        if srun is not None and taken is not None and taken < nodes and "gpus" not in srun.options:
            places.append((srun.words[0].line, srun.words[0].column))
    for step in script.commands:
        values = [*step.syntax.words, *(assignment.value for assignment in step.syntax.assignments)]
        for part in [part for word in values for part in word.parts if part.kind == "command" and not step.in_task]:
            line = re.match(r"\s*srun\s[^|;&]*", part.text)
            if (
                line
                and re.search(r"\s(-N\s*1|--nodes[= ]1)\s", line[0])
                and not re.search(r"\s(-G|--gpus[= ])", line[0])
            ):
                places.append((part.origin.line, part.origin.column))
    for place in places:
        what = f"this step inherits --gpus={script.options['gpus']} of the job, but one node has fewer GPUs"
        yield RuleFinding(
            *place, what, "add --gpus=... to this srun, or use --gpus-per-node for the job", (script.line_of("gpus"),)
        )
