"""Rules for the rendezvous and NCCL: address, port, id, network interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.bash_syntax import Assignment, Origin, Part, SimpleCommand, Word, nested_block, program_of
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedAssignment, TracedCommand
from hpc_kit.check.expansion import ExpandedText, ShellVariables, expand_word
from hpc_kit.check.launch_lines import LaunchLine, LaunchStage, parse_launch
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.variables import sets
from hpc_kit.check.text_edits import Edit, delete_line
from hpc_kit.lazy_pattern import lazy_pattern

LOOPBACK = lazy_pattern(r"(localhost(\.localdomain)?|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1\]?)\Z")
_ADDRESS_OPTIONS = ("master-addr", "main-process-ip", "rdzv-endpoint")
_URL = lazy_pattern(r"(?:\A|=)tcp://((?:\[[^\]\s]*\]|(?:\$\{[^}\s]*\}|[^\s:/\[\]])+):\d+)(?=/|\?|\Z)")
"""The init_method of init_process_group as an option of a program: --dist-url tcp://HOST:PORT."""
_THIS_HOST = lazy_pattern(r"\$\(\s*(/\S*/)?hostname\b|\$\{?(HOSTNAME|SLURMD_NODENAME)\b|`\s*(/\S*/)?hostname\b")
_MEET = "use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT, or --master-addr=HOST; torchrun does not read MASTER_ADDR"


@rule("KIT301")
def loopback_master(script: BatchScript) -> Iterator[Problem]:
    """MASTER_ADDR is the loopback address, and the job has several nodes.

    On each node, localhost is that node itself. The ranks of the further nodes wait for a rank 0 that never answers, or
    each node becomes a world of its own.

    Fix: use the name of the first node: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.
    Documented: pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
    """
    wide = [launch for launch in script.launch_lines if script.size_of(launch).has_several_nodes]
    if not wide or not (script.is_heterogeneous or script.size.has_several_nodes):
        return
    remedy = f"write MASTER_ADDR={_FIRST}"
    on_each = f"a different machine on each of the {max(script.size_of(launch).min_nodes for launch in wide)} nodes"
    lines = (script.line_of("nodes", launch=wide[0]),)
    addresses = script.assignments_of("MASTER_ADDR")
    elsewhere = [each for each in addresses if not _names_itself(each.value.text, in_task=each.in_task)]
    # A later assignment, perhaps in a branch for several nodes, replaces a default.
    replaced = [each for each in elsewhere if not each.is_for_one_command]
    addresses = [
        each
        for each in addresses
        if not each.value.has_default
        and not any(each.is_alternative_to(other) or other.number > each.number for other in replaced)
    ]
    places: list[tuple[ExpandedText, int | None]] = [(each.value, None) for each in addresses]
    task_texts = [each.value for each in addresses if each.in_task]
    for launch in wide:
        agent = launch.agent
        option = agent.option(*_ADDRESS_OPTIONS) if agent else None
        if agent is not None and "standalone" not in agent.options:
            places += [(option, launch.line)] if option else []
            task_texts += [option] if option and launch.inner_command.in_task else []
            host = None if script.is_cut_short(launch) else _default_host(agent)
            if host and not any(name.startswith("PET_") for name in script.assigned):
                what = f"torchrun has no rendezvous address and uses {host}: {on_each}"
                yield Problem(agent, what, _MEET, (*lines, launch.line))
        places += [(url, launch.line) for url in urls_of(launch)]
    for text, line in places:
        host = re.sub(r"(?<=[^:]):(\d+|\$.*)\Z", "", text.text)
        if _names_itself(host, in_task=text in task_texts):
            yield Problem(text, f"{host} is {on_each}", remedy, (*lines, line))


def _names_itself(host: str, *, in_task: bool) -> bool:
    """Tell whether each host resolves this name to itself. `in_task`: each task expands the name."""
    return bool(LOOPBACK.match(host) or (in_task and _THIS_HOST.match(host)))


