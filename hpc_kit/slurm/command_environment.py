"""Environments for Slurm's commands, without variables that would change what they do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpc_kit.slurm.option_table import CPU_COUNT_OPTIONS, EXCLUSIVE_OPTIONS, SHARING_OPTIONS
from hpc_kit.slurm.sizes import asks_for_gpus

_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_INHERITED_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
_SCRIPTS_OWN = frozenset({
    "HPC_KIT_RUN", "HPC_KIT_LOGS", "HPC_KIT_SECRET", "HPC_KIT_SIGNALS", "HPC_KIT_LAYOUT", "HPC_KIT_BACKEND",
    "HPC_KIT_TIMEOUT", "HPC_KIT_LAUNCHER", "HPC_KIT_WATCHDOG", "HPC_KIT_WATCHDOG_TIMEOUT", "HPC_KIT_STOP_SIGNAL",
    "HPC_KIT_STOP_CODE", "HPC_KIT_RESTART_LEAD", "HPC_KIT_MAX_ATTEMPTS", "HPC_KIT_EXIT_CODES", "HPC_KIT_PROGRESS",
    "HPC_KIT_ATTEMPT", "RAY_ADDRESS", "RAY_NODES", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH",
})  # fmt: skip
"""Variables that our scripts set for their own ranks."""

_USERS_OWN = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SLURM_HPC_KIT_CONTINUES"})
"""Variables by which a user chooses a cluster, or the run that a job continues. Slurm sets none of them in jobs; there
it sets SLURM_CLUSTER_NAME."""


_SHAPING = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SLURM_TIME_FORMAT")
_FEDERATIONS = frozenset({"SQUEUE_FEDERATION", "SACCT_FEDERATION"})
"""These variables add jobs to the output, like --federation. They remove none."""


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no variable filters or formats the output of Slurm's commands."""
    plain = {name: value for name, value in environ.items() if name in _FEDERATIONS or not name.startswith(_SHAPING)}
    # Without this variable squeue shortens long lists of array tasks with "...".
    return {**plain, "SLURM_BITSTR_LEN": "0"}


def submit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for sbatch without the variables of the surrounding job and its launcher.

    Outside a job nothing is removed: there SBATCH_ACCOUNT and similar variables are the user's own defaults.
    """
    if not {"SLURM_JOB_ID", "SLURM_JOBID"} & environ.keys():
        return dict(environ)
    # Our scripts set these variables. In other jobs, or in a shell of salloc, the user has set them.
    ours = _SCRIPTS_OWN if "HPC_KIT_RUN" in environ else frozenset()
    return {
        name: value
        for name, value in environ.items()
        if name in _USERS_OWN or not (name.startswith(_INHERITED) or name in _INHERITED_NAMES or name in ours)
    }


SBATCH_VARIABLES: dict[str, str] = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ACCTG_FREQ": "acctg-freq", "SBATCH_ARRAY_INX": "array",
    "SBATCH_BATCH": "batch", "SBATCH_BURST_BUFFER": "bb", "SBATCH_CLUSTER_CONSTRAINT": "cluster-constraint",
    "SBATCH_CLUSTERS": "clusters", "SLURM_CLUSTERS": "clusters", "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CONTAINER": "container", "SBATCH_CONTAINER_ID": "container-id", "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq", "SBATCH_CPUS_PER_GPU": "cpus-per-gpu", "SBATCH_DEBUG": "verbose",
    "SBATCH_DELAY_BOOT": "delay-boot", "SBATCH_DISTRIBUTION": "distribution", "SBATCH_ERROR": "error",
    "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_EXPORT": "export", "SBATCH_GET_USER_ENV": "get-user-env",
    "SBATCH_GPU_BIND": "gpu-bind", "SBATCH_GPU_FREQ": "gpu-freq", "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_SOCKET": "gpus-per-socket",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_GRES": "gres", "SBATCH_GRES_FLAGS": "gres-flags",
    "SLURM_HINT": "hint", "SBATCH_HINT": "hint", "SBATCH_IGNORE_PBS": "ignore-pbs", "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name", "SBATCH_MEM_BIND": "mem-bind", "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu", "SBATCH_MEM_PER_NODE": "mem", "SBATCH_NETWORK": "network",
    "SBATCH_NO_KILL": "no-kill", "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output", "SBATCH_OVERCOMMIT": "overcommit", "SBATCH_PARTITION": "partition",
    "SBATCH_POWER": "power", "SBATCH_PROFILE": "profile", "SBATCH_QOS": "qos", "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_REQUEUE": "requeue", "SBATCH_RESERVATION": "reservation", "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_SIGNAL": "signal", "SBATCH_SPREAD_JOB": "spread-job", "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_THREADS_PER_CORE": "threads-per-core", "SBATCH_TIMELIMIT": "time", "SBATCH_TRES_BIND": "tres-bind",
    "SBATCH_TRES_PER_TASK": "tres-per-task", "SBATCH_USE_MIN_NODES": "use-min-nodes", "SBATCH_WAIT": "wait",
    "SBATCH_WAIT_ALL_NODES": "wait-all-nodes", "SBATCH_WCKEY": "wckey",
}  # fmt: skip
"""Variables that replace options of sbatch. They have priority over directives, but not over the command line.

