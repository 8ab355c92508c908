"""Fits a job to a cluster: computes and checks all values of a script, so that templates need no arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.slurm import option_values
from hpc_kit.slurm.sizes import count_gres_gpus, is_gpu_item, parse_count, split_tres_per_task, spread_tasks
from hpc_kit.spec import job_checks, layout_checks, program_options, search_path, size_checks
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job, format_layout
from hpc_kit.spec.launch_from_command import adopt_launcher
from hpc_kit.spec.load import LoadedJob
from hpc_kit.spec.resources import GPU_COUNT_FIELDS, GPU_FIELDS, Resources, excluded_options
from hpc_kit.spec.restart import check_restart, list_restart_doubts

_CORE_OPTIONS = frozenset({"hint", "threads_per_core", "ntasks_per_core", "extra_node_info", "cores_per_socket"})
"""Options for cores and threads, with which a step may have fewer CPUs than its job."""


class ResolvedComponent(Struct, frozen=True, kw_only=True):
    """One component of a heterogeneous job, fitted to its cluster."""

    resources: Resources
    nodes: int
    ntasks: int
    command: tuple[str, ...]


class Resolved(Struct, frozen=True, kw_only=True):
    """A job on a cluster, complete and consistent, ready to be rendered."""

    job: Job
    requested_job: Job
    """The job of the files and `--set`, before it was fitted to the cluster."""

    cluster: Cluster
    nodes: int
    ntasks: int
    world_size: int
    python: str
    components: tuple[ResolvedComponent, ...] = ()
    """Components of a heterogeneous job; empty for other jobs."""

    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Files that the job and the cluster come from."""

    render_command: tuple[str, ...] = ()
    """The command line that prints the same script; empty if there is none."""

    layout_text: str = ""
    """Degrees, batch and model: the value of HPC_KIT_LAYOUT."""

    @property
    def all_nodes(self) -> int:
        """Nodes that the job asks for: those of a step, and the spare nodes."""
        return self.nodes + (self.job.restart.spares if self.job.restart else 0)

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks on each node; None if nodes have different numbers."""
        return self.world_size // self.nodes if self.job.launch.starts_agents else self.job.resources.ntasks_per_node

    @property
    def cpus_by_slurm(self) -> bool:
        """True if the site's default decides the CPUs of a task, so that only the running job knows their number."""
        return self.job.resources.cpus_per_task is None and self.job.resources.cpus_per_gpu is None

    @property
    def cpus(self) -> int:
        """CPUs of one task; 1 if they are unknown."""
        if self.cpus_by_slurm:
            return 1
        resources = self.job.resources
        gpus = resources.count_gpus(self.nodes, self.ntasks) or 0
        return resources.cpus_per_task or max(1, (resources.cpus_per_gpu or 1) * gpus // self.ntasks)

    def command_line(self, *, standalone: bool, simple: bool = False) -> tuple[str, ...]:
        """Return the command line that prints the script again, with `--standalone` and `--simple` if necessary."""
        words = list(self.render_command)
        flags = ["--standalone"] * standalone + ["--simple"] * simple
        # Words after -- belong to the program.
        end = words.index("--") if "--" in words else len(words)
        return (*words[:end], *flags, *words[end:]) if words else ()

    @property
    def log_folder(self) -> str:
        """Folder of the runs of this job, which must exist before sbatch runs."""
        return f"{self.cluster.runs}/{self.job.name}"

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments, with the cluster's interpreter for `python`."""
        first, *rest = self.job.command
        return (self.python if first in {"python", "python3"} else first, *rest)


def format_render_command(
    job_words: Sequence[str],
    cluster: str,
    *,
    options: Sequence[str] = (),
    settings: Iterable[str] = (),
    program: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command line of `hpc-kit render` that prints the same script on any machine."""
    words = ["hpc-kit", "render", *job_words, "--cluster", cluster, *options]
    words += [word for setting in settings for word in ("--set", setting)]
    return (*words, "--", *program) if program else tuple(words)


def resolve(
    loaded: LoadedJob, *, root: Path | None = None, render_command: tuple[str, ...] = (), check: bool = True
) -> Resolved:
    """Fit a job to a cluster: add defaults, drop options that the cluster does not support, and check the rest.

    Without `check`, a job may ask for more than a node has.

    Raises:
        SpecError: The job has a wrong value, a layout that does not fill it, or asks for more than a node has.
    """
    job, cluster, root = loaded.job, loaded.cluster, root or search_path.current_folder()
    origins = job_checks.Origins(loaded.job_origins, loaded.cluster_origins)
    job = structs.replace(job, env={**cluster.env, **job.env})
    job, launcher_notes = adopt_launcher(job, cluster, origins, root)
    jobs = [structs.replace(job, resources=each) for each in _component_options(job)]
    parts = [_fit_part(each, cluster, root, origins, check=check) for each in jobs]
    # The first component sets the options of the whole job, such as the partition of the batch script.
    job, nodes, ntasks = parts[0].job, sum(part.nodes for part in parts), sum(part.ntasks for part in parts)
    cluster = cluster.for_partition(job.resources.partition)
    _check_whole_job(job, cluster, root, origins, parts)
    job = structs.replace(job, setup=(*cluster.setup, *job.setup))
    commands = [each.command or job.command for each in job.component]
    world_size = nodes * job.launch.nproc_per_node if job.launch.starts_agents else ntasks
    job, layout_text, layout_notes = _fit_layout(job, cluster, root, origins, parts, commands, world_size)
    resolved = Resolved(
        job=job,
        requested_job=loaded.job,
        cluster=cluster,
        nodes=nodes,
        ntasks=ntasks,
        world_size=world_size,
        python=cluster.python or ("python" if cluster.environment.brings_python else interpreter(root)),
        # Without components, `commands` is empty, and so is this tuple.
        components=tuple(
            ResolvedComponent(resources=part.job.resources, nodes=part.nodes, ntasks=part.ntasks, command=command)
            for part, command in zip(parts, commands, strict=False)
        ),
        notes=(
            *launcher_notes,
            *dict.fromkeys(note for part in parts for note in part.notes),
            *layout_notes,
            *job_checks.list_doubts(job, cluster),
            *list_restart_doubts(job, cluster),
        ),
        sources=loaded.sources,
        render_command=render_command,
        layout_text=layout_text,
    )
    if check:
        _check_cluster_limits(resolved, origins)
    return resolved


def _check_cluster_limits(resolved: Resolved, origins: job_checks.Origins) -> None:
    """Check that the job keeps the limits of its partition, and the size of an array."""
    if resolved.cluster.partition:
        from hpc_kit.spec import partition_checks  # most cluster files list no partitions

        partition_checks.check_with_file(resolved)
    size_checks.check_array(resolved.job, resolved.cluster, origins)


def _fit_layout(
    job: Job,
    cluster: Cluster,
    root: Path,
    origins: job_checks.Origins,
    parts: Sequence[_FittedPart],
    commands: Sequence[tuple[str, ...]],
    world_size: int,
) -> tuple[Job, str, tuple[str, ...]]:
    """Return the job with the degrees that its program will use, these degrees as text, and notes about them.

    `commands` are the commands of the components of a heterogeneous job.
    """
    nodes, ntasks = sum(part.nodes for part in parts), sum(part.ntasks for part in parts)
    # Components with different programs have no options in common.
    command = job.command if not commands else commands[0] if len(set(commands)) == 1 else ()
    folder = root / (job.resources.chdir or "")
    run = program_options.find_program(command, job.program, root, folder)
    job, origins = program_options.apply_command(job, origins, run, world_size)
    size_checks.check_ranks(job, nodes, ntasks, world_size, origins)
    program_options.check_splits(job, origins, run, world_size, root)
    job, ranks_notes = _decide_ranks_by(_with_block_distribution(job, nodes), nodes, world_size, origins)
    counts = {part.job.resources.ntasks_per_node for part in parts}
    tasks_per_node = counts.pop() if len(counts) == 1 else None
    per_node = world_size // nodes if job.launch.starts_agents else tasks_per_node
    complete, complete_origins = program_options.fill_defaults(job, origins, run)
    defaults = dict(run.program.defaults) if run.program else {}
    # A program with parameter servers has an option `servers`, as jobs/train/parameter_server.py does.
    cost_notes = layout_checks.check_layout(
        complete, cluster, complete_origins, world_size, per_node, defaults.get("servers", 0)
    )
    all_ranks = run.program.all_ranks if run.program else ()
    return job, format_layout(job.layout, job.model, defaults | dict.fromkeys(all_ranks)), (*ranks_notes, *cost_notes)


def _check_whole_job(
    job: Job, cluster: Cluster, root: Path, origins: job_checks.Origins, parts: Sequence[_FittedPart]
) -> None:
    """Check what concerns the whole job: template, components, container, [preflight], [restart], files of ranks."""
    search_path.find_file(
        "templates", job.template, root, suffix=search_path.TEMPLATE, place=lambda: origins.of("template")
    )
    uneven = [index for index, part in enumerate(parts) if part.job.resources.ntasks_per_node is None]
    job_checks.check_components(job, origins, uneven)
    job_checks.check_container(job, cluster, origins)
    job_checks.check_preflight(job, origins)
    check_restart(job, origins)
    size_checks.check_rank_files(job, origins)


def _decide_ranks_by(job: Job, nodes: int, world_size: int, origins: job_checks.Origins) -> tuple[Job, tuple[str, ...]]:
    """Return the job with `ranks_by` (the launcher or the program starts the ranks), and a note about the choice.

    One task that has several GPUs leaves GPUs idle, unless its program starts a rank for each of them.
    """
    launch = job.launch
    if launch.ranks_by == "program" and world_size > 1:
        raise SpecError(
            "a program that starts its own ranks needs a job of one task",
            found=f"ranks_by = 'program' in {origins.of('launch.ranks_by')}; {world_size} ranks",
            remedy="set nodes = 1 and ntasks_per_node = 1, or leave ranks_by out",
        )
    if not launch.bootstrap or launch.ranks_by is not None:
        return job, ()
    gpus = job.resources.count_gpus(nodes, world_size) or 0
    if world_size > 1 or gpus <= 1:
        return structs.replace(job, launch=structs.replace(launch, ranks_by="launcher")), ()
    note = f"one task with {gpus} GPUs: the program starts its own ranks; if not, set [launch] ranks_by = 'launcher'"
    return structs.replace(job, launch=structs.replace(launch, ranks_by="program")), (note,)


def _with_block_distribution(job: Job, nodes: int) -> Job:
    """Set `--distribution=block` if neighbouring ranks exchange much data and the job sets no distribution.

    Without the option, srun would obey a SLURM_DISTRIBUTION of the shell that submits the job.
    """
    layout, launch = job.layout, job.launch.launcher
    neighbours = max(layout.pp, layout.tp, layout.cp, layout.dp_shard or 1) > 1
    if nodes == 1 or not neighbours or launch != "srun" or job.component or job.resources.distribution is not None:
        return job
    return structs.replace(job, resources=structs.replace(job.resources, distribution="block"))


def _component_options(job: Job) -> list[Resources]:
    """Return the options of the job, or those of each component, completed by the options that all share."""
    return [_with_defaults(each.without_command(), job.resources) for each in job.component] or [job.resources]


class _FittedPart(Struct, frozen=True):
    """A job, or one component of a heterogeneous job, fitted to its cluster."""

    job: Job
    nodes: int
    ntasks: int
    notes: tuple[str, ...]


def _fit_part(job: Job, cluster: Cluster, root: Path, origins: job_checks.Origins, *, check: bool) -> _FittedPart:
    options = _with_defaults(job.resources, cluster.defaults)
    own = cluster.for_partition(options.partition)
    name = job.name if options.job_name is None else options.job_name
    job_checks.check_values(structs.replace(job, name=name, resources=options), own, root, origins)
    options, tres_notes = _without_tres_per_task(options)
    job = structs.replace(job, name=name, resources=options)
    # Count before the options for GPUs are dropped, because they may define the number of tasks.
    nodes, ntasks = size_checks.count_nodes_and_tasks(job, own.node, origins)
    resources, notes = _without_gpus(options, own)
    resources, feature_notes = _without_features(resources, own)
    resources, cpu_notes = _with_cpus(_with_counts(resources, nodes, ntasks), component=bool(job.component))
    if check:
        # Check before --gpus-per-task is replaced, so that an error names the option that the user wrote. A job whose
        # partition the embedded Slurm lacks runs in the default partition.
        job = structs.replace(job, resources=resources)
        size_checks.check_node(job, cluster.for_partition(resources.partition), origins, nodes)
    resources, gpu_notes = _gpus_by_node(resources)
    job = structs.replace(job, resources=resources)
    return _FittedPart(job, nodes, ntasks, (*tres_notes, *notes, *feature_notes, *cpu_notes, *gpu_notes))


def interpreter(root: Path) -> str:
    """Return the path of this interpreter for a script, relative to the project if it is inside."""
    path = Path(sys.executable)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _with_defaults(own: Resources, defaults: Resources) -> Resources:
    """Add defaults. An option of the job, even `false`, replaces its default and removes those that contradict it."""
    others = defaults.given()
    excluded = excluded_options(own.given(), others)
    chosen = {name for name in own.__struct_fields__ if getattr(own, name) is not None}
    return structs.replace(own, **{name: value for name, value in others.items() if name not in chosen | excluded})


def _without_tres_per_task(resources: Resources) -> tuple[Resources, tuple[str, ...]]:
    """Replace CPUs and GPUs of --tres-per-task by --cpus-per-task and --gpus-per-task, which this module counts.

    If the job also has another option for them, nothing is replaced: sbatch decides whether it accepts both.
    """
    older, others = split_tres_per_task(resources.tres_per_task or "")
    found: dict[str, str | int | None] = {name.replace("-", "_"): value for name, value in older.items()}
    excluding: set[str] = set()
    if "cpus_per_task" in found:
        found["cpus_per_task"] = parse_count(older["cpus-per-task"])
        excluding |= {"cpus_per_task", "cpus_per_gpu"}
    if "gpus_per_task" in found:
        excluding |= {*GPU_COUNT_FIELDS, "ntasks_per_gpu"} | ({"gres"} if count_gres_gpus(resources.gres) else set())
    if not found or None in found.values() or excluding & resources.given().keys():
        return resources, ()
    shown = " ".join(f"--{name}={value}" for name, value in older.items())
    note = f"using {shown} for --tres-per-task={resources.tres_per_task}"
    return structs.replace(resources, tres_per_task=others or None, **found), (note,)


def _without_gpus(resources: Resources, cluster: Cluster) -> tuple[Resources, tuple[str, ...]]:
    """Drop GPU options on a cluster without GPUs."""
    given = resources.given()
    # If the number is unknown (None), the options stay, and sbatch decides.
    if cluster.node.gpus != 0:
        return resources, ()
    dropped: dict[str, str | None] = {name: None for name in GPU_FIELDS if name in given}
    entries = str(given.get("gres", "")).split(",")
    if any(is_gpu_item(entry) for entry in entries):
        dropped["gres"] = ",".join(entry for entry in entries if not is_gpu_item(entry)) or None
    notes = tuple(
        f"ignoring --{name.replace('_', '-')}={given[name]} because cluster '{cluster.name}' has no GPUs"
        for name in dropped
    )
    return structs.replace(resources, **dropped), notes


def _without_features(resources: Resources, cluster: Cluster) -> tuple[Resources, tuple[str, ...]]:
    """Drop options that the embedded Slurm cannot fulfil, unless it is strict and refuses them."""
    given = resources.given()
    if cluster.slurm != "embedded" or cluster.embedded.strict:
        return resources, ()
    lacking = {"constraint": "features", "prefer": "features", "licenses": "licences"}
    dropped: dict[str, str | None] = {name: None for name in lacking if name in given}
    known = ",".join(name for name in (resources.partition or "").split(",") if name in cluster.embedded.partitions)
    if resources.partition not in {None, known}:
        # A list of partitions may contain some that exist here.
        dropped["partition"] = known or None
    notes = tuple(
        f"ignoring --{name}={given[name]} because cluster '{cluster.name}' has no {lacking.get(name, 'such partition')}"
        for name in dropped
    )
    return structs.replace(resources, **dropped), notes


def _gpus_by_node(resources: Resources) -> tuple[Resources, tuple[str, ...]]:
    """Replace --gpus-per-task by --gpus-per-node if both mean the same.

    With --gpus-per-task each rank only sees its own GPU, and NCCL cannot use direct paths to the other GPUs. The option
    --gpu-bind=none should help, but makes Slurm 22.05 unset CUDA_VISIBLE_DEVICES.
    """
    each, per_node = resources.gpus_per_task, resources.ntasks_per_node
    others = {"gpus", "gpus_per_node", "gpus_per_socket", "gpu_bind", "tres_bind"} & resources.given().keys()
    if each is None or per_node is None or others or count_gres_gpus(resources.gres) is not None:
        return resources, ()
    text = option_values.multiply_gpus(str(each), per_node)
    note = f"using --gpus-per-node={text} for --gpus-per-task={each}, so that every rank sees all GPUs of its node"
    return structs.replace(resources, gpus_per_task=None, gpus_per_node=text), (note,) if per_node > 1 else ()


def _with_counts(resources: Resources, nodes: int, ntasks: int) -> Resources:
    """Set all counts: Slurm 23.02.0 to 23.02.4 leaves SLURM_NTASKS unset if only --ntasks-per-node is given."""
    per_node = resources.ntasks_per_node
    # sbatch refuses ntasks_per_node together with ntasks_per_gpu.
    if resources.ntasks_per_gpu is None:
        _, per_node = spread_tasks(nodes, ntasks, per_node)
    return structs.replace(resources, job_name=None, nodes=nodes, ntasks=ntasks, ntasks_per_node=per_node)


def _with_cpus(resources: Resources, *, component: bool) -> tuple[Resources, tuple[str, ...]]:
    """Set one CPU for each task if the job asks for none. A job with GPUs keeps the site's default for each GPU.

    Slurm uses the default (DefCpuPerGPU) only without --cpus-per-task and --cpus-per-gpu. The script then divides the
    CPUs of a node among its tasks. It cannot do this if nodes have different numbers of tasks, or with options for
    cores and threads: then each task gets one CPU.
    """
    if resources.cpus_per_task is not None or resources.cpus_per_gpu is not None:
        return resources, ()
    given = resources.given()
    on_gpus = any(name in given for name in GPU_FIELDS) or count_gres_gpus(resources.gres) is not None
    if on_gpus and not component and resources.ntasks_per_node is not None and not _CORE_OPTIONS & given.keys():
        note = "using the site's default of CPUs per GPU (DefCpuPerGPU): neither cpus_per_task nor cpus_per_gpu is set"
        return resources, (note,)
    notes = ("using --cpus-per-task=1; set cpus_per_task or cpus_per_gpu for more CPUs",)
    return structs.replace(resources, cpus_per_task=1), notes if on_gpus else ()
