"""Rules for the rendezvous and NCCL: address, port, id, network interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.bash_syntax import Assignment, Origin, Part
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.command_trace import TracedAssignment, TracedCommand
from hpc_kit.check.expansion import ExpandedText, bounds_of_sum
from hpc_kit.check.launch_lines import LOOPS, LaunchLine, LaunchStage
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.rules.set_up import sets
from hpc_kit.check.text_edits import Edit, delete_line
from hpc_kit.slurm.sizes import size_of_job

EPHEMERAL = (32768, 60999)
"""Ports that Linux assigns to outgoing connections (net.ipv4.ip_local_port_range)."""

_LOOPBACK = re.compile(r"(localhost(\.localdomain)?|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1\]?)\Z")
_ADDRESS_OPTIONS = ("master-addr", "main-process-ip", "rdzv-endpoint")
_URL = re.compile(r"(?:\A|=)tcp://((?:\[[^\]\s]*\]|(?:\$\{[^}\s]*\}|[^\s:/\[\]])+):\d+)(?=/|\?|\Z)")
"""The init_method of init_process_group as an option of a program: --dist-url tcp://HOST:PORT."""
_THIS_HOST = re.compile(r"\$\(\s*(/\S*/)?hostname\b|\$\{?(HOSTNAME|SLURMD_NODENAME)\b|`\s*(/\S*/)?hostname\b")
_MEET = "use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT, or --master-addr=HOST; torchrun does not read MASTER_ADDR"
_PORTS = re.compile(r"MASTER_PORT\Z|JAX_COORDINATOR_(ADDRESS|PORT)\Z")
_PORT_OPTIONS = ("master-port", "main-process-port", "rdzv-endpoint")


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
        places += [(url, launch.line) for url in _urls(launch)]
    for text, line in places:
        host = re.sub(r"(?<=[^:]):(\d+|\$.*)\Z", "", text.text)
        if _names_itself(host, in_task=text in task_texts):
            yield Problem(text, f"{host} is {on_each}", remedy, (*lines, line))


def _names_itself(host: str, *, in_task: bool) -> bool:
    """Tell whether each host resolves this name to itself. `in_task`: each task expands the name."""
    return bool(_LOOPBACK.match(host) or (in_task and _THIS_HOST.match(host)))


_GPUS_OF_SMALL_NODE = 4
_CPUS_OF_SMALL_NODE = 48


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


@rule("KIT302", "warning")
def fixed_port(script: BatchScript) -> Iterator[Problem]:
    """The rendezvous port is fixed.

    Two jobs on one node use the same port. The result is "address already in use", or the ranks of one job join the
    other. The remains of an earlier job have the same effect. Most scripts use 29500. A job that takes whole nodes is
    alone on them: with --exclusive or --mem=0, with four GPUs or 48 CPUs a node, or if it counts only nodes.

    Fix: derive a port below 32768 from the job id: `MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`.
    Documented: pytorch.org/docs/stable/distributed.html; NVIDIA/enroot issue 243 is one of many.
    """
    if "exclusive" in script.options or (_takes_whole_nodes(script) and not _runs_elements_at_once(script)):
        return
    for text, port in _first_of_each(_ports(script)):
        if not EPHEMERAL[0] <= port <= EPHEMERAL[1]:
            what = f"port {port} is fixed: two jobs on one node use the same port"
            yield Problem(text, what, f"write MASTER_PORT={_OWN_PORT}", edits=_own_port(script, text, port))


def _runs_elements_at_once(script: BatchScript) -> bool:
    """Tell whether several elements of the job's array may run at the same time."""
    array = script.options.get("array")
    return array is not None and not array.endswith("%1")


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


@rule("KIT303", "warning")
def ephemeral_port(script: BatchScript) -> Iterator[Problem]:
    """The rendezvous port lies in the range of ephemeral ports.

    The kernel assigns ports from 32768 to 60999 to outgoing connections. If one of them has the port when rank 0 needs
    it, the job fails to start.

    Fix: derive a port below 32768 from the job id: `MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`.
    Documented: ip(7), ip_local_port_range.
    """
    for text, port in _first_of_each(_ports(script)):
        if EPHEMERAL[0] <= port <= EPHEMERAL[1]:
            what = f"port {port} is ephemeral: Linux assigns {EPHEMERAL[0]}-{EPHEMERAL[1]} to outgoing connections"
            yield Problem(text, what, f"write MASTER_PORT={_OWN_PORT}", edits=_own_port(script, text, port))


_OWN_PORT = "$((10000 + SLURM_JOB_ID % 20000))"


