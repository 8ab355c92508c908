"""The command sstat: prints memory and CPU time of running steps, as measured by the kernel."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING

from pocketslurm import option_support, processes
from pocketslurm.errors import CommandError
from pocketslurm.getopt import NONE, REQUIRED, Table
from pocketslurm.listings.columns import print_table
from pocketslurm.queue import job_processes
from pocketslurm.queue.state import StateDirectory
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job, Step

OPTIONS = Table(
    ("allsteps", "a", NONE), ("format", "o", REQUIRED, "fields"), ("helpformat", "e", NONE), ("jobs", "j", REQUIRED),
    ("noconvert", "", NONE), ("noheader", "n", NONE), ("parsable", "p", NONE), ("parsable2", "P", NONE),
    ("pidformat", "i", NONE), ("help", "h", NONE), ("usage", "", NONE), ("verbose", "v", NONE), ("version", "V", NONE),
    notes=option_support.SSTAT,
)  # fmt: skip

FIELDS = {
    "JobID": -12, "MaxVMSize": 10, "MaxVMSizeNode": 14, "MaxVMSizeTask": 14, "AveVMSize": 10, "MaxRSS": 10,
    "MaxRSSNode": 10, "MaxRSSTask": 10, "AveRSS": 10, "MaxPages": 8, "MaxPagesNode": 12, "MaxPagesTask": 14,
    "AvePages": 10, "MinCPU": 10, "MinCPUNode": 10, "MinCPUTask": 10, "AveCPU": 10, "NTasks": 8, "AveCPUFreq": 10,
    "ReqCPUFreqMin": 13, "ReqCPUFreqMax": 13, "ReqCPUFreqGov": 13, "ConsumedEnergy": 14, "MaxDiskRead": 12,
    "MaxDiskReadNode": 15, "MaxDiskReadTask": 15, "AveDiskRead": 12, "MaxDiskWrite": 12, "MaxDiskWriteNode": 16,
    "MaxDiskWriteTask": 16, "AveDiskWrite": 12, "TRESUsageInAve": 14, "TRESUsageInMax": 14, "TRESUsageInTot": 14,
    "TRESUsageOutAve": 15, "TRESUsageOutMax": 15, "TRESUsageOutTot": 15, "Nodelist": 20, "Pids": 20,
}  # fmt: skip
"""The columns with their widths; those that are not filled are known and empty."""

FILLED = ("JobID", "MaxVMSize", "AveVMSize", "MaxRSS", "AveRSS", "NTasks", "Nodelist", "Pids")
_MEMORY = re.compile(r"^Vm(Peak|HWM):\s+(\d+) kB", re.MULTILINE)


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command; its exit status."""
    given, words = OPTIONS.parse(argv)
    flags = {name: value or "" for name, value in given}
    if flags.keys() & {"version", "help", "usage", "helpformat"}:
        print(f"slurm {SLURM_VERSION}" if "version" in flags else "\n".join(FIELDS))
        return 0
    named = [part for text in (flags.get("jobs", ""), *words) for part in text.split(",") if part]
    if not named:
        raise CommandError("error: You didn't give me any jobs to stat.")
    columns = _columns(flags)
    # Slurm prints the heading before the errors about jobs that do not run.
    print_table(columns, [], flags)
    sys.stdout.flush()
    state = StateDirectory.open(environ)
    print_table(columns, [row for name in named for row in _rows(state, name, flags)], {**flags, "noheader": ""})
    return 0


def _columns(flags: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return names and widths; a negative width aligns left, and `%20` after a name sets the width."""
    if "pidformat" in flags:
        return [(name, FIELDS[name]) for name in ("JobID", "Nodelist", "Pids")]
    if not flags.get("format"):
        return [(name, width) for name, width in FIELDS.items() if name not in {"Nodelist", "Pids"}]
    found = []
    for item in filter(None, flags["format"].split(",")):
        typed, _, width = item.partition("%")
        names = [name for name in FIELDS if name.lower().startswith(typed.lower())]
        exact = [name for name in names if name.lower() == typed.lower()]
        if not names:
            raise CommandError(f'fatal: Invalid field requested: "{typed}"')
        name = (exact or names)[0]
        found.append((name, int(width) if width.lstrip("-").isdecimal() else FIELDS[name]))
    return found


def _rows(state: StateDirectory, name: str, flags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the rows of a job's running steps: the first, the named one, or with --allsteps all of them."""
    number, _, step_name = name.partition(".")
    job = state.job(int(number)) if number.isdecimal() else None
    if job is None or job.state != "RUNNING":
        sys.stderr.write(f"sstat: error: couldn't get steps for job {name}\n")
        return []
    steps = [step for step in state.steps(job.job_id) if step.state == "RUNNING"]
    if step_name:
        steps = [step for step in steps if _label(step) == step_name]
    elif "allsteps" not in flags:
        steps = [step for step in steps if step.step_id >= 0][:1]
    if not steps:
        sys.stderr.write(f"sstat: error: StepId={number}.{step_name or 0} not found running.\n")
    return [_row(state, job, step) for step in steps]


def _label(step: Step) -> str:
    return step.label


def _row(state: StateDirectory, job: Job, step: Step) -> dict[str, str]:
    pids = job_processes.step_pids(step) if step.step_id >= 0 else _of_batch(state, job)
    peaks: dict[str, list[int]] = {"Peak": [0], "HWM": [0]}
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:  # noqa: PTH123
            for kind, kilobytes in _MEMORY.findall(file.read()):
                peaks[kind].append(int(kilobytes))
    tasks = sum(map(len, step.tasks)) or 1
    return {
        "JobID": f"{job.job_id}.{_label(step)}",
        "MaxVMSize": f"{max(peaks['Peak'])}K",
        "AveVMSize": f"{sum(peaks['Peak']) // tasks}K",
        "MaxRSS": f"{max(peaks['HWM'])}K",
        "AveRSS": f"{sum(peaks['HWM']) // tasks}K",
        "NTasks": str(tasks),
        "Nodelist": ",".join(step.nodes),
        "Pids": ",".join(map(str, pids)),
    }


def _of_batch(state: StateDirectory, job: Job) -> list[int]:
    """Return the pids of the batch script without those of steps."""
    others = {pid for step in job_processes.running_steps(state, job) for pid in job_processes.step_pids(step)}
    return [each.pid for each in processes.descendants([processes.pid_of(job.supervisor)]) if each.pid not in others]
