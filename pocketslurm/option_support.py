"""The support of every option: it works, has no effect, or is refused, and why. docs/embedded-slurm.md prints it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.getopt import SBATCH, SRUN
from hpc_kit.slurm.option_table import Option, ValueUse
from pocketslurm.errors import PlainError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.settings import Settings


class Support(Enum):
    """`DONE`: it works as in Slurm. `KEPT`: taken and shown, without effect here. `REFUSED`: an error that names it."""

    WORKS = "works"
    NO_EFFECT = "accepted, no effect"
    REFUSED = "refused"


class OptionNote(NamedTuple):
    """One option: what is made of it, and why or how."""

    support: Support
    note: str = ""


_DONE, _KEPT, _NO = Support.WORKS, Support.NO_EFFECT, Support.REFUSED
_BOOKS = OptionNote(_KEPT, "there is no accounting; squeue, sacct and the job's environment show it")
_TOPOLOGY = OptionNote(_KEPT, "a virtual node has no sockets, cores or threads, only CPUs")
_BINDING = OptionNote(_KEPT, "nothing is bound to CPUs, memory or GPUs here")
_ONE_MACHINE = OptionNote(_KEPT, "all nodes are this machine")
_SEGMENTS = OptionNote(_KEPT, "newer than 22.05; there is no topology to keep to")
_OCI = OptionNote(_NO, "no OCI runtime: start the container in the script, by apptainer or the like")

SBATCH_SUPPORT: dict[str, OptionNote] = {
    "account": _BOOKS,
    "acctg-freq": OptionNote(_KEPT, "nothing is sampled"),
    "array": OptionNote(_DONE, "indices below MaxArraySize; `%N` limits the running tasks"),
    "batch": OptionNote(_KEPT, "nodes have no features"),
    "bb": OptionNote(_KEPT, "no burst buffer: all nodes share this machine's files"),
    "bbf": OptionNote(_KEPT, "no burst buffer: all nodes share this machine's files"),
    "begin": OptionNote(_DONE),
    "chdir": OptionNote(_DONE),
    "cluster-constraint": OptionNote(_KEPT, "there is one cluster"),
    "clusters": OptionNote(_DONE, "any name is this cluster's; with `strict` only its own and `all`"),
    "comment": OptionNote(_DONE),
    "constraint": OptionNote(_KEPT, "nodes have no features; refused with `strict`"),
    "container": _OCI,
    "context": OptionNote(_KEPT, "no SELinux context is set"),
    "contiguous": OptionNote(_DONE),
    "core-spec": OptionNote(_KEPT, "no CPU is reserved for the system"),
    "cores-per-socket": _TOPOLOGY,
    "cpu-freq": OptionNote(_KEPT, "the frequency of CPUs does not change"),
    "cpus-per-gpu": OptionNote(_DONE),
    "cpus-per-task": OptionNote(_DONE, "counted against the node's CPUs; nothing is bound"),
    "deadline": OptionNote(_DONE, "a job still pending then ends as DEADLINE"),
    "delay-boot": OptionNote(_KEPT, "nodes need no boot"),
    "dependency": OptionNote(_DONE, "after, afterany, afterok, afternotok, aftercorr, singleton; `,` and `?`"),
    "distribution": OptionNote(_DONE, "for the job's steps; see srun"),
    "error": OptionNote(_DONE),
    "exclude": OptionNote(_DONE),
    "exclusive": OptionNote(_DONE, "whole nodes; `user`, `mcs` and `topo` have no effect, there is one user"),
    "export": OptionNote(_DONE, "ALL, NONE, names, NAME=value"),
    "export-file": OptionNote(_DONE),
    "extra-node-info": _TOPOLOGY,
    "get-user-env": OptionNote(_DONE, "HOME, USER, SHELL and a plain PATH; no login shell is run"),
    "gid": OptionNote(_DONE, "your own group; another group is refused"),
    "gpu-bind": _BINDING,
    "gpu-freq": OptionNote(_KEPT, "the frequency of GPUs does not change"),
    "gpus": OptionNote(_DONE),
    "gpus-per-node": OptionNote(_DONE),
    "gpus-per-socket": OptionNote(_NO, "a virtual node has no sockets: give --gpus-per-node"),
    "gpus-per-task": OptionNote(_DONE),
    "gres": OptionNote(_DONE, "`gpu[:type]:N`; other resources have no effect, and are refused with `strict`"),
    "gres-flags": _BINDING,
    "help": OptionNote(_DONE),
    "hint": _TOPOLOGY,
    "hold": OptionNote(_DONE),
    "ignore-pbs": OptionNote(_DONE, "#PBS and #BSUB lines are never read"),
    "input": OptionNote(_DONE),
    "job-name": OptionNote(_DONE),
    "kill-on-invalid-dep": OptionNote(_DONE),
    "licenses": OptionNote(_KEPT, "there are no licences; refused with `strict`"),
    "mail-type": OptionNote(_KEPT, "no mail is sent"),
    "mail-user": OptionNote(_KEPT, "no mail is sent"),
    "mcs-label": _BOOKS,
    "mem": OptionNote(_DONE, "counted against the node's memory; not enforced, the kernel's own limits hold"),
    "mem-bind": _BINDING,
    "mem-per-cpu": OptionNote(_DONE, "counted, not enforced"),
    "mem-per-gpu": OptionNote(_DONE, "counted, not enforced"),
    "mincpus": OptionNote(_DONE),
    "network": _ONE_MACHINE,
    "nice": OptionNote(_DONE),
    "no-kill": OptionNote(_KEPT, "the nodes live and die together"),
    "no-requeue": OptionNote(_DONE),
    "nodefile": OptionNote(_DONE),
    "nodelist": OptionNote(_DONE),
    "nodes": OptionNote(_DONE, "a number or a range"),
    "ntasks": OptionNote(_DONE),
    "ntasks-per-core": _TOPOLOGY,
    "ntasks-per-gpu": OptionNote(_DONE),
    "ntasks-per-node": OptionNote(_DONE),
    "ntasks-per-socket": _TOPOLOGY,
    "ntasks-per-tres": OptionNote(_DONE, "the same as --ntasks-per-gpu"),
    "open-mode": OptionNote(_DONE),
    "output": OptionNote(_DONE, "%% %A %a %b %j %J %N %n %s %t %u %x, with a width"),
    "overcommit": OptionNote(_DONE),
    "oversubscribe": OptionNote(_KEPT, "CPUs of a node are shared by count only"),
    "parsable": OptionNote(_DONE),
    "partition": OptionNote(
        _DONE, "of a list, the first that the job fits into; the default one goes by any name, but with `strict`"
    ),
    "power": _ONE_MACHINE,
    "prefer": OptionNote(_KEPT, "nodes have no features; refused with `strict`"),
    "priority": OptionNote(_DONE),
    "profile": OptionNote(_KEPT, "nothing is sampled"),
    "propagate": OptionNote(_DONE, "soft limits; below the hard ones of the first sbatch since the queue was empty"),
    "qos": _BOOKS,
    "quiet": OptionNote(_DONE),
    "reboot": OptionNote(_KEPT, "this machine is not restarted"),
    "requeue": OptionNote(_DONE),
    "reservation": OptionNote(_KEPT, "there are no reservations; refused with `strict`"),
    "signal": OptionNote(
        _DONE, "to the tasks of the steps, or `B:` to the batch shell; to the second, not up to 60 s early"
    ),
    "sockets-per-node": _TOPOLOGY,
    "spread-job": _ONE_MACHINE,
    "switches": _ONE_MACHINE,
    "test-only": OptionNote(_DONE),
    "thread-spec": OptionNote(_KEPT, "no CPU is reserved for the system"),
    "threads-per-core": _TOPOLOGY,
    "time": OptionNote(_DONE, "rounded up to minutes, enforced to the second"),
    "time-min": OptionNote(_KEPT, "the full limit is always granted"),
    "tmp": _ONE_MACHINE,
    "uid": OptionNote(_DONE, "your own user; another user is refused"),
    "usage": OptionNote(_DONE),
    "use-min-nodes": OptionNote(_DONE, "a range gets as many nodes as are free unless this is given"),
    "verbose": OptionNote(_KEPT, "there is nothing more to say"),
    "version": OptionNote(_DONE),
    "wait": OptionNote(_DONE),
    "wait-all-nodes": OptionNote(_DONE, "the nodes are always all there"),
    "wckey": _BOOKS,
    "wrap": OptionNote(_DONE),
    # Newer than 22.05, and unknown with `strict`.
    "consolidate-segments": _SEGMENTS,
    "container-id": _OCI,
    "container-type": _OCI,
    "extra": OptionNote(_KEPT, "newer than 22.05; nodes have no such data to choose by"),
    "mem-update": OptionNote(_KEPT, "newer than 22.05; a job's memory is counted as asked for"),
    "oom-kill-step": OptionNote(_KEPT, "newer than 22.05; memory is not enforced"),
    "resources": OptionNote(_KEPT, "newer than 22.05; there are no licences"),
    "resv-ports": OptionNote(_KEPT, "newer than 22.05; no ports are reserved"),
    "segment": _SEGMENTS,
    "spread-segments": _SEGMENTS,
    "stepmgr": OptionNote(_KEPT, "newer than 22.05; srun looks after its steps itself"),
    "tres-bind": OptionNote(_KEPT, "newer than 22.05; nothing is bound to CPUs, memory or GPUs here"),
    "tres-per-task": OptionNote(_DONE, "newer than 22.05; CPUs and GPUs, other resources have no effect"),
}

NO_SUCH = {
    "constraint": "Invalid feature specification",
    "licenses": "Invalid license specification",
    "prefer": "Invalid preferred feature specification",
    "reservation": "Requested reservation is invalid",
}
"""Messages of slurmctld for unknown names; strict settings refuse every name with them."""


def plugin_hint(line: str) -> str:
    """Return advice for an unknown option if it belongs to the plug-in Pyxis."""
    if "unrecognized option '--container" not in line and "unrecognized option '--no-container" not in line:
        return ""
    return " (of the plugin Pyxis, which is not here: start the container in the script, by apptainer or the like)"


_NO_EFFECT, _REFUSED = Support.NO_EFFECT, Support.REFUSED

_NO_SOCKETS = OptionNote(_NO_EFFECT, "virtual nodes have CPUs, and neither sockets nor cores")
_FILES = OptionNote(_NO_EFFECT, "all nodes share this machine's files: the program is there already")
_ACCOUNTED = OptionNote(_NO_EFFECT, "nothing is sampled or measured")
_SCRIPTS = OptionNote(_REFUSED, "put it into the program, or into a script around it")

_WITH_REASON = {
    "accel-bind": _NO_SOCKETS,
    "acctg-freq": _ACCOUNTED,
    "bcast": _FILES,
    "bcast-exclude": _FILES,
    "compress": _FILES,
    "container": OptionNote(_REFUSED, "no OCI runtime: let srun start the container, by apptainer or the like"),
    "container-id": OptionNote(_REFUSED, "no OCI runtime: let srun start the container, by apptainer or the like"),
    "container-type": OptionNote(_REFUSED, "no OCI runtime: let srun start the container, by apptainer or the like"),
    "context": OptionNote(_NO_EFFECT, "there is no SELinux plugin"),
    "cores-per-socket": _NO_SOCKETS,
    "cpu-bind": OptionNote(_NO_EFFECT, "sets SLURM_CPU_BIND; tasks run on any CPU"),
    "cpu-freq": OptionNote(_NO_EFFECT, "CPUs run as fast as the machine lets them"),
    "debugger-test": OptionNote(_REFUSED, "there is no interface for parallel debuggers"),
    "extra-node-info": OptionNote(_REFUSED, "it would set the number of tasks from sockets and cores: give --ntasks"),
    "gpu-freq": OptionNote(_NO_EFFECT, "GPUs run as fast as the machine lets them"),
    "gpus-per-socket": OptionNote(_REFUSED, "virtual nodes have no sockets: give --gpus-per-node"),
    "gres-flags": _NO_SOCKETS,
    "het-group": OptionNote(Support.WORKS, "in a heterogeneous job; `srun a : b` in others, too"),
    "hint": OptionNote(_NO_EFFECT, "virtual nodes have no sockets or cores; tasks read it from a variable"),
    "interactive": OptionNote(_REFUSED, "salloc runs its command on this machine, as without use_interactive_step"),
    "mcs-label": OptionNote(_NO_EFFECT, "there is one user"),
    "mem-bind": _NO_SOCKETS,
    "mpi": OptionNote(
        Support.WORKS,
        "`pmi2`, for MPICH, MVAPICH and Intel MPI, without MPI_Comm_spawn; `none`. `pmix` gives the same, so that Open"
        " MPI's ranks find nobody, and is refused with `strict`",
    ),
    "msg-timeout": OptionNote(_NO_EFFECT, "no messages go over a network"),
    "network": OptionNote(_NO_EFFECT, "there is no interconnect to set up"),
    "no-allocate": OptionNote(_REFUSED, "steps belong to a job"),
    "no-kill": OptionNote(_NO_EFFECT, "virtual nodes do not die alone"),
    "ntasks-per-core": _NO_SOCKETS,
    "ntasks-per-socket": _NO_SOCKETS,
    "power": OptionNote(_NO_EFFECT, "power is not managed"),
    "profile": _ACCOUNTED,
    "propagate": OptionNote(_NO_EFFECT, "tasks have the limits that srun has"),
    "resv-ports": OptionNote(_NO_EFFECT, "no ports are reserved for MPI"),
    "send-libs": _FILES,
    "slurmd-debug": OptionNote(_NO_EFFECT, "there is no slurmd"),
    "sockets-per-node": _NO_SOCKETS,
    "switches": OptionNote(_NO_EFFECT, "there are no switches"),
    "task-epilog": _SCRIPTS,
    "task-prolog": _SCRIPTS,
    "threads": OptionNote(_NO_EFFECT, "srun starts its tasks itself"),
    "threads-per-core": OptionNote(_NO_EFFECT, "nodes have no sockets or cores; tasks read it from a variable"),
    "x11": OptionNote(_NO_EFFECT, "tasks run on this machine and see its display anyway"),
    "external-launcher": OptionNote(_NO_EFFECT, "newer than 22.05; srun starts its tasks itself"),
    "treewidth": OptionNote(_NO_EFFECT, "newer than 22.05; srun starts its tasks itself"),
    "wait-for-children": OptionNote(_NO_EFFECT, "newer than 22.05; a task's end is that of its own process"),
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
"""Options that only affect a new allocation."""

_HONOURED = (
    "chdir cpus-per-gpu cpus-per-task disable-status distribution epilog error exact exclude exclusive export gpu-bind"
    " gpus gpus-per-node gpus-per-task gres help immediate input job-name jobid kill-on-bad-exit label mem mem-per-cpu"
    " mem-per-gpu multi-prog nodefile nodelist nodes ntasks ntasks-per-gpu ntasks-per-node ntasks-per-tres open-mode"
    " output overcommit overlap preserve-env prolog pty quiet quit-on-interrupt relative test-only time unbuffered"
    " usage verbose version wait whole"
)


def _of_allocation(name: str) -> OptionNote:
    """Return sbatch's note on an option, with the remark that it affects an allocation only."""
    row = SBATCH_SUPPORT.get(name, OptionNote(_NO_EFFECT))
    return OptionNote(row.support, f"{row.note}; passed over inside a job".removeprefix("; "))