def _own_port(script: BatchScript, text: ExpandedText, port: int) -> tuple[Edit, ...]:
    """Return the edit that derives the port of an assignment from the job id."""
    before = script.lines[text.line - 1][: text.column - 1]
    # In any other place, the two ends of a connection may both contain the number.
    bare = re.fullmatch(r"\s*(export\s+)?MASTER_PORT=", before) and text.pieces[0].origin.exact
    return (Edit(text.line, text.column, str(port), _OWN_PORT),) if bare else ()


def removal(script: BatchScript, assignment: TracedAssignment) -> tuple[Edit, ...]:
    """Return the edit that removes an assignment which is alone in its line."""
    line = script.lines[assignment.line - 1]
    alone = re.fullmatch(rf"\s*(export\s+)?{assignment.name}=[\w.^,\"']*\s*", line)
    return (delete_line(script.lines, assignment.line),) if alone else ()


def _first_host(each: Assignment) -> tuple[Edit, ...]:
    """Return the edit that takes the address of the first host."""
    exact = "\n" not in each.value.raw
    return (Edit(each.value.line, each.value.column, each.value.raw, _FIRST),) if exact else ()


def _first_of_each(ports: Iterator[tuple[ExpandedText, int]]) -> Iterator[tuple[ExpandedText, int]]:
    """Yield the first place of each port: one fix there is enough."""
    seen: set[int] = set()
    for text, port in ports:
        if port not in seen:
            seen.add(port)
            yield text, port


def _ports(script: BatchScript) -> Iterator[tuple[ExpandedText, int]]:
    """Yield ports that are written as numbers."""
    texts = [each.value for each in _assigned_ports(script) if _is_read(script, each)] + _port_options(script)
    for text in texts + [url for launch in script.training for url in _urls(launch)]:
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


def _urls(launch: LaunchLine) -> list[ExpandedText]:
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
_READ_BY_PROGRAMS = re.compile(r"MASTER_(ADDR|PORT)\Z|WORLD_SIZE\Z|OMP_NUM_THREADS\Z|(NCCL|GLOO|TORCH)_\w+\Z")


_JOB_IDS = (1, 2**26)
_ANY_NUMBER = {
    "SLURM_JOB_ID": _JOB_IDS, "SLURM_JOBID": _JOB_IDS, "SLURM_ARRAY_JOB_ID": _JOB_IDS, "RANDOM": (0, 32767),
    "SLURM_ARRAY_TASK_ID": (0, 23),
}  # fmt: skip
"""Bounds of numbers from which ports are computed. A job id fits into 26 bits."""


def _extremes(text: str) -> tuple[int, int] | None:
    """Return the smallest and largest value of a port; None if it contains something unknown."""
    source = re.sub(r"\A\$\(\((.*)\)\)\Z", r"\1", text)
    names = re.findall(r"[A-Za-z_]\w*", source)
    # Bounds ignore that both are the same number: $((ID - ID / 100 * 100)) is less than 100.
    repeated = len(names) > len(set(names))
    return None if repeated else bounds_of_sum(re.sub(r"\$\{?(\w+)\}?", r"\1", source), _ANY_NUMBER)