def _default_host(agent: LaunchStage) -> str | None:
    """Return the host at which torchrun meets its peers by default. torchrun does not read MASTER_ADDR."""
    nodes, backend = agent.option("nnodes"), agent.option("rdzv-backend")
    finds_address = "hpc_kit.runtime.torchrun" in agent.texts[:4] or "rdzv-endpoint" in agent.options
    if agent.kind != "torchrun" or finds_address or agent.may_hide_options:
        return None
    # On one node, the loopback address is right.
    if nodes is None or nodes.text in {"1", "1:1"}:
        return None
    if backend is None or backend.text == "static":
        return None if "master-addr" in agent.options else "127.0.0.1"
    return "localhost" if backend.text == "c10d" else None


def removal(script: BatchScript, assignment: TracedAssignment) -> tuple[Edit, ...]:
    """Return the edit that removes an assignment which is alone in its line."""
    line = script.lines[assignment.line - 1]
    alone = re.fullmatch(rf"\s*(export\s+)?{assignment.name}=[\w.^,\"']*\s*", line)
    return (delete_line(script.lines, assignment.line),) if alone else ()


def _first_host(each: Assignment) -> tuple[Edit, ...]:
    """Return the edit that takes the address of the first host."""
    exact = "\n" not in each.value.raw
    return (Edit(each.value.line, each.value.column, each.value.raw, _FIRST),) if exact else ()


def urls_of(launch: LaunchLine) -> list[ExpandedText]:
    """Return HOST:PORT of each tcp:// argument of the program."""
    found = ((word, _URL.search(word.text)) for word in launch.program.words)
    return [word.slice_of(match.start(1), match.end(1)) for word, match in found if match]


_HANDED_ON = (
    r"\b(export|declare|typeset)\b[^\n;]*(?<![\w${{]){}\b",
    r"--export[= ]\S*{}=",
    r"-x +{}\b",
    r"\s(-e|--env)[= ]+\S*(?<![\w${{]){}\b",
)
"""Ways to pass a variable on: by the shell, srun, mpirun, or to a container."""
_READ_BY_PROGRAMS = lazy_pattern(r"MASTER_(ADDR|PORT)\Z|WORLD_SIZE\Z|OMP_NUM_THREADS\Z|(NCCL|GLOO|TORCH)_\w+\Z")


@rule("KIT304")
def unexported_variables(script: BatchScript) -> Iterator[Problem]:
    """A variable for programs is set, but not exported.

    `MASTER_ADDR=...` without `export` exists only in the batch shell. The tasks do not see it, and `srun bash -c '...
    $MASTER_ADDR ...'` expands to nothing. If nothing in the script reads the variable, this is a warning.

    Fix: `export MASTER_ADDR=...`.
    Documented: bash(1), ENVIRONMENT.
    """
    started = script.training
    text = script.code.replace("\\\n", " ")
    if not started or not script.is_shell or re.search(r"set\s+(-\w*a|-o\s+allexport)", text):
        return
    exports = [word for command in script.commands if command.name == "export" for word in command.syntax.words[1:]]
    if any(word.parts[:1] and word.parts[0].kind != "text" for word in exports):
        # The exported names are unknown.
        return
    words = [word for launch in started for word in launch.command.syntax.words]
    quoted = "\n".join(part.text for word in words for part in word.parts if part.quoted and part.kind == "text")
    agents = all(launch.agent for launch in started)
    for name in dict.fromkeys(each.name for each in script.assignments if not each.in_task):
        mention = rf"\$\{{?{name}\b"
        in_tasks = name in quoted and re.search(mention, quoted) is not None and not sets(name).search(quoted)
        if not in_tasks and not _READ_BY_PROGRAMS.match(name):
            continue
        assignments = script.assignments_of(name)
        exported = any(each.is_exported or each.in_task for each in assignments)
        if exported or any(re.search(each.format(name), text) for each in _HANDED_ON):
            continue
        # An agent sets these variables for its processes. A line that reads the variable passes its value on.
        if not in_tasks and (agents or re.search(rf"^(?!\s*(echo|printf)\b).*{mention}", text, re.MULTILINE)):
            continue
        effect = f"in the tasks, ${name} expands to nothing" if in_tasks else "no program sees it"
        place = Origin(assignments[0].line, max(1, assignments[0].column - len(name) - 1))
        certain = in_tasks and not script.sources_files
        edits = (Edit(place.line, place.column, f"{name}=", f"export {name}="),)
        yield Problem(place, f"{name} is not exported: {effect}", f"write export {name}=...", (), certain, edits=edits)


