"""The SLURM_* variables of a batch shell as Slurm 22.05 sets them, and those that steps share; pure functions.

Other variables stay as in the environment of sbatch, also those of a surrounding step, as in Slurm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm import option_values
from hpc_kit.slurm.nodelist import fold, fold_tasks_per_node
from hpc_kit.slurm.units import parse_memory
from pocketslurm.settings import FIRST_ID_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hpc_kit.slurm.option_values import Distribution
    from pocketslurm.queue.records import Job
    from pocketslurm.settings import Settings


_AS_GIVEN = {
    "cpus-per-gpu": "SLURM_CPUS_PER_GPU",
    "gpus": "SLURM_GPUS",
    "gpu-bind": "SLURM_GPU_BIND",
    "gpu-freq": "SLURM_GPU_FREQ",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-socket": "SLURM_GPUS_PER_SOCKET",
    "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_GPU",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET",
    "ntasks-per-tres": "SLURM_NTASKS_PER_TRES",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
    "hint": "SLURM_HINT",
    "dependency": "SLURM_JOB_DEPENDENCY",
    "profile": "SLURM_PROFILE",
    "acctg-freq": "SLURM_ACCTG_FREQ",
    "tres-per-task": "SLURM_TRES_PER_TASK",
}
"""Options of sbatch that show in the batch shell just as they were written, and only then."""

_MEMORY = {"mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU"}
_OF_COMPONENT = frozenset(
    {
        *_AS_GIVEN.values(), *_MEMORY.values(), "SLURM_JOB_ACCOUNT", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_ID",
        "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS",
        "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE",
    }
)  # fmt: skip
"""Variables that a heterogeneous job's shell has of each component."""
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES")


def batch_environ(
    job: Job, settings: Settings, submit_environ: Mapping[str, str], components: Sequence[Job] = ()
) -> dict[str, str]:
    """Return the environment of a batch script, without SLURM_TASK_PID.

    Args:
        job: The job; of a heterogeneous one the leader.
        settings: The settings of the queue.
        submit_environ: The environment of sbatch after --export.
        components: All components of a heterogeneous job.
    """
    environ = dict(submit_environ)
    # Options of a heterogeneous job belong to its components: their variables have the number of one in the name.
    environ.update(_submission_variables(job, as_given={} if components else _AS_GIVEN))
    environ.update(_job_variables(job))
    environ.update(heterogeneous_variables(components))
    environ.update(
        ENVIRONMENT="BATCH",
        HOSTNAME=job.nodes[0],
        SLURM_TASKS_PER_NODE=fold_tasks_per_node(job.tasks),
        SLURM_NODE_ALIASES="(null)",
        SLURM_CPUS_ON_NODE=str(job.cpus[0]),
        SLURM_GTIDS="0",
        SLURM_LOCALID="0",
        SLURM_NODEID="0",
        SLURM_PROCID="0",
        **node_variables(job.nodes[0]),
    )
    # slurmstepd applies the umask, and removes its variable.
    environ.pop("SLURM_UMASK", None)
    environ.setdefault("TMPDIR", "/tmp")  # noqa: S108 - slurmd's own default
    if settings.gpus or any(job.gpus):
        set_gpus(environ, "SLURM_JOB_GPUS", job.gpus[0] if job.gpus else ())
    return environ


def heterogeneous_variables(components: Sequence[Job]) -> dict[str, str]:
    """Return the variables of a heterogeneous job's components, each by its new and its old name."""
    found: dict[str, str] = {}
    for number, job in enumerate(components):
        variables = (
            _submission_variables(job) | _job_variables(job) | {"SLURM_TASKS_PER_NODE": fold_tasks_per_node(job.tasks)}
        )
        for name, value in variables.items():
            if name in _OF_COMPONENT:
                found.update({f"{name}_{word}_GROUP_{number}": value for word in ("HET", "PACK")})
    size = str(len(components))
    return found | {"SLURM_HET_SIZE": size, "SLURM_PACK_SIZE": size} if components else {}