Source: sbatch(1), INPUT ENVIRONMENT VARIABLES. Older releases ignore the variables of newer options.
"""

SRUN_VARIABLES = {
    "SLURM_ACCOUNT": "account", "SLURM_BCAST": "bcast", "SLURM_CLUSTERS": "clusters",
    "SLURM_CONSTRAINT": "constraint", "SRUN_CPUS_PER_TASK": "cpus-per-task", "SLURM_CPU_BIND": "cpu-bind",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu", "SLURM_DEPENDENCY": "dependency", "SLURM_DISABLE_STATUS": "disable-status",
    "SLURM_DISTRIBUTION": "distribution", "SLURM_EPILOG": "epilog", "SLURM_EXACT": "exact",
    "SLURM_EXCLUSIVE": "exclusive", "SLURM_EXPORT_ENV": "export", "SRUN_EXPORT_ENV": "export", "SLURM_GPUS": "gpus",
    "SLURM_GPU_BIND": "gpu-bind", "SLURM_GPUS_PER_NODE": "gpus-per-node", "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_STEP_GRES": "gres", "SLURM_GRES": "gres", "SLURM_HINT": "hint", "SLURM_JOB_ID": "jobid",
    "SLURM_JOB_NAME": "job-name", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label", "SLURM_MEM_PER_CPU": "mem-per-cpu", "SLURM_MEM_PER_GPU": "mem-per-gpu",
    "SLURM_MEM_PER_NODE": "mem", "SLURM_MPI_TYPE": "mpi", "SLURM_NPROCS": "ntasks", "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node", "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_NTASKS_PER_TRES": "ntasks-per-tres", "SLURM_OPEN_MODE": "open-mode", "SLURM_OVERCOMMIT": "overcommit",
    "SLURM_OVERLAP": "overlap", "SLURM_PARTITION": "partition", "SLURM_PROLOG": "prolog", "SLURM_QOS": "qos",
    "SLURM_REMOTE_CWD": "chdir", "SLURM_RESERVATION": "reservation", "SLURM_SIGNAL": "signal",
    "SLURM_SRUN_MULTI": "multi-prog", "SLURM_STDERRMODE": "error", "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output", "SLURM_TASK_EPILOG": "task-epilog", "SLURM_TASK_PROLOG": "task-prolog",
    "SLURM_THREADS_PER_CORE": "threads-per-core", "SLURM_TIMELIMIT": "time", "SLURM_UNBUFFEREDIO": "unbuffered",
    "SLURM_WAIT": "wait", "SLURM_WORKING_DIR": "chdir", "SLURM_DEBUG": "verbose",
}  # fmt: skip
"""Variables that srun reads as options, in its order: a later one has priority, and the command line over all."""

_NEVER_FROM_VARIABLES = {
    "array": "it would turn a plain job into an array",
    "error": "the error messages would be in an unexpected file",
    "wait": "sbatch would return only after the end of the job",
}
"""Options that no variable may set, with the reason."""

_RIVALS = (
    *EXCLUSIVE_OPTIONS,
    CPU_COUNT_OPTIONS,
    SHARING_OPTIONS,
    *(frozenset({"hint", other}) for other in ("ntasks-per-core", "threads-per-core", "extra-node-info")),
)
"""Groups of options that replace or contradict each other."""

_THREADS = frozenset({"hint", "threads-per-core", "ntasks-per-core", "extra-node-info"})
"""With one of them and DefCpuPerGPU, Slurm 22.05 refuses a job with several GPUs per node, or holds it forever."""


def drop_overriding_variables(environ: Mapping[str, str], script: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Remove variables that contradict a script, since sbatch gives SBATCH_* priority over #SBATCH.

    Return the environment, and a sentence about each removed variable.
    """
    candidates = SBATCH_VARIABLES.keys() & environ.keys()
    if not candidates:
        return dict(environ), ()
    stated = _script_options(script)
    dropped: dict[str, str] = {}
    for name in sorted(candidates):
        option = SBATCH_VARIABLES[name]
        if why := _reason_to_drop(option, environ[name], stated):
            value = f"={environ[name]}" if environ[name] else ""
            dropped[name] = f"ignoring {name}{value} of the environment: {why}"
    return {name: value for name, value in environ.items() if name not in dropped}, tuple(dropped.values())