_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_NO_HOST = "this is no host name: the node list looks like gpu[01-04]"
_HOST = lazy_pattern(
    r"(\w+_)?(MASTER|MAIN|HEAD|FIRST|LEADER|ROOT|RDZV|COORDINATOR)(_?(ADDR|ADDRESS|NODE|HOST|IP|NAME|ENDPOINT))*\Z"
)
_LIST = r"\$\{?SLURM_(?:JOB_)?NODELIST\b"
_SENT = rf"(\$\(|`)\s*(echo|printf)\b[^|\[\]]*{_LIST}[^|\[\]]*\|\s*"
"""The list as the input of a program that does not know its brackets."""
_WHOLE = lazy_pattern(rf"[\"']?{_LIST}\}}?[\"']?(:\S*)?\Z")
_ALL_NAMES = lazy_pattern(r"[\"']?(\$\(|`)\s*scontrol\s+show\s+hostnames?(\s+[\"']?\$\{?\w+\}?[\"']?)?\s*[)`][\"']?\Z")
_CUTS = r"(?:cut\s[^|\[\]]*-d\W*,|awk\s+-F\W*,|tr\s+\W*,|sed\s+\S*s/,)"
_AT_COMMA = lazy_pattern(rf"\$\{{SLURM_(?:JOB_)?NODELIST%%?,\*\}}|{_SENT}{_CUTS}|\b{_CUTS}[^|]*<<<\s*\"?{_LIST}")
_BY_COLUMN = lazy_pattern(rf"\$\{{SLURM_(?:JOB_)?NODELIST:\s*\d|{_SENT}(cut\s+-[bc]|head\s+-c)")
_RANK = lazy_pattern(r"PROCID|LOCALID|NODEID|RANK|hostname|HOSTNAME")


@rule("KIT305", needs=("nodelist", "hostname"))
def first_host_by_string(script: BatchScript) -> Iterator[Problem]:
    """The script cuts the name of the first host out of the node list.

    Slurm folds the list: `gpu[01-04,07]`. The text before the first comma is `gpu[01-04`, which is no host name. A cut
    by columns (a warning) works for one site and one number of nodes. The whole list is no host name, either, nor is
    the first element of `("$names")`, which contains all names, nor the output of `scontrol show hostnames` without
    `| head -n 1`. `$(srun hostname)` prints a line for each task, also behind `| awk '{print $1}'`.

    Fix: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.
    Documented: sbatch(1), SLURM_JOB_NODELIST; scontrol(1), "show hostnames".
    """
    yield from _one_line_per_task(script)
    if not script.size.has_several_nodes:
        return
    yield from _cut_elsewhere(script)
    written = script.written_assignments
    copies = {each.name for each in written if _WHOLE.match(each.value.raw)}
    copies -= {each.name for each in written if each.name in copies and not _WHOLE.match(each.value.raw)}
    copied = re.compile(rf"\$(\{{?)({'|'.join(copies)})\b") if copies else None
    for each in script.written_assignments:
        text = copied.sub(r"$\1SLURM_JOB_NODELIST", each.value.raw) if copied is not None else each.value.raw
        if not _HOST.match(each.name.upper()):
            continue
        if _ALL_NAMES.match(text) and not _selected(script, each.name):
            what, remedy = "this is the names of all nodes, one in each line", f"write {each.name}={_FIRST}"
            yield Problem(each.value, what, remedy, (script.line_of("nodes"),), edits=_first_host(each))
        if "scontrol" in text or _written_out(script, text):
            continue
        by_column = _BY_COLUMN.search(text)
        cut = by_column or _AT_COMMA.search(text)
        # Another program may expand the list in this variable.
        apart = re.search(rf"\b(scontrol|nodeset|hostlist|cluset)\b.*\$\{{?{each.name}\b", script.code)
        if cut or (_WHOLE.match(text) and not apart):
            what = "this is cut out of the node list by columns" if by_column else _NO_HOST
            # The effect of a program after the cut is unknown.
            certain = not (by_column or (cut and "|" in text[cut.end() :]))
            remedy, lines = f"write {each.name}={_FIRST}", (script.line_of("nodes"),)
            yield Problem(each.value, what, remedy, lines, certain=certain, edits=_first_host(each))