SRUN_SUPPORT: dict[str, OptionNote] = {
    **dict.fromkeys(_HONOURED.split(), OptionNote(Support.WORKS)),
    **{name: _of_allocation(name) for name in ALLOCATION},
    **_WITH_REASON,
}


def check_clusters(command: str, named: str, settings: Settings) -> None:
    """Stop a command that asks for another cluster, with its words.

    Raises:
        PlainError: It does.
    """
    if settings.strict and (lines := settings.other_clusters(named)):
        raise PlainError("\n".join(f"{command}: {line}" for line in lines))


def _kept(**notes: str) -> dict[str, OptionNote]:
    return {name.replace("_", "-"): OptionNote(Support.NO_EFFECT, note) for name, note in notes.items()}


def _refused(**notes: str) -> dict[str, OptionNote]:
    return {name.replace("_", "-"): OptionNote(Support.REFUSED, note) for name, note in notes.items()}


_COMMON = _kept(
    federation="there is one cluster",
    local="there is one cluster",
    sibling="there is one cluster",
    all="nothing is hidden",
    hide="nothing is hidden",
    verbose="there is nothing more to say",
    noconvert="numbers are shown as they are",
)

SQUEUE = {
    **_COMMON,
    **_kept(array_unique="an array's waiting tasks are one line already", priority="a job has one partition"),
}
SACCT = {
    **_COMMON,
    **_kept(
        allclusters="there is one cluster",
        duplicates="one record is kept of a requeued job",
        use_local_uid="there is one user",
        whole_hetjob="the leader's number shows all components, as with 22.05",
    ),
    **_refused(
        associations="there is no accounting",
        completion="there is no job completion log",
        constraints="nodes have no features",
        env_vars="the environment is not kept",
        file="there is no job completion log",
        flags="jobs have none",
        gid="there is one user",
        group="there is one user",
        ncpus="choose by --jobs or --state",
        nnodes="choose by --jobs or --state",
        reason="choose by --jobs or --state",
        timelimit_max="choose by --jobs or --state",
        timelimit_min="choose by --jobs or --state",
        truncate="times are shown as they are",
        wckeys="there is no accounting",
    ),
    "noconvert": OptionNote(Support.WORKS),
}
SCANCEL = {
    **_COMMON,
    **_kept(ctld="jobs are chosen in the same place anyway", hurry="there is no burst buffer"),
    **_refused(cron="there are no cron jobs"),
    "verbose": OptionNote(Support.WORKS),
}
SCONTROL = {
    **_COMMON,
    **_kept(future="there are no future nodes", quiet="errors are always printed"),
    **_refused(uid="there is one user"),
}
SINFO = {
    **_COMMON,
    **_kept(
        exact="nodes differ in their states only",
        future="there are no future nodes",
        responding="all nodes respond",
    ),
}
SBCAST = _kept(
    compress="the file is copied on this machine",
    exclude="no libraries are sent",
    fanout="the file is copied on this machine",
    send_libs="all nodes share this machine's libraries",
    size="the file is copied on this machine",
    timeout="the file is copied on this machine",
    treewidth="the file is copied on this machine",
    verbose="there is nothing more to say",
)
SSTAT = _kept(noconvert="memory is shown in KiB", verbose="there is nothing more to say")


