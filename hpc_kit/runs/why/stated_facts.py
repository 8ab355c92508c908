"""Reads where ranks run, how many there are and in which collectives they wait, as programs and launchers print it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runs.why.evidence import SYSTEM_MESSAGE, Evidence, WaitingRank

if TYPE_CHECKING:
    from hpc_kit.runs.why.log_reader import Line

_WATCHDOG = re.compile(
    r"(?:\[(?:PG [^\]]*?)?[Rr]ank (?P<rank>\d+)\].*)?collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )"
    r"?OpType=(?P<op>\w+)(?:.*?NumelIn=(?P<numel>\d+))?"
)
"""NCCL's watchdog names the collective in which a rank waited too long."""

_TORCH = re.compile(
    r"\b(?:py)?torch(?:\.__version__|[ _-]?version)?\s*(?:is|:|==?)?\s*v?"
    r"(?P<version>\d+\.\d+\.\d+(?:\+\w+)?)(?![\w.-])",
    re.IGNORECASE,
)
"""A rank states its version of torch."""

_WANTED_NODES = re.compile(
    r"\bmin_nodes +: (?P<nodes>\d+)|\btorchrun\b(?!.*--nnodes)(?=.* --(?:standalone|nproc[-_]per[-_]node)\b)"
)
"""torchrun's number of nodes: in the configuration that it logs, or in its command, where one is the default."""

_JOB_ID = re.compile(r"\bStepId=(\d+)\.|\*\*\* (?:JOB|STEP) (\d+)[. ]|/job0*(\d+)/slurm_script|\bSLURM_JOB_ID=(\d+)")
"""A message of the job itself contains its id."""

_MASTER = re.compile(
    r"(?:\b(?:MASTER_ADDR|rdzv_endpoint) ?[=:] ?|--(?:rdzv[-_]endpoint|master[-_]addr)[= ])[\"']?"
    r"(?P<name>[a-z\d][\w.-]*)"
)
"""A program or its script states the address at which the ranks meet."""

_NODE_OF_LAUNCHER = re.compile(r"\bnnodes=\d+, num_local_procs=(?P<size>\d+), node_rank=(?P<node>\d+)")
"""DeepSpeed's launcher states the number of its node."""

_ENQUEUED = re.compile(r"[Rr]ank (?P<rank>\d+)\].*[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+)")
"""NCCL's watchdog states the number of collectives that a rank has called."""

_PLACE_OF_RANK = re.compile(
    r"^(?P<host>[\w.-]+):\d+:\d+ \[\d+\] NCCL INFO (?:\w+ )?comm \S+ rank (?P<rank>\d+) n[Rr]anks"
    r"|\bhostname=(?P<host2>[\w.-]+), .*global_rank=(?P<rank2>\d+)"
    r"|\b[Rr]ank[ =:]+(?P<rank3>\d+)\]?(?: ?/ ?\d+| of \d+)?,? (?:is )?(?:runs |running )?"
    r"(?:on |@ ?|host(?:name)?[ =:]+|node[ =:]+)"
    r"(?:host |node )?(?P<host3>(?!cuda|gpu\d\b|device|rank|step)[a-z][a-z-]*\d[\w.-]*)"
    r"|\b[Rr]ank[ =:]+(?P<rank5>\d+)(?: ?/ ?\d+| of \d+)?,? (?:is )?(?:runs |running )?"
    r"(?:on (?:host|node) |host(?:name)?[=:] ?)(?P<host5>[a-z][\w.-]*)(?=[\s,;:)\]]*$)"
    r"|^MPICH ERROR \[Rank (?P<rank7>\d+)\] (?:\[[^\]]*\] ){2}\[(?P<host7>[\w.-]+)\]"
    r"|^task(?:id)?: *(?P<rank6>\d+),? +host(?:name)?: *(?P<host6>[a-z][\w.-]*)$"
    r"|^(?i:starting) (?i:ray )?(?i:worker) (?P<rank4>\d+) (?:at|on) (?P<host4>[a-z][\w.-]*)$"
)
"""A line of NCCL, submitit or the program that states the host of a rank."""

_BUS = re.compile(r"\bbusId ([\da-f]+)\b")

_HOST_GROUPS = [name for name in _PLACE_OF_RANK.groupindex if name.startswith("host")]
_RANK_GROUPS = [name for name in _PLACE_OF_RANK.groupindex if name.startswith("rank")]
_PLACE_OF_LABEL = re.compile(
    r"^[\w.-]+:\d+:\d+ \[\d+\] NCCL INFO (?:Bootstrap|cudaDriverVersion|NCCL version|ncclComm)\b"
)
"""The first lines of NCCL's debug output of a process, which begin with its host."""

