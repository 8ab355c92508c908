"""Rules of counts: nodes, tasks, GPUs and processes must agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpc_kit.check.launched import Launch
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.check.stages import Stage
from hpc_kit.slurm.directives import DirectiveOption
from hpc_kit.slurm.sizes import JobSize, count_nodes, size_of_job

_OWN_HOSTS = frozenset({"H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"})


@rule("KIT201")
def task_counts(subject: Subject) -> Iterator[Fault]:
    """--ntasks is not nodes x tasks a node.

    Where all three are given, --ntasks counts and --ntasks-per-node becomes an upper bound. More tasks than fit make
    sbatch ask for more nodes or refuse; fewer leave some nodes with fewer ranks than the others. With fewer tasks than
    nodes the job gets as many nodes as tasks, with one line about it from sbatch.

    Mend: leave one of the three out, or make them agree.
    Documented: sbatch(1), --ntasks-per-node.
    """
    for part in subject.script.parts:
        given = [part[name] for name in ("nodes", "ntasks", "ntasks-per-node") if name in part]
        yield from _fewer_than_nodes(part)
        if len(given) < 3 or not all(each.value.isdigit() for each in given):
            continue
        nodes, ntasks, per_node = (int(each.value) for each in given)
        if ntasks == nodes * per_node:
            continue
        last = max(given, key=lambda each: each.line)
        yield Fault(
            last.line,
            last.column,
            f"{nodes} nodes x {per_node} tasks = {nodes * per_node}, but --ntasks={ntasks}",
            f"--ntasks={nodes * per_node}, or leave --ntasks out",
            tuple(each.line for each in given),
            # As many as an uneven split needs: 7 tasks on 2 nodes of 4.
            "warning" if -(-ntasks // nodes) == per_node else "error",
        )


def _fewer_than_nodes(part: Mapping[str, DirectiveOption]) -> Iterator[Fault]:
    nodes, ntasks = part.get("nodes"), part.get("ntasks")
    if nodes is None or ntasks is None or not ntasks.value.isdigit() or "ntasks-per-node" in part:
        return
    least = count_nodes(nodes.value, None)[1]
    if 0 < int(ntasks.value) < least:
        what = f"{least} nodes, but --ntasks={ntasks.value}: the job gets {ntasks.value}"
        remedy = "--ntasks-per-node instead of --ntasks"
        yield Fault(ntasks.line, ntasks.column, what, remedy, (nodes.line,))


@rule("KIT117")
def too_many_hosts(subject: Subject) -> Iterator[Fault]:
    """--nodelist names more hosts than --nodes.

    All hosts of --nodelist are taken; it is no list to choose from. sbatch refuses the script ("invalid number of
    nodes").

    Mend: as many nodes as hosts; or --exclude, --constraint or a partition, to choose among others.
    Documented: sbatch(1), --nodelist.
    """
    for part in subject.script.parts:
        nodes, hosts = part.get("nodes"), part.get("nodelist")
        if nodes is None or hosts is None:
            continue
        asked, named = count_nodes(nodes.value, None), count_nodes(None, hosts.value)
        if asked[0] is not None and named[0] is not None and named[0] > asked[0]:
            what = f"{named[0]} hosts are named, and --nodes={nodes.value}: all of them are taken, or none"
            yield Fault(hosts.line, hosts.column, what, f"--nodes={named[0]}, or fewer hosts", (nodes.line,))


@rule("KIT119")
def disagreeing_gpus(subject: Subject) -> Iterator[Fault]:
    """--gpus does not agree with the GPUs of a task or node, or with how many of them there are.

    --gpus counts those of the whole job. With --gpus-per-task it says how many tasks there are, with --gpus-per-node
    how many nodes; sbatch refuses the script where --ntasks or --nodes says another number ("Failed to validate job
    spec"), or where it is fewer than one a node.

    Mend: leave --gpus out.
    Documented: sbatch(1), --gpus, --gpus-per-task; slurm.schedmd.com/gres.html.
    """
    for part in subject.script.parts:
        found = _disagreement(part)
        if found is not None:
            what, other = found
            gpus = part["gpus"]
            yield Fault(gpus.line, gpus.column, what, "leave --gpus out", (other.line if other else None,))


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
            return f"--gpus={total} is no multiple of --{name}={each}", part[name]
        if asked is not None and total // each != asked:
            return f"--gpus={total} with --{name}={each} is {total // each} {things}, and the job has {asked}", part[
                name
            ]
    if nodes is not None and total < nodes:
        return f"--gpus={total} is fewer than one on each of {nodes} nodes", part["nodes"]
    return None


def _gpus(part: Mapping[str, DirectiveOption], name: str) -> int | None:
    """The one number that an option for GPUs gives."""
    text = part[name].value.rpartition(":")[2] if name in part and "," not in part[name].value else ""
    return int(text) if text.isdigit() and int(text) else None


@rule("KIT208")
def processes_and_gpus(subject: Subject) -> Iterator[Fault]:
    """More processes a node than GPUs.

    A process without a GPU of its own ends with "invalid device ordinal", or shares one with another, which NCCL
    refuses ("Duplicate GPU detected"). With fewer processes than GPUs the others are paid for and idle (a warning).

    Mend: one process a GPU: `--nproc-per-node=$SLURM_GPUS_ON_NODE`, or --ntasks-per-node as many as --gpus-per-node.
    Documented: pytorch.org/docs/stable/elastic/run.html; slurm.schedmd.com/gres.html.
    """
    script = subject.script
    training = [launch for launch in script.launches if launch.trains and not script.is_cut(launch)]
    if len(training) != 1 or any("VISIBLE_DEVICES" in each.name for each in script.assigned):
        return
    (launch,) = training
    geometry, agent = script.geometry_of(launch), launch.agent
    gpus, processes = geometry.gpus_per_node, _processes_on_node(launch, geometry)
    if agent is not None and script.tells(agent, "nproc-per-node"):
        return
    if not gpus or processes is None or processes == gpus:
        return
    first = (agent or launch.multiplier or launch.program).words[0]
    lines = (script.line_of("gpus-per-node", "gres", "gpus-per-task", "gpus"), launch.step.line)
    count = f"{gpus} GPU{'s' * (gpus > 1)}"
    if processes > gpus:
        what = f"{processes} processes a node, and {count}: no device for the others"
        sure: Severity | None = None if agent and not launch.by_default else "warning"
        yield Fault(first.line, first.column, what, "one process a GPU", lines, sure)
    elif agent is not None:
        what = f"{processes} process{'es' * (processes > 1)} a node, and {count}: the others are idle"
        yield Fault(first.line, first.column, what, f"{gpus} processes a node, or fewer GPUs", lines, "warning")


@rule("KIT210")
def world_sizes(subject: Subject) -> Iterator[Fault]:
    """WORLD_SIZE is not the number of processes that are started.

    With `init_method="env://"` rank 0 waits until as many have come; a rank that is none of them is refused. torchrun
    and its like set it themselves. One that counts a node's GPUs may be right, where the program starts the processes.

    Mend: `export WORLD_SIZE=$SLURM_NTASKS`.
    Documented: pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
    """
    script = subject.script
    training = [launch for launch in script.launches if launch.trains]
    if len(training) != 1 or training[0].agent is not None or training[0].multiplier is None or training[0].repeated:
        return
    geometry = script.geometry_of(training[0])
    own = {(geometry.nodes or 0) * (geometry.gpus_per_node or 0), geometry.ntasks}
    for each in script.assigned:
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
            what = f"WORLD_SIZE={each.value.text}, and {training[0].multiplier.name} starts {geometry.ntasks} processes"
            lines = (script.line_of("ntasks", "ntasks-per-node", "nodes"), training[0].step.line)
            severity: Severity | None = "warning" if each.value.default else None
            yield Fault(each.line, each.column, what, "export WORLD_SIZE=$SLURM_NTASKS", lines, severity)


@rule("KIT213", "warning")
def too_many_by_mpirun(subject: Subject) -> Iterator[Fault]:
    """Mpirun is told of more processes than the job has tasks.

    Open MPI takes a job's tasks for its slots, and ends with "There are not enough slots available"; Intel MPI and
    MPICH start them all, several on the CPUs of one.

    Mend: as many tasks as processes (--ntasks, or --nodes and --ntasks-per-node); then mpirun without -n starts them.
    Documented: docs.open-mpi.org, "Launching with Slurm".
    """
    script = subject.script
    if "exclusive" in script.options and not script.options.keys() & {"ntasks", "ntasks-per-node"}:
        # Whole nodes: the site may give a task for each of their CPUs.
        return
    settings = [f"{each.name}={each.value.text}".lower() for each in script.assigned if "_MCA_" in each.name]
    for launch in script.launches:
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
            what = f"{mpirun.name} starts {named.text} processes, and the job has {tasks} task{'s' * (tasks > 1)}"
            lines = (script.line_of("ntasks", "ntasks-per-node", "nodes"), launch.step.line)
            yield Fault(named.line, named.column, what, f"#SBATCH --ntasks={named.text}", lines)


def _processes_on_node(launch: Launch, geometry: JobSize) -> int | None:
    agent = launch.agent
    if agent is None:
        return geometry.tasks_per_node if launch.multiplier and launch.program.kind == "python" else None
    if agent.opaque or ((geometry.tasks_per_node or 1) != 1 and launch.multiplier):
        return None
    if agent.kind == "torchrun" and agent.option("nproc-per-node") is None:
        return 1
    if agent.kind == "accelerate" and "num-machines" not in agent.options and geometry.has_several_nodes:
        return None
    return processes(agent)


def processes(agent: Stage) -> int | None:
    """Processes that an agent starts on its node; None: several, or not known how many."""
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


RULES: tuple[Rule, ...] = (
    task_counts,
    too_many_hosts,
    disagreeing_gpus,
    processes_and_gpus,
    world_sizes,
    too_many_by_mpirun,
)
