"""The columns of sacct, for jobs and for their steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED, format_time
from pocketslurm import exit_status, resources
from pocketslurm.listings import views
from pocketslurm.listings.views import JobView, format_limit, format_timestamp, megabytes
from pocketslurm.queue.records import BATCH_STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.queue.records import Step

# Slurm books these the moment that it decides on them, before the script's own status is known.
_NO_STATUS = frozenset({"CANCELLED", "TIMEOUT", "DEADLINE", "NODE_FAIL"})


UNITS = "KMGTP"
SIZES = ("ReqMem", "AllocTRES", "ReqTRES", "MaxRSS")
"""The columns that hold sizes of memory."""


def in_unit(text: str, unit: str) -> str:
    """Format a column's sizes in one of `UNITS`, rounded to two decimals as in Slurm."""

    def convert(found: re.Match[str]) -> str:
        number = float(found[1]) * 1024.0 ** (UNITS.index(found[2]) - UNITS.index(unit))
        return f"{int(number)}{unit}" if number.is_integer() else f"{number:.2f}{unit}"

    # In `cpu=4,mem=400M,node=2`, only the memory is a size.
    return re.sub(rf"(?:^|(?<=mem=))([0-9.]+)([{UNITS}])", convert, text)


class JobOrStep(NamedTuple):
    """A line of sacct: a job, or one of its steps."""

    view: JobView
    step: Step | None = None


class SacctColumn(NamedTuple):
    """A column: its width (below 0: left), its value for a job and, if it has one, for a step."""

    width: int
    job: Callable[[JobView], str]
    step: Callable[[JobView, Step], str] = lambda _view, _step: ""

    def value(self, row: JobOrStep) -> str:
        """Return the text of the column for a job or a step."""
        return self.step(row.view, row.step) if row.step else self.job(row.view)


def _elapsed(seconds: float) -> str:
    return format_time(max(0, int(seconds)))


def _step_elapsed(view: JobView, step: Step) -> float:
    return (step.end_time or view.now) - step.start_time


def _by(state: str, user: int | None) -> str:
    return f"CANCELLED by {user}" if state == "CANCELLED" and user is not None else state


def _exit_code(view: JobView) -> str:
    job = view.job
    return "0:0" if job.state in _NO_STATUS or job.active else exit_status.format_accounted_exit_code(job.exit_code)


def _step_cpus(step: Step) -> int:
    return sum(step.cpus) or 1


def _sorted(tres: str) -> str:
    return ",".join(sorted(tres.split(",")))


def _reserved(view: JobView) -> float:
    job = view.job
    return max(0.0, (job.start_time or job.end_time or view.now) - (job.eligible_time or job.submit_time))


def _reserved_cpu(view: JobView) -> float:
    return _reserved(view) * view.request.tasks * view.request.cpus_per_task


def _cpu(seconds: Callable[[Step], float]) -> SacctColumn:
    """Return a column with CPU seconds of a step, or of all steps of a job."""
    return SacctColumn(
        10,
        lambda v: resources.format_cpu_time(sum(map(seconds, v.state.steps(v.job.job_id)))),
        lambda _, s: resources.format_cpu_time(seconds(s)),
    )