def options_help(
    command: str, support: Mapping[str, OptionNote] = SBATCH_SUPPORT, table: Mapping[str, Option] = SBATCH
) -> str:
    """Return the text of `sbatch --help`, and of salloc's."""
    lines = [
        f"Usage: {command} [OPTIONS(0)...] [{'script' if command == 'sbatch' else 'command'} [args(0)...]]",
        "",
        "An embedded Slurm for one machine. Options:",
    ]
    for name, row in support.items():
        if row.support is not Support.REFUSED:
            option = table[name]
            letter = f"-{option.short}, " if option.short else "    "
            value = {ValueUse.NONE: "", ValueUse.REQUIRED: "=VALUE", ValueUse.OPTIONAL: "[=VALUE]"}[option.value]
            lines.append(
                f"  {letter}--{name}{value}" + ("  (no effect here)" if row.support is Support.NO_EFFECT else "")
            )
    return "\n".join(lines)


def srun_help() -> str:
    """Return the text of `srun --help`."""
    lines = ["Usage: srun [OPTIONS...] executable [args...]", "", "An embedded Slurm for one machine. Options:"]
    for name, option in SRUN.items():
        row = SRUN_SUPPORT.get(name)
        if row is None or row.support is Support.REFUSED:
            continue
        letter = f"-{option.short}, " if option.short else "    "
        value = {ValueUse.NONE: "", ValueUse.REQUIRED: "=VALUE", ValueUse.OPTIONAL: "[=VALUE]"}[option.value]
        lines.append(f"  {letter}--{name}{value}" + ("  (no effect here)" if row.support is Support.NO_EFFECT else ""))
    return "\n".join(lines)