@rule("KIT310")
def impossible_port(script: BatchScript) -> Iterator[Problem]:
    """A port beyond 65535, or one that only root may use.

    Ports are numbers from 1 to 65535, and those below 1024 belong to root. Job ids grow beyond 65535, and $RANDOM is at
    most 32767. A sum that is too large in some jobs only is a warning.

    Fix: `MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`.
    Documented: ip(7), ip_unprivileged_port_start.
    """
    for text in [each.value for each in _assigned_ports(script)] + _port_options(script):
        port = re.search(r"(?:\A|:)(\d+|\$\(\(.*\)\)|\$\{?SLURM_JOB_?ID\}?|\$\{?RANDOM\}?)\Z", text.text)
        bounds = _extremes(port[1]) if port else None
        if port is None or bounds is None or bounds == (0, 0) or not (bounds[0] < 1024 or bounds[1] > 65535):
            continue
        low, high = bounds
        what = f"this port may be {high}: ports end at 65535" if high > 65535 else f"this port may be {low}, below 1024"
        # Job ids grow beyond 65535 in time. A random number may stay below.
        job_id = "JOB" in text.text or low == high
        certain = (high > 65535 and job_id) or high < 1024
        yield Problem(text.slice_of(*port.span(1)), what, f"write MASTER_PORT={_OWN_PORT}", certain=certain)


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
_HOST = re.compile(
    r"(\w+_)?(MASTER|MAIN|HEAD|FIRST|LEADER|ROOT|RDZV|COORDINATOR)(_?(ADDR|ADDRESS|NODE|HOST|IP|NAME|ENDPOINT))*\Z"
)
_LIST = r"\$\{?SLURM_(?:JOB_)?NODELIST\b"
_SENT = rf"(\$\(|`)\s*(echo|printf)\b[^|\[\]]*{_LIST}[^|\[\]]*\|\s*"
"""The list as the input of a program that does not know its brackets."""
_WHOLE = re.compile(rf"[\"']?{_LIST}\}}?[\"']?(:\S*)?\Z")
_ALL_NAMES = re.compile(r"[\"']?(\$\(|`)\s*scontrol\s+show\s+hostnames?(\s+[\"']?\$\{?\w+\}?[\"']?)?\s*[)`][\"']?\Z")
_CUTS = r"(?:cut\s[^|\[\]]*-d\W*,|awk\s+-F\W*,|tr\s+\W*,|sed\s+\S*s/,)"
_AT_COMMA = re.compile(rf"\$\{{SLURM_(?:JOB_)?NODELIST%%?,\*\}}|{_SENT}{_CUTS}|\b{_CUTS}[^|]*<<<\s*\"?{_LIST}")
_BY_COLUMN = re.compile(rf"\$\{{SLURM_(?:JOB_)?NODELIST:\s*\d|{_SENT}(cut\s+-[bc]|head\s+-c)")
_DRAWN = re.compile(r"\bRANDOM\b|\$\$|\bBASHPID\b|\bshuf\b|/dev/urandom|\buuidgen\b|\bdate\s[^)`]*%[sN]|\.bind\(\(")
_RANK = re.compile(r"PROCID|LOCALID|NODEID|RANK|hostname|HOSTNAME")
_SAME = ("rdzv-id", "rdzv-endpoint", "master-port", "main-process-port")


@rule("KIT305")
def first_host_by_string(script: BatchScript) -> Iterator[Problem]:
    """The script cuts the name of the first host out of the node list.

    Slurm folds the list: `gpu[01-04,07]`. The text before the first comma is `gpu[01-04`, which is no host name. A cut
    by columns (a warning) works for one site and one number of nodes. The whole list is no host name, either, nor is
    the first element of `("$names")`, which contains all names, nor the output of `scontrol show hostnames` without
    `| head -n 1`.

    Fix: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.
    Documented: sbatch(1), SLURM_JOB_NODELIST; scontrol(1), "show hostnames".
    """
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
        by_column, whole = _BY_COLUMN.search(text), _WHOLE.match(text)
        cut = by_column or _AT_COMMA.search(text)
        if cut or (whole and not _taken_apart(script, each.name)):
            what = "this is cut out of the node list by columns" if by_column else _NO_HOST
            # The effect of a program after the cut is unknown.
            certain = not (by_column or (cut and "|" in text[cut.end() :]))
            remedy, lines = f"write {each.name}={_FIRST}", (script.line_of("nodes"),)
            yield Problem(each.value, what, remedy, lines, certain=certain, edits=_first_host(each))


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


def _taken_apart(script: BatchScript, name: str) -> bool:
    """Tell whether another program expands the list in this variable."""
    return re.search(rf"\b(scontrol|nodeset|hostlist|cluset)\b.*\$\{{?{name}\b", script.code) is not None


@rule("KIT307")
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


_OTHER_HOST = re.compile(
    r"\btail\s+(-n\s*)?-?1\b|\bsort\s+-\w*[rR]|\bshuf\b|\bsed\s+-n\s*['\"]?(\$|[2-9]|\d\d+)p|head\s+-n?\s*[2-9]\S*\s*\|\s*tail"
)
_ELEMENT = re.compile(r"\A[\"']?\$\{(\w+)\[(.+)\]\}[\"']?\Z")
_OTHER_INDEX = re.compile(r"-\d+|[1-9]\d*|.*(#\w+\[[@*]\]|N_?NODES|NUM_NODES).*-\s*1\W*")
_UNORDERED = re.compile(
    r"\bsrun\b(?![^|]*\s(-w|--nodelist|-N\s*1|--nodes[= ]1|-n\s*1|--ntasks[= ]1|-r|-l\b|--label))"
    r"[^|]*\bhostname\b[^|]*\|\s*head"
)


@rule("KIT313")
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


_COMPONENT = re.compile(r"SLURM_(?:JOB_)?NODELIST(?:_(?:HET|PACK)_GROUP_(\d))?\b")


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