FIELDS: dict[str, SacctColumn] = {
    "Account": SacctColumn(10, lambda v: v.job.account, lambda v, _: v.job.account),
    "AllocCPUS": SacctColumn(10, lambda v: str(v.cpu_count), lambda _, s: str(_step_cpus(s))),
    "AllocNodes": SacctColumn(10, lambda v: str(len(v.job.nodes)), lambda _, s: str(len(s.nodes))),
    "AllocTRES": SacctColumn(10, lambda v: _sorted(v.tres) if v.job.nodes else "", lambda _, s: views.step_tres(s)),
    "Cluster": SacctColumn(10, lambda v: v.job.cluster, lambda v, _: v.job.cluster),
    "Comment": SacctColumn(14, lambda v: v.job.comment),
    "Constraints": SacctColumn(19, lambda v: v.job.options.get("constraint", "")),
    "CPUTime": SacctColumn(
        10, lambda v: _elapsed(v.elapsed * v.cpu_count), lambda v, s: _elapsed(_step_elapsed(v, s) * _step_cpus(s))
    ),
    "CPUTimeRAW": SacctColumn(
        10,
        lambda v: str(int(v.elapsed) * v.cpu_count),
        lambda v, s: str(int(_step_elapsed(v, s)) * _step_cpus(s)),
    ),
    "DerivedExitCode": SacctColumn(
        15,
        lambda v: (
            "0:0" if v.job.state in _NO_STATUS else exit_status.format_accounted_exit_code(v.job.derived_exit_code)
        ),
    ),
    "Elapsed": SacctColumn(10, lambda v: _elapsed(v.elapsed), lambda v, s: _elapsed(_step_elapsed(v, s))),
    "ElapsedRaw": SacctColumn(10, lambda v: str(int(v.elapsed)), lambda v, s: str(int(_step_elapsed(v, s)))),
    "Eligible": SacctColumn(
        19, lambda v: format_timestamp(v.job.eligible_time, "Unknown"), lambda _, s: format_timestamp(s.start_time)
    ),
    "End": SacctColumn(
        19, lambda v: format_timestamp(v.job.end_time, "Unknown"), lambda _, s: format_timestamp(s.end_time, "Unknown")
    ),
    "ExitCode": SacctColumn(8, _exit_code, lambda _, s: exit_status.format_accounted_exit_code(s.exit_code)),
    "GID": SacctColumn(6, lambda v: str(v.job.gid)),
    "Group": SacctColumn(9, lambda v: v.job.group),
    "JobID": SacctColumn(-12, lambda v: v.label, lambda v, s: f"{v.job.display_id}.{s.label}"),
    "JobIDRaw": SacctColumn(-12, lambda v: str(v.job.job_id), lambda v, s: f"{v.job.job_id}.{s.label}"),
    "JobName": SacctColumn(10, lambda v: v.job.name, lambda _, s: s.name),
    "Layout": SacctColumn(9, lambda _: "", lambda _, s: "Unknown" if s.step_id == BATCH_STEP else "Block"),
    "MaxRSS": SacctColumn(10, lambda _: "", lambda _, s: f"{s.peak_memory}K" if s.peak_memory else ""),
    "NCPUS": SacctColumn(10, lambda v: str(v.cpu_count), lambda _, s: str(_step_cpus(s))),
    "NNodes": SacctColumn(8, lambda v: str(v.node_count), lambda _, s: str(len(s.nodes))),
    "NodeList": SacctColumn(15, lambda v: v.nodelist or "None assigned", lambda _, s: fold(s.nodes)),
    "NTasks": SacctColumn(8, lambda _: "", lambda _, s: str(sum(map(len, s.tasks)) or 1)),
    "Partition": SacctColumn(10, lambda v: v.job.partition),
    "Priority": SacctColumn(10, lambda v: str(v.job.priority)),
    "QOS": SacctColumn(10, lambda v: v.job.qos),
    "Reason": SacctColumn(22, lambda v: "None" if v.job.start_time else v.job.reason),  # what it waited for
    "ReqCPUS": SacctColumn(
        8, lambda v: str(v.request.tasks * v.request.cpus_per_task), lambda _, s: str(_step_cpus(s))
    ),
    "ReqMem": SacctColumn(10, lambda v: megabytes(sum(share.mem for share in v.shares))),
    "ReqNodes": SacctColumn(8, lambda v: str(v.request.min_nodes), lambda _, s: str(len(s.nodes))),
    "ReqTRES": SacctColumn(10, lambda v: _sorted(v.tres)),
    "Reserved": SacctColumn(10, lambda v: _elapsed(_reserved(v))),
    "ResvCPU": SacctColumn(10, lambda v: _elapsed(_reserved_cpu(v))),
    "ResvCPURAW": SacctColumn(10, lambda v: str(int(_reserved_cpu(v)))),
    "Start": SacctColumn(
        19,
        # For a job that was cancelled in the queue, sacct prints its end.
        lambda v: format_timestamp(v.job.start_time or v.job.end_time, "Unknown"),
        lambda _, s: format_timestamp(s.start_time),
    ),
    "State": SacctColumn(10, lambda v: _by(v.job.state, v.job.killed_by), lambda _, s: _by(s.state, s.killed_by)),
    "Submit": SacctColumn(
        19, lambda v: format_timestamp(v.job.submit_time), lambda _, s: format_timestamp(s.start_time)
    ),
    "SubmitLine": SacctColumn(20, lambda v: v.job.submit_line, lambda _, s: s.submit_line),
    "Suspended": SacctColumn(10, lambda _: "00:00:00", lambda _view, _step: "00:00:00"),
    "SystemCPU": _cpu(lambda step: step.system_cpu),
    "Timelimit": SacctColumn(10, lambda v: format_limit(v.job.time_limit)),
    "TimelimitRaw": SacctColumn(
        10, lambda v: "UNLIMITED" if v.job.time_limit == UNLIMITED else str(v.job.time_limit // 60)
    ),
    "TotalCPU": _cpu(lambda step: step.user_cpu + step.system_cpu),
    "UID": SacctColumn(6, lambda v: str(v.job.uid)),
    "User": SacctColumn(9, lambda v: v.job.user),
    "UserCPU": _cpu(lambda step: step.user_cpu),
    "WCKey": SacctColumn(10, lambda v: v.job.options.get("wckey", "")),
    "WorkDir": SacctColumn(20, lambda v: v.job.work_dir),
}
"""Columns that have something to show."""

EMPTY = (
    "AdminComment", "AssocID", "AveCPU", "AveCPUFreq", "AveDiskRead", "AveDiskWrite", "AvePages", "AveRSS",
    "AveVMSize", "BlockID", "ConsumedEnergy", "ConsumedEnergyRaw", "Container", "DBIndex", "Flags", "MaxDiskRead",
    "MaxDiskReadNode", "MaxDiskReadTask", "MaxDiskWrite", "MaxDiskWriteNode", "MaxDiskWriteTask", "MaxPages",
    "MaxPagesNode", "MaxPagesTask", "MaxRSSNode", "MaxRSSTask", "MaxVMSize", "MaxVMSizeNode", "MaxVMSizeTask",
    "McsLabel", "MinCPU", "MinCPUNode", "MinCPUTask", "QOSRAW", "ReqCPUFreq", "ReqCPUFreqGov", "ReqCPUFreqMax",
    "ReqCPUFreqMin", "Reservation", "ReservationId", "SystemComment", "TRESUsageInAve", "TRESUsageInMax",
    "TRESUsageInMaxNode", "TRESUsageInMaxTask", "TRESUsageInMin", "TRESUsageInMinNode", "TRESUsageInMinTask",
    "TRESUsageInTot", "TRESUsageOutAve", "TRESUsageOutMax", "TRESUsageOutMaxNode", "TRESUsageOutMaxTask",
    "TRESUsageOutMin", "TRESUsageOutMinNode", "TRESUsageOutMinTask", "TRESUsageOutTot", "WCKeyID"
)  # fmt: skip
"""Columns of Slurm that are always empty here, because nothing measures them."""


NEWER = {
    "planned": ("Planned", FIELDS["Reserved"]),
    "restarts": ("Restarts", SacctColumn(8, lambda v: str(v.job.restart_count))),
    "stderr": ("StdErr", SacctColumn(20, lambda v: v.logs.stderr if v.job.batch else "")),
    "stdin": ("StdIn", SacctColumn(20, lambda v: v.logs.stdin if v.job.batch else "")),
    "stdout": ("StdOut", SacctColumn(20, lambda v: v.logs.stdout if v.job.batch else "")),
}
"""Columns of newer releases, in small letters: not among all columns, and shown where they are asked for.

Source: sacct(1) of Slurm 25.05.
"""

NAMES = sorted([*FIELDS, *EMPTY], key=str.lower)
_BY_LOWER_NAME = {name.lower(): name for name in NAMES}


def find(name: str) -> tuple[str, SacctColumn] | None:
    """Return a column by its name or an unambiguous beginning of it, ignoring case."""
    low = name.lower()
    found = _BY_LOWER_NAME.get(low) or next(
        (full for each, full in _BY_LOWER_NAME.items() if each.startswith(low)), None
    )
    if not low or found is None:
        return None
    return found, FIELDS.get(found) or SacctColumn(max(10, len(found)), lambda _: "")