def salloc_environ(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of salloc's command, which is no process of the job."""
    found = {**environ, **_submission_variables(job), **_job_variables(job)}
    for name in ("SLURM_PRIO_PROCESS", "SLURM_JOB_UID", "SLURM_JOB_USER", "SLURM_JOB_GID"):
        found.pop(name, None)
    return found | {"SLURM_TASKS_PER_NODE": fold_tasks_per_node(job.tasks), "SLURM_NODE_ALIASES": "(null)"}


def _submission_variables(job: Job, as_given: Mapping[str, str] = _AS_GIVEN) -> dict[str, str]:
    """Return the variables that sbatch sets from its options."""
    options = job.options
    environ = {name: options[option] for option, name in as_given.items() if options.get(option)}
    environ.update(
        {
            "SLURM_JOB_NAME": job.name,
            "SLURM_SUBMIT_DIR": job.submit_dir,
            "SLURM_SUBMIT_HOST": job.submit_host,
            "SLURM_PRIO_PROCESS": "0",
        }
    )
    for option, name in _MEMORY.items():
        if memory := parse_memory(options.get(option) or "0"):
            environ[name] = str(memory)
    if ntasks := _ntasks(job):
        environ.update(SLURM_NTASKS=str(ntasks), SLURM_NPROCS=str(ntasks))
    if mode := options.get("open-mode"):
        environ["SLURM_OPEN_MODE"] = mode[0].lower()
    if "overcommit" in options:
        environ["SLURM_OVERCOMMIT"] = "1"
    if options.get("distribution"):
        environ.update(_distribution_variables(option_values.parse_step_distribution(options["distribution"])))
    if options.get("export", "ALL").upper() != "ALL":
        environ.update(SLURM_EXPORT_ENV=options["export"], SLURM_GET_USER_ENV="1")
    return environ


def _ntasks(job: Job) -> int | None:
    """Return the number of tasks if the options give it."""
    if job.options.get("ntasks"):
        return int(job.options["ntasks"])
    return len(job.nodes) * int(job.options.get("ntasks-per-node") or 0) or None


def _distribution_variables(distribution: Distribution) -> dict[str, str]:
    environ = {"SLURM_DISTRIBUTION": option_values.format_distribution(distribution)}
    if distribution.plane_size:
        environ["SLURM_DIST_PLANESIZE"] = str(distribution.plane_size)
    return environ


def _job_variables(job: Job) -> dict[str, str]:
    """Return the variables of the job that all its processes have."""
    environ = {
        "SLURM_CLUSTER_NAME": job.cluster,
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOBID": str(job.job_id),
        "SLURM_JOB_NODELIST": fold(job.nodes),
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_CPUS_PER_NODE": fold_tasks_per_node(job.cpus),
        "SLURM_NNODES": str(len(job.nodes)),
        "SLURM_NODELIST": fold(job.nodes),
        **owner_variables(job),
    }
    if job.array_job_id is not None and job.array_task_id is not None:
        environ.update(_array_variables(job, job.array_task_id))
    if job.restart_count:
        environ["SLURM_RESTART_COUNT"] = str(job.restart_count)
    return environ


def owner_variables(job: Job) -> dict[str, str]:
    """Return the variables with user, group and account."""
    environ = {"SLURM_JOB_UID": str(job.uid), "SLURM_JOB_USER": job.user, "SLURM_JOB_GID": str(job.gid)}
    known = {
        "SLURM_JOB_ACCOUNT": job.account,
        "SLURM_JOB_QOS": job.qos,
        "SLURM_JOB_RESERVATION": job.options.get("reservation", ""),
    }
    return environ | {name: value for name, value in known.items() if value}


def _array_variables(job: Job, task: int) -> dict[str, str]:
    from hpc_kit.slurm.option_values import parse_array

    indices = parse_array(job.array_spec).indices
    # `1-9:2%3`: the step stands between the colon and the limit of running tasks.
    step = (job.options.get("array") or job.array_spec).partition(":")[2]
    digits = step[: len(step) - len(step.lstrip("0123456789"))]
    return {
        "SLURM_ARRAY_JOB_ID": str(job.array_job_id),
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(indices[0]),
        "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
        "SLURM_ARRAY_TASK_STEP": digits or "1",
    }


def node_variables(node: str) -> dict[str, str]:
    """Return the variables about the node of a process."""
    return {"SLURMD_NODENAME": node, "SLURM_TOPOLOGY_ADDR": node, "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}


def set_gpus(environ: dict[str, str], name: str, gpus: Sequence[int], on_node: int | None = None) -> None:
    """Set the variables for these devices; without devices, delete the variables, as Slurm does."""
    listed = ",".join(map(str, gpus))
    values = {name: listed, "SLURM_GPUS_ON_NODE": str(len(gpus) if on_node is None else on_node)}
    for variable, value in {**values, **dict.fromkeys(_VISIBLE, listed)}.items():
        if gpus:
            environ[variable] = value
        else:
            environ.pop(variable, None)


def exported_environ(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the submitter's environment that a job gets, with the additions of --export."""
    environ = {name: value for name, value in environ.items() if name != FIRST_ID_VARIABLE}
    export = options.get("export", "ALL")
    if export.upper() == "ALL":
        return {**(_login_environ() if "get-user-env" in options else {}), **environ}
    found = _login_environ()
    if export.upper() != "NONE":
        for word in words(export):
            name, equals, value = word.partition("=")
            if word.upper() == "ALL":
                found.update(environ)
            elif equals:
                found[name] = value
            elif name in environ:
                found[name] = environ[name]
    # sbatch always exports the variables of Slurm.
    found.update({name: value for name, value in environ.items() if name.startswith("SLURM_")})
    return found


def encode_environ(environ: Mapping[str, str]) -> bytes:
    """Encode an environment as `NAME=value`, each with a NUL after it."""
    return b"".join(f"{name}={value}\0".encode(errors="surrogateescape") for name, value in environ.items())


def decode_environ(stored: bytes) -> dict[str, str]:
    """Return the environment from the bytes of `encode_environ`."""
    pairs = (pair.decode(errors="surrogateescape").partition("=") for pair in stored.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


def words(text: str) -> Iterator[str]:
    """Split a text at commas outside of quotes, and remove the quotes."""
    word, quote = "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
            word += letter if quote else ""
        elif letter in "'\"":
            quote = letter
        elif letter == ",":
            yield word
            word = ""
        else:
            word += letter
    yield word


def _login_environ() -> dict[str, str]:
    """Return the variables of a new login, without starting one."""
    import os
    import pwd

    user = pwd.getpwuid(os.getuid())
    root = "/usr/local/sbin:/usr/sbin:/sbin:" if user.pw_uid == 0 else ""
    return {
        "HOME": user.pw_dir,
        "LOGNAME": user.pw_name,
        "USER": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        "PATH": f"{root}/usr/local/bin:/usr/bin:/bin",
    }
