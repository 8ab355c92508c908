"""Rules for launch lines: number of starts, ranks, and how the shell reads the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePath

from hpc_kit.check.bash_syntax import Origin, SimpleCommand, program_of
from hpc_kit.check.batch_script import CSH, BatchScript
from hpc_kit.check.command_trace import DECLARING, TracedCommand
from hpc_kit.check.expansion import TaskVariableUse
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage
from hpc_kit.check.programs import HELPER_PROGRAMS, MPIRUN_WORDS
from hpc_kit.check.rules.counts import count_processes
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.sizes import JobSize
from hpc_kit.spec.shell_code import CONTAINERS

_OTHER_WAYS = frozenset({"parallel", "parallel-ssh", "pssh", "horovodrun", "ray", "dask"})
_RUNS = frozenset({"exec", "run", "start"})
_STARTS_OTHERS = frozenset({
    "controller", "dispatch", "dispatcher", "driver", "launch", "launcher", "orchestrate", "orchestrator", "parsl",
    "submit", "submitit", "submitter", "workflow",
})  # fmt: skip
"""Words in the names of Python programs that may call srun themselves."""
_RANKS = lazy_pattern(
    r"(\w+_)?(RANK|PROCESS_(ID|INDEX)|PROC_?ID|NODE_?ID|NODE_INDEX|MACHINE_ID|LOCAL_?ID|WORKER_ID)\Z"
    r"|(CUDA|ROCR|HIP)_VISIBLE_DEVICES\Z"
)


@rule("KIT202")
def missing_srun(script: BatchScript) -> Iterator[Problem]:
    """The job requests several tasks, but nothing starts them.

    Slurm runs the batch script once, on the first node. `python train.py` in it is one process, not one per task: all
    further tasks and nodes are idle. torchrun on several nodes has the same problem: without srun, only the first node
    has an agent, and that agent waits until it times out.

    Fix: `srun python train.py`; for torchrun, --ntasks-per-node=1 and `srun torchrun ...`. If one program uses several
    CPUs, request --cpus-per-task instead of --ntasks.
    Documented: sbatch(1), DESCRIPTION; srun(1).
    """
    size = script.size
    if script.is_heterogeneous:
        yield from _idle_components(script)
        return
    if not size.is_stated or not size.has_several_tasks or not script.is_readable:
        return
    if not nothing_unknown(script):
        return
    launches = list(script.launch_lines)
    # A script with srun may run a part of its work on the first node on purpose, but no agent of several nodes.
    if any(launch.multiplier for launch in launches):
        yield from _idle_nodes(script)
        spread = "array" in script.options or any(launch.multiplier and launch.agent for launch in launches)
        launches = [launch for launch in launches if _waits_for_nodes(launch.agent) and not spread]
    # Beside an agent, another program mostly prepares something.
    launches = [launch for launch in launches if launch.agent] or launches
    # A program that reads the hosts from a file may start the remaining processes itself.
    has_hostfile = re.search(r"(host|machine|node)_?file", script.code, re.IGNORECASE) is not None
    request, options = f"{size.min_nodes} nodes", ["nodes"]
    if (size.ntasks or 0) > 1 and size.ntasks != size.nodes:
        request, options = f"{size.ntasks} tasks", ["nodes", "ntasks", "ntasks-per-node"]
    for launch in launches:
        agent = launch.agent
        if not launch.is_training or launch.multiplier or _shares_node(launch, size):
            continue
        stage = agent or launch.program
        what = f"{stage.name} is started once, on the first node; the job asks for {request}"
        remedy = f"write srun {stage.name} ..."
        if agent:
            remedy += " with --ntasks-per-node=1"
        # More tasks than GPUs cannot be meant as one process for each.
        elif not size.has_gpus or 0 < (size.gpus_per_node or 0) * size.min_nodes < (size.ntasks or 0):
            remedy += ", or use --cpus-per-task instead of --ntasks for threads"
        # On one node the batch shell has the CPUs and GPUs of all tasks: some programs use them as they are.
        certain = size.has_several_nodes and not has_hostfile
        yield Problem(stage, what, remedy, tuple(map(script.line_of, options)), certain)


def _waits_for_nodes(agent: LaunchStage | None) -> bool:
    """Tell whether an agent is one of several that a rendezvous numbers."""
    return agent is not None and agent.node_rank is None and ((agent.node_count and agent.node_count.number) or 0) > 1


def _shares_node(launch: LaunchLine, size: JobSize) -> bool:
    """Tell whether the launch uses the CPUs and GPUs of its node as the tasks would. Another rule is for deepspeed."""
    if launch.agent is not None and launch.agent.kind == "deepspeed":
        return True
    return not size.has_several_nodes and (launch.agent is not None or launch.command.in_background)


def _idle_nodes(script: BatchScript) -> Iterator[Problem]:
    """Find a single launch line that uses fewer nodes than the job has."""
    launch = script.only_training
    srun = launch.stage("srun") if launch is not None else None
    others = re.search(r"\b(xargs|parallel)\b.*\b(ssh|srun)\b", script.code)
    if launch is None or srun is None or launch.in_loop or launch.command.in_background or others:
        return
    nodes, job = script.size_of(launch).nodes, script.size.nodes
    if nodes is not None and job is not None and nodes < job:
        what = f"srun starts this on {nodes} of the {job} nodes of the job: the rest is idle"
        remedy = f"remove -N and -n from srun, or use --nodes={nodes} for the job"
        yield Problem(srun, what, remedy, (script.line_of("nodes"), launch.line), certain=not launch.has_default_count)


def _idle_components(script: BatchScript) -> Iterator[Problem]:
    """Find a launch line that uses only the first component of a heterogeneous job, because --het-group is missing."""
    training = [launch for launch in script.training if launch.stage("srun")]
    started = {index for launch in training for index in script.components_of(launch)}
    known = not any(launch.stages[0].may_hide_options or launch.stages[0].kind != "srun" for launch in training)
    everywhere = [launch for launch in training if "het-group" not in launch.stages[0].options]
    count = len(script.components)
    idle = [index for index in range(count) if index not in started]
    if not known or not idle or not everywhere or not script.is_readable:
        return
    rest = f"component {idle[0]} is idle" if len(idle) == 1 else f"components {', '.join(map(str, idle))} are idle"
    what = f"srun starts this only in the first component of the job, which has {count}: {rest}"
    remedy = f"write srun --het-group=0-{count - 1} ..., or the number of one component"
    # Of several, the last one was mostly meant for the further component.
    lines = (script.directives.lines[0].line, *(launch.line for launch in everywhere))
    yield Problem(everywhere[-1].stages[0], what, remedy, lines)


def nothing_unknown(script: BatchScript) -> bool:
    """Tell whether every program is known not to start tasks in its own way."""
    return not any(launch.stage("ssh") or _is_unknown(launch.program) for launch in script.launch_lines)


def _is_unknown(program: LaunchStage) -> bool:
    """Tell whether a program, or the program of a container, may start tasks in its own way."""
    if program.name in {*CONTAINERS, "docker", "enroot"} and not _RUNS.isdisjoint(program.texts[1:]):
        return (HELPER_PROGRAMS - _OTHER_WAYS).isdisjoint(program.texts[1:])
    known = program.kind not in {"program", "shell"} or program.name in HELPER_PROGRAMS
    file = program.option("file", "module")
    words = re.split(r"[^a-z]+", PurePath(file.text).name.lower()) if file is not None else []
    return program.name in _OTHER_WAYS or not known or not _STARTS_OTHERS.isdisjoint(words)


@rule("KIT203")
def multiplied_agents(script: BatchScript) -> Iterator[Problem]:
    """torchrun, accelerate or deepspeed is started once per task instead of once per node.

    Each of these agents starts the processes of its node. Under srun with several tasks per node, every task starts all
    of them again: 8 x 8 processes on 8 GPUs, which run out of memory or wait for a rendezvous that never completes.

    Fix: --ntasks-per-node=1 (one agent per node); or remove torchrun and let srun start one process per task.
    Documented: pytorch.org/docs/stable/elastic/run.html; TRI-ML/prismatic-vlms issue 39.
    """
    for launch in script.launch_lines:
        agent, multiplier = launch.agent, launch.multiplier
        if agent is None or multiplier is None or launch.stages.index(agent) < launch.stages.index(multiplier):
            continue
        size, count = script.size_of(launch), count_processes(agent)
        tasks = size.tasks_per_node or 1
        agents = agent.node_count
        # With --nnodes equal to the tasks, each agent is one of several on its node.
        expects_all = agents is not None and agents.number is not None and agents.number == size.ntasks != size.nodes
        if tasks == 1 or count == 1 or expects_all:
            continue
        each = f"{count} processes" if count else "processes of its own"
        total = f": {count * tasks} per node" if count else ""
        what = f"{agent.kind} starts {each}, and {multiplier.name} starts it {tasks} times per node{total}"
        remedy = f"use --ntasks-per-node=1, or {multiplier.name} python train.py without {agent.kind}"
        yield Problem(agent, what, remedy, (script.line_of("ntasks-per-node", "ntasks", launch=launch), launch.line))


@rule("KIT214", needs=("srun", *MPIRUN_WORDS))
def nested_launchers(script: BatchScript) -> Iterator[Problem]:
    """A launcher under srun that starts all ranks itself: another srun, mpirun or horovodrun.

    The inner launcher starts all ranks itself. Under srun with several tasks, each task starts all of them again: N x N
    processes, which compete for the same CPUs, GPUs and ports.

    Fix: use one launcher: `srun --mpi=pmix ./program`, or mpirun without srun.
    Documented: slurm.schedmd.com/mpi_guide.html.
    """
    for launch in script.launch_lines:
        kinds = [stage.name if stage.name == "horovodrun" else stage.kind for stage in launch.stages]
        outer = next((index for index, kind in enumerate(kinds) if kind in {"srun", "mpirun"}), None)
        # mpirun without -np starts one process for each task of the job.
        size = script.size if outer is not None and kinds[outer] == "mpirun" else script.size_of(launch)
        if outer is None or not size.has_several_tasks:
            continue
        later = range(outer + 1, len(kinds))
        inner = next((launch.stages[index] for index in later if kinds[index] in _STARTS_ALL), None)
        # `mpirun --version` starts nothing. The program of horovodrun is among its own words.
        idle = inner is launch.program and (inner.kind != "program" or inner.words[-1].text.startswith("-"))
        if inner is not None and not idle:
            name = launch.stages[outer].name
            what = f"{name} starts {inner.name} {size.ntasks or 'several'} times, and each starts all ranks"
            yield Problem(inner, what, f"remove {name}, or remove {inner.name}", (launch.line,))


_STARTS_ALL = frozenset({"horovodrun", "mpirun", "srun"})


@rule("KIT204", needs=("slurm_array_task_id", "slurm_procid", "slurm_localid", "slurm_nodeid"))
def premature_expansion(script: BatchScript) -> Iterator[Problem]:
    r"""The batch shell expands a variable that only a task knows.

    The batch script runs once, as task 0 on node 0. `$SLURM_PROCID`, `$SLURM_NODEID` or `$SLURM_LOCALID` on a launch
    line, in double quotes, or in a variable that was set earlier, becomes 0 there. Every task then gets that 0: each
    node is machine 0, each process rank 0. In the text of a job that the script submits, `sbatch <<END` or --wrap, the
    script expands the variable, and not the other job.

    Fix: let the task expand the variable: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'` in single quotes, or
    `\$` within double quotes. Or let the program read the variable.
    Documented: srun(1), OUTPUT ENVIRONMENT VARIABLES; huggingface/accelerate issues 1645 and 2816.
    """
    for launch in script.launch_lines:
        size = script.size_of(launch)
        # Without a launcher there is one task: its rank is 0.
        if launch.multiplier is None and launch.agent is None:
            continue
        if launch.multiplier is not None and launch.multiplier.kind == "mpirun":
            size = script.size
        idle = _without_effect(launch)
        for read in launch.task_variables:
            if _differs(read.name, size) and (read.line, read.column) not in idle:
                documents = (step.line for step in script.commands if step.stdin is not None and step.line < read.line)
                begin = max(documents, default=None) if read in launch.document_variables else None
                yield _early(read, size, launch.line, begin)
    yield from _early_exports(script)
    yield from _early_in_other_job(script)


_OF_ELEMENT = lazy_pattern(r"SLURM_(ARRAY_TASK_ID|PROCID|LOCALID|NODEID)\Z")


def _early_in_other_job(script: BatchScript) -> Iterator[Problem]:
    """Find a variable of a task or element in the code of a job that this script submits."""
    for step in script.batch_commands if "array" not in script.options else ():
        words = step.syntax.words if step.name == "sbatch" and "--wrap" in step.text else ()
        parts = [part for word in words for part in word.parts]
        parts += step.syntax.document or () if step.name == "sbatch" else ()
        for part in parts:
            if part.kind == "variable" and _OF_ELEMENT.match(part.text) and part.text not in script.assigned:
                what = f"this shell expands ${part.text}, and not the job that it submits"
                yield Problem(part.origin, what, f"write \\${part.text}", (step.line,))
                return


def _early_exports(script: BatchScript) -> Iterator[Problem]:
    """Find exported ranks that a program would read."""
    training = [launch for launch in script.training if launch.multiplier]
    multiple = [script.size_of(launch) for launch in training]
    agents = all(launch.agent for launch in training)
    in_python = any(launch.program.kind == "python" for launch in training)
    inside, exported = {each.name for each in script.assignments if each.in_task}, script.exported_assignments
    for each in script.assignments:
        # An agent gives its processes ranks of their own, and takes its own from its options.
        if agents and not each.name.startswith("PET_"):
            continue
        if each in exported and not each.in_task and each.name not in inside and _RANKS.match(each.name):
            for read in each.value.task_variables:
                wide = next((size for size in multiple if _differs(read.name, size)), None)
                if wide is not None:
                    # A shell script may set the variable again.
                    early = _early(read, wide, each.line)
                    yield early._replace(certain=early.certain and in_python)


def _without_effect(launch: LaunchLine) -> set[tuple[int, int]]:
    """Return the positions of values that the agent ignores, because of a later option or its rendezvous."""
    agent = launch.agent
    if agent is None:
        return set()
    values, backend, rank = [*agent.overridden], agent.option("rdzv-backend"), agent.node_rank
    # The rendezvous of c10d and etcd assigns the node ranks itself.
    if rank is not None and backend is not None and backend.text != "static":
        values.append(rank)
    return {(piece.origin.line, piece.origin.column) for value in values for piece in value.pieces}


def _differs(name: str, size: JobSize) -> bool:
    """Tell whether the variable differs between the tasks, as far as the script shows."""
    if not size.is_stated:
        return True
    if name == "SLURM_LOCALID":
        # An unknown number of tasks per node may be larger than 1.
        return (size.tasks_per_node or 2) > 1 and size.has_several_tasks
    return size.has_several_nodes if name == "SLURM_NODEID" else size.has_several_tasks


def _early(use: TaskVariableUse, size: JobSize, *lines: int | None) -> Problem:
    unit = "node" if use.name == "SLURM_NODEID" else "task"
    what = f"the batch shell expands ${use.name}: every {unit} gets 0"
    remedy = f"write srun bash -c '... ${use.name} ...' in single quotes, so that each task expands it"
    return Problem(use, what, remedy, lines, certain=size.is_stated)


@rule("KIT107")
def broken_lines(script: BatchScript) -> Iterator[Problem]:
    r"""A command line ends too early.

    A line continues only if the backslash is its very last character. If the backslash is missing, or a space follows
    it, the options below become a command of their own, and the launch line runs without them. A comment between two
    parts of a line ends it, too. In `bash -c '...'`, an apostrophe in a comment ends the code.

    An unquoted `|` or `&` in a value, `--constraint=a100|h100` or the `&` of a URL, is a pipe, or sends the command to
    the background.

    Fix: put `\` at the end of each line but the last, and no comment in between. Quote values with `|` or `&`.
    Documented: bash(1), QUOTING.
    """
    yield from _cut_values(script)
    for step in script.commands:
        name = step.name
        # No program has such a name.
        if name.startswith("-") and re.match(r"--?[A-Za-z]", name):
            what = f"{name} starts a command of its own: the line above ends too early"
            remedy = "end the line above in a backslash, and remove comments and empty lines before this one"
            yield Problem(step, what, remedy, (step.line - 1,))
        for word in step.syntax.words[1:] if not step.in_task else ():
            if word.raw in {"\\ ", "\\\t"} and not script.lines[word.line - 1][word.column + 1 :].strip():
                what = "a space follows the backslash: the line ends here"
                rest = script.lines[word.line - 1][word.column - 1 :]
                edits = (Edit(word.line, word.column, rest, "\\"),)
                yield Problem(word, what, "remove the space", (word.line, word.line + 1), edits=edits)
    yield from _quote_in_comment(script)
    for number, line in enumerate(script.lines[1:], start=2):
        above = script.lines[number - 2]
        going_on = above.endswith("\\") and number - 1 not in script.comments
        if going_on and _is_comment(script, number) and line.endswith("\\") and _meant_to_go_on(script, number):
            what = "this comment ends the command above: the next line is a command of its own"
            yield Problem(
                Origin(number), what, "remove the comment, or move it above the command", (number - 1, number + 1)
            )


_CONSTRAINT = r"-C|--(?:constraint|prefer|cluster-constraint|batch)"
_OF_SLURM = frozenset({"salloc", "sbatch", "srun"})


def _cut_values(script: BatchScript) -> Iterator[Problem]:
    """Find a value of --constraint, or a URL, that an unquoted `|` or `&` cuts in two."""
    if not re.search(r"[^\s>&|][|&][\w\[(]", script.code):
        return
    for command in (each for use in script.pipelines for each in use.pipeline.commands):
        words = command.words if isinstance(command, SimpleCommand) else ()
        if len(words) < 2 or "\n" in words[-1].raw:
            continue
        last, line = words[-1], script.lines[words[-1].line - 1]
        end = last.column - 1 + len(last.raw)
        behind = re.match(r"([|&])(?=[\w\[(])", line[end:]) if line[:end].endswith(last.raw) else None
        given = re.match(rf"(?:{_CONSTRAINT})=|-C[^-=]", last.raw) or re.fullmatch(_CONSTRAINT, words[-2].raw)
        # In `srun tar -C DIR cf - .`, the option is that of tar.
        names = (word.raw for before, word in pairwise(words[:-1]) if not before.raw.startswith("-"))
        of_slurm = (
            given is not None and program_of(command) in _OF_SLURM and all(name.startswith("-") for name in names)
        )
        of_url = re.search(r"://\S*\?\S*=", last.raw) and re.match(r"&\w+=", line[end:])
        if behind is not None and (of_slurm or of_url):
            effect = "is a pipe" if behind[1] == "|" else "sends the command to the background"
            what = f"the unquoted {behind[1]} {effect}: {program_of(command) or 'the command'} ends behind {last.raw}"
            yield Problem(last, what, "write the value in quotes", (last.line,))


def _quote_in_comment(script: BatchScript) -> Iterator[Problem]:
    """Find an apostrophe that ends the code of `bash -c '...'`, in a script that cannot be read to its end."""
    begin = 0
    for number, line in enumerate(script.lines if script.unread_from is not None else (), start=1):
        begin = number if re.search(r"-\w*c\s+'\s*\Z", line) else begin
        apostrophe = re.match(r"\s*#[^']*\w(')\w", line) if begin else None
        if apostrophe is not None:
            place, what = Origin(number, apostrophe.start(1) + 1), f"this ' ends the code that begins in line {begin}"
            yield Problem(place, what, "remove it: a comment in quoted code is code, too", (begin, script.unread_from))
            return
        # The closing quote of the code.
        begin = 0 if re.match(r"\s*'", line) else begin


def _is_comment(script: BatchScript, number: int) -> bool:
    return number in script.comments and script.lines[number - 1].lstrip().startswith("#")


def _meant_to_go_on(script: BatchScript, number: int) -> bool:
    """Tell whether the last comment from a line on has its backslash, and a command follows."""
    while _is_comment(script, number + 1):
        number += 1
    return script.lines[number - 1].endswith("\\") and any(line.strip() for line in script.lines[number : number + 1])


@rule("KIT108", needs=("setenv", "csh"))
def foreign_commands(script: BatchScript) -> Iterator[Problem]:
    """A command of another kind of shell.

    `setenv` exists only in csh and tcsh. bash prints "command not found", continues, and the variable is never set.
    Likewise, csh has neither `export` nor `$(...)`, and no `2>&1`: after `> FILE`, or in front of a pipe, it is
    an "Ambiguous output redirect", which ends the script; alone, it sends the output to a file named 1.

    Fix: `export NAME=value` in bash; in csh `setenv NAME value`, backquotes, `>& FILE` and `|& tee FILE`.
    Documented: bash(1), export; tcsh(1), setenv and Input/Output.
    """
    if script.interpreter in CSH:
        yield from _not_in_csh(script)
        return
    for step in script.commands:
        if step.name in {"setenv", "unsetenv"} and step.name not in script.functions:
            what = f"{step.name} is a command of csh, but this is {script.interpreter or 'sh'}"
            name, *value = [word.text for word in step.words[1:]] or ["NAME"]
            remedy = f"write export {name}={' '.join(value)}" if step.name == "setenv" else f"write unset {name}"
            edits: tuple[Edit, ...] = ()
            if step.name == "setenv" and len(value) == 1 and step.texts[1].isidentifier():
                first, last = step.syntax.words[1:3]
                old = f"setenv {first.raw} {last.raw}"
                edits = (Edit(step.line, step.column, old, f"export {first.raw}={last.raw}"),)
            yield Problem(step, what, remedy, (), certain=not script.sources_files, edits=edits)


def _not_in_csh(script: BatchScript) -> Iterator[Problem]:
    for step in script.batch_commands:
        if any(place.role == "code" for place in step.position.outward()):
            continue  # the code of `bash -c`
        if script.lines[step.line - 1][step.column - 1 :].startswith("export "):
            yield Problem(step, "export is a command of bash, but this is csh", "write setenv NAME value")
        # The `2>&1` that stands for `|&` is on no line of its own.
        joins = [each for each in step.syntax.redirections if each.operator == ">&" and each.target.raw == "1"]
        if any(each.descriptor == "2" and each.target.line >= step.line for each in joins):
            ambiguous = len(step.syntax.redirections) > len(joins) or step.position.piped_to
            effect = (
                "ends here with 'Ambiguous output redirect'" if ambiguous else "writes the output to a file named 1"
            )
            yield Problem(step, f"2>&1 is syntax of bash: csh {effect}", "write >& FILE, or |& tee FILE")
        for part in step.syntax.parts:
            if part.kind == "command" and part.raw.startswith("$("):
                what = "$(...) is syntax of bash: csh stops here with 'Illegal variable name'"
                yield Problem(part.origin, what, "use backquotes: `command`")


@rule("KIT120")
def spaced_assignments(script: BatchScript) -> Iterator[Problem]:
    """Spaces around the `=` of an assignment.

    `NAME = value` runs a command called NAME, which does not exist. `export NAME =value` exports an old value, if there
    is one. The script continues with an empty variable.

    Fix: `NAME=value`.
    Documented: bash(1), PARAMETERS.
    """
    if script.interpreter in CSH:
        return
    for step in script.commands:
        name, *rest = step.texts[step.name in DECLARING :] or [""]
        named = bool(rest) and rest[0].startswith("=") and re.fullmatch(r"[A-Za-z_]\w*=?", name) is not None
        # `NAME= value` is how a command is given an empty variable.
        spaced = named and (rest[0] == "=" or (re.match(r"=[^=]", rest[0]) and not name.endswith("=")))
        if spaced and (step.name in DECLARING or _is_variable(script, step)):
            what = f"spaces around the =: {name} is not set"
            words = step.syntax.words[step.name in DECLARING :]
            edits: tuple[Edit, ...] = ()
            if len(words) == 3 and words[1].raw == "=":
                edits = (Edit(words[0].line, words[0].column, f"{name} = ", f"{name}="),)
            yield Problem(step, what, f"write {name}={rest[0].lstrip('=') or ' '.join(rest[1:2])}", edits=edits)
        # `$NAME=value` runs the old value of the variable as a command.
        first = step.syntax.words[0] if step.syntax.words else None
        dollar = re.match(r"\$([A-Za-z_]\w*)=", first.raw) if first is not None and first.raw.startswith("$") else None
        if first is not None and dollar is not None and not step.in_task:
            what = f"the shell runs {first.raw} as a command: {dollar[1]} is not set"
            yield Problem(first, what, f"write {first.raw[1:]}", edits=(Edit(first.line, first.column, "$", ""),))


@rule("KIT137", needs=("[", "test"))
def redirected_test(script: BatchScript) -> Iterator[Problem]:
    """A test in `[ ]` that tests nothing: a `>` or `<` is a redirection, and `[` needs a space.

    `[ $N > 0 ]` compares nothing: it writes an empty file called 0, and is true for any text. `[ $N < 10 ]` reads a
    file called 10, and fails without it. `["$N" -gt 0]` is the name of a command that does not exist: the condition is
    always false.

    Fix: `[ "$N" -gt 0 ]`, `[ "$N" -lt 10 ]`, or `(( N > 0 ))`.
    Documented: bash(1), test and CONDITIONAL EXPRESSIONS.
    """
    for step in script.commands:
        if re.match(r"\[[\w\"'$-]", step.syntax.words[0].raw if step.syntax.words else ""):
            yield Problem(step, "[ needs a space: this is the name of a command that does not exist", "write [ ... ]")
        files = ((step.syntax.output, ">", "-gt", "writes"), (step.syntax.input, "<", "-lt", "reads"))
        for file, operator, option, verb in files if step.name in {"[", "test"} and not step.in_task else ():
            if file is None or not re.fullmatch(r"\d+|\"?\$\{?\w+\}?\"?", file.raw):
                continue
            column = script.lines[file.line - 1].rfind(operator, 0, file.column - 1) + 1
            what, edits = (
                f"{operator} compares nothing here: it {verb} the file",
                (Edit(file.line, column, operator, option),),
            )
            yield Problem(Origin(file.line, column), f"{what} {file.raw}", f"write {option}", edits=edits)


def _is_variable(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether a name looks like a variable rather than a command: it is in capitals, or the script reads it."""
    if step.name in script.functions:
        return False
    read = re.compile(rf"\$\{{?{step.name}\b")
    return step.name != step.name.lower() or any(read.search(line) for line in script.lines)
