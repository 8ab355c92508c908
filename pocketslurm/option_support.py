"""What the embedded Slurm makes of each option of sbatch: the contract, of which docs/embedded-slurm.md is a print."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Support(Enum):
    """`DONE`: it works as in Slurm. `KEPT`: taken and shown, without effect here. `REFUSED`: an error that names it."""

    DONE = "works"
    KEPT = "accepted, no effect"
    REFUSED = "refused"


class Row(NamedTuple):
    """One option: what is made of it, and why or how."""

    support: Support
    note: str = ""


_DONE, _KEPT, _NO = Support.DONE, Support.KEPT, Support.REFUSED
_BOOKS = Row(_KEPT, "there is no accounting; squeue, sacct and the job's environment show it")
_TOPOLOGY = Row(_KEPT, "a virtual node has no sockets, cores or threads, only CPUs")
_BINDING = Row(_KEPT, "nothing is bound to CPUs, memory or GPUs here")
_ONE_MACHINE = Row(_KEPT, "all nodes are this machine")
_SEGMENTS = Row(_KEPT, "newer than 22.05; there is no topology to keep to")
_OCI = Row(_NO, "no OCI runtime: start the container in the script, by apptainer or the like")

SBATCH_SUPPORT: dict[str, Row] = {
    "account": _BOOKS,
    "acctg-freq": Row(_KEPT, "nothing is sampled"),
    "array": Row(_DONE, "indices below MaxArraySize; `%N` at once"),
    "batch": Row(_KEPT, "nodes have no features"),
    "bb": Row(_KEPT, "no burst buffer: all nodes share this machine's files"),
    "bbf": Row(_KEPT, "no burst buffer: all nodes share this machine's files"),
    "begin": Row(_DONE),
    "chdir": Row(_DONE),
    "cluster-constraint": Row(_KEPT, "there is one cluster"),
    "clusters": Row(_DONE, "any name is this cluster's; with `strict` only its own and `all`"),
    "comment": Row(_DONE),
    "constraint": Row(_KEPT, "nodes have no features; refused with `strict`"),
    "container": _OCI,
    "context": Row(_KEPT, "no SELinux context is set"),
    "contiguous": Row(_DONE),
    "core-spec": Row(_KEPT, "no CPU is set aside for the system"),
    "cores-per-socket": _TOPOLOGY,
    "cpu-freq": Row(_KEPT, "the CPUs' frequency is left alone"),
    "cpus-per-gpu": Row(_DONE),
    "cpus-per-task": Row(_DONE, "counted against the node's CPUs; nothing is bound"),
    "deadline": Row(_DONE, "a job still pending then ends as DEADLINE"),
    "delay-boot": Row(_KEPT, "nodes need no boot"),
    "dependency": Row(_DONE, "after, afterany, afterok, afternotok, aftercorr, singleton; `,` and `?`"),
    "distribution": Row(_DONE, "for the job's steps; see srun"),
    "error": Row(_DONE),
    "exclude": Row(_DONE),
    "exclusive": Row(_DONE, "whole nodes; `user`, `mcs` and `topo` have no effect, there is one user"),
    "export": Row(_DONE, "ALL, NONE, names, NAME=value"),
    "export-file": Row(_DONE),
    "extra-node-info": _TOPOLOGY,
    "get-user-env": Row(_DONE, "HOME, USER, SHELL and a plain PATH; no login shell is run"),
    "gid": Row(_DONE, "the own group; any other is refused"),
    "gpu-bind": _BINDING,
    "gpu-freq": Row(_KEPT, "the GPUs' frequency is left alone"),
    "gpus": Row(_DONE),
    "gpus-per-node": Row(_DONE),
    "gpus-per-socket": Row(_NO, "a virtual node has no sockets: give --gpus-per-node"),
    "gpus-per-task": Row(_DONE),
    "gres": Row(_DONE, "`gpu[:type]:N`; other resources have no effect, and are refused with `strict`"),
    "gres-flags": _BINDING,
    "help": Row(_DONE),
    "hint": _TOPOLOGY,
    "hold": Row(_DONE),
    "ignore-pbs": Row(_DONE, "#PBS and #BSUB lines are never read"),
    "input": Row(_DONE),
    "job-name": Row(_DONE),
    "kill-on-invalid-dep": Row(_DONE),
    "licenses": Row(_KEPT, "there are no licences; refused with `strict`"),
    "mail-type": Row(_KEPT, "no mail is sent"),
    "mail-user": Row(_KEPT, "no mail is sent"),
    "mcs-label": _BOOKS,
    "mem": Row(_DONE, "counted against the node's memory; not enforced, the kernel's own limits hold"),
    "mem-bind": _BINDING,
    "mem-per-cpu": Row(_DONE, "counted, not enforced"),
    "mem-per-gpu": Row(_DONE, "counted, not enforced"),
    "mincpus": Row(_DONE),
    "network": _ONE_MACHINE,
    "nice": Row(_DONE),
    "no-kill": Row(_KEPT, "the nodes live and die together"),
    "no-requeue": Row(_DONE),
    "nodefile": Row(_DONE),
    "nodelist": Row(_DONE),
    "nodes": Row(_DONE, "a number or a range"),
    "ntasks": Row(_DONE),
    "ntasks-per-core": _TOPOLOGY,
    "ntasks-per-gpu": Row(_DONE),
    "ntasks-per-node": Row(_DONE),
    "ntasks-per-socket": _TOPOLOGY,
    "ntasks-per-tres": Row(_DONE, "the same as --ntasks-per-gpu"),
    "open-mode": Row(_DONE),
    "output": Row(_DONE, "%% %A %a %b %j %J %N %n %s %t %u %x, with a width"),
    "overcommit": Row(_DONE),
    "oversubscribe": Row(_KEPT, "CPUs of a node are shared by count only"),
    "parsable": Row(_DONE),
    "partition": Row(
        _DONE, "of a list, the first that the job fits into; the default one goes by any name, but with `strict`"
    ),
    "power": _ONE_MACHINE,
    "prefer": Row(_KEPT, "nodes have no features; refused with `strict`"),
    "priority": Row(_DONE),
    "profile": Row(_KEPT, "nothing is sampled"),
    "propagate": Row(_DONE, "soft limits; below the hard ones of the first sbatch since the queue was empty"),
    "qos": _BOOKS,
    "quiet": Row(_DONE),
    "reboot": Row(_KEPT, "this machine is not restarted"),
    "requeue": Row(_DONE),
    "reservation": Row(_KEPT, "there are no reservations; refused with `strict`"),
    "signal": Row(_DONE, "to the tasks of the steps, or `B:` to the batch shell; to the second, not up to 60 s early"),
    "sockets-per-node": _TOPOLOGY,
    "spread-job": _ONE_MACHINE,
    "switches": _ONE_MACHINE,
    "test-only": Row(_DONE),
    "thread-spec": Row(_KEPT, "no CPU is set aside for the system"),
    "threads-per-core": _TOPOLOGY,
    "time": Row(_DONE, "rounded up to minutes, enforced to the second"),
    "time-min": Row(_KEPT, "the full limit is always granted"),
    "tmp": _ONE_MACHINE,
    "uid": Row(_DONE, "the own user; any other is refused"),
    "usage": Row(_DONE),
    "use-min-nodes": Row(_DONE, "a range gets as many nodes as are free unless this is given"),
    "verbose": Row(_KEPT, "there is nothing more to say"),
    "version": Row(_DONE),
    "wait": Row(_DONE),
    "wait-all-nodes": Row(_DONE, "the nodes are always all there"),
    "wckey": _BOOKS,
    "wrap": Row(_DONE),
    # Newer than 22.05, and unknown with `strict`.
    "consolidate-segments": _SEGMENTS,
    "container-id": _OCI,
    "container-type": _OCI,
    "extra": Row(_KEPT, "newer than 22.05; nodes have no such data to choose by"),
    "mem-update": Row(_KEPT, "newer than 22.05; a job's memory is counted as asked for"),
    "oom-kill-step": Row(_KEPT, "newer than 22.05; memory is not enforced"),
    "resources": Row(_KEPT, "newer than 22.05; there are no licences"),
    "resv-ports": Row(_KEPT, "newer than 22.05; no ports are set aside"),
    "segment": _SEGMENTS,
    "spread-segments": _SEGMENTS,
    "stepmgr": Row(_KEPT, "newer than 22.05; srun looks after its steps itself"),
    "tres-bind": Row(_KEPT, "newer than 22.05; nothing is bound to CPUs, memory or GPUs here"),
    "tres-per-task": Row(_DONE, "newer than 22.05; CPUs and GPUs, other resources have no effect"),
}

NO_SUCH = {
    "constraint": "Invalid feature specification",
    "licenses": "Invalid license specification",
    "prefer": "Invalid preferred feature specification",
    "reservation": "Requested reservation is invalid",
}
"""What slurmctld says of names that it does not know; here there are none, and strict settings refuse them."""


def plugin_hint(line: str) -> str:
    """What to do about an option of Pyxis, behind the words that it is unknown."""
    if "unrecognized option '--container" not in line and "unrecognized option '--no-container" not in line:
        return ""
    return " (of the plugin Pyxis, which is not here: start the container in the script, by apptainer or the like)"
