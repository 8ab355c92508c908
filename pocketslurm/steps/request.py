"""Computes the size of a step and the distribution of its tasks, as srun does before it asks the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm import option_values
from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.option_values import Distribution, parse_nodes
from hpc_kit.slurm.sizes import GpuCounts, read_gpu_counts
from hpc_kit.slurm.units import parse_memory
from pocketslurm.errors import CommandError
from pocketslurm.queue.job_size import check_gpu_options, expand_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job
    from pocketslurm.steps.options import StepOptions


class StepRequest(NamedTuple):
    """The size of a step.

    Attributes:
        min_nodes: Fewest nodes; `max_nodes` are the most.
        ntasks: All tasks; `cpu_count` CPUs for all of them, 0 if CPUs do not count.
        tasks_per_node: Most tasks on a node with enough CPUs; 0 for any number.
        hosts: Nodes that it must get.
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


def step_request(options: StepOptions, environ: Mapping[str, str], job: Job, *, allocated: bool = False) -> StepRequest:
    """Return the request of an srun inside a job; `allocated` means that this srun has made the job.

    Raises:
        CommandError: srun would refuse it before it asks the controller.
    """
    size = SizeResolver(options, environ)
    nodes = size.fit_into(job)
    try:
        check_gpu_options(options.values)
    except CommandError as error:
        raise CommandError(*size.notes, *error.lines) from None
    # Without any option, a step gets all GPUs of its job.
    no_gpus = options.get("gres").lower() == "none"
    gpus = GpuCounts(per_node=0) if no_gpus else read_gpu_counts(options.values)
    per_gpu = options.number("ntasks-per-tres") or options.number("ntasks-per-gpu")
    if per_gpu and not size.ntasks_set:
        size.ntasks = per_gpu * sum(map(len, job.gpus[:nodes])) or size.ntasks
    memory = {name: parse_memory(options.get(name)) for name in ("mem", "mem-per-cpu") if options.get(name)}
    silent = 0 in memory.values() or (allocated and not memory)
    distribution, shown = _shown_distribution(size, silent=silent)
    exact = options.has("exact") or options.values.get("exclusive") in {"", "exclusive"}
    return StepRequest(
        min_nodes=min(size.min_nodes, nodes),
        max_nodes=min(size.max_nodes or nodes, nodes),
        ntasks=size.ntasks,
        cpu_count=_cpu_count(size, options, job, gpus, allocated=allocated),
        tasks_per_node=size.tasks_per_node,
        hosts=tuple(size.hosts),
        exclude=tuple(size.exclude),
        relative=options.number("relative"),
        whole=not exact and (not size.cpus_per_task or options.has("overcommit")),
        overlap=options.has("overlap"),
        mem_per_node=memory.get("mem", 0),
        mem_per_cpu=memory.get("mem-per-cpu", 0),
        gpus=gpus,
        distribution=distribution,
        shown=shown,
        notes=tuple(size.notes),
    )


def _shown_distribution(size: SizeResolver, *, silent: bool) -> tuple[Distribution, str]:
    """Return the distribution and SLURM_DISTRIBUTION; `silent` omits the default, as srun does."""
    distribution = size.distribution
    # With one task on each node at most, srun reports cyclic: both distributions are the same then.
    if distribution.nodes is None:
        default = "cyclic" if size.ntasks <= size.min_nodes and not silent else "block"
        distribution = distribution._replace(nodes=default)
        if silent:
            return distribution, ""
    return distribution, option_values.format_distribution(distribution)


