"""The SLURM_* variables of steps and tasks as Slurm 22.05 sets them, and the GPUs of tasks. Pure functions.

The scopes are mixed as in Slurm: SLURM_NODELIST describes the job, SLURM_NNODES the step. Variables that the
surrounding sbatch has set from its options stay unless srun sets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hpc_kit.slurm.nodelist import fold, fold_tasks_per_node
from hpc_kit.slurm.sizes import count_gpus, gpu_types
from pocketslurm.errors import INVALID_GRES, CommandError
from pocketslurm.queue.job_environment import node_variables, owner_variables, set_gpus
from pocketslurm.queue.nodes import natural
from pocketslurm.queue.records import Job, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketslurm.settings import Settings
    from pocketslurm.steps.options import StepOptions


Record = TypeVar("Record", Job, Step)

_AS_GIVEN = {
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
    "dependency": "SLURM_JOB_DEPENDENCY",
}
_FLAGS = {"overcommit": "SLURM_OVERCOMMIT", "label": "SLURM_LABELIO"}


class SrunContext(NamedTuple):
    """Facts about a running srun that its tasks find in variables.

    Attributes:
        distribution: SLURM_DISTRIBUTION; empty if Slurm does not set it.
        options: Options of srun with a variable, by long name, as written.
        job_name: Value of --job-name; None keeps the name of the surrounding job.
        address: Address of srun, with its `port`.
        allocated: srun has made the allocation.
        umask: SLURM_UMASK.
        nice: SLURM_PRIO_PROCESS.
        cwd: Folder of srun, and `host` its machine; set in a new allocation only.
        tres_bind: SLURMD_TRES_BIND.
        preserve: --preserve-env was given: keep the counts of nodes and tasks.
    """

    distribution: str = ""
    options: Mapping[str, str] = {}
    job_name: str | None = None
    address: str = "127.0.0.1"
    port: int = 0
    allocated: bool = False
    umask: int = 0o022
    nice: int = 0
    cwd: str = "/"
    host: str = ""
    tres_bind: str = ""
    preserve: bool = False


def step_environ(job: Job, step: Step, context: SrunContext, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all tasks of a step share; `environ` is srun's own after --export."""
    found = srun_variables(job, context, environ)
    ntasks, nodes = str(sum(map(len, step.tasks))), str(len(step.nodes))
    per_node = fold_tasks_per_node([len(tasks) for tasks in step.tasks])
    if not context.preserve:
        found.update(SLURM_NTASKS=ntasks, SLURM_NPROCS=ntasks, SLURM_NNODES=nodes, SLURM_TASKS_PER_NODE=per_node)
    found.update(
        {
            "SLURM_STEP_ID": str(step.step_id),
            "SLURM_STEPID": str(step.step_id),
            "SLURM_STEP_NODELIST": fold(step.nodes),
            "SLURM_STEP_NUM_NODES": nodes,
            "SLURM_STEP_NUM_TASKS": ntasks,
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "SLURM_STEP_LAUNCHER_PORT": str(context.port),
            "SLURM_SRUN_COMM_PORT": str(context.port),
            "SLURM_SRUN_COMM_HOST": context.address,
            "SLURM_LAUNCH_NODE_IPADDR": context.address,
        }
    )
    return found


def merge_components(jobs: Sequence[Job]) -> Job:
    """Merge the components of a step into one job with the leader's id and all nodes in order."""
    first = jobs[0]
    if first.het_job_id is None:
        return first
    nodes, cpus = [node for job in jobs for node in job.nodes], [cpus for job in jobs for cpus in job.cpus]
    return first._replace(job_id=first.leader_id, nodes=nodes, cpus=cpus)


def sort_by_name(record: Record, *columns: str) -> Record:
    """Return a job or a step with its nodes sorted by name."""
    order = sorted(range(len(record.nodes)), key=lambda index: natural(record.nodes[index]))
    found: dict[str, Any] = {}
    for name in columns:
        values = getattr(record, name)
        found[name] = [values[index] for index in order]
    return record._replace(**found)


def component_variables(job: Job) -> dict[str, str]:
    """Return the job variables of a step in a heterogeneous job; they describe its components only."""
    if job.het_job_id is None:
        return {}
    return {
        "SLURM_JOB_NODELIST": fold(job.nodes),
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_CPUS_PER_NODE": fold_tasks_per_node(job.cpus),
    }


