"""What the embedded srun does with each option of the real one, and why: one row an option.

Options of the allocation count where srun makes one, and are passed over inside a job, as by Slurm.
"""

from __future__ import annotations

from pocketslurm.option_support import SBATCH_SUPPORT, Row, Support

_KEPT, _REFUSED = Support.KEPT, Support.REFUSED

_TOPOLOGY = Row(_KEPT, "virtual nodes have CPUs, and neither sockets nor cores")
_FILES = Row(_KEPT, "all nodes share this machine's files: the program is there already")
_ACCOUNTED = Row(_KEPT, "nothing is sampled or measured")
_SCRIPTS = Row(_REFUSED, "put it into the program, or into a script around it")

_WITH_REASON = {
    "accel-bind": _TOPOLOGY,
    "acctg-freq": _ACCOUNTED,
    "bcast": _FILES,
    "bcast-exclude": _FILES,
    "compress": _FILES,
    "container": Row(_REFUSED, "no OCI runtime: let srun start the container, by apptainer or the like"),
    "container-id": Row(_REFUSED, "no OCI runtime: let srun start the container, by apptainer or the like"),
    "container-type": Row(_REFUSED, "no OCI runtime: let srun start the container, by apptainer or the like"),
    "context": Row(_KEPT, "there is no SELinux plugin"),
    "cores-per-socket": _TOPOLOGY,
    "cpu-bind": Row(_KEPT, "tasks are told of it in SLURM_CPU_BIND, and run on any CPU"),
    "cpu-freq": Row(_KEPT, "CPUs run as fast as the machine lets them"),
    "debugger-test": Row(_REFUSED, "there is no interface for parallel debuggers"),
    "extra-node-info": Row(_REFUSED, "it would set the number of tasks from sockets and cores: give --ntasks"),
    "gpu-freq": Row(_KEPT, "GPUs run as fast as the machine lets them"),
    "gpus-per-socket": Row(_REFUSED, "virtual nodes have no sockets: give --gpus-per-node"),
    "gres-flags": _TOPOLOGY,
    "het-group": Row(Support.DONE, "in a heterogeneous job; `srun a : b` in others, too"),
    "hint": Row(_KEPT, "virtual nodes have CPUs, and neither sockets nor cores; tasks are told of it"),
    "interactive": Row(_REFUSED, "salloc runs its command on this machine, as without use_interactive_step"),
    "mcs-label": Row(_KEPT, "there is one user"),
    "mem-bind": _TOPOLOGY,
    "mpi": Row(
        Support.DONE,
        "`pmi2`, for MPICH, MVAPICH and Intel MPI, without MPI_Comm_spawn; `none`. `pmix` gives the same, so that Open"
        " MPI's ranks find nobody, and is refused with `strict`",
    ),
    "msg-timeout": Row(_KEPT, "no messages go over a network"),
    "network": Row(_KEPT, "there is no interconnect to set up"),
    "no-allocate": Row(_REFUSED, "steps belong to a job"),
    "no-kill": Row(_KEPT, "virtual nodes do not die alone"),
    "ntasks-per-core": _TOPOLOGY,
    "ntasks-per-socket": _TOPOLOGY,
    "power": Row(_KEPT, "power is not managed"),
    "profile": _ACCOUNTED,
    "propagate": Row(_KEPT, "tasks have the limits that srun has"),
    "resv-ports": Row(_KEPT, "no ports are set aside for MPI"),
    "send-libs": _FILES,
    "slurmd-debug": Row(_KEPT, "there is no slurmd"),
    "sockets-per-node": _TOPOLOGY,
    "switches": Row(_KEPT, "there are no switches"),
    "task-epilog": _SCRIPTS,
    "task-prolog": _SCRIPTS,
    "threads": Row(_KEPT, "srun starts its tasks itself"),
    "threads-per-core": Row(_KEPT, "virtual nodes have CPUs, and neither sockets nor cores; tasks are told of it"),
    "x11": Row(_KEPT, "tasks run on this machine and see its display anyway"),
    "external-launcher": Row(_KEPT, "newer than 22.05; srun starts its tasks itself"),
    "treewidth": Row(_KEPT, "newer than 22.05; srun starts its tasks itself"),
    "wait-for-children": Row(_KEPT, "newer than 22.05; a task's end is that of its own process"),
    **{
        name: SBATCH_SUPPORT[name]
        for name in (
            "consolidate-segments", "extra", "mem-update", "oom-kill-step", "resources", "segment", "spread-segments",
            "tres-bind", "tres-per-task",
        )
    },
}  # fmt: skip