_BATCHES = re.compile(
    r"(?i)\b(?P<before>\d+) (?:mini-?)?(?:batches|steps|iterations|iters)\b"
    r"|\b(?:batches|steps|iterations|iters)(?: per epoch)? ?[=:] ?(?P<after>\d+)\b"
)
"""A rank states how many batches it has."""

_NODE_LIST = re.compile(
    r"\b(?:SLURM_(?:JOB_)?NODELIST|SLURM_NODELIST|[Nn]ode_?[Ll]ist) ?[=:] ?(?P<nodes>[a-z][\w.,\[\]-]*)"
)
"""The program or its script names the nodes of the job."""

_OWN_NODE = re.compile(
    r"(?:^(?i:host(?:name)?|node|running on(?: host| node)?)\b[ :=]+"
    r"|\b(?:SLURMD_NODENAME|(?i:node(?:_?name)?|hostname))="
    r"|[,;|(\[] ?(?i:host(?:name)?|node)[ :=]+(?=[\w.-]+(?:[,;)\]]|$))"
    r"|\b(?i:us(?:ing|es))(?: device)? (?:cuda:|GPU )\d+,?(?: of)? (?:on|at)(?i: (?:host|node))? "
    r"|\b(?i:job|task|attempt|run|restart)[ :=#]+\d+(?:_\d+)?,?(?i: (?:is |now )?(?:start\w*|runn?ing|runs))?"
    r" (?i:on|at)(?i: (?:host|node))? "
    r"|\b(?i:job|script)(?i: (?:is |has |was )?(?:start\w*|runn?ing|runs)) on(?i: (?:host|node))? )"
    r"(?P<node>(?!(?i:cuda|gpu\d?\b(?!-[a-z])|device|rank|step))[a-z][a-z0-9-]*\d[\w.-]*)(?![\w:/])"
    r"|^(?:(?i:hostname)|SLURMD_NODENAME)[ :=]+(?P<node2>(?!localhost)[a-z][\w.-]*)$"
    r"|^(?i:job)[ :=#]+\d{3,}(?:_\d+)?,?(?i: (?:is |now )?(?:start\w*|runn?ing|runs))? on(?i: (?:host|node))? "
    r"(?P<node3>(?!(?:hold|[cg]pus?|cuda|the|an?|all|node|login|partition|queue|cluster)\b)[a-z][\w-]+)(?=$|[,;]| \()"
)
"""The program or its script names the node on which it runs."""

_NODE_NAME = re.compile(r"^NodeName=(?P<node>\S+)")
"""The first line of a node in `scontrol show node`."""

_NO_ANSWER = re.compile(
    r"^(?:Not responding|Node unexpectedly rebooted) +\S+ +[\dT:-]+ +\S+$|\bState=[A-Z_+]*(?:\*|NOT_RESPONDING)"
    r"|^\S.* (?:down|unk|drain|drng|fail|idle|alloc|mix|comp)[a-z]*\*(?: |$)"
)
"""A line of `sinfo -R`, `scontrol show node` or `sinfo` about a node that does not respond, which an asterisk shows."""

_NODE_REASON = re.compile(
    r"^(?P<reason>\S.*?) +[\w.-]+(?:\(\d+\))? +\d{4}-\d\d-\d\dT[\d:]+ +(?:[a-z*]+ +)?(?P<nodes>[a-z][\w.,\[\]-]*)$"
)
"""A line of `sinfo -R`."""

_PROCESS = re.compile(r"\[ *\d+\] +(?P<uid>\d+) +\d+ +\d+ +(?P<pages>\d+) .* (?P<name>\S+)$")
"""A line of the kernel's list of processes when memory is used up."""

_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?([^\]]+?) Rank \d+\]")
"""The name of a process group, in front of a message of NCCL's watchdog."""

_WORLD = re.compile(
    r"\bworld[_ ]size[=: ]+(\d+)|\bnranks (\d+)|MEMBER: \d+/(\d+)|\bWORLD_SIZE=(\d+)"
    r"|\bdistributed init \(rank \d+, world (\d+)\)",
    re.IGNORECASE,
)
"""A launcher, NCCL or the program states the number of ranks."""


