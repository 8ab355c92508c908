"""The support of every option: it works, has no effect, or is refused, and why. docs/embedded-slurm.md prints it.

Also the option tables of the commands that have none in `hpc_kit.slurm`, such as squeue.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.getopt import SRUN, GetoptError, OptionParser
from hpc_kit.slurm.option_table import Option, ValueUse
from hpc_kit.slurm.option_values import check_value, sbatch_error_line
from pocketslurm.errors import BAD_OPTION, INVALID_GRES, CommandError, PlainError, UsageError
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hpc_kit.slurm.getopt import ParsedOption
    from pocketslurm.settings import Settings


class Support(Enum):
    """The support of an option: it works as in Slurm, is accepted and shown without effect, or is an error."""

    WORKS = "works"
    NO_EFFECT = "accepted, no effect"
    REFUSED = "refused"


class OptionNote(NamedTuple):
    """One option: what is made of it, and why or how."""

    support: Support
    note: str = ""


_WORKS, _NO_EFFECT, _REFUSED = Support.WORKS, Support.NO_EFFECT, Support.REFUSED
_BOOKS = OptionNote(_NO_EFFECT, "there is no accounting; squeue, sacct and the job's environment show it")
_TOPOLOGY = OptionNote(_NO_EFFECT, "a virtual node has no sockets, cores or threads, only CPUs")
_BINDING = OptionNote(_NO_EFFECT, "nothing is bound to CPUs, memory or GPUs here")
_ONE_MACHINE = OptionNote(_NO_EFFECT, "all nodes are this machine")
_SEGMENTS = OptionNote(_NO_EFFECT, "newer than 22.05; there is no topology to keep to")
_HOST_FILE = OptionNote(_REFUSED, "no task is placed by a file of hosts: give --nodelist")
_OCI = OptionNote(_REFUSED, "no OCI runtime: start the container in the script, by apptainer or the like")


def _rows(names: str, note: OptionNote) -> dict[str, OptionNote]:
    return dict.fromkeys(names.split(), note)


SBATCH_SUPPORT: dict[str, OptionNote] = {
    **_rows(
        "begin chdir comment cpus-per-gpu error exclude gpus gpus-per-node gpus-per-task help hold input job-name "
        "kill-on-invalid-dep mincpus nice no-requeue nodelist ntasks ntasks-per-gpu ntasks-per-node open-mode "
        "overcommit parsable priority quiet requeue test-only usage version wait wrap",
        OptionNote(_WORKS),
    ),
    **_rows("account mcs-label qos wckey", _BOOKS),
    **_rows("container container-id container-type", _OCI),
    **_rows(
        "cores-per-socket extra-node-info hint ntasks-per-core ntasks-per-socket sockets-per-node threads-per-core",
        _TOPOLOGY,
    ),
    **_rows("gpu-bind gres-flags mem-bind", _BINDING),
    **_rows("network power spread-job switches tmp", _ONE_MACHINE),
    **_rows("consolidate-segments segment spread-segments", _SEGMENTS),
    "acctg-freq": OptionNote(_NO_EFFECT, "nothing is sampled"),
    "array": OptionNote(_WORKS, "indices below MaxArraySize; `%N` limits the running tasks"),
    "batch": OptionNote(_NO_EFFECT, "nodes have no features"),
    **_rows("bb bbf", OptionNote(_NO_EFFECT, "no burst buffer: all nodes share this machine's files")),
    "cluster-constraint": OptionNote(_NO_EFFECT, "there is one cluster"),
    "clusters": OptionNote(_WORKS, "any name is this cluster's; with `strict` only its own and `all`"),
    "constraint": OptionNote(_NO_EFFECT, "nodes have no features; refused with `strict`"),
    "context": OptionNote(_NO_EFFECT, "no SELinux context is set"),
    "contiguous": OptionNote(_NO_EFFECT, "all nodes are this machine"),
    "core-spec": OptionNote(_NO_EFFECT, "no CPU is reserved for the system"),
    "cpu-freq": OptionNote(_NO_EFFECT, "the frequency of CPUs does not change"),
    "cpus-per-task": OptionNote(_WORKS, "counted against the node's CPUs; nothing is bound"),
    "deadline": OptionNote(_WORKS, "a job still pending then ends as DEADLINE"),
    "delay-boot": OptionNote(_NO_EFFECT, "nodes need no boot"),
    "dependency": OptionNote(_WORKS, "after, afterany, afterok, afternotok, aftercorr, singleton; `,` and `?`"),
    "distribution": OptionNote(_WORKS, "for the job's steps; see srun"),
    "exclusive": OptionNote(_WORKS, "whole nodes; `user`, `mcs` and `topo` have no effect, there is one user"),
    "export-file": OptionNote(_REFUSED, "export the variables before sbatch"),
    "export": OptionNote(_WORKS, "ALL, NONE, names, NAME=value"),
    "get-user-env": OptionNote(_WORKS, "HOME, USER, SHELL and a plain PATH; no login shell is run"),
    **_rows("gid uid", OptionNote(_REFUSED, "jobs run as their submitter")),
    "gpu-freq": OptionNote(_NO_EFFECT, "the frequency of GPUs does not change"),
    "gpus-per-socket": OptionNote(_REFUSED, "a virtual node has no sockets: give --gpus-per-node"),
    "gres": OptionNote(_WORKS, "`gpu[:type]:N`; other resources have no effect, and are refused with `strict`"),
    "ignore-pbs": OptionNote(_WORKS, "#PBS and #BSUB lines are never read"),
    "licenses": OptionNote(_NO_EFFECT, "there are no licences; refused with `strict`"),
    "mail-type": OptionNote(_NO_EFFECT, "no mail is sent"),
    "mail-user": OptionNote(_NO_EFFECT, "no mail is sent"),
    "mem": OptionNote(_WORKS, "counted against the node's memory; not enforced, the kernel's own limits hold"),
    "mem-per-cpu": OptionNote(_WORKS, "counted, not enforced"),
    "mem-per-gpu": OptionNote(_WORKS, "counted, not enforced"),
    "no-kill": OptionNote(_NO_EFFECT, "the nodes live and die together"),
    "nodefile": _HOST_FILE,
    "nodes": OptionNote(_WORKS, "a number or a range"),
    "ntasks-per-tres": OptionNote(_WORKS, "the same as --ntasks-per-gpu"),
    "output": OptionNote(_WORKS, "%% %A %a %b %j %J %N %n %s %t %u %x, with a width"),
    "oversubscribe": OptionNote(_NO_EFFECT, "CPUs of a node are shared by count only"),
    "partition": OptionNote(
        _WORKS, "of a list, the first that the job fits into; the default one goes by any name, but with `strict`"
    ),
    "prefer": OptionNote(_NO_EFFECT, "nodes have no features; refused with `strict`"),
    "profile": OptionNote(_NO_EFFECT, "nothing is sampled"),
    "propagate": OptionNote(_WORKS, "soft limits; below the hard ones of the first sbatch since the queue was empty"),
    "reboot": OptionNote(_NO_EFFECT, "this machine is not restarted"),
    "reservation": OptionNote(_NO_EFFECT, "there are no reservations; refused with `strict`"),
    "signal": OptionNote(
        _WORKS, "to the tasks of the steps, or `B:` to the batch shell; to the second, not up to 60 s early"
    ),
    "thread-spec": OptionNote(_NO_EFFECT, "no CPU is reserved for the system"),
    "time": OptionNote(_WORKS, "rounded up to minutes, enforced to the second"),
    "time-min": OptionNote(_NO_EFFECT, "the full limit is always granted"),
    "use-min-nodes": OptionNote(_WORKS, "a range gets as many nodes as are free unless this is given"),
    "verbose": OptionNote(_NO_EFFECT, "there is nothing more to say"),
    "wait-all-nodes": OptionNote(_WORKS, "the nodes are always all there"),
    # Newer than 22.05, and unknown with `strict`.
    "extra": OptionNote(_NO_EFFECT, "newer than 22.05; nodes have no such data to choose by"),
    "mem-update": OptionNote(_NO_EFFECT, "newer than 22.05; a job's memory is counted as asked for"),
    "oom-kill-step": OptionNote(_NO_EFFECT, "newer than 22.05; memory is not enforced"),
    "resources": OptionNote(_NO_EFFECT, "newer than 22.05; there are no licences"),
    "resv-ports": OptionNote(_NO_EFFECT, "newer than 22.05; no ports are reserved"),
    "stepmgr": OptionNote(_NO_EFFECT, "newer than 22.05; srun looks after its steps itself"),
    "tres-bind": OptionNote(_NO_EFFECT, "newer than 22.05; nothing is bound to CPUs, memory or GPUs here"),
    "tres-per-task": OptionNote(_WORKS, "newer than 22.05; CPUs and GPUs, other resources have no effect"),
}

NO_SUCH = {
    "constraint": "Invalid feature specification",
    "licenses": "Invalid license specification",
    "prefer": "Invalid preferred feature specification",
    "reservation": "Requested reservation is invalid",
}
"""Messages of slurmctld for unknown names; strict settings refuse every name with them."""


def option_error(message: str) -> UsageError:
    """Return the error of sbatch, salloc or srun for an option that getopt refuses with this message."""
    if "unrecognized option '--container" in message or "unrecognized option '--no-container" in message:
        message += (
            " (of the plugin Pyxis, which is not here: start the container in the script, by apptainer or the like)"
        )
    return UsageError(message, status=BAD_OPTION)


ALLOCATION = frozenset(
    {
        "account", "bb", "bbf", "begin", "cluster-constraint", "clusters", "comment", "constraint", "contiguous",
        "core-spec", "deadline", "delay-boot", "dependency", "gid", "hold", "licenses", "mail-type", "mail-user",
        "mincpus", "nice", "oversubscribe", "partition", "prefer", "priority", "qos", "reboot", "reservation",
        "signal", "spread-job", "thread-spec", "time-min", "tmp", "uid", "use-min-nodes", "wckey",
    }
)  # fmt: skip
"""Options that only affect a new allocation."""

_SRUN_ONLY = {
    **_rows(
        "disable-status exact gpu-bind immediate jobid kill-on-bad-exit label overlap preserve-env quit-on-interrupt "
        "relative unbuffered verbose wait whole",
        OptionNote(_WORKS),
    ),
    **_rows("accel-bind cpu-bind", _BINDING),
    **_rows(
        "bcast bcast-exclude compress send-libs",
        OptionNote(_NO_EFFECT, "all nodes share this machine's files: the program is there already"),
    ),
    **_rows("external-launcher treewidth", OptionNote(_NO_EFFECT, "newer than 22.05; srun starts its tasks itself")),
    "threads": OptionNote(_NO_EFFECT, "srun starts its tasks itself"),
    **_rows(
        "prolog epilog task-epilog task-prolog",
        OptionNote(_REFUSED, "put it into the program, or into a script around it"),
    ),
    "debugger-test": OptionNote(_REFUSED, "there is no interface for parallel debuggers"),
    "distribution": OptionNote(_WORKS, "block, cyclic and plane"),
    "exclusive": OptionNote(_WORKS, "inside a job, CPUs that no other step uses; in a new allocation, whole nodes"),
    "extra-node-info": OptionNote(_REFUSED, "it would set the number of tasks from sockets and cores: give --ntasks"),
    "het-group": OptionNote(_WORKS, "in a heterogeneous job; `srun a : b` in others, too"),
    "interactive": OptionNote(_REFUSED, "salloc runs its command on this machine, as without use_interactive_step"),
    "mpi": OptionNote(
        _WORKS,
        "`pmi2`, for MPICH, MVAPICH and Intel MPI, without MPI_Comm_spawn; `none`. `pmix` gives the same, so that each"
        " rank of Open MPI is alone, and is refused with `strict`",
    ),
    "msg-timeout": OptionNote(_NO_EFFECT, "no messages go over a network"),
    "multi-prog": OptionNote(_REFUSED, "start a script that chooses the program by SLURM_PROCID"),
    "no-allocate": OptionNote(_REFUSED, "steps belong to a job"),
    "propagate": OptionNote(_NO_EFFECT, "tasks have the limits that srun has"),
    "pty": OptionNote(_WORKS, "the first task has a terminal, other tasks have no input or output"),
    "resv-ports": OptionNote(_NO_EFFECT, "no ports are reserved"),
    "slurmd-debug": OptionNote(_NO_EFFECT, "there is no slurmd"),
    "test-only": OptionNote(_REFUSED, "sbatch --test-only prints the expected start of a job"),
    "wait-for-children": OptionNote(_NO_EFFECT, "newer than 22.05; a task's end is that of its own process"),
    "x11": OptionNote(_NO_EFFECT, "tasks run on this machine and see its display anyway"),
}


def _srun_note(name: str, row: OptionNote) -> OptionNote:
    """Return sbatch's note on an option, with the remark that it only affects an allocation."""
    note = f"{row.note}; passed over inside a job".removeprefix("; ") if name in ALLOCATION else row.note
    return OptionNote(row.support, note)


