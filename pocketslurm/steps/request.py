"""Computes the size of a step and the distribution of its tasks, as srun does before it asks the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.slurm import nodelist, option_values
from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.option_values import Distribution, parse_nodes
from hpc_kit.slurm.sizes import GpuCounts
from hpc_kit.slurm.units import parse_memory
from pocketslurm.errors import CommandError
from pocketslurm.steps.environment import gpu_counts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pocketslurm.queue.records import Job
    from pocketslurm.steps.messages import SrunMessages
    from pocketslurm.steps.options import StepOptions


class StepRequest(NamedTuple):
    """The size of a step.

    Attributes:
        min_nodes: Fewest nodes; `max_nodes` are the most.
        ntasks: All tasks; `cpu_count` CPUs for all of them, 0 if CPUs do not count.
        tasks_per_node: Most tasks on a node with enough CPUs; 0 for any number.
        hosts: Nodes that it must get; with arbitrary distribution the node of each task.
        exclude: Nodes that it must not get.
        relative: Index of its first node in the job; None for any.
        whole: It gets all CPUs of the job on its nodes, not only those for its tasks.
        overlap: It shares all resources with other steps.
        mem_per_node: MiB, also `mem_per_cpu`; 0 for all memory of the job.
        distribution: Distribution of tasks to nodes; `shown` is SLURM_DISTRIBUTION.
        notes: Warnings that srun prints.
    """

    min_nodes: int
    max_nodes: int
    ntasks: int
    cpu_count: int
    tasks_per_node: int = 0
    hosts: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    relative: int | None = None
    whole: bool = True
    overlap: bool = False
    mem_per_node: int = 0
    mem_per_cpu: int = 0
    gpus: GpuCounts = GpuCounts()
    distribution: Distribution = Distribution("block")
    shown: str = ""
    notes: tuple[str, ...] = ()


def step_request(asked: StepOptions, environ: Mapping[str, str], job: Job, *, allocated: bool = False) -> StepRequest:
    """Return the request of an srun inside a job; `allocated` means that this srun has made the job.

    Raises:
        CommandError: srun would refuse it before it asks the controller.
    """
    size = SizeResolver(asked, environ)
    nodes = size.fit_into(job)
    gpus = _gpus(asked, size)
    per_gpu = asked.number("ntasks-per-tres") or asked.number("ntasks-per-gpu")
    if per_gpu and not size.ntasks_set:
        size.ntasks = per_gpu * sum(map(len, job.gpus[:nodes])) or size.ntasks
    memory = {name: parse_memory(asked.get(name)) for name in ("mem", "mem-per-cpu") if asked.get(name)}
    silent = 0 in memory.values() or (allocated and not memory)
    chosen, shown = _shown(size, silent=silent)
    return StepRequest(
        min_nodes=min(size.min_nodes, nodes),
        max_nodes=min(size.max_nodes or nodes, nodes),
        ntasks=size.ntasks,
        cpu_count=_cpu_count(size, asked, job, gpus, allocated=allocated),
        tasks_per_node=size.per_node,
        hosts=tuple(size.hosts),
        exclude=tuple(size.exclude),
        relative=asked.number("relative"),
        whole=_is_whole(size, asked),
        overlap=asked.has("overlap"),
        mem_per_node=memory.get("mem", 0),
        mem_per_cpu=memory.get("mem-per-cpu", 0),
        gpus=gpus,
        distribution=chosen,
        shown=shown,
        notes=tuple(size.notes),
    )


def part_requests(
    parts: Sequence[StepOptions],
    environ: Mapping[str, str],
    jobs: Sequence[Job],
    talk: SrunMessages,
    *,
    allocated: bool,
) -> list[StepRequest]:
    """Return the request of each part of a step; in an ordinary job, earlier parts leave fewer nodes to it.

    Raises:
        CommandError: srun would refuse one of them.
    """
    found: list[StepRequest] = []
    for asked, job in zip(parts, jobs, strict=True):
        taken = sum(request.max_nodes for request in found) if job.het_job_id is None else 0
        if taken and taken >= len(job.nodes):
            raise CommandError(
                f"error: Allocation failure of {asked.get('nodes') or 1} nodes: job size of {len(job.nodes)}, "
                f"already allocated {taken} nodes to previous components."
            )
        request = step_request(asked, environ, without(job, job.nodes[:taken]), allocated=allocated)
        talk.notes(request.notes)
        found.append(request)
    return found


def without(job: Job, taken: Collection[str]) -> Job:
    """Return a job without some of its nodes."""
    left = [index for index, node in enumerate(job.nodes) if node not in taken]
    columns: dict[str, Any] = {name: getattr(job, name) for name in ("nodes", "cpus", "mem", "gpus", "tasks")}
    left_of: dict[str, Any] = {name: [column[index] for index in left] for name, column in columns.items() if column}
    return job._replace(**left_of)


def _gpus(asked: StepOptions, size: SizeResolver) -> GpuCounts:
    try:
        return gpu_counts(asked)
    except CommandError as refused:
        raise CommandError(*size.notes, *refused.lines) from None


def _shown(size: SizeResolver, *, silent: bool) -> tuple[Distribution, str]:
    """Return the distribution and SLURM_DISTRIBUTION; `silent` omits the default, as srun does."""
    chosen = size.distribution
    if chosen.nodes is not None:
        return chosen, option_values.format_distribution(chosen)
    if silent:
        return chosen._replace(nodes="block"), ""
    chosen = chosen._replace(nodes="cyclic" if size.ntasks <= size.min_nodes else "block")
    return chosen, option_values.format_distribution(chosen)


def _is_whole(size: SizeResolver, asked: StepOptions) -> bool:
    if asked.has("exact") or asked.values.get("exclusive") in {"", "exclusive"}:
        return False
    return not size.cpus_per_task or asked.has("overcommit")


def _cpu_count(size: SizeResolver, asked: StepOptions, job: Job, gpus: GpuCounts, *, allocated: bool) -> int:
    per_gpu = asked.number("cpus-per-gpu")
    if asked.has("overcommit"):
        return 0
    if size.cpus_per_task:
        return size.ntasks * size.cpus_per_task
    if per_gpu and gpus.per_task:
        return size.ntasks * gpus.per_task * per_gpu
    if allocated and not size.ntasks_set:
        return sum(job.cpus)
    return size.ntasks


class SizeResolver:
    """Computes the numbers of a step; `nodes_set` and `ntasks_set` are true if an option gives them."""

    def __init__(self, asked: StepOptions, environ: Mapping[str, str]) -> None:
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
        self.exclude = expand_hosts(asked.get("exclude"))
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
        """Check for contradictions; srun prints all of them before it fails."""
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
            self.hosts = read_host_file(self.asked.get("nodefile"))
        elif self.asked.has("nodelist"):
            if not self.asked.get("nodelist"):
                raise CommandError("error: Hostlist is empty!  Can not run job.")
            self.hosts = expand_hosts(self.asked.get("nodelist"), self._expected() if self.arbitrary else None)
        elif path := self.environ.get("SLURM_HOSTFILE"):
            self.distribution = Distribution("arbitrary", pack=self.distribution.pack)
            try:
                self.hosts = read_host_file(path, self._expected())
            except CommandError as refused:
                raise CommandError(*refused.lines, "error: Failure getting NodeNames from hostfile") from None

    def _expected(self) -> int | None:
        """Return the required number of names in a host file with one name per task."""
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
        """Compute tasks from nodes, or fewer nodes for fewer tasks."""
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
        """Fit the numbers to the job's nodes. Return the number of nodes that the step may get.

        Raises:
            CommandError: There are not enough of them.
        """
        self._check_relative(job)
        if self.exclude:
            nodes = self._without_excluded(list(job.nodes))
        else:
            self._default_nodes(len(job.nodes))
            nodes = min(len(job.nodes), self.max_nodes)
        if self.arbitrary and not self.hosts:
            self.hosts = expand_hosts(self.environ.get("SLURM_ARBITRARY_NODELIST", ""))
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


def _distribution(asked: StepOptions, environ: Mapping[str, str]) -> Distribution:
    text = asked.values.get("distribution")
    if text is None:
        return Distribution(None)
    try:
        return option_values.parse_step_distribution(text, environ.get("SLURM_DIST_PLANESIZE"))
    except HpcKitError:
        lines = ["error: Invalid --distribution specification"]
        if text.lower().startswith("plane"):
            lines.insert(0, "error: Invalid plane size or size not specified")
        raise CommandError(*lines, status=255) from None


def expand_hosts(text: str, expected: int | None = None) -> list[str]:
    """Return the hosts of an option: a node list, or a file if it contains a slash."""
    return read_host_file(text, expected) if "/" in text else nodelist.expand(text)


def read_host_file(path: str, expected: int | None = None) -> list[str]:
    """Read hosts from a file, with `n1*3` for three times n1, until there are as many as expected.

    Raises:
        CommandError: It cannot be read, is empty, or has too few.
    """
    hosts: list[str] = []
    for line in _lines(path):
        hosts += _of_line(line)
        if expected is not None and len(hosts) >= expected:
            break
    if not hosts:
        raise CommandError("error: Hostlist is empty!")
    if expected is not None and len(hosts) < expected:
        raise CommandError("error: Too few NodeNames in Slurm Hostfile")
    return hosts


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:  # noqa: PTH123 - at the start of every srun
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise CommandError(f"error: slurm_allocate_resources error opening file {path}, {error.strerror}") from None
    return [line for line in lines if line]


def _of_line(line: str) -> list[str]:
    if "*" not in line:
        return nodelist.expand(line)
    pairs = (item.partition("*") for item in line.split(","))
    return [name for name, _, times in pairs for _ in range(int(times or 1))]