_TRANSPORTS = {
    "NCCL_P2P_DISABLE": "GPUs of a node exchange data through the memory of the host",
    "NCCL_SHM_DISABLE": "processes of a node exchange data over the network",
    "NCCL_IB_DISABLE": "nodes exchange data over TCP instead of InfiniBand or RoCE",
}


_GLOO = "gloo sends the gradients of the GPUs through the memory of the host"


@rule("KIT315", "warning")
def disabled_transports(script: BatchScript) -> Iterator[Problem]:
    """NCCL's fast transports are switched off.

    These settings help to find the cause of a hang. Left in the script, they make every all-reduce slower, often five
    times. `--backend gloo` sends the gradients of GPUs through the memory of the host. The rule is silent if a comment
    at the line gives a reason.

    Fix: remove the line; or keep it, with the reason as a comment. `--backend nccl` for GPUs.
    Documented: NCCL documentation, "Environment Variables"; pytorch.org/docs/stable/distributed.html, "Which backend to
    use?".
    """
    size = script.size
    for each in script.assignments if size.has_gpus and script.training else ():
        if each.name.endswith("BACKEND") and each.value.text == "gloo" and not script.has_reason(each.line):
            yield Problem(each.value, _GLOO, "write nccl")
    for launch in script.training if size.has_gpus else ():
        backend = launch.argument("backend", "dist-backend", "ddp-backend", "distributed-backend")
        if backend is not None and backend.text == "gloo" and not launch.on_cpus and not script.has_reason(launch.line):
            yield Problem(backend, _GLOO, "write nccl", (launch.line,))
    for each in script.assignments_of(*_TRANSPORTS):
        if each.value.text != "1" or each.value.has_default or script.has_reason(each.line):
            continue
        if each.name == "NCCL_IB_DISABLE" and not size.has_several_nodes:
            continue
        remedy, edits = "remove it, or write the reason as a comment", removal(script, each)
        yield Problem(each.value, f"{each.name}=1: {_TRANSPORTS[each.name]}", remedy, edits=edits)


_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@rule("KIT316", "warning")
def guessed_interface(script: BatchScript) -> Iterator[Problem]:
    """The name of a network interface that many nodes do not have.

    Cluster nodes call their interfaces ib0, hsn0, bond0 or ens1f0np0. `eth0` and `eno1` come from examples; docker0
    connects containers of one host. A wrong name ends NCCL with "no socket interface found"; Gloo with "Unable to find
    address". The rule is silent if a comment at the line gives a reason.

    Fix: remove the line: NCCL and Gloo find the interface themselves. Or exclude some:
    `NCCL_SOCKET_IFNAME=^lo,docker0`.
    Documented: NCCL documentation, NCCL_SOCKET_IFNAME; pytorch.org/docs/stable/distributed.html, GLOO_SOCKET_IFNAME.
    """
    for each in script.assignments_of(*_INTERFACES, "TP_SOCKET_IFNAME"):
        if each.value.has_default:
            continue
        # `^lo,docker0` excludes both.
        names = each.value.text.lstrip("=").split(",") if not each.value.text.startswith("^") else []
        guesses = [name for name in names if re.fullmatch(r"eth\d?|en0|eno1|wlan\d|docker\d|virbr\d", name)]
        # A further name is a choice: `eth,ib` is any interface whose name begins so.
        guess = names[0] if guesses == names and names else None
        if guess is not None and script.size.has_several_nodes and not script.has_reason(each.line):
            what = f"{guess} is a guess: few cluster nodes have an interface of this name between nodes"
            yield Problem(each.value, what, "remove it, or name the interface that `ip -br addr` shows on a node")


@rule("KIT308", "warning")
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
    if array is None or "exclusive" in script.options:
        return
    for text in [each.value for each in _assigned_ports(script)] + _port_options(script):
        if "SLURM_ARRAY_JOB_ID" in text.text and not re.search("SLURM_(ARRAY_TASK|JOB)_ID", text.text):
            what = "all elements of the array use this port"
            yield Problem(text, what, "use SLURM_JOB_ID instead of SLURM_ARRAY_JOB_ID", (array.line,))