ALLOCATION = frozenset(
    {
        "account", "bb", "bbf", "begin", "cluster-constraint", "clusters", "comment", "constraint", "contiguous",
        "core-spec", "deadline", "delay-boot", "dependency", "gid", "hold", "licenses", "mail-type", "mail-user",
        "mincpus", "nice", "oversubscribe", "partition", "prefer", "priority", "qos", "reboot", "reservation",
        "signal", "spread-job", "thread-spec", "time-min", "tmp", "uid", "use-min-nodes", "wckey",
    }
)  # fmt: skip
"""Options that only an allocation hears of."""

_HONOURED = (
    "chdir cpus-per-gpu cpus-per-task disable-status distribution epilog error exact exclude exclusive export gpu-bind"
    " gpus gpus-per-node gpus-per-task gres help immediate input job-name jobid kill-on-bad-exit label mem mem-per-cpu"
    " mem-per-gpu multi-prog nodefile nodelist nodes ntasks ntasks-per-gpu ntasks-per-node ntasks-per-tres open-mode"
    " output overcommit overlap preserve-env prolog pty quiet quit-on-interrupt relative test-only time unbuffered"
    " usage verbose version wait whole"
)


def _of_allocation(name: str) -> Row:
    """As sbatch has it, with a word on where it counts."""
    row = SBATCH_SUPPORT.get(name, Row(_KEPT))
    return Row(row.support, f"{row.note}; passed over inside a job".removeprefix("; "))


SRUN_SUPPORT: dict[str, Row] = {
    **dict.fromkeys(_HONOURED.split(), Row(Support.DONE)),
    **{name: _of_allocation(name) for name in ALLOCATION},
    **_WITH_REASON,
}

INPUT = {
    "SLURM_ACCOUNT": "account",
    "SLURM_BCAST": "bcast",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_CONSTRAINT": "constraint",
    "SRUN_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_CPU_BIND": "cpu-bind",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SLURM_DEPENDENCY": "dependency",
    "SLURM_DISABLE_STATUS": "disable-status",
    "SLURM_DISTRIBUTION": "distribution",
    "SLURM_EPILOG": "epilog",
    "SLURM_EXACT": "exact",
    "SLURM_EXCLUSIVE": "exclusive",
    "SLURM_EXPORT_ENV": "export",
    "SRUN_EXPORT_ENV": "export",
    "SLURM_GPUS": "gpus",
    "SLURM_GPU_BIND": "gpu-bind",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_STEP_GRES": "gres",
    "SLURM_GRES": "gres",
    "SLURM_HINT": "hint",
    "SLURM_JOB_ID": "jobid",
    "SLURM_JOB_NAME": "job-name",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SLURM_MEM_PER_CPU": "mem-per-cpu",
    "SLURM_MEM_PER_GPU": "mem-per-gpu",
    "SLURM_MEM_PER_NODE": "mem",
    "SLURM_MPI_TYPE": "mpi",
    "SLURM_NPROCS": "ntasks",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_NTASKS_PER_TRES": "ntasks-per-tres",
    "SLURM_OPEN_MODE": "open-mode",
    "SLURM_OVERCOMMIT": "overcommit",
    "SLURM_OVERLAP": "overlap",
    "SLURM_PARTITION": "partition",
    "SLURM_PROLOG": "prolog",
    "SLURM_QOS": "qos",
    "SLURM_REMOTE_CWD": "chdir",
    "SLURM_RESERVATION": "reservation",
    "SLURM_SIGNAL": "signal",
    "SLURM_SRUN_MULTI": "multi-prog",
    "SLURM_STDERRMODE": "error",
    "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output",
    "SLURM_TASK_EPILOG": "task-epilog",
    "SLURM_TASK_PROLOG": "task-prolog",
    "SLURM_THREADS_PER_CORE": "threads-per-core",
    "SLURM_TIMELIMIT": "time",
    "SLURM_UNBUFFEREDIO": "unbuffered",
    "SLURM_WAIT": "wait",
    "SLURM_WORKING_DIR": "chdir",
    "SLURM_DEBUG": "verbose",
}
"""Variables that srun reads as options, in its own order: the later wins, the command line over all."""