_OF_IP = lazy_pattern(r"(\w+_)?IP(_?(ADDR|ADDRESS))?\Z")
_EACH_LINE = {
    "awk": re.compile(r"(?:-F\s*\S+ )?\s*[\"']?\{\s*print \\?\$\w+;?\s*\}[\"']?"),
    "cut": re.compile(r".+"),
    "sed": re.compile(r"[\"']?s(\W)(?:(?!\1)[^\n;])*\1(?:(?!\1)[^\n;])*\1[gE]?[\"']?"),
    "tr": re.compile(r"(?!.*(?:\\n|space|\\012|-\w*[cC]|\n)).+"),
}
"""Arguments with which a program prints a line for each line that it reads."""


def _one_line_per_task(script: BatchScript) -> Iterator[Problem]:
    """Find an address that is the output of `srun hostname` in a job of several tasks."""
    if not script.size.has_several_tasks:
        return
    places = [(each.name, part) for each in script.written_assignments for part in _only_commands(each.value)]
    for launch in script.training:
        address = launch.agent.option(*_ADDRESS_OPTIONS) if launch.agent is not None else None
        starts = {piece.origin[:2] for piece in address.pieces} if address is not None else set()
        parts = [part for word in launch.command.syntax.words for part in word.parts if part.kind == "command"]
        places += [("", part) for part in parts if part.origin[:2] in starts]
    for name, part in places:
        named = not name or _HOST.match(name.upper()) or _OF_IP.match(name.upper())
        if not named or not _prints_every_host(script, part) or (name and _selected(script, name)):
            continue
        # A message may name all hosts.
        used = any(re.search(rf"\$\{{?{name}\b", line) for _, line in script.command_lines)
        if name in {"", "MASTER_ADDR"} or used:
            what, lines = (
                "srun prints a line for each task: this is several names, and no address",
                (script.line_of_tasks,),
            )
            yield Problem(part.origin, what, "write srun -N1 -n1, or | head -n 1 at its end", lines)


def _only_commands(value: Word) -> list[Part]:
    return [part for part in value.parts if part.kind == "command"] if value.elements is None else []


_PLACED = frozenset({"exclude", "nodefile", "nodelist", "relative"})
_HOSTNAME = lazy_pattern(r"(/\S*/)?hostname( -\S+)*")


def _prints_every_host(script: BatchScript, part: Part) -> bool:
    """Tell whether the code in a `$(...)` starts `hostname` once per task of the job, and keeps all lines."""
    block = nested_block(part)
    called = script.functions.get(part.text.strip(), [])
    if called and called[0].around("function") is not None:
        block = called[0].position.block
    pipeline = block[0].chain.pipelines[0] if len(block) == 1 and len(block[0].chain.pipelines) == 1 else None
    step, *filters = pipeline.commands if pipeline is not None else (None,)
    if not isinstance(step, SimpleCommand) or program_of(step) != "srun":
        return False
    if any(">" in each.operator and each.descriptor != "2" for each in step.redirections):
        return False
    stages = parse_launch(tuple(text for word in step.words for text in expand_word(word, ShellVariables({}))))
    srun, program = stages[0], stages[-1]
    if len(stages) != 2 or srun.may_hide_options or srun.error or not _PLACED.isdisjoint(srun.options):
        return False
    if "ntasks-per-node" in srun.options and not script.size.has_several_nodes:
        return False
    if any((srun.options[name].number or 1) < 2 for name in ("nodes", "ntasks") if name in srun.options):
        return False
    for each in filters:
        written = " ".join(word.raw for word in each.words[1:]) if isinstance(each, SimpleCommand) else ""
        keeps = _EACH_LINE.get(program_of(each) or "")
        # Two hosts have two names, however they are sorted.
        if program_of(each) in {"sort", "uniq"} and script.size.has_several_nodes:
            continue
        if keeps is None or not keeps.fullmatch(written):
            return False
    # `srun bash -c 'hostname -i'` prints the same lines.
    return _HOSTNAME.fullmatch(program.code.text.text if program.code is not None else program.text) is not None


