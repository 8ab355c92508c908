"""Computes nodes and tasks of a job, and checks them against each other and against a node."""

from __future__ import annotations

from hpc_kit.errors import HpcKitError, SpecError, UnitError
from hpc_kit.slurm import option_values, units
from hpc_kit.slurm.sizes import count_gpus, count_gres_gpus
from hpc_kit.spec.cluster import Cluster, Node
from hpc_kit.spec.job import Job
from hpc_kit.spec.job_checks import Origins
from hpc_kit.spec.resources import Resources


def count_nodes_and_tasks(job: Job, node: Node, origins: Origins) -> tuple[int, int]:
    """Return the exact numbers of nodes and tasks of a job.

    If the job only asks for tasks, they must fit on one `node`.
    """
    resources = job.resources
    nodes, ntasks, per_node = _exact_nodes(resources, origins), resources.ntasks, resources.ntasks_per_node
    # sbatch would choose the number of nodes by itself, but a layout needs to know it before the job starts.
    each = per_node or _tasks_per_node_by_gpus(resources)
    if nodes is None and each:
        nodes = -(-(ntasks or 1) // each)
    if resources.ntasks_per_gpu is not None:
        ntasks = _tasks_by_gpus(resources, resources.ntasks_per_gpu, nodes or 1, origins)
    if nodes is None:
        nodes = _require_one_node(resources, ntasks or 1, node, origins)
    # With ntasks, Slurm takes ntasks_per_node only as an upper limit, so that some nodes would have fewer ranks.
    if per_node is not None and ntasks not in {None, nodes * per_node}:
        raise SpecError(
            "the tasks do not fill the nodes",
            found=f"{nodes} nodes x {per_node} tasks = {nodes * per_node}; ntasks = {ntasks}"
            f" in {origins.of('resources.ntasks')}",
            remedy=f"leave ntasks out, or set ntasks = {nodes * per_node}",
        )
    ntasks = nodes * (per_node or 1) if ntasks is None else ntasks
    # Slurm would silently use fewer nodes.
    if ntasks < nodes:
        raise SpecError(
            "fewer tasks than nodes",
            found=f"nodes = {nodes} in {origins.of('resources.nodes')}; {ntasks} tasks",
            remedy=f"set nodes = {ntasks} or ntasks = {nodes}",
        )
    return nodes, ntasks


def _exact_nodes(resources: Resources, origins: Origins) -> int | None:
    nodes = resources.nodes
    if not isinstance(nodes, str):
        return nodes
    # "4-4" is an exact number, too.
    low, _, high = nodes.partition("-")
    if not low.isdigit() or int(low) < 1 or (high and high != low):
        raise SpecError(
            "a layout needs an exact number of nodes",
            found=f"nodes = {nodes!r} in {origins.of('resources.nodes')}",
            remedy="write one number: nodes = 4",
        )
    return int(low)


def _require_one_node(resources: Resources, ntasks: int, node: Node, origins: Origins) -> int:
    """Return 1 if all tasks fit on one node. Slurm itself would spread them over any number of nodes."""
    cpus, gpus = ntasks * (resources.cpus_per_task or 1), resources.count_gpus(1, ntasks) or 0
    known = node.cpus is not None and (not gpus or node.gpus is not None)
    if ntasks == 1 or (known and cpus <= (node.cpus or 0) and gpus <= (node.gpus or gpus)):
        return 1
    # -(-a // b) rounds up.
    least = max(-(-cpus // node.cpus) if node.cpus else 1, -(-gpus // node.gpus) if node.gpus else 1)
    key = "resources.ntasks" if resources.ntasks is not None else "resources.ntasks_per_gpu"
    raise SpecError(
        f"the number of nodes for {ntasks} tasks is missing",
        found=f"{ntasks} tasks in {origins.of(key)}, and no nodes",
        remedy=f"set nodes = {least}" + ("" if known else f", or as many as {ntasks} tasks need"),
    )


def _tasks_per_node_by_gpus(resources: Resources) -> int:
    """Return the tasks of a node for ntasks_per_gpu with GPUs per node, else 0."""
    by_node = resources.gpus is None and resources.ntasks_per_gpu is not None
    return (resources.ntasks_per_gpu or 0) * (resources.count_gpus(1, None) or 0) if by_node else 0


def _tasks_by_gpus(resources: Resources, each: int, nodes: int, origins: Origins) -> int:
    """Return the tasks of a job with ntasks_per_gpu."""
    gpus = resources.count_gpus(nodes, None)
    if gpus is None and resources.ntasks is None:
        raise SpecError(
            "ntasks_per_gpu needs a number of GPUs",
            found=f"ntasks_per_gpu = {each} in {origins.of('resources.ntasks_per_gpu')}",
            remedy="set gpus_per_node = 4 or gpus = 8; or replace ntasks_per_gpu by ntasks",
        )
    if gpus is not None and resources.ntasks not in {None, gpus * each}:
        raise SpecError(
            "the tasks do not fill the GPUs",
            found=f"{gpus} GPUs x ntasks_per_gpu = {each} in {origins.of('resources.ntasks_per_gpu')};"
            f" ntasks = {resources.ntasks}",
            remedy=f"leave ntasks out, or set ntasks = {gpus * each}",
        )
    return gpus * each if gpus is not None else resources.ntasks or 1


def check_rank_files(job: Job, origins: Origins) -> None:
    """Check that only srun has names for files of ranks. Other launchers write logs of ranks in the run folder."""
    launch = job.launch
    given = [name for name in ("output", "error") if getattr(launch, name) is not None]
    if given and (launch.launcher != "srun" or job.component):
        ranks = "the ranks of components" if job.component else f"{launch.launcher}'s ranks"
        raise SpecError(
            f"{ranks} write logs of their own",
            found=f"{given[0]} = {getattr(launch, given[0])!r} in {origins.of(f'launch.{given[0]}')}",
            remedy=f"leave {' and '.join(given)} out: rank 0's log is rank-0.log in the run's folder, and so on",
        )


def check_ranks(job: Job, nodes: int, ntasks: int, world_size: int, origins: Origins) -> None:
    """Check that launcher, layout and number of ranks fit together."""
    launch, per_node = job.launch, job.resources.ntasks_per_node
    if launch.starts_agents and ntasks != nodes:
        key = "ntasks_per_node" if per_node is not None else "ntasks"
        each = per_node or -(-ntasks // nodes)
        raise SpecError(
            f"{launch.launcher} would start {each} times on each node",
            found=f"{key} = {per_node or ntasks} in {origins.of(f'resources.{key}')}; launcher = '{launch.launcher}'",
            remedy=f"set ntasks_per_node = 1, and [launch] nproc_per_node = {each}",
        )
    if not launch.starts_agents and launch.nproc_per_node != 1:
        raise SpecError(
            "only torchrun and Ray have nproc_per_node",
            found=f"nproc_per_node = {launch.nproc_per_node} in {origins.of('launch.nproc_per_node')}; "
            f"launcher = '{launch.launcher}'",
            remedy=f"set [resources] ntasks_per_node = {launch.nproc_per_node}, or launcher = 'torchrun'",
        )
    if launch.options and launch.launcher != "torchrun":
        raise SpecError(
            "only torchrun has options",
            found=f"options = {list(launch.options)} in {origins.of('launch.options')}; launcher = '{launch.launcher}'",
            remedy="leave options out, or set launcher = 'torchrun'",
        )
    # An unset dp takes what the other degrees leave, so only a layout that does not divide the ranks fails here.
    size = job.layout.size(world_size)
    if size == world_size:
        return
    each_node = launch.nproc_per_node if launch.starts_agents else per_node
    shape = f"{nodes} nodes x {each_node} ranks" if each_node else f"{nodes} nodes, ntasks"
    others = size // (job.layout.dp or 1)  # ranks of one replica
    fitting = f"dp = {world_size // others}" if world_size % others == 0 else f"degrees with the product {world_size}"
    raise SpecError(
        "the layout does not fill the job",
        found=f"{origins.of('layout.dp')} [layout]: {job.layout} = {size} ranks; [resources]: {shape} = {world_size}",
        remedy=f"set {fitting}, or leave dp out, or ask for nodes and tasks for {size} ranks",
    )


def check_array(job: Job, cluster: Cluster, origins: Origins) -> None:
    """Check the indices of an array against the cluster's MaxArraySize."""
    if job.resources.array is None or cluster.max_array_size is None:
        return
    try:
        option_values.parse_array(str(job.resources.array), cluster.max_array_size)
    except HpcKitError as error:
        raise SpecError(
            f"cluster {cluster.name} has no such array",
            found=f"array = {job.resources.array!r} in {origins.of('resources.array')}; {error.found or error.what}",
            remedy=error.remedy,
        ) from error


def check_node(job: Job, cluster: Cluster, origins: Origins, nodes: int) -> None:
    """Check that the job asks for no more than a node has."""
    resources, node = job.resources, cluster.node
    per_node, cpus = resources.ntasks_per_node, resources.cpus_per_task or 1
    # Tasks that are spread unevenly have no number per node: sbatch checks them.
    if per_node and node.cpus and per_node * cpus > node.cpus:
        keys = [f"resources.{name}" for name in ("cpus_per_task", "ntasks_per_node", "ntasks")]
        raise SpecError(
            "the job asks for more CPUs than a node has",
            found=f"{units.format_count(per_node, 'task')} x {units.format_count(cpus, 'CPU')} = {per_node * cpus};"
            f" a node of {cluster.name} has {node.cpus} ({origins.of(next(filter(origins.has_key, keys), keys[0]))})",
            remedy=" or ".join(
                [f"start at most {units.format_count(node.cpus // cpus, 'task')} on a node"] * (cpus <= node.cpus)
                + [f"set cpus_per_task = {node.cpus // per_node}"] * (per_node <= node.cpus)
                or [f"start at most {units.format_count(node.cpus, 'task')} on a node, with cpus_per_task = 1"]
            ),
        )
    _check_memory(resources, cluster, origins)
    _check_gpus(resources, cluster, origins, nodes)
    if node.gpus == 0 and job.launch.backend == "nccl":
        raise SpecError(
            "nccl needs GPUs",
            found=f"backend = 'nccl' in {origins.of('launch.backend')}; {cluster.name} has no GPU",
            remedy="set backend = 'auto'",
        )


def _check_memory(resources: Resources, cluster: Cluster, origins: Origins) -> None:
    node_mem = cluster.node.mem
    if node_mem is None:
        return
    try:
        there = units.parse_memory(str(node_mem))
    except UnitError as error:
        raise origins.wrong_cluster_value("node.mem", f"= {node_mem!r}: {error.what}", error.remedy) from error
    if resources.mem is not None and units.parse_memory(str(resources.mem)) > there:
        raise SpecError(
            "the job asks for more memory than a node has",
            found=f"mem = {resources.mem} in {origins.of('resources.mem')}; a node of {cluster.name} has {node_mem}",
            remedy=f"set mem = '{node_mem}' or less",
        )


def _check_gpus(resources: Resources, cluster: Cluster, origins: Origins, nodes: int) -> None:
    there, per_node = cluster.node.gpus, resources.ntasks_per_node or 1
    if not there:
        return

    def count(value: str | int | None) -> int:
        return 0 if value is None else count_gpus(str(value)) or 0

    asked = {
        # If the nodes do not divide the GPUs, one of them has more: round up.
        "gpus": -(-count(resources.gpus) // nodes),
        "gpus_per_node": count(resources.gpus_per_node),
        "gpus_per_socket": count(resources.gpus_per_socket),
        "gpus_per_task": count(resources.gpus_per_task) * per_node,
        "gres": count_gres_gpus(resources.gres) or 0,
    }
    for name, gpus in asked.items():
        if gpus > there:
            tasks = f" x {units.format_count(per_node, 'task')}" if name == "gpus_per_task" else ""
            raise SpecError(
                "the job asks for more GPUs than a node has",
                found=f"{name} = {getattr(resources, name)}{tasks} in {origins.of(f'resources.{name}')}"
                f"; a node of {cluster.name} has {there}",
                remedy=f"ask for {there} or fewer on each node, and for more nodes",
            )