class StatedFacts:
    """Collects what the lines of one file state about the job, its nodes and its ranks."""

    def __init__(self, evidence: Evidence, file: str, *, has_labels: bool) -> None:
        self._evidence, self._file, self._has_labels = evidence, file, has_labels
        self.first_rank = 0
        """The rank of the first process of the node, if a launcher numbers the processes of each node."""
        self._node = ""
        """The node that scontrol describes."""

    def read(self, line: Line, attempt: int) -> bool:
        """Note the size of the job, and places and versions of its ranks. Return whether similar lines matter, too."""
        body = line.body
        is_statement = self._read_places(line, attempt)
        if found := _WORLD.search(body):
            self._evidence.world = max(self._evidence.world, int(next(filter(None, found.groups()))))
        if line.rank is not None and (found := _TORCH.search(body)):
            self._evidence.torch.setdefault(line.rank, (found["version"], line))
            is_statement = True
        is_statement |= self._read_batches(line)
        if found := _NODE_NAME.match(body):
            self._node, is_statement = found["node"], True
        if _NO_ANSWER.search(body):
            self._evidence.nodes.no_answer += [self._node] if "State=" in body else body.split()
            is_statement = True
        if found := _NODE_REASON.match(body):
            self._evidence.nodes.reasons.append((found["nodes"], found["reason"], line))
        if (found := _PROCESS.search(body)) and body.startswith("["):
            name = f"{found['name']} of user {found['uid']}"
            self._evidence.nodes.largest, is_statement = (
                max(self._evidence.nodes.largest, (int(found["pages"]), name)),
                True,
            )
        if found := _JOB_ID.search(body):
            self._evidence.job_ids.add(next(filter(None, found.groups())))
        if found := _NODE_OF_LAUNCHER.search(body):
            self.first_rank = int(found["size"]) * int(found["node"])
        if found := _WANTED_NODES.search(body):
            self._evidence.wanted_nodes = (int(found["nodes"] or 1), line)
        return is_statement

    def _read_batches(self, line: Line) -> bool:
        found = _BATCHES.search(line.body) if line.rank is not None else None
        if found is not None and line.rank is not None:
            self._evidence.inputs.batches.setdefault(line.rank, int(found["before"] or found["after"]))
        return found is not None

    def _read_places(self, line: Line, attempt: int) -> bool:
        """Note the hosts that a line states. Return whether similar lines matter, too."""
        is_statement = False
        if found := _PLACE_OF_RANK.search(line.text) or _PLACE_OF_RANK.search(line.body):
            host, rank = (next(filter(None, found.group(*names))) for names in (_HOST_GROUPS, _RANK_GROUPS))
            rank = int(rank)
            self._evidence.hosts.setdefault(rank, host)
            is_statement = True
            if bus := _BUS.search(line.body):
                self._evidence.nodes.gpus[host, int(bus[1], 16)] = rank
            if number := re.match(r"[\w.-]+:(\d+):", line.body):
                self._evidence.processes.setdefault(int(number[1]), set()).add((rank, host))
        if self._has_labels and line.rank is not None and _PLACE_OF_LABEL.match(line.body):
            is_statement = True
        if found := _NODE_LIST.search(line.body):
            self._note_nodes(found["nodes"], attempt)
            is_statement = True
        if found := _MASTER.search(line.body):
            self._evidence.nodes.masters[self._file, line.rank] = found["name"]
            is_statement = True
        # Slurm names nodes of its own choice, such as the node that failed.
        if (found := _OWN_NODE.search(line.body)) and not SYSTEM_MESSAGE.search(line.text):
            node = found["node"] or found["node2"] or found["node3"]
            if line.rank is not None:
                self._evidence.hosts.setdefault(line.rank, node)
            self._note_nodes(node, attempt)
            is_statement = True
        return is_statement

    def _note_nodes(self, nodes: str, attempt: int) -> None:
        self._evidence.node_lists.setdefault((self._file, attempt), set()).add(nodes)

    def read_collective(self, line: Line) -> bool:
        """Read in which collective a rank waits, and how many it has called."""
        pg = _GROUP.search(line.body)
        group = pg[1] if pg else None
        if found := _WATCHDOG.search(line.body):
            rank = int(found["rank"]) if found["rank"] else line.rank
            if rank is not None:
                sequence = int(found["seq"]) if found["seq"] else None
                self._evidence.waiting.append(WaitingRank(rank, sequence, found["op"], found["numel"], line, group))
        if counted := _ENQUEUED.search(line.body):
            self._evidence.enqueued[group, int(counted["rank"])] = (int(counted["enqueued"]), line)
        return bool(found or counted)
