"""Rules of the launch line: how often is the program started, and does each process know which one it is?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.script.directive_lines import mending
from hpc_kit.script.geometry import Geometry
from hpc_kit.script.reader import Script
from hpc_kit.script.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.script.stages import HELPERS, Stage
from hpc_kit.slurm.versions import CPUS_NOT_HANDED_ON

_OTHER_WAYS = frozenset({"ssh", "pdsh", "clush", "parallel", "horovodrun", "ray", "dask", "ibrun", "aprun", "jsrun"})
_RANKS = re.compile(r"(\w+_)?(RANK|PROCESS_ID|PROCID|NODE_ID|NODEID|MACHINE_ID|LOCALID)\Z")


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
    if not geometry.said or not geometry.several_tasks or script.heterogeneous or script.unread:
        return
    if any(launch.multiplier for launch in script.launches) or not _nothing_unknown(script):
        return
    for launch in script.launches:
        agent = launch.agent
        if not launch.trains or (agent is not None and (agent.kind == "deepspeed" or not geometry.several_nodes)):
            continue
        stage = agent or launch.program
        first = stage.words[0]
        count, asked = _asked(geometry)
        yield Fault(
            first.line,
            first.column,
            f"{stage.name} is started once, on the first node; the job asks for {count}",
            f"srun {stage.name} ..."
            + (", with --ntasks-per-node=1" if agent else "" if geometry.gpus else ", or --cpus-per-task for threads"),
            tuple(script.line_of(name) for name in asked),
            # On one node the batch shell has the CPUs and GPUs of all tasks: some programs use them as they are.
            "error" if geometry.several_nodes else "warning",
        )


def _nothing_unknown(script: Script) -> bool:
    """No program of the batch script may start tasks in a way that is not seen here."""
    for launch in script.launches:
        program = launch.program
        if program.name in _OTHER_WAYS or (program.kind in {"program", "shell"} and program.name not in HELPERS):
            return False
    return True


def _asked(geometry: Geometry) -> tuple[str, tuple[str, ...]]:
    if (geometry.ntasks or 0) > 1 and geometry.ntasks != geometry.nodes:
        return f"{geometry.ntasks} tasks", ("nodes", "ntasks", "ntasks-per-node")
    return f"{geometry.least_nodes} nodes", ("nodes",)


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
        processes = _processes(agent)
        if (geometry.per_node or 1) <= 1 or processes == 1 or _one_agent_a_task(agent, geometry):
            continue
        each = f"{processes} processes" if processes else "processes of its own"
        total = f": {processes * (geometry.per_node or 1)} a node" if processes else ""
        first = agent.words[0]
        yield Fault(
            first.line,
            first.column,
            f"{agent.kind} starts {each}, and {multiplier.name} starts it {geometry.per_node} times a node{total}",
            f"--ntasks-per-node=1, or {multiplier.name} python train.py without {agent.kind}",
            (script.line_of("ntasks-per-node", "ntasks"), launch.step.line),
        )


def _processes(agent: Stage) -> int | None:
    """Processes that an agent starts on its node; None: several, or not known how many."""
    if agent.kind == "torchrun":
        text = agent.option("nproc-per-node")
        if text is None:
            return 1
        return int(text.text) if text.text.isdigit() else None
    text, machines = agent.option("num-processes", "num-gpus"), agent.option("num-machines")
    if text is None or not text.text.isdigit():
        return None
    nodes = int(machines.text) if machines and machines.text.isdigit() else 1
    return max(1, int(text.text) // max(1, nodes)) if agent.kind == "accelerate" else int(text.text)


def _one_agent_a_task(agent: Stage, geometry: Geometry) -> bool:
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
        for read in [read for word in launch.step.words for read in word.reads]:
            if _differs(read.name, geometry):
                yield _early(read.name, read.line, read.column, geometry, launch.step.line)
    multiple = [script.geometry_of(launch) for launch in script.launches if launch.multiplier]
    inside = {each.name for each in script.assigned if each.task}
    for each in script.assigned:
        if each.exported and not each.task and each.name not in inside and _RANKS.match(each.name):
            for read in each.value.reads:
                wide = next((geometry for geometry in multiple if _differs(read.name, geometry)), None)
                if wide is not None:
                    yield _early(read.name, read.line, read.column, wide, each.line)


def _differs(name: str, geometry: Geometry) -> bool:
    """Whether the tasks have different values of it, as far as is known."""
    if not geometry.said:
        return True
    if name == "SLURM_LOCALID":
        return (geometry.per_node or 2) > 1 and geometry.several_tasks
    return geometry.several_nodes if name == "SLURM_NODEID" else geometry.several_tasks


def _early(name: str, line: int, column: int, geometry: Geometry, other: int) -> Fault:
    of = "node" if name == "SLURM_NODEID" else "task"
    return Fault(
        line,
        column,
        f"${name} is expanded by the batch shell: 0 for every {of}",
        f"srun bash -c '... ${name} ...' in single quotes, so that each task expands its own",
        (other,),
        None if geometry.said else "warning",
    )


@rule("KIT205", "warning")
def lost_cpus(subject: Subject) -> Iterator[Fault]:
    """A launch line without --cpus-per-task, in a job that asks for several.

    In Slurm 22.05 and 23.02, srun no longer takes the job's --cpus-per-task along: every step falls to one CPU a
    task, and data loaders and threads share it. No message tells.

    Mend: say it on the srun line: `srun --cpus-per-task=$SLURM_CPUS_PER_TASK ...`.
    Documented: Slurm release notes 22.05; srun(1), --cpus-per-task.
    """
    script = subject.script
    cpus = script.options.get("cpus-per-task", "")
    if CPUS_NOT_HANDED_ON.holds(subject.version) is False:
        return
    if not cpus.isdigit() or int(cpus) < 2 or any(each.name == "SRUN_CPUS_PER_TASK" for each in script.assigned):
        return
    for launch in script.launches:
        srun = launch.stage("srun")
        if srun is None or srun.opaque or srun.fault or not launch.trains:
            continue
        if not srun.options.keys() & {"cpus-per-task", "cpus-per-gpu"}:
            first = srun.words[0]
            yield Fault(
                first.line,
                first.column,
                f"--cpus-per-task={cpus} does not reach this step on Slurm {CPUS_NOT_HANDED_ON.span}: one CPU a task",
                f"srun --cpus-per-task={cpus} ...",
                (script.line_of("cpus-per-task"),),
            )


@rule("KIT206")
def srun_options(subject: Subject) -> Iterator[Fault]:
    """A launch line with an option that srun does not take.

    The job waits in the queue, starts, and ends at once with srun's "unrecognized option". An option that resembles
    none of srun's is a warning only: it may belong to a plugin of the site.

    Mend: as the message says. Options of the program stand behind the program.
    Documented: srun(1), OPTIONS.
    """
    for launch in subject.script.launches:
        srun = launch.stage("srun")
        if srun is None or srun.fault is None or any(not word.known for word in srun.words):
            continue
        first, fault = srun.words[0], srun.fault
        remedy, certain = mending(fault, "srun")
        severity: Severity | None = None if certain else "warning"
        yield Fault(first.line, first.column, fault.what, remedy, (launch.step.line,), severity, fault.found)


RULES: tuple[Rule, ...] = (forgotten_srun, multiplied_agents, early_expansion, lost_cpus, srun_options)
