"""The columns of squeue: those of -o by letter, those of -O by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.states import STATE_CODES
from pocketslurm.listings import views
from pocketslurm.listings.views import JobView, format_duration, format_timestamp, null
from pocketslurm.queue.submission import TOP_PRIORITY, niceness

if TYPE_CHECKING:
    from collections.abc import Callable


class SqueueColumn(NamedTuple):
    """A column: its heading, its letter or empty, its long names, its value, and whether that is never cut."""

    heading: str
    letter: str
    names: str
    value: Callable[[JobView], str]
    whole: bool = False


def _option(name: str, default: str = "(null)") -> Callable[[JobView], str]:
    return lambda view: view.job.options.get(name) or default


def _nice(view: JobView) -> str:
    return str(niceness(view.job.options))


def _tres(name: str) -> Callable[[JobView], str]:
    return lambda view: views.gpu_requests(view.job.options).get(name, "N/A")


FIELDS = (
    SqueueColumn("ACCOUNT", "a", "account", lambda view: null(view.job.account)),
    SqueueColumn("JOBID", "A", "jobid", lambda view: str(view.job.job_id)),
    SqueueColumn("TRES_PER_NODE", "b", "gres tres-per-node", _tres("TresPerNode")),
    SqueueColumn("EXEC_HOST", "B", "batchhost", lambda view: view.job.nodes[0] if view.job.nodes else "n/a"),
    SqueueColumn("MIN_CPUS", "c", "mincpus", lambda view: str(max(1, view.request.min_cpus))),
    SqueueColumn("CPUS", "C", "numcpus", lambda view: str(view.cpu_count)),
    SqueueColumn("MIN_TMP_DISK", "d", "mintmpdisk", lambda _: "0"),
    SqueueColumn("NODES", "D", "numnodes", lambda view: str(view.node_count)),
    SqueueColumn("TASKS", "", "numtasks", lambda view: str(view.task_count)),
    SqueueColumn("END_TIME", "e", "endtime", lambda view: format_timestamp(view.end)),
    SqueueColumn("DEPENDENCY", "E", "dependency", lambda view: null(view.dependency)),
    SqueueColumn("FEATURES", "f", "feature", _option("constraint")),
    SqueueColumn("ARRAY_JOB_ID", "F", "arrayjobid", lambda view: str(view.job.array_job_id or view.job.job_id)),
    SqueueColumn("GROUP", "g", "groupname", lambda view: view.job.group),
    SqueueColumn("GROUP", "G", "groupid", lambda view: str(view.job.gid)),
    SqueueColumn("OVER_SUBSCRIBE", "h", "oversubscribe shared", lambda view: "NO" if view.request.exclusive else "OK"),
    SqueueColumn("SOCKETS_PER_NODE", "H", "sockets", lambda _: "*"),
    SqueueColumn("JOBID", "i", "jobarrayid", lambda view: view.label),
    SqueueColumn("CORES_PER_SOCKET", "I", "cores", lambda _: "*"),
    SqueueColumn("NAME", "j", "name", lambda view: view.job.name),
    SqueueColumn("THREADS_PER_CORE", "J", "threads", lambda _: "*"),
    SqueueColumn("COMMENT", "k", "comment", lambda view: null(view.job.comment)),
    SqueueColumn("ARRAY_TASK_ID", "K", "arraytaskid", lambda view: view.array_task),
    SqueueColumn("TIME_LIMIT", "l", "timelimit", lambda view: view.time_limit, whole=True),
    SqueueColumn("TIME_LEFT", "L", "timeleft", lambda view: view.time_left, whole=True),
    SqueueColumn("MIN_MEMORY", "m", "minmemory", lambda view: view.memory[1]),
    SqueueColumn("TIME", "M", "timeused", lambda view: format_duration(view.elapsed), whole=True),
    SqueueColumn("REQ_NODES", "n", "reqnodes", lambda view: fold(view.request.nodelist)),
    SqueueColumn("NODELIST", "N", "nodelist", lambda view: view.nodelist),
    SqueueColumn(
        "COMMAND", "o", "command", lambda view: null(" ".join([view.job.command, *view.job.arguments]).strip())
    ),
    SqueueColumn("CONTIGUOUS", "O", "contiguous", lambda _: "0"),
    # A part of the largest number of 32 bits.
    SqueueColumn("PRIORITY", "p", "priority", lambda view: f"{view.job.priority / (2**32 - 1):.14f}"),
    SqueueColumn("PARTITION", "P", "partition", lambda view: view.job.partition),
    SqueueColumn("QOS", "q", "qos", lambda view: null(view.job.qos)),
    SqueueColumn("PRIORITY", "Q", "prioritylong", lambda view: str(view.job.priority)),
    SqueueColumn("REASON", "r", "reason", lambda view: view.job.reason),
    SqueueColumn("NODELIST(REASON)", "R", "reasonlist", lambda view: view.place),
    SqueueColumn("", "s", "selectjobinfo", lambda _: ""),
    SqueueColumn("START_TIME", "S", "starttime", lambda view: format_timestamp(view.start)),
    SqueueColumn("ST", "t", "statecompact", lambda view: STATE_CODES[view.job.shown_state]),
    SqueueColumn("STATE", "T", "state", lambda view: view.job.shown_state),
    SqueueColumn("UID", "U", "userid", lambda view: str(view.job.uid)),
    SqueueColumn("USER", "u", "username", lambda view: view.job.user),
    SqueueColumn("RESERVATION", "v", "reservation", lambda _: "(null)"),
    SqueueColumn("SUBMIT_TIME", "V", "submittime", lambda view: format_timestamp(view.job.submit_time)),
    SqueueColumn("WCKEY", "w", "wckey", _option("wckey")),
    SqueueColumn("LICENSES", "W", "licenses", _option("licenses")),
    SqueueColumn("EXC_NODES", "x", "", lambda view: fold(view.request.exclude)),
    SqueueColumn("CORE_SPEC", "X", "corespec", lambda _: "N/A"),
    SqueueColumn("NICE", "y", "nice", _nice),
    SqueueColumn("SCHEDNODES", "Y", "schednodes", lambda _: "(null)"),
    SqueueColumn("S:C:T", "z", "sct", lambda _: "*:*:*"),
    SqueueColumn("WORK_DIR", "Z", "workdir", lambda view: view.job.work_dir),
    SqueueColumn("CLUSTER", "", "cluster", lambda view: view.job.cluster),
    SqueueColumn(
        "PENDING_TIME",
        "",
        "pendingtime",
        lambda view: str(int((view.job.start_time or view.now) - view.job.submit_time)),
    ),
    SqueueColumn("ELIGIBLE_TIME", "", "eligibletime", lambda view: format_timestamp(view.job.eligible_time)),
    SqueueColumn("ACCRUE_TIME", "", "accruetime", lambda view: format_timestamp(view.job.eligible_time)),
    SqueueColumn("HET_JOB_ID", "", "hetjobid", lambda view: str(view.job.het_job_id or "N/A")),
    SqueueColumn("HET_JOB_ID_SET", "", "hetjobidset", lambda view: view.het_job_id_set or "N/A"),
    SqueueColumn(
        "HET_JOB_OFFSET", "", "hetjoboffset", lambda v: "N/A" if v.job.het_job_id is None else str(v.job.het_offset)
    ),
    SqueueColumn("BATCH_FLAG", "", "batchflag", lambda view: str(int(view.job.batch))),
    SqueueColumn("CPUS_PER_TASK", "", "cpuspertask cpus-per-task", lambda view: str(view.request.cpus_per_task)),
    SqueueColumn("DERIVED_EC", "", "derivedec", lambda view: str(view.job.derived_exit_code)),
    SqueueColumn("EXIT_CODE", "", "exit_code", lambda view: str(view.job.exit_code)),
    SqueueColumn("MAX_NODES", "", "maxnodes", lambda view: str(view.request.max_nodes or view.node_count)),
    SqueueColumn("NTASKS_PER_NODE", "", "ntpernode", lambda view: str(view.request.tasks_per_node)),
    SqueueColumn("REQUEUE", "", "requeue", lambda view: str(int(view.job.requeue))),
    SqueueColumn("RESTART_COUNT", "", "restartcnt", lambda view: str(view.job.restart_count)),
    SqueueColumn("STDERR", "", "stderr", lambda view: view.logs.stderr),
    SqueueColumn("STDIN", "", "stdin", lambda view: view.logs.stdin),
    SqueueColumn("STDOUT", "", "stdout", lambda view: view.logs.stdout),
    SqueueColumn("TRES_ALLOC", "", "tres tres-alloc", lambda view: view.tres),
    SqueueColumn("TRES_PER_JOB", "", "tres-per-job", _tres("TresPerJob")),
    SqueueColumn("TRES_PER_TASK", "", "tres-per-task", _tres("TresPerTask")),
    SqueueColumn("TRES_BIND", "", "tres-bind", _tres("TresBind")),
    SqueueColumn("CPUS_PER_TRES", "", "cpus-per-tres", _tres("CpusPerTres")),
    SqueueColumn("MEM_PER_TRES", "", "mem-per-tres", _tres("MemPerTres")),
    SqueueColumn("DEADLINE", "", "deadline", lambda view: format_timestamp(view.job.deadline)),
)

BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
EVERYTHING = "|".join(f"%{letter}" for letter in sorted(BY_LETTER, key=str.swapcase))
BY_NAME = {name: field for field in FIELDS for name in field.names.split()}
SORT_KEYS = {
    "i": lambda view: (view.job.array_job_id or view.job.job_id, view.job.array_task_id or 0),
    "A": lambda view: view.job.job_id,
    "p": lambda view: view.job.priority,
    "Q": lambda view: view.job.priority,
    "M": lambda view: view.elapsed,
    "S": lambda view: view.start,
    "V": lambda view: view.job.submit_time,
    "e": lambda view: view.end,
    "D": lambda view: view.node_count,
    "C": lambda view: view.cpu_count,
    "l": lambda view: view.job.time_limit if view.job.time_limit >= 0 else TOP_PRIORITY,
}
"""Columns that are sorted by number; all others by text."""
