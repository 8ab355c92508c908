"""The numbers of nodes and tasks of a step, from srun's options and the job: the real srun's reasoning, step by step.

Its order, its words and its oddities are kept: what the numbers come out as is what scripts rely on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError
from hpc_kit.slurm.option_values import Distribution, parse_nodes
from pocketslurm import distribution
from pocketslurm.errors import CommandError
from pocketslurm.steps import hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job
    from pocketslurm.steps.options import Asked


class Size:
    """The numbers while they are worked out; `nodes_set` and `ntasks_set` say whether anybody has named them."""

    def __init__(self, asked: Asked, environ: Mapping[str, str]) -> None:
        self.asked = asked
        self.environ = environ
        self.notes: list[str] = []
        self.errors: list[str] = []
        nodes = parse_nodes(asked.get("nodes")) if asked.get("nodes").strip("0") else None
        self.nodes_set = nodes is not None
        self.min_nodes = nodes.minimum if nodes else 1
        self.max_nodes = nodes.maximum if nodes else 0
        self.ntasks_set = asked.has("ntasks")
        self.ntasks = asked.number("ntasks") or 1
        self.per_node = asked.number("ntasks-per-node") or 0
        self.cpus_per_task = asked.number("cpus-per-task") or 0
        self.distribution = _distribution(asked, environ)
        self.hosts: list[str] = []
        self.exclude = hosts.named(asked.get("exclude"))
        self._verify()

    @property
    def arbitrary(self) -> bool:
        """Each task's node is named."""
        return self.distribution.nodes == "arbitrary"

    # What srun makes of its options before it looks at any job

    def _verify(self) -> None:
        self._check_pairs()
        if self.arbitrary:
            self.ntasks_set = self.ntasks_set and "ntasks" in self.asked.typed
            self.nodes_set = self.nodes_set and "nodes" in self.asked.typed
        self._read_hosts()
        if self.arbitrary and not self.ntasks_set:
            self.ntasks_set, self.ntasks = True, len(self.hosts)
        if self.arbitrary and not self.nodes_set:
            self.nodes_set = True
            self.min_nodes = self.max_nodes = len(set(self.hosts))
        self._cut_hosts()
        if self.hosts:
            unique = len(set(self.hosts))
            self.min_nodes = max(unique, self.min_nodes) if self.nodes_set else unique
            self.nodes_set = True
        self._fit()
        if self.per_node and not self.ntasks_set:
            self.ntasks, self.ntasks_set = self.min_nodes * self.per_node, True
        if self.errors:
            raise CommandError(*self.errors, *self.notes)

    def _check_pairs(self) -> None:
        """Contradictions; srun tells of all of them before it stops."""
        asked = self.asked
        if {"quiet", "verbose"} <= asked.typed:
            self.errors.append("error: don't specify both --verbose (-v) and --quiet (-Q)")
        if asked.has("exact") and asked.has("whole"):
            self.errors.append("error: --exact and --whole are mutually exclusive.")
        if asked.has("relative") and (asked.has("exclude") or asked.has("nodelist")):
            self.errors.append("error: -r,--relative not allowed with -w,--nodelist or -x,--exclude.")
        if {"exclusive", "overlap"} <= asked.typed:
            self.errors.append("error: --exclusive and --overlap are mutually exclusive")

    def _read_hosts(self) -> None:
        if self.asked.has("nodefile"):
            self.hosts = hosts.from_file(self.asked.get("nodefile"))
        elif self.asked.has("nodelist"):
            if not self.asked.get("nodelist"):
                raise CommandError("error: Hostlist is empty!  Can not run job.")
            self.hosts = hosts.named(self.asked.get("nodelist"), self._expected() if self.arbitrary else None)
        elif path := self.environ.get("SLURM_HOSTFILE"):
            self.distribution = Distribution("arbitrary", pack=self.distribution.pack)
            try:
                self.hosts = hosts.from_file(path, self._expected())
            except CommandError as refused:
                raise CommandError(*refused.lines, "error: Failure getting NodeNames from hostfile") from None

    def _expected(self) -> int | None:
        """How many names a file of nodes must hold, where each is a task's."""
        if self.ntasks_set:
            return self.ntasks
        return (self.max_nodes or self.min_nodes) if self.nodes_set else None

    def _cut_hosts(self) -> None:
        if self.max_nodes and len(self.hosts) > self.max_nodes and not self.arbitrary:
            self.notes.append(
                "error: Required nodelist includes more nodes than permitted by max-node count "
                f"({len(self.hosts)} > {self.max_nodes}). Eliminating nodes from the nodelist."
            )
            self.hosts = self.hosts[: self.max_nodes]

    def _fit(self) -> None:
        """Tasks from nodes, or fewer nodes for fewer tasks."""
        if not self.nodes_set:
            return
        if not self.ntasks_set:
            if self.max_nodes in {0, self.min_nodes}:
                self.ntasks = self.min_nodes * (self.per_node or 1)
                self.ntasks_set = bool(self.per_node)
            return
        self.max_nodes = min(self.max_nodes, self.ntasks)
        if self.ntasks < self.min_nodes:
            self.notes.append(
                f"Warning: can't run {self.ntasks} processes on {self.min_nodes} nodes, setting nnodes to {self.ntasks}"
            )
            self.min_nodes = self.max_nodes = self.ntasks
            if not self.arbitrary:
                self.hosts = self.hosts[: self.min_nodes]
        if self.per_node and self.per_node != self.ntasks // self.min_nodes:
            if self.ntasks > self.per_node:
                self.notes.append(
                    f"Warning: can't honor --ntasks-per-node set to {self.per_node} which doesn't match the requested "
                    f"tasks {self.ntasks} with the number of requested nodes {self.min_nodes}. "
                    "Ignoring --ntasks-per-node."
                )
            self.per_node = 0

    # Inside a job

    def fit_into(self, job: Job) -> int:
        """Fit the numbers to the job's nodes; how many of these the step may have.

        Raises:
            Refused: There are not enough of them.
        """
        self._check_relative(job)
        if self.exclude:
            nodes = self._without_excluded(list(job.nodes))
        else:
            self._default_nodes(len(job.nodes))
            nodes = min(len(job.nodes), self.max_nodes)
        if self.arbitrary and not self.hosts:
            self.hosts = hosts.named(self.environ.get("SLURM_ARBITRARY_NODELIST", ""))
        if self.arbitrary and len(self.hosts) != self.ntasks:
            raise self._refused(f"You asked for {self.ntasks} tasks but hostlist specified {len(self.hosts)} nodes")
        self._default_tasks(job, nodes)
        if self.min_nodes > nodes:
            lines = [f"Only allocated {nodes} nodes asked for {self.min_nodes}"]
            raise self._refused(*lines, *(["Are required nodes explicitly excluded?"] if self.exclude else []))
        return nodes

    def _refused(self, *lines: str) -> CommandError:
        return CommandError(*self.notes, *(f"error: {line}" for line in lines))

    def _check_relative(self, job: Job) -> None:
        relative = self.asked.number("relative")
        if relative is not None and relative + self.min_nodes > len(job.nodes):
            named = "--nodes" if "nodes" in self.asked.typed else "SLURM_JOB_NUM_NODES"
            raise self._refused(
                f"--relative and {named} option incompatible with count of allocated nodes "
                f"({relative}+{self.min_nodes}>{len(job.nodes)})"
            )

    def _default_nodes(self, available: int) -> None:
        if not self.nodes_set:
            self.nodes_set = True
            self.min_nodes = self.ntasks if self.ntasks_set and self.ntasks < available else available
        self.max_nodes = self.max_nodes or self.min_nodes

    def _without_excluded(self, nodes: list[str]) -> int:
        both = [node for node in self.exclude if node in self.hosts]
        if both:
            raise self._refused(f"Requested node {both[0]} is also in the excluded list.", "Job not submitted.")
        left = [node for node in nodes if node not in self.exclude]
        self._default_nodes(len(left))
        if not left:
            raise self._refused("Hostlist is empty!  Can't run job.")
        count = min(len(left), self.max_nodes)
        if self.hosts:
            others = [node for node in left if node not in self.hosts]
            self.hosts += others[: max(0, count - len(self.hosts))]
        else:
            self.hosts = left[:count]
        return count

    def _default_tasks(self, job: Job, nodes: int) -> None:
        if self.ntasks_set:
            return
        count = 0
        if self.per_node:
            count, self.ntasks_set = nodes * self.per_node, True
        elif self.cpus_per_task:
            count, self.ntasks_set = sum(cpus // self.cpus_per_task for cpus in job.cpus), True
        self.ntasks = max(count, nodes)


def _distribution(asked: Asked, environ: Mapping[str, str]) -> Distribution:
    text = asked.values.get("distribution")
    if text is None:
        return Distribution(None)
    try:
        return distribution.parse(text, environ.get("SLURM_DIST_PLANESIZE"))
    except HpcKitError:
        lines = ["error: Invalid --distribution specification"]
        if text.lower().startswith("plane"):
            lines.insert(0, "error: Invalid plane size or size not specified")
        raise CommandError(*lines, status=255) from None