SRUN_SUPPORT: dict[str, OptionNote] = {
    **{name: _srun_note(name, row) for name, row in SBATCH_SUPPORT.items() if name in SRUN},
    **_SRUN_ONLY,
}


def check_options(options: Iterable[ParsedOption], *, strict: bool, later: Collection[str]) -> None:
    """Check the values of options, except for kinds or names of options that are checked later.

    Raises:
        CommandError: Slurm refuses a value, or with `strict` an option of a newer release.
    """
    for each in options:
        option, value = each.option, each.value
        if option.since and strict:
            raise UsageError(f"unrecognized option '--{option.name}'", status=BAD_OPTION)
        # 0 nodes are refused with the size of the job, by another message.
        no_nodes = option.name == "nodes" and value and not value.strip("0")
        if no_nodes or option.kind in later or option.name in later:
            continue
        try:
            check_value(option, value)
        except HpcKitError:
            raise _value_error(option, value or "") from None


def _value_error(option: Option, value: str) -> CommandError:
    text = sbatch_error_line(option, value)
    low, dash, high = value.partition("-")
    if option.kind == "nodes" and dash and low.isdecimal() and high.isdecimal():
        text = f"Maximum node count {high} is less than minimum node count {low}"
    if option.kind == "gpus":
        return CommandError(f"error: {INVALID_GRES}")
    if option.kind == "instant" and value:
        sys.stderr.write(f"Invalid time specification (pos=0): {value}\n")
    return CommandError(f"error: {text}", status=1 if option.kind in {"number", "count"} else BAD_OPTION)


