"""Rules of the launch line: how often is the program started, and does each process know which one it is?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import Script
from hpc_kit.check.launched import Launch
from hpc_kit.check.rules.base import Fault, Rule, Subject, rule
from hpc_kit.check.rules.counts import processes
from hpc_kit.check.stages import CONTAINERS, HELPERS, Stage
from hpc_kit.slurm.sizes import JobSize

_OTHER_WAYS = frozenset({"parallel", "parallel-ssh", "pssh", "horovodrun", "ray", "dask"})
_RUNS = frozenset({"exec", "run", "start"})
_RANKS = re.compile(
    r"(\w+_)?(RANK|PROCESS_(ID|INDEX)|PROC_?ID|NODE_?ID|NODE_INDEX|MACHINE_ID|LOCAL_?ID|WORKER_ID)\Z"
    r"|(CUDA|ROCR|HIP)_VISIBLE_DEVICES\Z"
)


@rule("KIT202")
def forgotten_srun(subject: Subject) -> Iterator[Fault]:
    """The job asks for several tasks, but nothing starts them.

    Slurm runs the batch script once, on the first node. A `python train.py` in it is one process, not one a task: the
    other tasks and nodes are paid for and idle. The same holds for torchrun on several nodes: without srun only the
    first node has an agent, and that one waits for the others until it gives up.

    Mend: `srun python train.py`; for torchrun, --ntasks-per-node=1 and `srun torchrun ...`. A program that uses several
    CPUs by itself asks for --cpus-per-task instead of --ntasks.
    Documented: sbatch(1), DESCRIPTION; srun(1).
    """
    script, geometry = subject.script, subject.script.geometry
    if script.heterogeneous:
        yield from _idle_components(script)
        return
    if not geometry.is_stated or not geometry.has_several_tasks or not script.readable:
        return
    if not _nothing_unknown(script):
        return
    if any(launch.multiplier for launch in script.launches):
        yield from _idle_nodes(script)
        return
    text = "\n".join("" if line.lstrip().startswith("#") else line for line in script.lines)
    # A program that is given the hosts in a file may start the others itself.
    told = re.search(r"(host|machine|node)_?file", text, re.IGNORECASE) is not None
    for launch in script.launches:
        agent = launch.agent
        if not launch.trains or (agent is not None and (agent.kind == "deepspeed" or not geometry.has_several_nodes)):
            continue
        stage = agent or launch.program
        first = stage.words[0]
        count, asked = _asked(geometry)
        yield Fault(
            first.line,
            first.column,
            f"{stage.name} is started once, on the first node; the job asks for {count}",
            f"srun {stage.name} ..."
            + (
                ", with --ntasks-per-node=1"
                if agent
                else ""
                if geometry.has_gpus
                else ", or --cpus-per-task for threads"
            ),
            tuple(script.line_of(name) for name in asked),
            # On one node the batch shell has the CPUs and GPUs of all tasks: some programs use them as they are.
            "error" if geometry.has_several_nodes and not told else "warning",
        )


def _idle_nodes(script: Script) -> Iterator[Fault]:
    """The one launch line of a job takes fewer nodes than the job has."""
    training = [launch for launch in script.launches if launch.trains]
    srun = training[0].stage("srun") if len(training) == 1 else None
    if srun is None or training[0].repeated:
        return
    nodes, job = script.geometry_of(training[0]).nodes, script.geometry.nodes
    background = any(place.statement.background for place in training[0].step.place.outward())
    if nodes is not None and job is not None and nodes < job and not background:
        first = srun.words[0]
        what = f"srun starts this on {nodes} of the job's {job} nodes: the others are idle"
        lines = (script.line_of("nodes"), training[0].step.line)
        remedy = f"srun without -N and -n, or --nodes={nodes} for the job"
        yield Fault(first.line, first.column, what, remedy, lines, "warning" if training[0].by_default else None)


def _idle_components(script: Script) -> Iterator[Fault]:
    """Of a heterogeneous job srun takes the first component, unless --het-group names others."""
    training = [launch for launch in script.launches if launch.trains]
    started = {index for launch in training for index in script.components_of(launch)}
    known = all(launch.stage("srun") and not launch.stages[0].opaque for launch in training)
    if not training or not known or started != {0} or not script.readable:
        return
    first = training[0].stages[0].words[0]
    last = len(script.parts) - 1
    what = f"srun starts this in the first component of the job alone; there are {last + 1}"
    yield Fault(first.line, first.column, what, f"srun --het-group=0-{last} ...", (script.directives.lines[0].line,))


def _nothing_unknown(script: Script) -> bool:
    """No program of the batch script may start tasks in a way that is not seen here."""
    for launch in script.launches:
        program = launch.program
        if (
            launch.stage("ssh")
            or program.name in _OTHER_WAYS
            or _hidden(program)
            or (program.kind in {"program", "shell"} and program.name not in HELPERS)
        ):
            return False
    return True


def _hidden(program: Stage) -> bool:
    """A container runs something that is not known."""
    texts = [word.text for word in program.words[1:]]
    contained = program.name in {*CONTAINERS, "docker", "enroot"} and not _RUNS.isdisjoint(texts)
    return contained and (HELPERS - _OTHER_WAYS).isdisjoint(texts)


def _asked(geometry: JobSize) -> tuple[str, tuple[str, ...]]:
    if (geometry.ntasks or 0) > 1 and geometry.ntasks != geometry.nodes:
        return f"{geometry.ntasks} tasks", ("nodes", "ntasks", "ntasks-per-node")
    return f"{geometry.min_nodes} nodes", ("nodes",)


@rule("KIT203")
def multiplied_agents(subject: Subject) -> Iterator[Fault]:
    """torchrun, accelerate or deepspeed is started once a task instead of once a node.

    Each of them starts the processes of its node itself. Under srun with several tasks a node, every task starts all
    of them again: 8 x 8 processes on 8 GPUs, out of memory or a rendezvous that never completes.

    Mend: --ntasks-per-node=1 (one agent a node); or leave torchrun out and let srun start one process a task.
    Documented: pytorch.org/docs/stable/elastic/run.html; TRI-ML/prismatic-vlms issue 39.
    """
    script = subject.script
    for launch in script.launches:
        agent, multiplier = launch.agent, launch.multiplier
        if agent is None or multiplier is None or launch.stages.index(agent) < launch.stages.index(multiplier):
            continue
        geometry = script.geometry_of(launch)
        count = processes(agent)
        if (geometry.tasks_per_node or 1) <= 1 or count == 1 or _one_agent_a_task(agent, geometry):
            continue
        each = f"{count} processes" if count else "processes of its own"
        total = f": {count * (geometry.tasks_per_node or 1)} a node" if count else ""
        first = agent.words[0]
        yield Fault(
            first.line,
            first.column,
            f"{agent.kind} starts {each}, and {multiplier.name} starts it {geometry.tasks_per_node} times a node"
            f"{total}",
            f"--ntasks-per-node=1, or {multiplier.name} python train.py without {agent.kind}",
            (script.line_of("ntasks-per-node", "ntasks", launch=launch), launch.step.line),
        )


def _one_agent_a_task(agent: Stage, geometry: JobSize) -> bool:
    """The agents were told that there is one of them for each task."""
    text = agent.option("nnodes", "num-machines")
    return text is not None and text.text.isdigit() and int(text.text) == geometry.ntasks != geometry.nodes


@rule("KIT204")
def early_expansion(subject: Subject) -> Iterator[Fault]:
    r"""A task's own number is expanded by the batch shell.

    The batch script runs once, as task 0 on node 0. `$SLURM_PROCID`, `$SLURM_NODEID` or `$SLURM_LOCALID` on a launch
    line, in double quotes, or in a variable set before, becomes 0 there, and every task gets that 0: each node is
    machine 0, each process rank 0.

    Mend: let the task expand it: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'` in single quotes, or `\$`
    within double ones; or let the program read the variable.
    Documented: srun(1), OUTPUT ENVIRONMENT VARIABLES; huggingface/accelerate issues 1645 and 2816.
    """
    script = subject.script
    for launch in script.launches:
        geometry = script.geometry_of(launch)
        if launch.multiplier is None and launch.agent is None:
            continue
        if launch.multiplier is not None and launch.multiplier.kind == "mpirun":
            geometry = script.geometry
        idle = _without_effect(launch)
        for read in launch.reads:
            if _differs(read.name, geometry) and (read.line, read.column) not in idle:
                yield _early(read.name, read.line, read.column, geometry, launch.step.line)
    yield from _early_exports(script)


def _early_exports(script: Script) -> Iterator[Fault]:
    """Exported ranks that a program would read."""
    training = [launch for launch in script.launches if launch.multiplier and launch.trains]
    multiple = [script.geometry_of(launch) for launch in training]
    agents = all(launch.agent for launch in training)
    inside = {each.name for each in script.assigned if each.task}
    for each in script.assigned:
        # An agent gives its processes ranks of their own, and takes its own from its options.
        if agents and not each.name.startswith("PET_"):
            continue
        if each.exported and not each.task and each.name not in inside and _RANKS.match(each.name):
            for read in each.value.reads:
                wide = next((geometry for geometry in multiple if _differs(read.name, geometry)), None)
                if wide is not None:
                    yield _early(read.name, read.line, read.column, wide, each.line)


def _without_effect(launch: Launch) -> set[tuple[int, int]]:
    """Places of values that the agent does not take: a later word says otherwise, or it gets its number by meeting."""
    agent = launch.agent
    if agent is None:
        return set()
    values = [*agent.overruled]
    backend = agent.option("rdzv-backend")
    number = agent.option("node-rank", "machine-rank")
    if number is not None and backend is not None and backend.text != "static":
        values.append(number)
    return {(piece.origin.line, piece.origin.column) for value in values for piece in value.pieces}


def _differs(name: str, geometry: JobSize) -> bool:
    """Whether the tasks have different values of it, as far as is known."""
    if not geometry.is_stated:
        return True
    if name == "SLURM_LOCALID":
        return (geometry.tasks_per_node or 2) > 1 and geometry.has_several_tasks
    return geometry.has_several_nodes if name == "SLURM_NODEID" else geometry.has_several_tasks


def _early(name: str, line: int, column: int, geometry: JobSize, other: int) -> Fault:
    of = "node" if name == "SLURM_NODEID" else "task"
    return Fault(
        line,
        column,
        f"${name} is expanded by the batch shell: 0 for every {of}",
        f"srun bash -c '... ${name} ...' in single quotes, so that each task expands its own",
        (other,),
        None if geometry.is_stated else "warning",
    )


RULES: tuple[Rule, ...] = (forgotten_srun, multiplied_agents, early_expansion)
