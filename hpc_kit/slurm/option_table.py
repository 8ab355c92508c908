"""The options of sbatch, srun and salloc: those of Slurm 22.05 in the order of its man pages, and newer ones marked.

`since` is the first release that accepts an option unknown to 22.05.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ValueUse(Enum):
    """Use of a value. An optional value needs `=`, or follows the short letter without a space."""

    NONE = 0
    REQUIRED = 1
    OPTIONAL = 2


class Option(NamedTuple):
    """One option: long name without dashes, letter, use and kind of its value, and the commands that accept it."""

    name: str
    short: str | None
    value: ValueUse
    kind: str
    commands: frozenset[str]
    since: str | None = None
    aliases: tuple[str, ...] = ()


_NO, _YES, _MAY = ValueUse.NONE, ValueUse.REQUIRED, ValueUse.OPTIONAL
_ALL = frozenset({"sbatch", "srun", "salloc"})
_BATCH = frozenset({"sbatch"})
_SRUN = frozenset({"srun"})
_SALLOC = frozenset({"salloc"})
_BATCH_SRUN = _BATCH | _SRUN
_BATCH_SALLOC = _BATCH | _SALLOC
_SRUN_SALLOC = _SRUN | _SALLOC

OPTIONS: tuple[Option, ...] = (
    Option("accel-bind", None, _YES, "text", _SRUN),
    Option("account", "A", _YES, "text", _ALL),
    Option("acctg-freq", None, _YES, "text", _ALL),
    Option("array", "a", _YES, "array", _BATCH),
    Option("batch", None, _YES, "text", _BATCH),
    Option("bb", None, _YES, "text", _ALL),
    Option("bbf", None, _YES, "path", _ALL),
    Option("bcast", None, _MAY, "path", _SRUN),
    Option("bcast-exclude", None, _YES, "text", _SRUN),
    Option("begin", "b", _YES, "instant", _ALL),
    Option("bell", None, _NO, "flag", _SALLOC),
    Option("chdir", "D", _YES, "path", _ALL),
    Option("cluster-constraint", None, _YES, "text", _ALL),
    Option("clusters", "M", _YES, "text", _ALL, aliases=("cluster",)),
    Option("comment", None, _YES, "text", _ALL),
    Option("compress", None, _MAY, "text", _SRUN),
    Option("constraint", "C", _YES, "text", _ALL),
    Option("container", None, _YES, "path", _ALL),
    Option("context", None, _YES, "text", _ALL),
    Option("contiguous", None, _NO, "flag", _ALL),
    Option("core-spec", "S", _YES, "number", _ALL),
    Option("cores-per-socket", None, _YES, "count", _ALL),
    Option("cpu-bind", None, _YES, "text", _SRUN, aliases=("cpu_bind",)),
    Option("cpu-freq", None, _YES, "text", _ALL),
    Option("cpus-per-gpu", None, _YES, "count", _ALL),
    Option("cpus-per-task", "c", _YES, "count", _ALL),
    Option("deadline", None, _YES, "instant", _ALL),
    Option("debugger-test", None, _NO, "flag", _SRUN),
    Option("delay-boot", None, _YES, "time", _ALL),
    Option("dependency", "d", _YES, "dependency", _ALL),
    Option("disable-status", "X", _NO, "flag", _SRUN),
    Option("distribution", "m", _YES, "distribution", _ALL),
    Option("epilog", None, _YES, "path", _SRUN),
    Option("error", "e", _YES, "path", _BATCH_SRUN),
    Option("exact", None, _NO, "flag", _SRUN),
    Option("exclude", "x", _YES, "hostlist", _ALL),
    Option("exclusive", None, _MAY, "choice", _ALL),
    Option("export", None, _YES, "text", _BATCH_SRUN),
    Option("export-file", None, _YES, "path", _BATCH),
    Option("extra-node-info", "B", _YES, "node-info", _ALL),
    Option("get-user-env", None, _MAY, "user-env", _BATCH_SALLOC),
    Option("gid", None, _YES, "text", _ALL),
    Option("gpu-bind", None, _YES, "gpu-bind", _ALL),
    Option("gpu-freq", None, _YES, "text", _ALL),
    Option("gpus", "G", _YES, "gpus", _ALL),
    Option("gpus-per-node", None, _YES, "gpus", _ALL),
    Option("gpus-per-socket", None, _YES, "gpus", _ALL),
    Option("gpus-per-task", None, _YES, "gpus", _ALL),
    Option("gres", None, _YES, "gres", _ALL),
    Option("gres-flags", None, _YES, "choices", _ALL),
    Option("help", "h", _NO, "flag", _ALL),
    Option("het-group", None, _YES, "text", _SRUN, aliases=("pack-group",)),
    Option("hint", None, _YES, "choices", _ALL),
    Option("hold", "H", _NO, "flag", _ALL),
    Option("ignore-pbs", None, _NO, "flag", _BATCH),
    Option("immediate", "I", _MAY, "number", _SRUN_SALLOC),
    Option("input", "i", _YES, "path", _BATCH_SRUN),
    Option("interactive", None, _NO, "flag", _SRUN),
    Option("job-name", "J", _YES, "text", _ALL),
    Option("jobid", None, _YES, "number", _SRUN),
    Option("kill-command", "K", _MAY, "text", _SALLOC),
    Option("kill-on-bad-exit", "K", _MAY, "choice", _SRUN),
    Option("kill-on-invalid-dep", None, _YES, "choice", _BATCH),
    Option("label", "l", _NO, "flag", _SRUN),
    Option("licenses", "L", _YES, "text", _ALL),
    Option("mail-type", None, _YES, "mail-type", _ALL),
    Option("mail-user", None, _YES, "text", _ALL),
    Option("mcs-label", None, _YES, "text", _ALL),
    Option("mem", None, _YES, "memory", _ALL),
    Option("mem-bind", None, _YES, "mem-bind", _ALL),
    Option("mem-per-cpu", None, _YES, "memory", _ALL),
    Option("mem-per-gpu", None, _YES, "memory", _ALL),
    Option("mincpus", None, _YES, "count", _ALL),
    Option("mpi", None, _YES, "text", _SRUN),
    Option("msg-timeout", None, _YES, "number", _SRUN),
    Option("multi-prog", None, _NO, "flag", _SRUN),
    Option("network", None, _YES, "text", _ALL),
    Option("nice", None, _MAY, "nice", _ALL),
    Option("no-allocate", "Z", _NO, "flag", _SRUN),
    Option("no-bell", None, _NO, "flag", _SALLOC),
    Option("no-kill", "k", _MAY, "choice", _ALL),
    Option("no-requeue", None, _NO, "flag", _BATCH),
    Option("no-shell", None, _NO, "flag", _SALLOC),
    Option("nodefile", "F", _YES, "path", _ALL),
    Option("nodelist", "w", _YES, "hostlist", _ALL),
    Option("nodes", "N", _YES, "nodes", _ALL),
    Option("ntasks", "n", _YES, "count", _ALL),
    Option("ntasks-per-core", None, _YES, "count", _ALL),
    Option("ntasks-per-gpu", None, _YES, "count", _ALL),
    Option("ntasks-per-node", None, _YES, "count", _ALL, aliases=("tasks-per-node",)),
    Option("ntasks-per-socket", None, _YES, "count", _ALL),
    Option("ntasks-per-tres", None, _YES, "count", _ALL),
    Option("open-mode", None, _YES, "open-mode", _BATCH_SRUN),
    Option("output", "o", _YES, "path", _BATCH_SRUN),
    Option("overcommit", "O", _NO, "flag", _ALL),
    Option("overlap", None, _MAY, "text", _SRUN),
    Option("oversubscribe", "s", _NO, "flag", _ALL),
    Option("parsable", None, _NO, "flag", _BATCH),
    Option("partition", "p", _YES, "text", _ALL),
    Option("power", None, _YES, "text", _ALL),
    Option("prefer", None, _YES, "text", _ALL),
    Option("preserve-env", "E", _NO, "flag", _SRUN),
    Option("priority", None, _YES, "priority", _ALL),
    Option("profile", None, _YES, "choices", _ALL),
    Option("prolog", None, _YES, "path", _SRUN),
    Option("propagate", None, _MAY, "text", _BATCH_SRUN),
    Option("pty", None, _NO, "flag", _SRUN),
    Option("qos", "q", _YES, "text", _ALL),
    Option("quiet", "Q", _NO, "flag", _ALL),
    Option("quit-on-interrupt", None, _NO, "flag", _SRUN),
    Option("reboot", None, _NO, "flag", _ALL),
    Option("relative", "r", _YES, "number", _SRUN),
    Option("requeue", None, _MAY, "choice", _BATCH),  # a value since 25.11 only
    Option("reservation", None, _YES, "text", _ALL),
    Option("resv-ports", None, _MAY, "number", _SRUN),
    Option("send-libs", None, _MAY, "choice", _SRUN),
    Option("signal", None, _YES, "signal", _ALL),
    Option("slurmd-debug", None, _YES, "text", _SRUN),
    Option("sockets-per-node", None, _YES, "count", _ALL),
    Option("spread-job", None, _NO, "flag", _ALL),
    Option("switches", None, _YES, "switches", _ALL),
    Option("task-epilog", None, _YES, "path", _SRUN),
    Option("task-prolog", None, _YES, "path", _SRUN),
    Option("test-only", None, _NO, "flag", _BATCH_SRUN),
    Option("thread-spec", None, _YES, "count", _ALL),
    Option("threads", "T", _YES, "count", _SRUN),
    Option("threads-per-core", None, _YES, "count", _ALL),
    Option("time", "t", _YES, "time", _ALL),
    Option("time-min", None, _YES, "time", _ALL),
    Option("tmp", None, _YES, "memory", _ALL),
    Option("uid", None, _YES, "text", _ALL),
    Option("unbuffered", "u", _NO, "flag", _SRUN),
    Option("usage", None, _NO, "flag", _ALL),
    Option("use-min-nodes", None, _NO, "flag", _ALL),
    Option("verbose", "v", _NO, "flag", _ALL),
    Option("version", "V", _NO, "flag", _ALL),
    Option("wait", "W", _NO, "flag", _BATCH),
    Option("wait", "W", _YES, "number", _SRUN),
    Option("wait-all-nodes", None, _YES, "choice", _BATCH_SALLOC),
    Option("wckey", None, _YES, "text", _ALL),
    Option("whole", None, _NO, "flag", _SRUN),
    Option("wrap", None, _YES, "text", _BATCH),
    Option("x11", None, _MAY, "choice", _SRUN_SALLOC),
    Option("consolidate-segments", None, _NO, "flag", _ALL, "25.11"),
    Option("container-id", None, _YES, "text", _ALL, "23.02"),
    Option("container-type", None, _YES, "text", _ALL, "26.05"),
    Option("external-launcher", None, _NO, "flag", _SRUN, "23.11"),
    Option("extra", None, _YES, "text", _ALL, "23.02"),
    Option("mem-update", None, _YES, "text", _ALL, "26.05"),
    Option("oom-kill-step", None, _MAY, "choice", _ALL, "24.05"),
    Option("resources", None, _YES, "text", _ALL, "25.05"),
    Option("resv-ports", None, _MAY, "number", _BATCH_SALLOC, "24.11"),
    Option("segment", None, _YES, "count", _ALL, "24.05"),
    Option("spread-segments", None, _NO, "flag", _ALL, "25.11"),
    Option("stepmgr", None, _NO, "flag", _BATCH_SALLOC, "24.05"),
    Option("treewidth", None, _YES, "text", _SRUN, "23.11"),
    Option("tres-bind", None, _YES, "text", _ALL, "23.02"),
    Option("tres-per-task", None, _YES, "text", _ALL, "23.11"),
    Option("wait-for-children", None, _NO, "flag", _SRUN, "24.11"),
)

MEMORY_OPTIONS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})

EXCLUSIVE_OPTIONS: tuple[frozenset[str], ...] = (
    MEMORY_OPTIONS,
    frozenset({"core-spec", "thread-spec"}),
    frozenset({"ntasks-per-gpu", "gpus-per-task"}),
    frozenset({"ntasks-per-gpu", "gpus-per-socket"}),
    frozenset({"ntasks-per-gpu", "ntasks-per-node"}),
    frozenset({"bb", "bbf"}),
    frozenset({"requeue", "no-requeue"}),
)
"""Groups of options of which sbatch accepts only one, or silently uses only one."""

CPU_COUNT_OPTIONS = frozenset({"cpus-per-task", "cpus-per-gpu"})
SHARING_OPTIONS = frozenset({"exclusive", "oversubscribe"})
"""sbatch accepts both of these options, but they contradict each other. So do `CPU_COUNT_OPTIONS`."""