def check_clusters(command: str, clusters: str, settings: Settings) -> None:
    """Check that a command asks for this cluster, unless the settings are not strict.

    Raises:
        PlainError: It asks for another one.
    """
    if settings.strict and (lines := settings.other_clusters(clusters)):
        raise PlainError("\n".join(f"{command}: {line}" for line in lines))


_COMMON = {
    **_rows("federation local sibling", OptionNote(_NO_EFFECT, "there is one cluster")),
    **_rows("all hide", OptionNote(_NO_EFFECT, "nothing is hidden")),
    "noconvert": OptionNote(_NO_EFFECT, "numbers are shown as they are"),
    "verbose": OptionNote(_NO_EFFECT, "there is nothing more to say"),
}

_WATCH = "run it in a loop, or with watch"

SQUEUE = {
    **_COMMON,
    "array-unique": OptionNote(_NO_EFFECT, "an array's waiting tasks are one line already"),
    "priority": OptionNote(_NO_EFFECT, "a job has one partition"),
    "iterate": OptionNote(_REFUSED, _WATCH),
    "steps": OptionNote(_REFUSED, "scontrol show step lists the running steps"),
}
SACCT = {
    **_COMMON,
    "allclusters": OptionNote(_NO_EFFECT, "there is one cluster"),
    "duplicates": OptionNote(_NO_EFFECT, "one record is kept of a requeued job"),
    "use-local-uid": OptionNote(_NO_EFFECT, "there is one user"),
    "whole-hetjob": OptionNote(_NO_EFFECT, "the leader's number shows all components, as with 22.05"),
    "batch-script": OptionNote(_REFUSED, "scontrol show job names the script"),
    "env-vars": OptionNote(_REFUSED, "the environment is not kept"),
    "truncate": OptionNote(_REFUSED, "times are shown as they are"),
    **_rows(
        "associations completion constraints file flags gid group",
        OptionNote(_REFUSED, "the records of the queue have no such data"),
    ),
    **_rows(
        "ncpus nnodes reason timelimit-max timelimit-min",
        OptionNote(_REFUSED, "choose by --jobs or --state"),
    ),
    "noconvert": OptionNote(Support.WORKS),
}
SCANCEL = {
    **_COMMON,
    "ctld": OptionNote(_NO_EFFECT, "jobs are chosen in the same place anyway"),
    "hurry": OptionNote(_NO_EFFECT, "there is no burst buffer"),
    "cron": OptionNote(_REFUSED, "there are no cron jobs"),
    "interactive": OptionNote(_REFUSED, "name the jobs"),
    "verbose": OptionNote(Support.WORKS),
}
SCONTROL = {
    **_COMMON,
    "future": OptionNote(_NO_EFFECT, "there are no future nodes"),
    "quiet": OptionNote(_NO_EFFECT, "errors are always printed"),
    "uid": OptionNote(_REFUSED, "there is one user"),
}
SINFO = {
    **_COMMON,
    "exact": OptionNote(_NO_EFFECT, "nodes differ in their states only"),
    "future": OptionNote(_NO_EFFECT, "there are no future nodes"),
    "responding": OptionNote(_NO_EFFECT, "all nodes respond"),
    "iterate": OptionNote(_REFUSED, _WATCH),
    "json": OptionNote(_REFUSED, "choose the columns by --format, or read scontrol show node -o"),
    "list-reasons": OptionNote(_REFUSED, "nodes are always up"),
}


