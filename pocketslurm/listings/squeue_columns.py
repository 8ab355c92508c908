"""The columns of squeue: those of -o by letter, those of -O by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.nodelist import fold
from pocketslurm.listings import views
from pocketslurm.listings.columns import in_order
from pocketslurm.listings.views import JobView, format_duration, format_timestamp, null
from pocketslurm.queue.submission import TOP_PRIORITY, niceness

if TYPE_CHECKING:
    from collections.abc import Callable


class Field(NamedTuple):
    """A column: its heading, its letter or empty, its long names, its value, and whether that is never cut."""

    heading: str
    letter: str
    names: str
    value: Callable[[JobView], str]
    whole: bool = False


def _option(name: str, otherwise: str = "(null)") -> Callable[[JobView], str]:
    return lambda view: view.job.options.get(name) or otherwise


def _nice(view: JobView) -> str:
    return str(niceness(view.job.options))


def _tres(name: str) -> Callable[[JobView], str]:
    return lambda view: views.asked(view.job.options).get(name, "N/A")


_ALWAYS = {
    "0": {
        "ASSOC_ID": "associd", "BOARDS_PER_NODE": "boardspernode", "NTASKS_PER_BOARD": "ntperboard",
        "REBOOT": "reboot", "REQ_SWITCH": "reqswitch", "SOCKETS_PER_BOARD": "sperboard",
    },
    "0:00": {"DELAY_BOOT": "delayboot", "TIME_MIN": "mintime", "WAIT4SWITCH": "wait4switch"},
    "(null)": {
        "ADMIN_COMMENT": "admin_comment", "BURST_BUFFER": "burstbuffer", "BURST_BUFFER_STATE": "burstbufferstate",
        "CLUSTER_FEATURES": "clusterfeature", "SYSTEM_COMMENT": "system_comment",
    },
    "N/A": {
        "NTASKS_PER_CORE": "ntpercore", "NTASKS_PER_SOCKET": "ntpersocket", "RESIZE_TIME": "resizetime",
        "TRES_FREQ": "tres-freq", "TRES_PER_SOCKET": "tres-per-socket",
    },
    "NA": {
        "ORIGIN": "origin", "ORIGIN_RAW": "originraw", "ACTIVE_SIBLINGS": "siblingsactive",
        "ACTIVE_SIBLINGS_RAW": "siblingsactiveraw", "VIABLE_SIBLINGS": "siblingsviable",
        "VIALBLE_SIBLINGS_RAW": "siblingsviableraw",
    },
    "NotSet": {"PROFILE": "profile"},
}  # fmt: skip
"""Columns of -O about what is not here, by what they always show: heading, name."""

FIELDS = (
    Field("ACCOUNT", "a", "account", lambda view: null(view.job.account)),
    Field("JOBID", "A", "jobid", lambda view: str(view.job.job_id)),
    Field("TRES_PER_NODE", "b", "gres tres-per-node", _tres("TresPerNode")),
    Field("EXEC_HOST", "B", "batchhost", lambda view: view.job.nodes[0] if view.job.nodes else "n/a"),
    Field("MIN_CPUS", "c", "mincpus", lambda view: str(max(1, view.request.min_cpus))),
    Field("CPUS", "C", "numcpus", lambda view: str(view.cpu_count)),
    Field("MIN_TMP_DISK", "d", "mintmpdisk", lambda _: "0"),
    Field("NODES", "D", "numnodes", lambda view: str(view.node_count)),
    Field("TASKS", "", "numtasks", lambda view: str(view.task_count)),
    Field("END_TIME", "e", "endtime", lambda view: format_timestamp(view.end)),
    Field("DEPENDENCY", "E", "dependency", lambda view: null(view.dependency)),
    Field("FEATURES", "f", "feature", _option("constraint")),
    Field("ARRAY_JOB_ID", "F", "arrayjobid", lambda view: str(view.job.array_job_id or view.job.job_id)),
    Field("GROUP", "g", "groupname", lambda view: view.job.group),
    Field("GROUP", "G", "groupid", lambda view: str(view.job.gid)),
    Field("OVER_SUBSCRIBE", "h", "oversubscribe shared", lambda view: "NO" if view.request.exclusive else "OK"),
    Field("SOCKETS_PER_NODE", "H", "sockets", lambda _: "*"),
    Field("JOBID", "i", "jobarrayid", lambda view: view.label),
    Field("CORES_PER_SOCKET", "I", "cores", lambda _: "*"),
    Field("NAME", "j", "name", lambda view: view.job.name),
    Field("THREADS_PER_CORE", "J", "threads", lambda _: "*"),
    Field("COMMENT", "k", "comment", lambda view: null(view.job.comment)),
    Field("ARRAY_TASK_ID", "K", "arraytaskid", lambda view: view.array_task),
    Field("TIME_LIMIT", "l", "timelimit", lambda view: view.time_limit, whole=True),
    Field("TIME_LEFT", "L", "timeleft", lambda view: view.time_left, whole=True),
    Field("MIN_MEMORY", "m", "minmemory", lambda view: view.memory[1]),
    Field("TIME", "M", "timeused", lambda view: format_duration(view.elapsed), whole=True),
    Field("REQ_NODES", "n", "reqnodes", lambda view: fold(view.request.nodelist)),
    Field("NODELIST", "N", "nodelist", lambda view: view.nodelist),
    Field("COMMAND", "o", "command", lambda view: null(" ".join([view.job.command, *view.job.arguments]).strip())),
    Field("CONTIGUOUS", "O", "contiguous", lambda view: str(int(view.request.contiguous))),
    Field("PRIORITY", "p", "priority", lambda view: f"{view.job.priority / (2**32 - 1):.14f}"),
    Field("PARTITION", "P", "partition", lambda view: view.job.partition),
    Field("QOS", "q", "qos", lambda view: null(view.job.qos)),
    Field("PRIORITY", "Q", "prioritylong", lambda view: str(view.job.priority)),
    Field("REASON", "r", "reason", lambda view: view.job.reason),
    Field("NODELIST(REASON)", "R", "reasonlist", lambda view: view.place),
    Field("", "s", "selectjobinfo", lambda _: ""),
    Field("START_TIME", "S", "starttime", lambda view: format_timestamp(view.start)),
    Field("ST", "t", "statecompact", lambda view: view.short_state),
    Field("STATE", "T", "state", lambda view: view.job.shown_state),
    Field("UID", "U", "userid", lambda view: str(view.job.uid)),
    Field("USER", "u", "username", lambda view: view.job.user),
    Field("RESERVATION", "v", "reservation", lambda _: "(null)"),
    Field("SUBMIT_TIME", "V", "submittime", lambda view: format_timestamp(view.job.submit_time)),
    Field("WCKEY", "w", "wckey", _option("wckey")),
    Field("LICENSES", "W", "licenses", _option("licenses")),
    Field("EXC_NODES", "x", "", lambda view: fold(view.request.exclude)),
    Field("CORE_SPEC", "X", "corespec", lambda _: "N/A"),
    Field("NICE", "y", "nice", _nice),
    Field("SCHEDNODES", "Y", "schednodes", lambda _: "(null)"),
    Field("S:C:T", "z", "sct", lambda _: "*:*:*"),
    Field("WORK_DIR", "Z", "workdir", lambda view: view.job.work_dir),
    Field("CLUSTER", "", "cluster", lambda view: view.job.cluster),
    Field(
        "PENDING_TIME",
        "",
        "pendingtime",
        lambda view: str(int((view.job.start_time or view.now) - view.job.submit_time)),
    ),
    Field("ELIGIBLE_TIME", "", "eligibletime", lambda view: format_timestamp(view.job.eligible_time)),
    Field("ACCRUE_TIME", "", "accruetime", lambda view: format_timestamp(view.job.eligible_time)),
    Field("HET_JOB_ID", "", "hetjobid", lambda view: str(view.job.het_job_id or "N/A")),
    Field("HET_JOB_ID_SET", "", "hetjobidset", lambda view: view.het_job_id_set or "N/A"),
    Field("HET_JOB_OFFSET", "", "hetjoboffset", lambda v: "N/A" if v.job.het_job_id is None else str(v.job.het_offset)),
    Field("BATCH_FLAG", "", "batchflag", lambda view: str(int(view.job.batch))),
    Field("CPUS_PER_TASK", "", "cpuspertask cpus-per-task", lambda view: str(view.request.cpus_per_task)),
    Field("DERIVED_EC", "", "derivedec", lambda view: str(view.job.derived_exit_code)),
    Field("EXIT_CODE", "", "exit_code", lambda view: str(view.job.exit_code)),
    Field("MAX_NODES", "", "maxnodes", lambda view: str(view.request.max_nodes or view.node_count)),
    Field("NTASKS_PER_NODE", "", "ntpernode", lambda view: str(view.request.tasks_per_node)),
    Field("REQUEUE", "", "requeue", lambda view: str(int(view.job.requeue))),
    Field("RESTART_COUNT", "", "restartcnt", lambda view: str(view.job.restart_count)),
    Field("STDERR", "", "stderr", lambda view: view.logs.stderr),
    Field("STDIN", "", "stdin", lambda view: view.logs.stdin),
    Field("STDOUT", "", "stdout", lambda view: view.logs.stdout),
    Field("TRES_ALLOC", "", "tres tres-alloc", lambda view: view.tres),
    Field("TRES_PER_JOB", "", "tres-per-job", _tres("TresPerJob")),
    Field("TRES_PER_TASK", "", "tres-per-task", _tres("TresPerTask")),
    Field("TRES_BIND", "", "tres-bind", _tres("TresBind")),
    Field("CPUS_PER_TRES", "", "cpus-per-tres", _tres("CpusPerTres")),
    Field("MEM_PER_TRES", "", "mem-per-tres", _tres("MemPerTres")),
    Field("DEADLINE", "", "deadline", lambda view: format_timestamp(view.job.deadline)),
    Field("ALLOC_SID", "", "allocsid", lambda view: view.session),
    Field("ALLOC_NODES", "", "allocnodes", lambda view: view.job.submit_host),
    Field(
        "LAST_SCHED_EVAL",
        "",
        "lastschedeval",
        lambda view: format_timestamp(view.job.start_time or view.job.submit_time),
    ),
    Field("MAX_CPUS", "", "maxcpus", lambda view: str(view.cpu_count)),
    Field("PREFER", "", "prefer", _option("prefer")),
    Field("NETWORK", "", "network", _option("network")),
    Field("MCSLABEL", "", "mcslabel", _option("mcs-label")),
    *(
        Field(heading, "", name, lambda _, text=text: text)  # type: ignore[misc]
        for text, headings in _ALWAYS.items()
        for heading, name in headings.items()
    ),
)

BY_LETTER = {field.letter: field for field in FIELDS if field.letter}
EVERYTHING = "|".join(f"%{letter}" for letter in in_order(BY_LETTER))
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