def _reason_to_drop(option: str, value: str, stated: Mapping[str, str | None]) -> str | None:
    """Return the reason why a variable must not set this option; None if it may."""
    # A variable for the same option contradicts the script, too.
    rivals = {option}.union(*(group for group in _RIVALS if option in group))
    for name in sorted(stated, key=lambda each: (each != option, each)):
        script_value = stated[name]
        same = (_counts_gpus, _counts_cpus)
        if name in rivals or any(counts(option, value) and counts(name, script_value) for counts in same):
            return f"the script has --{name}" + ("" if script_value is None else f"={script_value}")
    if option in _THREADS and _has_default_cpus(stated):
        return "the script uses the site's default of CPUs per GPU, which Slurm cannot combine with it"
    return _NEVER_FROM_VARIABLES.get(option)


def _has_default_cpus(stated: Mapping[str, str | None]) -> bool:
    """Return whether a script asks for GPUs but for no number of CPUs, so that DefCpuPerGPU applies."""
    options = stated.items()
    return any(_counts_gpus(*each) for each in options) and not any(_counts_cpus(*each) for each in options)


def _counts_gpus(option: str, value: str | None) -> bool:
    """Return whether an option asks for a number of GPUs."""
    return asks_for_gpus({option: value or ""})


def _counts_cpus(option: str, value: str | None) -> bool:
    """Return whether an option asks for a number of CPUs of each task, as `--tres-per-task=cpu=4` does."""
    if option == "tres-per-task":
        return any(re.split("[:=]", entry)[0] == "cpu" for entry in (value or "").split(","))
    return option in CPU_COUNT_OPTIONS


def _script_options(script: str) -> dict[str, str | None]:
    """Return the options of all components of a script; none if sbatch refuses the script."""
    from hpc_kit.errors import DirectiveError
    from hpc_kit.slurm.directives import read_directives

    try:
        directives = read_directives(script)
        parsed = [directives.options(number) for number in range(len(directives.components()))]
    except DirectiveError:
        return {}
    return {each.option.name: each.value for options in parsed for each in options.given}