def spelled(option: Option) -> str:
    """Return an option as a manual writes it: `-j, --jobs=VALUE`."""
    value = {ValueUse.NONE: "", ValueUse.REQUIRED: "=VALUE", ValueUse.OPTIONAL: "[=VALUE]"}[option.value]
    return f"{f'-{option.short}, ' if option.short else ''}--{option.name}{value}"


def options_help(usage: str, support: Mapping[str, OptionNote], table: Mapping[str, Option]) -> str:
    """Return the text of `--help` of sbatch, salloc or srun, such as `sbatch [OPTIONS...] [script [args...]]`."""
    lines = [f"Usage: {usage}", "", "An embedded Slurm for one machine. Options:"]
    for name, row in support.items():
        if name in table and row.support is not Support.REFUSED:
            indent = "  " if table[name].short else "      "
            effect = "  (no effect here)" if row.support is Support.NO_EFFECT else ""
            lines.append(f"{indent}{spelled(table[name])}{effect}")
    return "\n".join(lines)


def print_help(
    names: Collection[str], usage: str, support: Mapping[str, OptionNote], table: Mapping[str, Option]
) -> bool:
    """Print the answer to --version or --help. Return False if neither is among the names of the given options."""
    if "version" in names:
        print(f"slurm {SLURM_VERSION}")
    elif {"help", "usage"} & set(names):
        print(options_help(usage, support, table))
    else:
        return False
    return True


