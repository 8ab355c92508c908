"""Rules for launch lines: number of starts, ranks, and how the shell reads the line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import CSH, BatchScript
from hpc_kit.check.command_trace import TracedCommand
from hpc_kit.check.launch_lines import CONTAINERS, HELPER_PROGRAMS, LaunchLine, LaunchStage
from hpc_kit.check.rules.counts import count_processes
from hpc_kit.check.rules.finding import RuleFinding, RuleInput, Severity, rule
from hpc_kit.slurm.sizes import JobSize

_OTHER_WAYS = frozenset({"parallel", "parallel-ssh", "pssh", "horovodrun", "ray", "dask"})
_RUNS = frozenset({"exec", "run", "start"})
_RANKS = re.compile(
    r"(\w+_)?(RANK|PROCESS_(ID|INDEX)|PROC_?ID|NODE_?ID|NODE_INDEX|MACHINE_ID|LOCAL_?ID|WORKER_ID)\Z"
    r"|(CUDA|ROCR|HIP)_VISIBLE_DEVICES\Z"
)


@rule("KIT202")
def missing_srun(subject: RuleInput) -> Iterator[RuleFinding]:
    """The job requests several tasks, but nothing starts them.

    Slurm runs the batch script once, on the first node. `python train.py` in it is one process, not one per task: all
    further tasks and nodes are idle. torchrun on several nodes has the same problem: without srun, only the first node
    has an agent, and that agent waits until it times out.

    Fix: `srun python train.py`; for torchrun, --ntasks-per-node=1 and `srun torchrun ...`. If one program uses several
    CPUs, request --cpus-per-task instead of --ntasks.
    Documented: sbatch(1), DESCRIPTION; srun(1).
    """
    script, geometry = subject.script, subject.script.geometry
    if script.is_heterogeneous:
        yield from _idle_components(script)
        return
    if not geometry.is_stated or not geometry.has_several_tasks or not script.is_readable:
        return
    if not _nothing_unknown(script):
        return
    if any(launch.multiplier for launch in script.launch_lines):
        yield from _idle_nodes(script)
        return
    text = "\n".join("" if line.lstrip().startswith("#") else line for line in script.lines)
    # A program that is given the hosts in a file may start the others itself.
    told = re.search(r"(host|machine|node)_?file", text, re.IGNORECASE) is not None
    for launch in script.launch_lines:
        agent = launch.agent
        if not launch.is_training or (
            agent is not None and (agent.kind == "deepspeed" or not geometry.has_several_nodes)
        ):
            continue
        stage = agent or launch.program
        first = stage.words[0]
        count, asked = _asked(geometry)
        yield RuleFinding(
            first.line,
            first.column,
            f"{stage.name} is started once, on the first node; the job asks for {count}",
            f"write srun {stage.name} ..."
            + (
                " with --ntasks-per-node=1"
                if agent
                else ""
                if geometry.has_gpus
                else ", or use --cpus-per-task for threads"
            ),
            tuple(script.line_of(name) for name in asked),
            # On one node the batch shell has the CPUs and GPUs of all tasks: some programs use them as they are.
            "error" if geometry.has_several_nodes and not told else "warning",
        )


def _idle_nodes(script: BatchScript) -> Iterator[RuleFinding]:
    """Find a single launch line that uses fewer nodes than the job has."""
    training = [launch for launch in script.launch_lines if launch.is_training]
    srun = training[0].stage("srun") if len(training) == 1 else None
    if srun is None or training[0].in_loop:
        return
    nodes, job = script.geometry_of(training[0]).nodes, script.geometry.nodes
    background = any(place.statement.background for place in training[0].command.position.outward())
    if nodes is not None and job is not None and nodes < job and not background:
        first = srun.words[0]
        what = f"srun starts this on {nodes} of the {job} nodes of the job: the rest is idle"
        lines = (script.line_of("nodes"), training[0].command.line)
        remedy = f"remove -N and -n from srun, or use --nodes={nodes} for the job"
        yield RuleFinding(
            first.line, first.column, what, remedy, lines, "warning" if training[0].has_default_count else None
        )


def _idle_components(script: BatchScript) -> Iterator[RuleFinding]:
    """Find a launch line that uses only the first component of a heterogeneous job, because --het-group is missing."""
    training = [launch for launch in script.launch_lines if launch.is_training]
    started = {index for launch in training for index in script.components_of(launch)}
    known = all(launch.stage("srun") and not launch.stages[0].may_hide_options for launch in training)
    if not training or not known or started != {0} or not script.is_readable:
        return
    first = training[0].stages[0].words[0]
    last = len(script.components) - 1
    what = f"srun starts this only in the first component of the job, which has {last + 1}"
    yield RuleFinding(
        first.line, first.column, what, f"write srun --het-group=0-{last} ...", (script.directives.lines[0].line,)
    )


def _nothing_unknown(script: BatchScript) -> bool:
    """Tell whether every program is known not to start tasks in its own way."""
    for launch in script.launch_lines:
        program = launch.program
        if (
            launch.stage("ssh")
            or program.name in _OTHER_WAYS
            or _hidden(program)
            or (program.kind in {"program", "shell"} and program.name not in HELPER_PROGRAMS)
        ):
            return False
    return True


def _hidden(program: LaunchStage) -> bool:
    """Tell whether a container runs an unknown program."""
    texts = [word.text for word in program.words[1:]]
    contained = program.name in {*CONTAINERS, "docker", "enroot"} and not _RUNS.isdisjoint(texts)
    return contained and (HELPER_PROGRAMS - _OTHER_WAYS).isdisjoint(texts)


def _asked(geometry: JobSize) -> tuple[str, tuple[str, ...]]:
    if (geometry.ntasks or 0) > 1 and geometry.ntasks != geometry.nodes:
        return f"{geometry.ntasks} tasks", ("nodes", "ntasks", "ntasks-per-node")
    return f"{geometry.min_nodes} nodes", ("nodes",)


@rule("KIT203")
def multiplied_agents(subject: RuleInput) -> Iterator[RuleFinding]:
    """torchrun, accelerate or deepspeed is started once per task instead of once per node.

    Each of these agents starts the processes of its node. Under srun with several tasks per node, every task starts all
    of them again: 8 x 8 processes on 8 GPUs, which run out of memory or wait for a rendezvous that never completes.

    Fix: --ntasks-per-node=1 (one agent per node); or remove torchrun and let srun start one process per task.
    Documented: pytorch.org/docs/stable/elastic/run.html; TRI-ML/prismatic-vlms issue 39.
    """
    script = subject.script
    for launch in script.launch_lines:
        agent, multiplier = launch.agent, launch.multiplier
        if agent is None or multiplier is None or launch.stages.index(agent) < launch.stages.index(multiplier):
            continue
        geometry = script.geometry_of(launch)
        count = count_processes(agent)
        if (geometry.tasks_per_node or 1) <= 1 or count == 1 or _one_agent_a_task(agent, geometry):
            continue
        each = f"{count} processes" if count else "processes of its own"
        total = f": {count * (geometry.tasks_per_node or 1)} per node" if count else ""
        first = agent.words[0]
        yield RuleFinding(
            first.line,
            first.column,
            f"{agent.kind} starts {each}, and {multiplier.name} starts it {geometry.tasks_per_node} times per node"
            f"{total}",
            f"use --ntasks-per-node=1, or {multiplier.name} python train.py without {agent.kind}",
            (script.line_of("ntasks-per-node", "ntasks", launch=launch), launch.command.line),
        )


def _one_agent_a_task(agent: LaunchStage, geometry: JobSize) -> bool:
    """Tell whether the agents expect one agent per task."""
    text = agent.option("nnodes", "num-machines")
    return text is not None and text.text.isdigit() and int(text.text) == geometry.ntasks != geometry.nodes


@rule("KIT204")
def premature_expansion(subject: RuleInput) -> Iterator[RuleFinding]:
    r"""The batch shell expands a variable that only a task knows.

    The batch script runs once, as task 0 on node 0. `$SLURM_PROCID`, `$SLURM_NODEID` or `$SLURM_LOCALID` on a launch
    line, in double quotes, or in a variable that was set earlier, becomes 0 there. Every task then gets that 0: each
    node is machine 0, each process rank 0.

    Fix: let the task expand the variable: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'` in single quotes, or
    `\$` within double quotes. Or let the program read the variable.
    Documented: srun(1), OUTPUT ENVIRONMENT VARIABLES; huggingface/accelerate issues 1645 and 2816.
    """
    script = subject.script
    for launch in script.launch_lines:
        geometry = script.geometry_of(launch)
        if launch.multiplier is None and launch.agent is None:
            continue
        if launch.multiplier is not None and launch.multiplier.kind == "mpirun":
            geometry = script.geometry
        idle = _without_effect(launch)
        for read in launch.task_variables:
            if _differs(read.name, geometry) and (read.line, read.column) not in idle:
                yield _early(read.name, read.line, read.column, geometry, launch.command.line)
    yield from _early_exports(script)


def _early_exports(script: BatchScript) -> Iterator[RuleFinding]:
    """Find exported ranks that a program would read."""
    training = [launch for launch in script.launch_lines if launch.multiplier and launch.is_training]
    multiple = [script.geometry_of(launch) for launch in training]
    agents = all(launch.agent for launch in training)
    inside = {each.name for each in script.assignments if each.in_task}
    for each in script.assignments:
        # An agent gives its processes ranks of their own, and takes its own from its options.
        if agents and not each.name.startswith("PET_"):
            continue
        if each.is_exported and not each.in_task and each.name not in inside and _RANKS.match(each.name):
            for read in each.value.task_variables:
                wide = next((geometry for geometry in multiple if _differs(read.name, geometry)), None)
                if wide is not None:
                    yield _early(read.name, read.line, read.column, wide, each.line)


def _without_effect(launch: LaunchLine) -> set[tuple[int, int]]:
    """Return the positions of values that the agent ignores, because of a later option or its rendezvous."""
    agent = launch.agent
    if agent is None:
        return set()
    values = [*agent.overridden]
    backend = agent.option("rdzv-backend")
    number = agent.option("node-rank", "machine-rank")
    if number is not None and backend is not None and backend.text != "static":
        values.append(number)
    return {(piece.origin.line, piece.origin.column) for value in values for piece in value.pieces}


def _differs(name: str, geometry: JobSize) -> bool:
    """Tell whether the variable differs between the tasks, as far as the script shows."""
    if not geometry.is_stated:
        return True
    if name == "SLURM_LOCALID":
        return (geometry.tasks_per_node or 2) > 1 and geometry.has_several_tasks
    return geometry.has_several_nodes if name == "SLURM_NODEID" else geometry.has_several_tasks


def _early(name: str, line: int, column: int, geometry: JobSize, other: int) -> RuleFinding:
    of = "node" if name == "SLURM_NODEID" else "task"
    return RuleFinding(
        line,
        column,
        f"the batch shell expands ${name}: every {of} gets 0",
        f"write srun bash -c '... ${name} ...' in single quotes, so that each task expands it",
        (other,),
        None if geometry.is_stated else "warning",
    )


_DECLARING = frozenset({"export", "declare", "local", "readonly"})


@rule("KIT107")
def broken_lines(subject: RuleInput) -> Iterator[RuleFinding]:
    r"""A command line ends too early.

    A line continues only if the backslash is its very last character. If the backslash is missing, or a space follows
    it, the options below become a command of their own, and the launch line runs without them. A comment between two
    parts of a line ends it, too.

    Fix: put `\` at the end of each line but the last, and no comment in between.
    Documented: bash(1), QUOTING.
    """
    script = subject.script
    for step in script.commands:
        name = step.name
        if re.match(r"--?[A-Za-z]", name):
            what = f"{name} starts a command of its own: the line above ends too early"
            remedy = "end the line above in a backslash, and remove comments and empty lines before this one"
            first = step.words[0]
            yield RuleFinding(first.line, first.column, what, remedy, (first.line - 1,))
        for word in step.syntax.words[1:] if not step.in_task else ():
            if word.raw in {"\\ ", "\\\t"} and not script.lines[word.line - 1][word.column + 1 :].strip():
                what = "a space follows the backslash: the line ends here"
                yield RuleFinding(word.line, word.column, what, "remove the space", (word.line, word.line + 1))
    for number, line in enumerate(script.lines[1:], start=2):
        above = script.lines[number - 2]
        going_on = above.endswith("\\") and number - 1 not in script.comments
        if going_on and _is_comment(script, number) and line.endswith("\\") and _meant_to_go_on(script, number):
            what = "this comment ends the command above: the next line is a command of its own"
            yield RuleFinding(
                number, 1, what, "remove the comment, or move it above the command", (number - 1, number + 1)
            )


def _is_comment(script: BatchScript, number: int) -> bool:
    return number in script.comments and script.lines[number - 1].lstrip().startswith("#")


def _meant_to_go_on(script: BatchScript, number: int) -> bool:
    """Tell whether the last comment from a line on has its backslash, and a command follows."""
    while _is_comment(script, number + 1):
        number += 1
    return script.lines[number - 1].endswith("\\") and any(line.strip() for line in script.lines[number : number + 1])


@rule("KIT108")
def foreign_commands(subject: RuleInput) -> Iterator[RuleFinding]:
    """A command of another kind of shell.

    `setenv` exists only in csh and tcsh. bash prints "command not found", continues, and the variable is never set.
    Likewise, csh has neither `export` nor `$(...)`.

    Fix: `export NAME=value` in bash; in csh `setenv NAME value`, and backquotes.
    Documented: bash(1), export; tcsh(1), setenv.
    """
    script = subject.script
    if script.interpreter in CSH:
        yield from _not_in_csh(script)
        return
    for step in script.commands:
        if step.name in {"setenv", "unsetenv"} and step.name not in script.functions:
            what = f"{step.name} is a command of csh, but this is {script.interpreter or 'sh'}"
            name, *value = [word.text for word in step.words[1:]] or ["NAME"]
            remedy = f"write export {name}={' '.join(value)}" if step.name == "setenv" else f"write unset {name}"
            severity: Severity | None = "warning" if script.sources_files else None
            yield RuleFinding(step.line, step.syntax.column, what, remedy, (), severity)


def _not_in_csh(script: BatchScript) -> Iterator[RuleFinding]:
    for step in script.commands:
        command = step.syntax
        if step.in_task:
            continue
        if script.lines[step.line - 1][command.column - 1 :].startswith("export "):
            yield RuleFinding(
                step.line, command.column, "export is a command of bash, but this is csh", "write setenv NAME value"
            )
        values = [assignment.value for assignment in command.assignments]
        for part in [part for word in (*command.words, *values) for part in word.parts]:
            if part.kind == "command" and part.raw.startswith("$("):
                what = "$(...) is syntax of bash: csh stops here with 'Illegal variable name'"
                yield RuleFinding(part.origin.line, part.origin.column, what, "use backquotes: `command`")


@rule("KIT120")
def spaced_assignments(subject: RuleInput) -> Iterator[RuleFinding]:
    """Spaces around the `=` of an assignment.

    `NAME = value` runs a command called NAME, which does not exist. `export NAME =value` exports an old value, if there
    is one. The script continues with an empty variable.

    Fix: `NAME=value`.
    Documented: bash(1), PARAMETERS.
    """
    script = subject.script
    if script.interpreter in CSH:
        return
    for step in script.commands:
        texts = [word.text for word in step.words]
        name, *rest = (texts[1:] if step.name in _DECLARING else texts) or [""]
        if re.fullmatch(r"[A-Za-z_]\w*=?", name) is None or not rest:
            continue
        if step.name not in _DECLARING and not _is_variable(script, step):
            continue
        # `NAME= value` is how a command is given an empty variable.
        if rest[0] == "=" or (re.match(r"=[^=]", rest[0]) and not name.endswith("=")):
            what = f"spaces around the =: {name} is not set"
            yield RuleFinding(
                step.line, step.syntax.column, what, f"write {name}={rest[0].lstrip('=') or ' '.join(rest[1:2])}"
            )


def _is_variable(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether a name looks like a variable rather than a command: it is in capitals, or the script reads it."""
    if step.name in script.functions:
        return False
    read = re.compile(rf"\$\{{?{step.name}\b")
    return step.name != step.name.lower() or any(read.search(line) for line in script.lines)