def _cpu_count(size: SizeResolver, options: StepOptions, job: Job, gpus: GpuCounts, *, allocated: bool) -> int:
    per_gpu = options.number("cpus-per-gpu")
    if options.has("overcommit"):
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

    def __init__(self, options: StepOptions, environ: Mapping[str, str]) -> None:
        self.options = options
        self.notes: list[str] = []
        # srun ignores --nodes=0.
        nodes = parse_nodes(options.get("nodes")) if options.get("nodes").strip("0") else None
        self.nodes_set = nodes is not None
        self.min_nodes = nodes.minimum if nodes else 1
        self.max_nodes = nodes.maximum if nodes else 0
        self.ntasks_set = options.has("ntasks")
        self.ntasks = options.number("ntasks") or 1
        self.tasks_per_node = options.number("ntasks-per-node") or 0
        self.cpus_per_task = options.number("cpus-per-task") or 0
        self.distribution = _read_distribution(options, environ)
        self.hosts = expand_hosts(options.get("nodelist"))
        self.exclude = expand_hosts(options.get("exclude"))
        self._resolve()

    def _resolve(self) -> None:
        """Complete the numbers as srun does before it looks at a job."""
        errors = self._contradictions()
        if self.max_nodes and len(self.hosts) > self.max_nodes:
            self.notes.append(
                "error: Required nodelist includes more nodes than permitted by max-node count "
                f"({len(self.hosts)} > {self.max_nodes}). Eliminating nodes from the nodelist."
            )
            self.hosts = self.hosts[: self.max_nodes]
        if self.hosts:
            self.min_nodes = max(len(set(self.hosts)), self.min_nodes if self.nodes_set else 0)
            self.nodes_set = True
        self._fit_tasks_and_nodes()
        if self.tasks_per_node and not self.ntasks_set:
            self.ntasks, self.ntasks_set = self.min_nodes * self.tasks_per_node, True
        if errors:
            raise CommandError(*errors, *self.notes)

    def _contradictions(self) -> list[str]:
        """Return the errors for options that contradict each other; srun prints all of them before it fails."""
        options, errors = self.options, []
        if options.has("exact") and options.has("whole"):
            errors.append("error: --exact and --whole are mutually exclusive.")
        if options.has("relative") and (options.has("exclude") or options.has("nodelist")):
            errors.append("error: -r,--relative not allowed with -w,--nodelist or -x,--exclude.")
        if {"exclusive", "overlap"} <= options.typed:
            errors.append("error: --exclusive and --overlap are mutually exclusive")
        return errors

    def _fit_tasks_and_nodes(self) -> None:
        """Compute tasks from nodes, or fewer nodes for fewer tasks."""
        if not self.nodes_set:
            return
        if not self.ntasks_set:
            if self.max_nodes in {0, self.min_nodes}:
                self.ntasks = self.min_nodes * (self.tasks_per_node or 1)
                self.ntasks_set = bool(self.tasks_per_node)
            return
        self.max_nodes = min(self.max_nodes, self.ntasks)
        if self.ntasks < self.min_nodes:
            self.notes.append(
                f"Warning: can't run {self.ntasks} processes on {self.min_nodes} nodes, setting nnodes to {self.ntasks}"
            )
            self.min_nodes = self.max_nodes = self.ntasks
            self.hosts = self.hosts[: self.min_nodes]
        if self.tasks_per_node and self.tasks_per_node != self.ntasks // self.min_nodes:
            if self.ntasks > self.tasks_per_node:
                self.notes.append(
                    f"Warning: can't honor --ntasks-per-node set to {self.tasks_per_node} which doesn't match the "
                    f"requested tasks {self.ntasks} with the number of requested nodes {self.min_nodes}. "
                    "Ignoring --ntasks-per-node."
                )
            self.tasks_per_node = 0

    def fit_into(self, job: Job) -> int:
        """Fit the numbers to the job's nodes. Return the number of nodes that the step may get.

        Raises:
            CommandError: There are not enough of them.
        """
        self._check_relative(job)
        available = [node for node in job.nodes if node not in self.exclude]
        if not self.nodes_set:
            self.nodes_set = True
            fewer = self.ntasks_set and self.ntasks < len(available)
            self.min_nodes = self.ntasks if fewer else len(available)
        self.max_nodes = self.max_nodes or self.min_nodes
        nodes = min(len(available), self.max_nodes)
        if self.exclude:
            self._choose_hosts(available, nodes)
        if not self.ntasks_set:
            self._default_tasks(job, nodes)
        if self.min_nodes > nodes:
            advice = ["Are required nodes explicitly excluded?"] if self.exclude else []
            raise self._error(f"Only allocated {nodes} nodes asked for {self.min_nodes}", *advice)
        return nodes

    def _error(self, *lines: str) -> CommandError:
        return CommandError(*self.notes, *(f"error: {line}" for line in lines))

    def _check_relative(self, job: Job) -> None:
        relative = self.options.number("relative")
        if relative is not None and relative + self.min_nodes > len(job.nodes):
            named = "--nodes" if "nodes" in self.options.typed else "SLURM_JOB_NUM_NODES"
            raise self._error(
                f"--relative and {named} option incompatible with count of allocated nodes "
                f"({relative}+{self.min_nodes}>{len(job.nodes)})"
            )

    def _choose_hosts(self, available: list[str], nodes: int) -> None:
        """Name the nodes of the step, because some nodes of the job are excluded."""
        both = [node for node in self.exclude if node in self.hosts]
        if both:
            raise self._error(f"Requested node {both[0]} is also in the excluded list.", "Job not submitted.")
        if not available:
            raise self._error("Hostlist is empty!  Can't run job.")
        others = [node for node in available if node not in self.hosts]
        self.hosts += others[: max(0, nodes - len(self.hosts))]

    def _default_tasks(self, job: Job, nodes: int) -> None:
        count = 0
        if self.tasks_per_node:
            count = nodes * self.tasks_per_node
        elif self.cpus_per_task:
            count = sum(cpus // self.cpus_per_task for cpus in job.cpus)
        self.ntasks_set = bool(self.tasks_per_node or self.cpus_per_task)
        self.ntasks = max(count, nodes)


def _read_distribution(options: StepOptions, environ: Mapping[str, str]) -> Distribution:
    """Return the distribution of --distribution or its variables.

    Raises:
        CommandError: It is malformed, places tasks by a list of hosts, or packs them.
    """
    text = options.values.get("distribution")
    try:
        distribution = (
            option_values.parse_step_distribution(text, environ.get("SLURM_DIST_PLANESIZE")) if text else None
        )
    except HpcKitError:
        lines = ["error: Invalid --distribution specification"]
        if text and text.lower().startswith("plane"):
            lines.insert(0, "error: Invalid plane size or size not specified")
        raise CommandError(*lines, status=255) from None
    if environ.get("SLURM_HOSTFILE"):
        raise CommandError("error: SLURM_HOSTFILE is not supported by the embedded Slurm: give --nodelist")
    if distribution and (distribution.nodes == "arbitrary" or distribution.pack):
        raise CommandError(f"error: --distribution={text} is not supported by the embedded Slurm: give --nodelist")
    return distribution or Distribution(None)