def srun_variables(job: Job, context: SrunContext, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun with the variables that it sets before it has a step."""
    found = {
        **environ,
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOBID": str(job.job_id),
        "SLURM_NODELIST": fold(job.nodes),
        "SLURM_JOB_NODELIST": environ.get("SLURM_JOB_NODELIST", fold(job.nodes)),
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_CPUS_PER_NODE": environ.get("SLURM_JOB_CPUS_PER_NODE", fold_tasks_per_node(job.cpus)),
        "SLURM_PRIO_PROCESS": str(context.nice),
        "SLURM_UMASK": environ.get("SLURM_UMASK", f"{context.umask:04o}"),
        **owner_variables(job),
        **_option_variables(context),
    }
    if context.job_name is not None:
        found["SLURM_JOB_NAME"] = context.job_name
    if context.allocated:
        found.update(SLURM_JOB_NUM_NODES=str(len(job.nodes)), SLURM_CLUSTER_NAME=job.cluster)
        found.update(SLURM_SUBMIT_DIR=context.cwd, SLURM_SUBMIT_HOST=context.host)
    else:
        # 22.05 names its first component even where there is only one.
        first = "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0"
        found[first] = environ.get(first, fold_tasks_per_node(job.cpus))
        found["SLURM_NODE_ALIASES"] = "(null)"
    return found


def _option_variables(context: SrunContext) -> dict[str, str]:
    found = {name: context.options[option] for option, name in _AS_GIVEN.items() if context.options.get(option)}
    found |= {name: "1" for option, name in _FLAGS.items() if option in context.options}
    if context.distribution:
        found["SLURM_DISTRIBUTION"] = context.distribution
    if plane := context.options.get("plane"):
        found["SLURM_DIST_PLANESIZE"] = plane
    if context.tres_bind:
        found["SLURMD_TRES_BIND"] = context.tres_bind
    return found


def task_environ(
    shared: Mapping[str, str], step: Step, settings: Settings, rank: tuple[int, int], gpus: Sequence[int] = ()
) -> dict[str, str]:
    """Return the environment of one task, without SLURM_TASK_PID.

    Args:
        shared: Of `step_environ`.
        step: The step.
        settings: The machine's; without GPUs, no GPU variable is touched.
        rank: The node's index in the step, and the task's on that node.
        gpus: The devices that this task may see.
    """
    node, local = rank
    environ = dict(shared)
    tasks = step.tasks[node]
    environ.update(node_variables(step.nodes[node]))
    environ.update(
        SLURM_NODEID=str(node),
        SLURM_PROCID=str(tasks[local]),
        SLURM_LOCALID=str(local),
        SLURM_GTIDS=",".join(map(str, tasks)),
        SLURM_CPUS_ON_NODE=str(step.cpus[node]),
    )
    if local == 0:  # slurmstepd looks after its first task's only
        environ.setdefault("TMPDIR", "/tmp")  # noqa: S108
    # On a machine without GPUs, Slurm leaves the user's CUDA_VISIBLE_DEVICES alone.
    if settings.gpus or any(step.gpus) or "SLURM_JOB_GPUS" in environ:
        set_gpus(environ, "SLURM_STEP_GPUS", gpus, len(step.gpus[node]) if step.gpus else 0)
    return environ


def check_types(options: StepOptions, gpu_type: str | None, job_id: int) -> None:
    """Check that the nodes have the requested type of GPUs.

    Raises:
        CommandError: The options name another type.
    """
    if unknown := [kind for kind in gpu_types(options.values) if kind != gpu_type]:
        line = f"error: Step requested GRES (gpu:{unknown[0]}) not found in the job"
        raise CommandError(line, f"error: Unable to create step for job {job_id}: {INVALID_GRES}")


def gpu_binding(options: StepOptions) -> str:
    """Return the binding of tasks to GPUs for SLURMD_TRES_BIND; empty if each task sees all GPUs."""
    if bind := options.get("gpu-bind"):
        return f"gpu:{bind}"
    if single := options.get("ntasks-per-tres") or options.get("ntasks-per-gpu"):
        return f"gpu:single:{single}"
    if per_task := options.get("gpus-per-task"):
        return f"gpu:per_task:{per_task}"
    return ""


def visible_gpus(devices: Sequence[int], bind: str, local: int) -> list[int]:
    """Return the devices that a task sees.

    Args:
        devices: The step's on the task's node.
        bind: The binding, from `gpu_binding`.
        local: The task's index on the node.
    """
    kind, _, listed = bind.removeprefix("gpu:").removeprefix("verbose,").partition(":")
    if not devices or kind not in {"per_task", "single", "map_gpu", "mask_gpu"}:
        return list(devices)
    if kind == "per_task":
        each = count_gpus(listed) or 1
        # Slurm starts again at the first device if the tasks of a node need more than there are.
        return [devices[index % len(devices)] for index in range(local * each, (local + 1) * each)]
    if kind == "single":
        return [devices[local // int(listed or 1) % len(devices)]]
    entries = _repeated(listed)
    number = int(entries[local % len(entries)], 16 if kind == "mask_gpu" else 0)
    wanted = [bit for bit in range(number.bit_length()) if number >> bit & 1] if kind == "mask_gpu" else [number]
    return [devices[index] for index in wanted if index < len(devices)]


def _repeated(listed: str) -> list[str]:
    """Return the entries of a list such as `0*2,1`."""
    pairs = (item.partition("*") for item in listed.split(","))
    return [value for value, _, times in pairs for _ in range(int(times or 1))]
