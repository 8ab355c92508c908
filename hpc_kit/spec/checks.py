"""What must hold before a job goes near the queue; each fault names the file, the numbers and the edit to make."""

from __future__ import annotations

from msgspec import Struct

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.slurm import units
from hpc_kit.slurm.options import SBATCH, check_value
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.documents import Document
from hpc_kit.spec.job import Job
from hpc_kit.spec.resources import ALTERNATIVES, Resources


class Where(Struct, frozen=True):
    """The place of each key in the files of a job and its cluster."""

    job: Document
    cluster: Document

    def of(self, key: str) -> str:
        """Where a key of the job was said, or the cluster's default for it."""
        table, _, name = key.rpartition(".")
        default = f"defaults.{name}" if table == "resources" else key
        in_cluster = not self.job.says(key) and self.cluster.says(default)
        return self.cluster.where(default) if in_cluster else self.job.where(key)


SECRETS = frozenset({
    "KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE",
    "CREDENTIAL", "CREDENTIALS",
})  # fmt: skip
"""A variable with one of these among the words of its name is taken for a secret."""


def _control(text: str) -> bool:
    return any(character < " " or character == "\x7f" for character in text)


def looks_secret(name: str) -> bool:
    """Whether a variable of that name is likely to hold a secret."""
    return not SECRETS.isdisjoint(name.upper().split("_"))


def check_names(job: Job, cluster: Cluster, where: Where) -> None:
    """The job's name must do as a folder, the command must be there, the environment must hold no secrets."""
    if not job.name or job.name in {".", ".."} or "/" in job.name or "\\" in job.name or _control(job.name):
        raise SpecError(
            f"'{job.name}' cannot name a job",
            found=f"name = {job.name!r} in {where.of('name')}: its logs go to {cluster.runs}/<name>/",
            remedy="a name without '/', '\\' and line breaks",
        )
    if not job.command:
        raise SpecError(
            f"job {job.name} has no command",
            found=where.of("command"),
            remedy='command = ["python", "train.py"]',
        )
    for name, value in job.env.items():
        _check_variable(name, str(value), where)


def _check_variable(name: str, value: str, where: Where) -> None:
    key = f"env.{name}"
    if not (name.isidentifier() and name.isascii()):
        raise SpecError(
            f"'{name}' cannot name a variable", found=f"[env] in {where.of(key)}", remedy="letters, digits and '_'"
        )
    if looks_secret(name):
        raise SpecError(
            f"{name} in {where.of(key)} looks like a secret",
            found="a script, its record and `scontrol show job` can be read by others",
            remedy=f"export {name} in the shell that submits (sbatch takes it along),\n"
            "or read it in the program from a file of mode 0600",
        )
    if "\0" in value:
        raise SpecError(f"{name} in {where.of(key)} holds a NUL byte", remedy="text without it")


def check_options(resources: Resources, where: Where) -> None:
    """Each option must be one that Slurm can read, and no two may exclude one another."""
    given = resources.given()
    for name, value in given.items():
        key = f"resources.{name}"
        if _control(str(value)):
            raise SpecError(f"{name} in {where.of(key)} holds a line break", found=repr(value), remedy="text on one line")
        option = SBATCH[name.replace("_", "-")]
        if isinstance(value, bool):
            continue
        try:
            check_value(option, str(value))
        except HpcKitError as error:
            raise SpecError(f"{error.what}, in {where.of(key)}", found=f"{name} = {value!r}", remedy=error.remedy) from error
    for group in ALTERNATIVES:
        both = sorted(group & given.keys())
        if len(both) > 1:
            raise SpecError(
                f"{' and '.join(both)} exclude one another",
                found="; ".join(f"{name} = {given[name]!r} in {where.of(f'resources.{name}')}" for name in both),
                remedy=f"keep one of {', '.join(both)}",
            )


