"""Rules for files of hosts, from which deepspeed and mpirun learn the nodes of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.bash_syntax import (
    Command,
    CompoundCommand,
    Origin,
    Pipeline,
    SimpleCommand,
    Word,
    nested_block,
    program_of,
    simple_commands,
    written_files,
)
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.expansion import plain_path
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage
from hpc_kit.check.programs import MPIRUN_WORDS
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.launch_line import nothing_unknown
from hpc_kit.lazy_pattern import lazy_pattern


@rule("KIT215", needs=("deepspeed",))
def nodes_of_deepspeed(script: BatchScript) -> Iterator[Problem]:
    """The deepspeed launcher does not use the nodes of the job.

    deepspeed starts the processes of all nodes itself, by ssh, from the hosts of --hostfile. Without --hostfile it only
    uses its own node: started by srun on four nodes, it trains four separate models.

    Fix: `srun python train.py` with one task per GPU; `deepspeed.init_distributed()` reads the ranks of Slurm's tasks
    from RANK, WORLD_SIZE and LOCAL_RANK. Or call deepspeed once, with --hostfile and without srun. Each line of that
    file is `HOST slots=N`: deepspeed refuses a list of names alone, which mpirun accepts.
    Documented: www.deepspeed.ai/getting-started, "Launching DeepSpeed Training".
    """
    for launch in script.launch_lines:
        agent, size = launch.agent, script.size_of(launch)
        # A variable such as `$ARGS` may contain --hostfile.
        if agent is None or agent.kind != "deepspeed" or agent.may_hide_options:
            continue
        given, have, lines = agent.node_count, script.size.nodes, (script.line_of("nodes"), launch.line)
        count = given.number if given is not None else None
        if given is not None and count is not None and have and count > have:
            what = f"deepspeed expects {count} nodes, but the job has {have}"
            yield Problem(given, what, "remove --num_nodes", lines)
        elif given is not None and count is not None and have and count < have and script.only_training:
            what = f"deepspeed uses {count} of the {have} nodes of the job: the rest is idle"
            yield Problem(given, what, "remove --num_nodes", lines, certain=False)
        yield from _slots(script, launch)
        yield from _bare_hosts(script, launch, agent)
        if launch.stage("srun") is None:
            yield from _first_node_alone(script, launch, agent)
            continue
        if not size.has_several_nodes or agent.options.keys() & {"no-ssh", "node-rank", "enable-each-rank-log"}:
            continue
        effect = "each starts all nodes" if "hostfile" in agent.options else "each trains a separate model"
        what = f"srun starts deepspeed on {size.min_nodes} nodes: {effect}"
        yield Problem(agent, what, "write srun python ... with one task per GPU", lines)


def _slots(script: BatchScript, launch: LaunchLine) -> Iterator[Problem]:
    """Find a file of hosts, written by the script, whose slots are not the GPUs of a node."""
    gpus = script.size.gpus_per_node
    found = [
        (int(match[1]), Origin(number, match.start() + 1))
        for number, line in script.code_lines
        for match in re.finditer(r"\bslots=(\d{1,6})\b", line)
    ]
    # Of several files with different slots, one may be for another program.
    if not gpus or len({slots for slots, _ in found}) != 1:
        return
    slots, place = found[0]
    if slots and slots != gpus and place.line < launch.line:
        effect = "some processes have no device" if slots > gpus else "the rest is idle"
        what = f"the file of hosts gives {slots} slots per node, but a node has {gpus} GPUs: {effect}"
        lines = (script.line_of_gpus, launch.line)
        yield Problem(place, what, f"write slots={gpus}", lines, certain=slots > gpus)


class _WrittenFile(NamedTuple):
    """A file that a command of a pipeline writes. `path` is plain, as far as the script tells the variables in it."""

    path: str
    name: Word
    command: Command
    pipeline: Pipeline


def _written(script: BatchScript) -> Iterator[_WrittenFile]:
    for pipeline in (use.pipeline for use in script.pipelines):
        for command in pipeline.commands:
            for file in written_files(command):
                yield _WrittenFile(_plain_path(script.resolve(file.name.unquoted)), file.name, command, pipeline)


def _bare_hosts(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> Iterator[Problem]:
    """Find a file of hosts for deepspeed that the script fills with names alone."""
    # Whatever writes the slots, the script contains them.
    if re.search(r"(?i)slots", script.code) or agent.options.keys() & {"no-ssh", "help"}:
        return
    given = agent.option("hostfile", "H")
    from_variable = next((each.value.text for each in script.assignments_of("DLTS_HOSTFILE")), "")
    path = _plain_path(script.resolve(given.text if given is not None else from_variable))
    written = [each for each in _written(script) if path and each.path == path]
    if not written or not all(_prints_hosts(script, each.pipeline) for each in written):
        return
    # Another command may change the file: sed -i, a program that gets its name.
    name = re.compile(rf"(?<![\w.-]){re.escape(PurePath(path).name)}(?![\w.-])")
    writers = {id(each.command) for each in written}
    for step in script.batch_commands:
        changes = step.name not in _READS_HOSTS and id(step.syntax) not in writers and step is not launch.command
        if changes and any(name.search(script.resolve(text)) for text in step.texts[1:]):
            return
    what = "deepspeed refuses a file of hosts without slots: each line is a name alone"
    remedy = f"write sed 's/$/ slots={script.size.gpus_per_node or 'N'}/' behind a pipe"
    yield Problem(written[-1].name, what, remedy, (launch.line,))


_READS_HOSTS = frozenset(
    {"cat", "chmod", "cp", "echo", "grep", "head", "ls", "mkdir", "rm", "tail", "test", "touch", "wc", "["}
)
_FILTERS = frozenset({"cat", "grep", "head", "sort", "tail", "tee", "uniq"})
_LISTS_HOSTS = lazy_pattern(r"scontrol\s+show\s+hostnames?\b|srun\s.*\bhostname\b|hostname\b|nodeset\s+-e")


def _prints_hosts(script: BatchScript, pipeline: Pipeline, seen: frozenset[str] = frozenset()) -> bool:
    """Tell whether a pipeline prints names of hosts and nothing else. `seen`: variables that are being read."""
    commands = pipeline.commands
    # What stands in front of a loop is its input.
    first = max((index for index, each in enumerate(commands) if isinstance(each, CompoundCommand)), default=0)
    if any(program_of(each) not in _FILTERS for each in commands[first + 1 :]):
        return False
    source = commands[first]
    if isinstance(source, SimpleCommand):
        lists = _LISTS_HOSTS.match(" ".join(word.raw for word in source.words)) is not None
        return lists or _writes_hosts(script, source, seen)
    inside = [each for role, block in source.bodies if role != "condition" for each in simple_commands(block)]
    return bool(inside) and all(_writes_hosts(script, each, seen) for each in inside)


def _writes_hosts(script: BatchScript, command: SimpleCommand, seen: frozenset[str]) -> bool:
    """Tell whether an echo or printf prints names of hosts."""
    if program_of(command) not in {"echo", "printf"}:
        return False
    words = [word for word in command.words[1:] if not re.match(r"-[neE]+\Z|[\"']?%s(:\d+)?(\\n)?[\"']?\Z", word.raw)]
    return bool(words) and all(_is_host(script, word, seen) for word in words)


def _is_host(script: BatchScript, word: Word, seen: frozenset[str]) -> bool:
    """Tell whether a word is the name of a host, or a list of them, perhaps with `:N` behind it."""
    if word.elements is not None:
        return bool(word.elements) and all(_is_host(script, each, seen) for each in word.elements)
    parts = [part for part in word.parts if part.kind != "text" or part.text]
    behind = "".join(part.text for part in parts[1:] if part.kind == "text")
    if not parts or not re.fullmatch(r"(:\d*)?", behind):
        return False
    head, *rest = parts
    # `$host:$port`
    if any(part.kind not in {"text", "variable"} for part in rest):
        return False
    if head.kind in {"command", "process"}:
        block = nested_block(head)
        plain = len(block) == 1 and len(block[0].chain.pipelines) == 1
        return plain and _prints_hosts(script, block[0].chain.pipelines[0], seen)
    if head.kind != "variable" or head.text in seen:
        return False
    if head.text in {"HOSTNAME", "SLURMD_NODENAME"}:
        return True
    inside = seen | {head.text}
    sources = list(_sources(script, head.text))
    return bool(sources) and all(
        _is_host(script, each, inside) if isinstance(each, Word) else _prints_hosts(script, each, inside)
        for each in sources
    )


def _sources(script: BatchScript, name: str) -> Iterator[Word | Pipeline]:
    """Yield the sources of the values of a variable: words, and pipelines whose output it reads."""
    yield from (each.value for each in script.written_assignments if each.name == name)
    yield from (word for loop in script.compounds("for") if loop.name == name for word in loop.words)
    for pipeline in (use.pipeline for use in script.pipelines):
        for index, command in enumerate(pipeline.commands):
            if name in _read_by(command):
                yield from (each.target for each in command.redirections if each.operator in {"<", "<<<"})
                if index:
                    yield Pipeline(pipeline.commands[:index], negated=False)


def _read_by(command: Command) -> set[str | None]:
    """Return the variables into which a command, or the condition of a `while`, reads its input."""
    if isinstance(command, SimpleCommand):
        reads = program_of(command) in {"mapfile", "read", "readarray"}
        return {word.plain for word in command.words[1:]} if reads else set()
    conditions = [block for role, block in command.bodies if role == "condition" and command.kind == "while"]
    return {name for block in conditions for each in simple_commands(block) for name in _read_by(each)}


def _first_node_alone(script: BatchScript, launch: LaunchLine, agent: LaunchStage) -> Iterator[Problem]:
    """Find deepspeed without a list of hosts in a job of several nodes."""
    told = agent.options.keys() & {"hostfile", "H", "include", "launcher", "no-ssh", "node-rank", "help"}
    alone = script.only_training is launch and nothing_unknown(script)
    named = "DLTS_HOSTFILE" in script.assigned or launch.stage("mpirun", "ssh")
    if not told and not named and alone and script.size.has_several_nodes and script.size.is_stated:
        what = f"deepspeed uses this node alone; the job has {script.size.min_nodes} nodes"
        yield Problem(agent, what, "name the hosts with --hostfile", (script.line_of("nodes"), launch.line))


_HOST_OPTIONS = ("hostfile", "H", "machinefile")


@rule("KIT229", "warning", needs=("deepspeed", "horovodrun", *MPIRUN_WORDS))
def unwritten_hostfile(script: BatchScript) -> Iterator[Problem]:
    """The launcher reads another file of hosts than the one that the script writes.

    deepspeed prints "Unable to find hostfile, will proceed with training with local resources only" and uses its own
    node: the rest is idle. mpirun and horovodrun stop. A file of an earlier job names the nodes of that job.

    Fix: write the name once, in a variable, and use the variable in both places.
    Documented: www.deepspeed.ai/getting-started, "Resource Configuration"; deepspeedai/DeepSpeed issue 5221.
    """
    written = [(each.name.line, each.path) for each in _written(script)]
    named_so = re.compile(r"(host|machine|node)[-_]?(file|list|s?(?![a-z]))")
    hosts = [(number, path) for number, path in written if named_so.search(path)]
    for launch in script.launch_lines if hosts else ():
        stages = [stage for stage in launch.stages if stage.kind in {"deepspeed", "mpirun"}]
        text = stages[0].option(*_HOST_OPTIONS) if stages else None
        if text is None and launch.program.name == "horovodrun":
            text = launch.argument("hostfile")
        if text is None or not text.text or "," in text.text or ":" in text.text:
            continue
        # `--include` selects hosts of a file that may describe the whole cluster.
        if any("include" in stage.options for stage in stages):
            continue
        path = _plain_path(script.resolve(text.text))
        elsewhere = [line for number, line in script.code_lines if number != text.line]
        whole = re.compile(rf"(?<![\w.-]){re.escape(PurePath(path).name)}(?![\w.-])")
        named = any(whole.search(re.sub(r"--hostfile\b", "", line)) for line in elsewhere)
        # An unknown path, or a name that another line contains, may be the written file.
        if path.startswith("$") or any(path == other for _, other in written) or named:
            continue
        number, other = hosts[-1]
        what = f"nothing writes {path}: the script writes {other}"
        yield Problem(text, what, f"write {other}", (number, launch.line))


def _plain_path(text: str) -> str:
    """Return a path without the folder in which the script runs."""
    return re.sub(r"\A(\./|\$(SLURM_SUBMIT_DIR|PWD)/)+", "", plain_path(text))