def _cut_elsewhere(script: BatchScript) -> Iterator[Problem]:
    """Find a folded list that `read` or `${...//,/ }` cuts at its commas, or that is the address of an agent."""
    line = script.line_of("nodes")
    for launch in script.training:
        address = launch.agent.option(*_ADDRESS_OPTIONS) if launch.agent is not None else None
        if address is not None and (_AT_COMMA.search(address.text) or _WHOLE.match(address.text)):
            yield Problem(address, _NO_HOST, f"write HEAD={_FIRST} before, and use it here", (line, launch.line))
    for step in script.commands:
        text = script.lines[step.line - 1]
        commas = any(each.name == "IFS" and "," in each.value.raw for each in step.syntax.assignments)
        read = step.name in {"read", "readarray", "mapfile"} and (commas or re.search(r"-d\s*['\"]?,", text))
        if read and re.search(rf"<<<\s*\"?{_LIST}", text) and not _written_out(script, text):
            yield Problem(step, _NO_HOST, f"write MASTER_ADDR={_FIRST}", (line,))
    lists = {each.name for each in script.written_assignments if "show hostnames" in each.value.raw}
    for each in script.written_assignments:
        parts = each.value.elements or ()
        one = parts[0].parts[0] if len(parts) == 1 and len(parts[0].parts) == 1 and parts[0].parts[0].quoted else None
        if one is not None and ((one.kind == "variable" and one.text in lists) or "show hostnames" in one.raw):
            what = f"the quotes make one element of all names: ${{{each.name}[0]}} is no host name"
            yield Problem(parts[0], what, f"write {each.name}=({parts[0].raw.strip(chr(34))})", (line,))
        cut = next((word for word in parts if re.match(r"[\"']?\$\{SLURM_(JOB_)?NODELIST//,", word.raw)), None)
        if cut is not None and not _written_out(script, cut.raw):
            remedy = 'write mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
            yield Problem(cut, _NO_HOST, remedy, (line,))


def _selected(script: BatchScript, name: str) -> bool:
    """Tell whether the script takes one of the names in a variable, or goes through all of them."""
    value = rf"\$\{{?{name}\b\}}?"
    uses = (
        rf"set --\s+\"?{value}|\$\{{{name}[%#\[:/]|\bin\s+\"?{value}|=\(\s*\"?{value}|<<<\s*\"?{value}|{value}\"?\s*\|"
    )
    return re.search(uses, script.code) is not None


def _written_out(script: BatchScript, text: str) -> bool:
    """Tell whether the script replaced the node list by a value of its own, which need not be folded."""
    name = re.search(_LIST, text)
    values = script.assignments_of(name[0].strip("${")) if name else []
    return any("NODELIST" not in each.value.text for each in values)


@rule("KIT307", needs=("hostname",))
def several_addresses(script: BatchScript) -> Iterator[Problem]:
    """The address of the first node is the output of `hostname -I`.

    `hostname -I` prints all addresses of the node with a space behind each, in no defined order. The whole line is no
    address.

    Fix: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.
    Documented: hostname(1), -I.
    """
    for each in script.written_assignments:
        name = each.name
        whole = re.fullmatch(r"[\"']?(\$\(|`)\s*hostname\s+(-I|--all-ip-addresses)\s*(\)|`)[\"']?", each.value.raw)
        if whole is None or not (_HOST.match(name.upper()) or re.search(r"(\A|_)IP(\Z|_)", name.upper())):
            continue
        # `IP=${IP%% *}` takes the first one later.
        later = rf"\$\{{{name}[%/:#]|\$\{{?{name}\}}?[\"']?\s*[|)]|<<<\s*[\"']?\$\{{?{name}\b"
        if not re.search(later, script.code):
            what, edits = "hostname -I prints all addresses of the node", _first_host(each)
            yield Problem(each.value, what, f"write {each.name}={_FIRST}", edits=edits)


_OTHER_HOST = lazy_pattern(
    r"\btail\s+(-n\s*)?-?1\b|\bsort\s+-\w*[rR]|\bshuf\b|\bsed\s+-n\s*['\"]?(\$|[2-9]|\d\d+)p|head\s+-n?\s*[2-9]\S*\s*\|\s*tail"
)
_ELEMENT = lazy_pattern(r"\A[\"']?\$\{(\w+)\[(.+)\]\}[\"']?\Z")
_OTHER_INDEX = lazy_pattern(r"-\d+|[1-9]\d*|.*(#\w+\[[@*]\]|N_?NODES|NUM_NODES).*-\s*1\W*")
_UNORDERED = lazy_pattern(
    r"\bsrun\b(?![^|]*\s(-w|--nodelist|-N\s*1|--nodes[= ]1|-n\s*1|--ntasks[= ]1|-r|-l\b|--label))"
    r"[^|]*\bhostname\b[^|]*\|\s*head"
)