def counts(job: Job, where: Where) -> tuple[int, int]:
    """Nodes and tasks of the job, exactly."""
    resources = job.resources
    nodes = resources.nodes if resources.nodes is not None else 1
    if isinstance(nodes, str):
        if not nodes.isdigit() or int(nodes) < 1:
            raise SpecError(
                "a layout needs an exact number of nodes",
                found=f"nodes = {nodes!r} in {where.of('resources.nodes')}",
                remedy="nodes = 4",
            )
        nodes = int(nodes)
    per_node = resources.ntasks_per_node
    if per_node is None:
        return nodes, resources.ntasks if resources.ntasks is not None else nodes
    if resources.ntasks is not None and resources.ntasks != nodes * per_node:
        raise SpecError(
            "the tasks do not fill the nodes",
            found=f"{nodes} nodes x {per_node} tasks = {nodes * per_node}; ntasks = {resources.ntasks}"
            f" in {where.of('resources.ntasks')}",
            remedy=f"leave ntasks out, or ntasks = {nodes * per_node}",
        )
    return nodes, nodes * per_node


def check_layout(job: Job, nodes: int, world_size: int, where: Where) -> None:
    """The launcher's geometry and the degrees of parallelism must fit together."""
    launch, per_node = job.launch, job.resources.ntasks_per_node
    if launch.launcher == "torchrun" and per_node not in {None, 1}:
        raise SpecError(
            f"torchrun would be started {per_node} times a node",
            found=f"ntasks_per_node = {per_node} in {where.of('resources.ntasks_per_node')}; launcher = 'torchrun'",
            remedy=f"ntasks_per_node = 1, and [launch] nproc_per_node = {per_node}",
        )
    if launch.launcher == "srun" and launch.nproc_per_node != 1:
        raise SpecError(
            "nproc_per_node is torchrun's",
            found=f"nproc_per_node = {launch.nproc_per_node} in {where.of('launch.nproc_per_node')}; launcher = 'srun'",
            remedy=f"[resources] ntasks_per_node = {launch.nproc_per_node}, or launcher = 'torchrun'",
        )
    size = job.layout.size(world_size)
    if size != world_size:
        each = launch.nproc_per_node if launch.launcher == "torchrun" else per_node
        shape = f"{nodes} nodes x {each} ranks" if each else f"{nodes} nodes, ntasks"
        others = size // (job.layout.dp or 1)
        fitting = f"dp = {world_size // others}" if world_size % others == 0 else "degrees whose product is that"
        raise SpecError(
            "the layout does not fill the job",
            found=f"{where.of('layout.dp')} [layout]: {job.layout} = {size} ranks; [resources]: {shape} = {world_size}",
            remedy=f"{fitting} (or leave dp out: it takes what is left); or nodes and tasks for {size} ranks",
        )


def check_node(job: Job, cluster: Cluster, where: Where) -> None:
    """What one node must give may not be more than it has."""
    resources, node = job.resources, cluster.node
    per_node = resources.ntasks_per_node
    if per_node and node.cpus and per_node * (resources.cpus_per_task or 1) > node.cpus:
        cpus = resources.cpus_per_task or 1
        raise SpecError(
            "the job asks for more CPUs than a node has",
            found=f"{per_node} tasks x {cpus} CPUs = {per_node * cpus}; a node of {cluster.name} has {node.cpus}"
            f" ({where.of('resources.cpus_per_task')})",
            remedy=f"cpus_per_task = {max(1, node.cpus // per_node)}, or more nodes with fewer tasks",
        )
    if resources.mem is not None and node.mem is not None:
        asked, there = units.parse_memory(str(resources.mem)), units.parse_memory(str(node.mem))
        if asked > there:
            raise SpecError(
                "the job asks for more memory than a node has",
                found=f"mem = {resources.mem} in {where.of('resources.mem')}; a node of {cluster.name} has {node.mem}",
                remedy=f"mem = '{node.mem}' at most",
            )
    per_task = resources.gpus_per_task
    if per_node and node.gpus and per_task is not None:
        gpus = int(str(per_task).rpartition(":")[2] or 0) * per_node
        if gpus > node.gpus:
            raise SpecError(
                "the job asks for more GPUs than a node has",
                found=f"{per_node} tasks x {per_task} GPUs; a node of {cluster.name} has {node.gpus}",
                remedy=f"ntasks_per_node = {node.gpus}, or more nodes",
            )
    if node.gpus == 0 and job.launch.backend == "nccl":
        raise SpecError(
            "nccl needs GPUs",
            found=f"backend = 'nccl' in {where.of('launch.backend')}; {cluster.name} has no GPU",
            remedy="backend = 'auto'",
        )
