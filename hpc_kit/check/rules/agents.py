"""Rules for torchrun, accelerate and deepspeed: number of nodes, node ranks, and the variables that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.bash_syntax import Origin, Part, SimpleCommand, program_of
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.launch_lines import LOOPS, LaunchLine, LaunchStage
from hpc_kit.check.programs import AGENT_WORDS
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.lazy_pattern import lazy_pattern

_OPTION_OF_VARIABLE = {
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
}
"""Variables that Slurm sets where their option is given, and only there."""

_ALTERNATIVE = {
    "SLURM_CPUS_PER_TASK": "${SLURM_CPUS_PER_TASK:-1}",
    "SLURM_GPUS": "$((SLURM_NNODES * SLURM_GPUS_ON_NODE))",
    "SLURM_GPUS_PER_NODE": "$SLURM_GPUS_ON_NODE",
    "SLURM_NTASKS_PER_NODE": "$((SLURM_NTASKS / SLURM_NNODES))",
}


_SOURCES = lazy_pattern(r"(?:\A|[\s;&'\"])(?:source|\.)\s")


@rule("KIT207", needs=AGENT_WORDS)
def agent_node_count(script: BatchScript) -> Iterator[Problem]:
    """An agent (torchrun, accelerate) expects another number of nodes than it is started on.

    Without --nnodes, torchrun assumes that its node is the only one: started on four nodes, it trains four separate
    models. With too many nodes it waits for nodes that never start, with too few it refuses the last ones. Without
    --node-rank, all agents that meet at one --master-addr take the rank 0, and with `--node-rank=0` on the line of srun
    each node has that rank. A loop that starts one agent after another without `&` never gets beyond the first.

    Fix: `--nnodes=$SLURM_NNODES`, and `srun torchrun ...` for all nodes together.
    Documented: pytorch.org/docs/stable/elastic/run.html.
    """
    for launch in script.launch_lines:
        agent = launch.agent
        if agent is None or agent.may_hide_options or script.is_cut_short(launch) or _in_branch_of_task(launch):
            continue
        fault = (
            _sequential_loop(launch, agent)
            or _fixed_count_in_range(script, launch, agent)
            or _wrong_node_count(script, launch, agent)
            or _same_node_rank(script, launch, agent)
        )
        if fault is not None:
            what, remedy, line = fault
            # The default configuration of accelerate may give the number of machines.
            configured = agent.kind == "accelerate" and (_numbers_nodes(agent) or agent.node_count is None)
            given = [each for each in (agent.node_count, agent.node_rank) if each is not None]
            defaults = launch.has_default_count or any(each.has_default for each in given)
            certain = not ("standalone" in agent.options or configured or defaults)
            # `--standalone` alone says that there is one node.
            place, lines = agent.word_of("standalone") or agent, [each.line for each in given]
            yield Problem(place, what, remedy, (line, launch.line, agent.line, *lines), certain)


_PREPARES = frozenset({".", "cd", "conda", "export", "mkdir", "ml", "module", "set", "source", "ulimit"})


def _in_branch_of_task(launch: LaunchLine) -> bool:
    """Tell whether each task decides whether it starts the agent, as in `if [ "$SLURM_NODEID" = 0 ]`."""
    for place in launch.inner_command.position.outward():
        if place is launch.command.position:
            break
        if place.kind in {"if", "case"}:
            return True
        before = [command for pipeline in place.chain.pipelines[: place.chain_index] for command in pipeline.commands]
        # `cd DIR && torchrun` runs on all nodes, and so does `NAME=value && torchrun`.
        if not all(isinstance(each, SimpleCommand) and program_of(each) in _PREPARES | {None} for each in before):
            return True
    return False


def _accepted_nodes(agent: LaunchStage) -> tuple[int, int] | None:
    """Return the smallest and largest number of nodes that an agent accepts; None if unknown."""
    if agent.kind == "deepspeed":
        return None
    if "standalone" in agent.options:
        return 1, 1
    text = agent.node_count
    if agent.kind == "composer":
        return None if agent.options.keys() & {"world-size", "node-rank"} else (1, 1)
    if text is None:
        alone = agent.kind == "accelerate" and "config-file" not in agent.options and "num-processes" in agent.options
        return (1, 1) if agent.kind == "torchrun" or alone else None
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text.text)
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


_Fault = tuple[str, str, int | None]
"""The effect, the remedy, and a line that shows the fault."""


def _fixed_count_in_range(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> _Fault | None:
    """Find a fixed number of nodes in a job that may get any number of a range."""
    nodes, accepted, srun = script.directive("nodes"), _accepted_nodes(agent), launch.stage("srun")
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", nodes.value) if nodes else None
    if nodes is None or match is None or accepted is None or srun is None or "nodes" in srun.options:
        return None
    least, most = int(match[1]), int(match[2])
    if agent.node_count is None or least >= most or (accepted[0] <= least and accepted[1] >= most):
        return None
    what = f"the job gets {least} to {most} nodes, but {agent.kind} expects {agent.node_count.text}"
    return what, "use --nnodes=$SLURM_NNODES, or one number of nodes", nodes.line


def _sequential_loop(launch: LaunchLine, agent: LaunchStage) -> _Fault | None:
    """Find a loop over hosts that waits for each host before it starts the next."""
    starter, nodes = launch.stage("ssh", "srun"), agent.node_count
    if starter is None or nodes is None or nodes.text in {"1", "1:1"} or not launch.in_loop:
        return None
    if launch.command.in_background or starter.words[1].text == "-f":
        return None
    # Without a host of its own, each srun starts all nodes together.
    if starter.kind == "srun" and not starter.options.keys() & {"nodelist", "relative"}:
        return None
    what = "the loop starts the next host only after this one has ended, and this one waits for all hosts"
    end = f"end the line in &, as in `{starter.name} ... &`, and wait after the loop"
    return what, f"{end}; or use one srun for all hosts", None


def _wrong_node_count(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> _Fault | None:
    size, job, accepted = script.size_of(launch), script.size, _accepted_nodes(agent)
    line, remedy = script.line_of("nodes", "ntasks"), "use --nnodes=$SLURM_NNODES"
    if accepted is None or not job.is_stated:
        return None
    least, most = accepted
    # A loop over the nodes of the job starts one agent on each.
    srun, loops = launch.stage("srun"), [each for each in launch.command.compounds if each.kind in LOOPS]
    by_host = srun is not None and "nodelist" in srun.options and len(loops) == 1
    if job.nodes is not None and by_host and least > job.nodes:
        return f"{agent.kind} waits for {least} nodes, but the job has {job.nodes}", remedy, line
    if size.nodes is None or size.nodes != job.nodes or script.sets_torchrun_option(agent, "nnodes"):
        return None
    alone = launch.multiplier is None and launch.stage("ssh") is None
    # Elements of an array, or further jobs with another node rank, may be the remaining nodes.
    rank_outside = agent.node_rank is not None and not agent.node_rank.is_known
    # Trainings with a setting of their own on each node are meant to be separate.
    separate = most == 1 and any(re.search(r"SLURM_(PROCID|NODEID)", text) for text in launch.program.texts)
    if separate or (rank_outside or "array" in script.options if alone else size.tasks_per_node != 1):
        return None
    started = f"but it is started on {size.nodes}"
    if size.nodes < least:
        return f"{agent.kind} waits for {least} nodes, {started}", remedy, line
    if size.nodes > most == 1:
        what = f"{agent.kind} expects one node, {started}: each node trains a separate model"
        return what, f"{remedy} with a rendezvous: --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT", line
    if size.nodes > most:
        return f"{agent.kind} accepts {most} nodes, {started}: it refuses the rest", remedy, line
    return None


def _is_same_in_loop(script: BatchScript, launch: LaunchLine) -> bool:
    """Tell whether a loop over hosts starts an agent on each, and changes nothing else of the line."""
    starter, loop = launch.stage("srun", "ssh"), launch.command.around(*LOOPS)
    if starter is None or loop is None or launch.command.is_conditional:
        return False
    read = launch.command.syntax.variables
    on_hosts = starter.kind == "ssh" or bool(starter.options.keys() & {"nodelist", "relative"})
    return on_hosts and loop.name in read and read & script.changed_in(loop) == {loop.name}


def _same_node_rank(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> _Fault | None:
    """Find agents that have the same rank on all nodes."""
    nodes, size, rank = agent.node_count, script.size_of(launch), agent.node_rank
    one = (nodes is None and agent.kind != "composer") or (nodes is not None and nodes.text in {"1", "1:1"})
    # An option wins over the configuration, which may contain the backend of the rendezvous.
    stated = rank is not None and "rdzv-backend" in agent.options
    if one or agent.kind == "deepspeed" or (_may_be_configured(script, agent) and not stated):
        return None
    option = "--machine_rank" if agent.kind == "accelerate" else "--node-rank"
    if rank is not None and rank.number is not None and _is_same_in_loop(script, launch):
        return f"each pass of the loop starts an agent with {option}={rank.text}", "count the nodes in the loop", None
    loop = launch.command.around(*LOOPS)
    # The rank may be what a loop counts. KIT203 reports several agents on a node.
    counts = loop is not None and launch.command.syntax.variables & (script.changed_in(loop) - {loop.name})
    if counts or not size.has_several_nodes or size.tasks_per_node != 1:
        return None
    if rank is not None:
        # With one task on each node, SLURM_LOCALID is 0 everywhere.
        same = rank.number is not None or rank.variable == "SLURM_LOCALID"
        if not same or _numbers_nodes(agent):
            return None
        what = f"{option}={rank.text} on each of the {size.min_nodes} nodes: they need different ranks"
        return what, f"write srun bash -c '{agent.name} ... {option}=$SLURM_NODEID ...' in single quotes", None
    if agent.kind == "accelerate" and not _numbers_nodes(agent):
        what = "no --machine_rank: accelerate stops, or every node uses rank 0 of its default configuration"
        return what, "write srun bash -c 'accelerate launch --machine_rank=$SLURM_NODEID ...'", None
    if _numbers_nodes(agent) or not agent.options.keys() & {"master-addr", "rdzv-endpoint"}:
        return None
    what = f"no --node-rank: each of the {size.min_nodes} nodes uses rank 0"
    return what, "use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT, which numbers the nodes itself", None


def _numbers_nodes(agent: LaunchStage) -> bool:
    """Tell whether the rendezvous numbers the nodes."""
    backend = agent.option("rdzv-backend")
    return backend is not None and backend.text != "static"


def _may_be_configured(script: BatchScript, agent: LaunchStage) -> bool:
    """Tell whether a file or the environment may set options of the agent."""
    names = [name for name in script.assigned if name.startswith(("PET_", "ACCELERATE_"))]
    composed = agent.kind == "composer" and "NODE_RANK" in script.assigned
    return bool(names) or composed or not agent.options.keys().isdisjoint({"config-file", "standalone"})


@rule("KIT209", "warning", needs=("slurm_",))
def unset_slurm_variables(script: BatchScript) -> Iterator[Problem]:
    """The script reads a variable that Slurm does not set there.

    Slurm sets SLURM_NTASKS_PER_NODE, SLURM_CPUS_PER_TASK, SLURM_GPUS, SLURM_GPUS_PER_NODE and SLURM_GPUS_PER_TASK only
    if the job gives the option of that name, and SLURM_ARRAY_TASK_ID only in an array. In the batch script, the same
    applies to SLURM_NTASKS, which --ntasks-per-node sets, too. srun sets SLURM_LAUNCH_NODE_IPADDR and SLURM_STEP_...
    for its tasks only. A session of ssh has no variable of Slurm at all: in single quotes, the remote shell expands the
    variable (an error).

    Fix: give the option, or read a variable that is always set: SLURM_GPUS_ON_NODE, SLURM_NNODES. For ssh, use double
    quotes, so that the batch shell expands the variable.
    Documented: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    for launch in script.launch_lines:
        if launch.stage("ssh") is None or _SOURCES.search(launch.command.text):
            continue
        for part in (part for word in launch.command.syntax.words for part in word.parts):
            match = re.search(r"\$\{?(SLURM_\w+)", part.text) if part.kind == "text" and part.quoted else None
            if match is not None:
                line = part.origin.line + part.text[: match.start()].count("\n")
                what = f"${match[1]} is not set in a session of ssh"
                remedy = "use double quotes, so that the batch shell expands it; count the nodes in the loop"
                yield Problem(Origin(line, part.origin.column), what, remedy, (launch.line,), certain=True)
    yield from _step_variables(script)
    yield from _missing_options(script)
    yield from _unset_at_first(script)