NONE, REQUIRED, OPTIONAL = ValueUse


class Table:
    """The options of one command.

    Args:
        rows: A row for each option: its long name, letter (or an empty string), use of a value, and other long names.
        notes: What happens to the options that do not simply work.
    """

    def __init__(
        self,
        *rows: tuple[str, str, ValueUse] | tuple[str, str, ValueUse, str],
        notes: Mapping[str, OptionNote] | None = None,
    ) -> None:
        self.support = {row[0]: (notes or {}).get(row[0], OptionNote(Support.WORKS)) for row in rows}
        self.options = {
            name: Option(name, letter or None, use, "text", frozenset(), None, tuple(" ".join(aliases).split()))
            for name, letter, use, *aliases in rows
        }

    def print_help(self, command: str, options: Collection[str]) -> bool:
        """Print the answer to --version or --help. Return False if neither is given."""
        return print_help(options, f"{command} [OPTIONS...]", self.support, self.options)

    def parse(self, argv: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
        """Return names and values of the options in order, and the remaining words; both may be mixed.

        Raises:
            UsageError: An option is unknown, ambiguous or unsupported, lacks its value, or has an unexpected one.
        """
        try:
            options, others = OptionParser("", self.options.values()).parse(argv, permute=True)
        except GetoptError as error:
            raise UsageError(error.message) from None
        for each in options.given:
            support = self.support[each.option.name]
            if support.support is Support.REFUSED:
                raise UsageError(
                    f"option '--{each.option.name}' is not supported by the embedded Slurm: {support.note}"
                )
        return [(each.option.name, each.value) for each in options.given], others
