"""Rules for the ports at which ranks meet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.bash_syntax import Part
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedAssignment
from hpc_kit.check.expansion import ExpandedText, bounds_of_sum
from hpc_kit.check.launch_lines import LOOPS, LaunchLine
from hpc_kit.check.programs import AGENT_WORDS
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.rendezvous import LOOPBACK, is_for_one_rank, urls_of
from hpc_kit.check.rules.steps import calls_at_once
from hpc_kit.check.text_edits import Edit
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.sizes import size_of_job

_PORTS = lazy_pattern(r"MASTER_PORT\Z|JAX_COORDINATOR_(ADDRESS|PORT)\Z")
_PORT_OPTIONS = ("master-port", "main-process-port", "rdzv-endpoint")


PORT_WORDS = ("_port", "-port", "jax_coordinator", "rdzv")
"""Texts of which each variable or option with a port has one."""
_GPUS_OF_SMALL_NODE = 4
_CPUS_OF_SMALL_NODE = 48


@rule("KIT302", "warning", needs=(*PORT_WORDS, "tcp://"))
def fixed_port(script: BatchScript) -> Iterator[Problem]:
    """The rendezvous port is fixed.

    Two jobs on one node use the same port. The result is "address already in use", or the ranks of one job join the
    other. The remains of an earlier job have the same effect. The rule finds the ports of tutorials, such as 29500,
    those of an array, and ports from 32768 to 60999, which the kernel assigns to outgoing connections. A job that takes
    whole nodes is alone on them: with --exclusive or --mem=0, with four GPUs or 48 CPUs a node, or if it counts only
    nodes.

    Fix: derive a port below 32768 from the job id: `MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`.
    Documented: pytorch.org/docs/stable/distributed.html; ip(7), ip_local_port_range; NVIDIA/enroot issue 243 is one of
    many.
    """
    seen: set[int] = set()
    at_once = not script.options.get("array", "%1").endswith("%1")
    alone = script.is_alone_on_nodes or (_takes_whole_nodes(script) and not at_once)
    for text, port in _ports(script) if not alone else ():
        ephemeral = 32768 <= port <= 60999
        # One fix at the first place of a port is enough.
        if port not in seen and (port in _USUAL_PORTS or at_once or ephemeral):
            what = f"port {port} is fixed: two jobs on one node use the same port"
            if ephemeral:
                what = f"port {port} is ephemeral: Linux assigns 32768-60999 to outgoing connections"
            yield Problem(text, what, f"write MASTER_PORT={_OWN_PORT}", edits=_own_port(script, text, port))
        seen.add(port)


_USUAL_PORTS = {1234, 6000, 8888, 9999, 10000, 10001, 11111, 12345, 12346, 12355, 12356, 23456, 29400, 29500, 29501}
"""Ports of tutorials and of torchrun itself, which many jobs use."""


def _takes_whole_nodes(script: BatchScript) -> bool:
    """Tell whether the job has so much of each node that hardly another job fits beside it."""
    # A site that accepts a job of several nodes without a count of anything else gives whole nodes.
    if script.size.has_several_nodes and script.counts_only_nodes:
        return True
    for part in script.components:
        size = size_of_job({name: each.value for name, each in part.items()})
        cpus = (size.tasks_per_node or 1) * (size.cpus_per_task or 1)
        all_memory = "mem" in part and part["mem"].value == "0"
        if not all_memory and cpus < _CPUS_OF_SMALL_NODE and (size.gpus_per_node or 0) < _GPUS_OF_SMALL_NODE:
            return False
    return True


_OWN_PORT = "$((10000 + SLURM_JOB_ID % 20000))"


def _own_port(script: BatchScript, text: ExpandedText, port: int) -> tuple[Edit, ...]:
    """Return the edit that derives the port of an assignment from the job id."""
    before = script.lines[text.line - 1][: text.column - 1]
    # In any other place, the two ends of a connection may both contain the number.
    bare = re.fullmatch(r"\s*(export\s+)?MASTER_PORT=", before) and text.pieces[0].origin.exact
    return (Edit(text.line, text.column, str(port), _OWN_PORT),) if bare else ()


def _ports(script: BatchScript) -> Iterator[tuple[ExpandedText, int]]:
    """Yield ports that are written as numbers."""
    texts = [each.value for each in _assigned_ports(script) if _is_read(script, each)] + _port_options(script)
    for text in texts + [url for launch in script.training for url in urls_of(launch)]:
        port = text.slice_of(text.text.rfind(":") + 1, len(text.text))
        # Port 0 asks the system for a free one.
        if port.number is not None and 0 < port.number < 65536:
            yield port, port.number


def _assigned_ports(script: BatchScript) -> list[TracedAssignment]:
    """Return the assignments to variables with a port."""
    return [each for each in script.assignments if _PORTS.match(each.name)]


def _port_options(script: BatchScript) -> list[ExpandedText]:
    """Return the options of agents with a port. An agent alone on its node draws its own."""
    agents = [launch.agent for launch in script.launch_lines if launch.agent is not None]
    options = [agent.options for agent in agents if "standalone" not in agent.options]
    return [each[name] for each in options for name in _PORT_OPTIONS if name in each]


def _is_read(script: BatchScript, each: TracedAssignment) -> bool:
    """Tell whether programs see the variable, or another line of the script reads it."""
    lines = (line for number, line in script.code_lines if number != each.line)
    code = [line for line in lines if not re.match(r"\s*(echo|printf)\b", line)]
    if script.training and all(launch.stage("torchrun") for launch in script.training):
        # torchrun knows its port from its options alone, and gives its workers one of its own.
        return any(re.search(rf"\$\{{?{each.name}\b", line) for line in code)
    return each.is_exported or each.in_task or each.value.has_default or any(each.name in line for line in code)


_JOB_IDS = (1, 2**26)
_ANY_NUMBER = {
    "SLURM_JOB_ID": _JOB_IDS, "SLURM_JOBID": _JOB_IDS, "SLURM_ARRAY_JOB_ID": _JOB_IDS, "RANDOM": (0, 32767),
    "SLURM_ARRAY_TASK_ID": (0, 23),
}  # fmt: skip
"""Bounds of numbers from which ports are computed. A job id fits into 26 bits."""


def _extremes(text: str) -> tuple[int, int] | None:
    """Return the smallest and largest value of a port; None if it contains something unknown."""
    if last := re.fullmatch(r"(\d*)\$\{\w+:[ (]*-(\d)\)?\}", text):
        return int(last[1] + "0" * int(last[2])), int(last[1] + "9" * int(last[2]))
    if "#" in text:
        return None  # 10#$NAME
    source = re.sub(r"\A\$\(\((.*)\)\)\Z", r"\1", text)
    names = re.findall(r"[A-Za-z_]\w*", source)
    # Bounds ignore that both are the same number: $((ID - ID / 100 * 100)) is less than 100.
    repeated = len(names) > len(set(names))
    return None if repeated else bounds_of_sum(re.sub(r"\$\{?(\w+)\}?", r"\1", source), _ANY_NUMBER)


@rule("KIT310", needs=PORT_WORDS)
def impossible_port(script: BatchScript) -> Iterator[Problem]:
    """A port beyond 65535, or one that only root may use.

    Ports are numbers from 1 to 65535, and those below 1024 belong to root. Job ids grow beyond 65535, and $RANDOM is at
    most 32767. A sum that is too large in some jobs only is a warning.

    Fix: `MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`.
    Documented: ip(7), ip_unprivileged_port_start.
    """
    for text in [each.value for each in _assigned_ports(script)] + _port_options(script):
        port = re.search(
            r"(?:\A|:)(\d+|\$\(\(.*\)\)|\$\{?SLURM_JOB_?ID\}?|\d*\$\{SLURM_JOB_?ID:[ (]*-\d\)?\}|\$\{?RANDOM\}?)\Z",
            text.text,
        )
        bounds = _extremes(port[1]) if port else None
        if port is None or bounds is None or bounds == (0, 0) or not (bounds[0] < 1024 or bounds[1] > 65535):
            continue
        low, high = bounds
        what = f"this port may be {high}: ports end at 65535" if high > 65535 else f"this port may be {low}, below 1024"
        # Job ids grow beyond 65535 in time. A random number may stay below.
        job_id = "JOB" in text.text or low == high
        certain = (high > 65535 and job_id) or high < 1024
        yield Problem(text.slice_of(*port.span(1)), what, f"write MASTER_PORT={_OWN_PORT}", certain=certain)


_DRAWN = lazy_pattern(r"\bRANDOM\b|\$\$|\bBASHPID\b|\bshuf\b|/dev/urandom|\buuidgen\b|\bdate\s[^)`]*%[sN]|\.bind\(\(")
_SAME = ("rdzv-id", "rdzv-endpoint", "master-port", "main-process-port")


@rule("KIT308", "warning", needs=(*AGENT_WORDS, "slurm_array_job_id"))
def port_of_an_array(script: BatchScript) -> Iterator[Problem]:
    """Elements of an array, or programs at the same time, use the same port.

    A port that depends on SLURM_ARRAY_JOB_ID only is the same for all elements. Two of them on one node collide, or
    join each other's rendezvous. So do two launchers in the background of one script with the same port (an error);
    without an option for it, deepspeed uses port 29500, and torchrun on one node a free one.

    Fix: use SLURM_JOB_ID, which differs between the elements; `torchrun --standalone` on one node.
    Documented: sbatch(1), --array; slurm.schedmd.com/job_array.html; pytorch.org/docs/stable/elastic/run.html.
    """
    yield from _port_at_once(script)
    array = script.directive("array")
    if array is None or script.is_alone_on_nodes:
        return
    for text in [each.value for each in _assigned_ports(script)] + _port_options(script):
        if "SLURM_ARRAY_JOB_ID" in text.text and not re.search("SLURM_(ARRAY_TASK|JOB)_ID", text.text):
            what = "all elements of the array use this port"
            yield Problem(text, what, "use SLURM_JOB_ID instead of SLURM_ARRAY_JOB_ID", (array.line,))


def _port_at_once(script: BatchScript) -> Iterator[Problem]:
    """Find two launchers that use the same port of this node at the same time."""
    running: dict[str, int] = {}
    for step in script.batch_commands:
        if step.name == "wait":
            running = {}
        launch = script.launch_at(step)
        agent = launch.agent if launch is not None and launch.stages[0] is launch.agent else None
        chosen = {"rdzv-endpoint", "rdzv-backend", "standalone", "config-file", "hostfile"}
        if launch is None or agent is None or agent.may_hide_options or agent.options.keys() & chosen:
            continue
        option = agent.option("master-port", "main-process-port")
        hidden = ("PET_",) if option is not None else ("PET_", "MASTER_PORT")
        if step.is_conditional or any(name.startswith(hidden) for name in script.assigned):
            continue
        # Without an option, torchrun and accelerate find a free port on one node.
        if option is None and agent.kind != "deepspeed":
            continue
        port, loop = option.text if option is not None else "29500", step.around(*LOOPS)
        waits = any(each.name == "wait" and loop in each.compounds for each in script.batch_commands)
        changing = step.syntax.variables & (script.changed_in(loop) - {loop.name}) if loop is not None else ()
        again = step.in_background and (calls_at_once(script, step) or not (loop is None or waits or changing))
        if not port.isdigit():
            continue
        if port in running or again:
            what = f"line {running.get(port, step.line)} uses port {port} at the same time: the second one fails"
            yield Problem(
                option or agent, what, "give each launcher a port", (running.get(port), launch.line), certain=True
            )
            return
        if step.in_background:
            running[port] = step.line


@rule(
    "KIT306",
    needs=(
        "random",
        "$$",
        "bashpid",
        "shuf",
        "uuidgen",
        "date",
        "bind",
        "slurm_procid",
        "slurm_localid",
        "slurm_nodeid",
    ),
)
def random_value_per_task(script: BatchScript) -> Iterator[Problem]:
    """Each task draws its own port or rendezvous id.

    `$RANDOM`, `shuf` or the search for a free port gives another number in each task, so that the tasks never meet. So
    does a port that is computed from the rank. On the launch line itself, and in double quotes, the batch shell draws
    once, and all tasks get the same number.

    Fix: draw it in the batch script, before srun: `export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`; as id,
    `--rdzv-id=$SLURM_JOB_ID`.
    Documented: pytorch.org/docs/stable/elastic/run.html, --rdzv-id; bash(1), RANDOM.
    """
    inside = [launch for launch in script.launch_lines if launch.multiplier and launch.inner_command.in_task]
    wide = [launch for launch in inside if script.size_of(launch).has_several_tasks]
    ports = [each.value for each in script.assignments_of("MASTER_PORT") if each.in_task] if wide else []
    places = _drawn_by_tasks(script)
    for text in ports + [text for launch in wide for text in _agreed(launch)]:
        if any((piece.origin.line, piece.origin.column) in places for piece in text.pieces):
            of_time = "$(date" in text.text
            what = f"each task draws its own value, so that {'some' if of_time else 'all'} differ"
            yield Problem(text, what, "draw it once in the batch script, or use $SLURM_JOB_ID", certain=not of_time)
    together = any(not LOOPBACK.match(each.value.text) for each in script.assignments_of("MASTER_ADDR"))
    for port in ports if together else ():
        if re.search("SLURM_(PROC|LOCAL|NODE)ID", port.text):
            what = "this port depends on the rank: the tasks never meet"
            yield Problem(port, what, "compute it from $SLURM_JOB_ID alone")


def _drawn_by_tasks(script: BatchScript) -> set[tuple[int, int]]:
    """Return the places of random expansions that a task evaluates, rather than the batch shell."""
    drawn: set[tuple[int, int]] = set()
    seeded = any(each.in_task for each in script.assignments_of("RANDOM"))
    for step in script.commands:
        if not step.in_task or is_for_one_rank(script, step):
            continue
        for part in step.syntax.parts:
            match = _DRAWN.search(part.raw + _code_of(script, part)) if part.kind != "text" else None
            # The shell of the task sees text that an outer shell has expanded: it is not in the file.
            if match is None or not part.origin.exact or "--random-source" in part.raw:
                continue
            if not (seeded and match[0] == "RANDOM"):
                drawn.add((part.origin.line, part.origin.column))
    return drawn


def _code_of(script: BatchScript, part: Part) -> str:
    """Return the code of the function that `$(NAME ...)` calls."""
    name = re.match(r"\s*(\w+)", part.text) if part.kind == "command" else None
    steps = script.functions.get(name[1], []) if name is not None else []
    return "\n".join(word.raw for step in steps for word in step.syntax.words)


def _agreed(launch: LaunchLine) -> list[ExpandedText]:
    """Return the options that must be equal on all agents."""
    agent = launch.agent
    if agent is None or "standalone" in agent.options:
        return []
    return [agent.options[name] for name in _SAME if name in agent.options]