def _unset_at_first(script: BatchScript) -> Iterator[Problem]:
    """Find variables of arrays in a job without one, and of restarts where an unset variable ends the script."""
    if not script.contained(("slurm_array", "slurm_restart_count")):
        return
    for step, part in script.nested_parts:
        name = _read_without_default(part)
        if name is None or name in script.assigned or _may_be_unset(script, name):
            continue
        nounset = step.options.get("nounset")
        if name == "SLURM_RESTART_COUNT" and nounset is not None and not step.in_task:
            what = "$SLURM_RESTART_COUNT is not set at the first start: set -u ends the script"
            yield Problem(part.origin, what, "write ${SLURM_RESTART_COUNT:-0}", (nounset,), certain=True)
            return
        # Without set -u, a log with an empty index is harmless.
        harmless = step.name in {"echo", "logger", "printf", *script.functions} and nounset is None
        if name.startswith("SLURM_ARRAY") and not _may_be_array(script) and not harmless:
            yield Problem(part.origin, f"${name} is not set: the job has no --array", "add #SBATCH --array=...")
            return


def _read_without_default(part: Part) -> str | None:
    """Return the variable of an array or a restart that a part of a word reads, unless `${NAME:-...}` allows for it."""
    if part.kind == "variable" and not re.match(r":?[-+?=]", part.detail):
        names = re.findall(r"SLURM_(?:ARRAY_(?:TASK|JOB)_ID|RESTART_COUNT)\b", part.text + part.detail)
    else:
        names = re.findall(r"SLURM_ARRAY_TASK_ID\b", part.text) if part.kind == "arithmetic" else []
    return names[0] if names else None