@rule("KIT313", needs=("nodelist", "host"))
def other_host(script: BatchScript) -> Iterator[Problem]:
    """MASTER_ADDR is not the host of rank 0.

    Rank 0 opens the port, and it runs on the first node. The address of another host leads nowhere: all ranks wait
    until they time out. `srun hostname | head -n 1` prints the host that answers first (a warning). In a heterogeneous
    job, SLURM_JOB_NODELIST has the hosts of component 0; a training in component 1 needs one of its own hosts.

    Fix: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.
    Documented: pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
    """
    # With c10d, any node may be the host.
    yield from _host_of_other_component(script)
    free = any((agent.option("rdzv-backend") or agent.words[0]).text == "c10d" for agent in script.agents)
    if not script.size.has_several_nodes or free:
        return
    hosts = _lists_of_hosts(script)
    for each in script.written_assignments:
        text = each.value.raw
        if not _HOST.match(each.name.upper()):
            continue
        element = _ELEMENT.match(text)
        other = (_OTHER_HOST.search(text) and "NODELIST" in text) or (
            element and element[1] in hosts and _OTHER_INDEX.fullmatch(_written_value(script, element[2]))
        )
        # A script may place the process that others connect to on any host.
        if re.search(rf"(\s-w|--nodelist|\bssh)[= ]*\"?\$\{{?{each.name}\b", script.code):
            continue
        if other or _UNORDERED.search(text):
            what = "this is not the first host, on which rank 0 runs" if other else "this is any host of the job"
            remedy, lines = f"write {each.name}={_FIRST}", (script.line_of("nodes"),)
            yield Problem(each.value, what, remedy, lines, certain=bool(other))


_COMPONENT = lazy_pattern(r"SLURM_(?:JOB_)?NODELIST(?:_(?:HET|PACK)_GROUP_(\d))?\b")


def _host_of_other_component(script: BatchScript) -> Iterator[Problem]:
    """Find an address of a heterogeneous job that belongs to another component than the training."""
    exported = [each.value for each in script.assignments_of("MASTER_ADDR") if not each.in_task]
    written = {(each.value.line, each.value.column): each.value.raw for each in script.written_assignments}
    training = script.training if script.is_heterogeneous and script.is_readable else []
    everywhere = {group for launch in training for group in script.components_of(launch)}
    for launch in training:
        option = launch.agent.option(*_ADDRESS_OPTIONS) if launch.agent is not None else None
        for address in [option] if option is not None else exported if launch.program.kind == "python" else []:
            # The value of a variable has the position of the assignment.
            match = _COMPONENT.search(written.get((address.line, address.column), address.text))
            component, groups = int(match[1] or 0) if match is not None else None, script.components_of(launch)
            # Ranks in several components may meet at a host of any of them.
            if component is not None and component not in (groups if option is not None else everywhere):
                what = f"this is a host of component {component}, but the training runs in component {groups[0]}"
                remedy = f"use SLURM_JOB_NODELIST_HET_GROUP_{groups[0]}"
                yield Problem(address, what, remedy, (launch.line,))


def _written_value(script: BatchScript, subscript: str) -> str:
    """Return a subscript, or the value of the variable that it is, as it is written."""
    name = subscript.strip("${}")
    values = [each.value.raw for each in script.written_assignments if each.name == name]
    return values[0] if len(values) == 1 else subscript


def _lists_of_hosts(script: BatchScript) -> set[str]:
    """Return the variables with the hosts of the job, and arrays that are made of them."""
    hosts: set[str] = set()
    for each in script.written_assignments:
        text = each.value.raw
        if re.search(r"NODELIST|show\s+hostname", text) or any(f"${name}" in text for name in hosts):
            hosts.add(each.name)
    reads = [step.syntax for step in script.commands if step.name in {"mapfile", "readarray"}]
    return hosts | {syntax.words[-1].raw for syntax in reads if "host" in script.lines[syntax.line - 1].lower()}


def is_for_one_rank(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether a condition on the rank precedes the command, so that only one task runs it."""
    return any(map(_RANK.search, script.condition_lines(step)))