def _port_at_once(script: BatchScript) -> Iterator[Problem]:
    """Find two launchers that use the same port of this node at the same time."""
    running: dict[str, int] = {}
    launches = {id(launch.command): launch for launch in script.launch_lines}
    for step in script.batch_commands:
        if step.name == "wait":
            running = {}
        launch = launches.get(id(step))
        agent = launch.agent if launch is not None and launch.stages[0] is launch.agent else None
        chosen = {"rdzv-endpoint", "rdzv-backend", "standalone", "config-file", "hostfile"}
        if launch is None or agent is None or agent.may_hide_options or agent.options.keys() & chosen:
            continue
        if step.is_conditional or any(name.startswith(("PET_", "MASTER_PORT")) for name in script.assigned):
            continue
        option = agent.option("master-port", "main-process-port")
        # Without an option, torchrun and accelerate find a free port on one node.
        if option is None and agent.kind != "deepspeed":
            continue
        port, loop = option.text if option is not None else "29500", step.around(*LOOPS)
        waits = any(each.name == "wait" and loop in each.compounds for each in script.batch_commands)
        read = {part.text for word in step.syntax.words for part in word.parts if part.kind == "variable"}
        again = (
            loop is not None and step.in_background and not waits and not read & (script.changed_in(loop) - {loop.name})
        )
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


@rule("KIT309")
def loopback_interface(script: BatchScript) -> Iterator[Problem]:
    """NCCL or Gloo uses the loopback interface, and the job has several nodes.

    `lo` connects the processes of one node only. Ranks of other nodes time out, or connect to themselves. The virtual
    nodes of the embedded Slurm are one host: the rule is silent if the cluster file says slurm = "embedded".

    Fix: remove the line, or name the interface of the cluster's network (`ip -br addr` on a node).
    Documented: NCCL documentation, NCCL_SOCKET_IFNAME; pytorch.org/docs/stable/distributed.html, GLOO_SOCKET_IFNAME.
    """
    wide = any(script.size_of(launch).has_several_nodes for launch in script.training)
    cluster = script.site.cluster
    # A rendered script has this setting from its cluster file, which then is one for the embedded Slurm.
    rendered = any(line.startswith("# made by   hpc-kit") for line in script.lines[:4])
    one_host = cluster.slurm == "embedded" if cluster is not None else rendered
    for each in script.assignments_of(*_INTERFACES) if wide and not one_host else ():
        # Without a cluster file, a job that names nothing of a cluster may be for the embedded Slurm.
        named = script.options.keys() & {"account", "constraint", "exclusive", "partition", "qos"}
        read = each.name.startswith("NCCL") or script.size.has_gpus or named
        if read and each.value.text.lstrip("=") == "lo":
            what, remedy = f"{each.name}=lo reaches no other node", "remove it, or name an interface of the network"
            yield Problem(each.value, what, remedy, (script.line_of("nodes"),), edits=removal(script, each))


@rule("KIT306")
def random_value_per_task(script: BatchScript) -> Iterator[Problem]:
    """Each task draws its own port or rendezvous id.

    `$RANDOM`, `shuf` or the search for a free port gives another number in each task, so that the tasks never meet. So
    does a port that is computed from the rank. On the launch line itself, and in double quotes, the batch shell draws
    once, and all tasks get the same number.

    Fix: draw it in the batch script, before srun: `export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))`; as id,
    `--rdzv-id=$SLURM_JOB_ID`.
    Documented: pytorch.org/docs/stable/elastic/run.html, --rdzv-id; bash(1), RANDOM.
    """
    wide = [launch for launch in script.launch_lines if _several(launch) and script.size_of(launch).has_several_tasks]
    ports = [each.value for each in script.assignments_of("MASTER_PORT") if each.in_task] if wide else []
    places = _drawn_by_tasks(script)
    for text in ports + [text for launch in wide for text in _agreed(launch)]:
        if any((piece.origin.line, piece.origin.column) in places for piece in text.pieces):
            of_time = "$(date" in text.text
            what = f"each task draws its own value, so that {'some' if of_time else 'all'} differ"
            remedy = "draw it once in the batch script, or use $SLURM_JOB_ID"
            yield Problem(text, what, remedy, certain=not of_time)
    together = any(not _LOOPBACK.match(each.value.text) for each in script.assignments_of("MASTER_ADDR"))
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


def is_for_one_rank(script: BatchScript, step: TracedCommand) -> bool:
    """Tell whether a condition on the rank precedes the command, so that only one task runs it."""
    return any(map(_RANK.search, script.condition_lines(step)))


def _several(launch: LaunchLine) -> bool:
    return launch.multiplier is not None and launch.inner_command.in_task


def _agreed(launch: LaunchLine) -> list[ExpandedText]:
    """Return the options that must be equal on all agents."""
    agent = launch.agent
    if agent is None or "standalone" in agent.options:
        return []
    return [agent.options[name] for name in _SAME if name in agent.options]