def _may_be_unset(script: BatchScript, name: str) -> bool:
    """Tell whether the script tests a variable, or has a default for it anywhere: it then allows for both cases."""
    names = {name} if name == "SLURM_RESTART_COUNT" else {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID"}
    # `TASK=$SLURM_ARRAY_TASK_ID` with `${TASK:-0}` below it.
    whole = re.compile(rf"\"?\$\{{?({'|'.join(names)})\}}?\"?")
    copies = [each.name for each in script.written_assignments if whole.fullmatch(each.value.raw)]
    return any(f"${{{copy}:-" in script.code for copy in copies) or any(map(script.tests_variable, names))


def _may_be_array(script: BatchScript) -> bool:
    """Tell whether the job is an array, or a comment tells how to submit it as one."""
    named = re.search(r"(?i)--array|array\b|\bsbatch\b.*\s-a\s*[\d$<{\[]", script.text)
    return "array" in script.options or named is not None or script.sources_files


def _missing_ntasks(script: BatchScript) -> Iterator[Problem]:
    """Find uses of the number of tasks in the batch shell of a job that does not request one."""
    for step in script.batch_commands if script.options.keys() & {"nodes", "nodelist"} else ():
        parts = [part for each in step.written_assignments for part in each.value.parts]
        if script.launch_at(step) is not None:
            parts += [part for word in step.syntax.words for part in word.parts if part.kind == "variable"]
        for part in parts:
            match = re.search(r"\bSLURM_(NTASKS|NPROCS)\b(?!:?-)", part.raw)
            if match is not None and match[0] not in script.assigned:
                what = f"${match[0]} is not set in the batch script: the job does not give --ntasks"
                yield Problem(part.origin, what, "add #SBATCH --ntasks-per-node=1", (step.line,))


def _lines_with_option(script: BatchScript, option: str) -> set[int]:
    """Return lines that a task expands whose own srun gives an option. srun sets the variable there."""
    lines: set[int] = set()
    for launch in script.launch_lines:
        if any(option in each.options for each in launch.stages):
            syntax = launch.command.syntax
            parts = [part for word in syntax.words for part in word.parts if part.quoted] + [*(syntax.document or ())]
            starts = [(part.origin.line, part.text.count("\n") + 1) for part in parts if part.kind == "text"]
            lines |= {line for start, count in starts for line in range(start, start + count)}
    return lines


def _step_variables(script: BatchScript) -> Iterator[Problem]:
    """Find variables of srun's tasks that the batch script reads."""
    for each in script.assignments:
        match = re.fullmatch(r"\$\{?(SLURM_(LAUNCH_NODE_IPADDR|SRUN_COMM_HOST|STEP_\w+))\}?", each.value.text)
        if match is not None and not each.in_task and match[1] not in script.assigned:
            what = f"${match[1]} is not set in the batch script: srun sets it for its tasks only"
            remedy = 'use $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) for the first host'
            yield Problem(each, what, remedy)


def _missing_options(script: BatchScript) -> Iterator[Problem]:
    """Find variables of options that the job does not give."""
    # Without any size in the script, the command line of sbatch gives all of it.
    if not script.is_readable or script.is_heterogeneous or not (script.size.is_stated or script.size.has_gpus):
        return
    if script.options.keys().isdisjoint({"ntasks", "ntasks-per-node", "ntasks-per-gpu"}):
        yield from _missing_ntasks(script)
    text = "\n".join(line for _, line in script.command_lines)
    for name, option in _OPTION_OF_VARIABLE.items():
        if name not in text:
            continue
        # sbatch refuses the directive that gives the option.
        refused = any(f"--{option}" in script.lines[problem.line - 1] for problem in script.problems)
        if option in script.options or refused or name in script.assigned or script.tests_variable(name):
            continue
        if "GPUS" in name and not script.size.has_gpus:
            continue
        in_steps = _lines_with_option(script, option)
        for match in re.finditer(rf"(?<!\\)\$\{{?{name}\b|\$\(\([^()\n]*?\b{name}\b", text):
            line = text[: match.start()].count("\n") + 1
            if line in in_steps:
                continue
            what = f"${name} is not set: the job does not give --{option}"
            remedy = f"add #SBATCH --{option}=..." + (f"; or use {_ALTERNATIVE[name]}" if name in _ALTERNATIVE else "")
            yield Problem(Origin(line, match.start() - text.rfind("\n", 0, match.start())), what, remedy)
