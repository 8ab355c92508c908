"""`scontrol show job` and `show step`: a paragraph each."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import UNLIMITED, format_time
from pocketslurm import exit_status
from pocketslurm.listings import tres_view
from pocketslurm.listings.views import format_timestamp, null, step_id
from pocketslurm.queue.submission import niceness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pocketslurm.listings.views import JobView
    from pocketslurm.queue.records import Job, Step


def job_text(view: JobView, *, details: bool) -> str:
    """A job, as a paragraph with an empty line behind it."""
    lines = [*_identity(view), *_times(view, details=details), *_size(view, details=details), *_files(view)]
    return "\n".join([lines[0], *(f"   {line}" for line in lines[1:]), "   ", ""])


def _identity(view: JobView) -> Iterator[str]:
    job = view.job
    yield f"JobId={job.job_id} {_array(view)}{_component(job)}JobName={job.name}"
    if job.het_job_id is not None:
        yield f"HetJobIdSet={view.het_job_id_set}"
    yield f"UserId={job.user}({job.uid}) GroupId={job.group}({job.gid}) MCS_label=N/A"
    yield f"Priority={job.priority} Nice={niceness(job.options)} Account={null(job.account)} QOS={null(job.qos)}"
    yield (f"JobState={view.job.shown_state} Reason={job.reason.replace(' ', '_')} Dependency={null(view.dependency)}")
    flags = f"Requeue={int(job.requeue)} Restarts={job.restart_count} BatchFlag={int(job.batch)}"
    yield f"{flags} Reboot=0 ExitCode={view.exit_code}"


def _array(view: JobView) -> str:
    job = view.job
    if job.array_job_id is None:
        return ""
    limit = f"ArrayTaskThrottle={job.array_at_once} " if job.array_at_once else ""
    return f"ArrayJobId={job.array_job_id} ArrayTaskId={view.array_task} {limit}"


def _component(job: Job) -> str:
    return "" if job.het_job_id is None else f"HetJobId={job.het_job_id} HetJobOffset={job.het_offset} "


def _times(view: JobView, *, details: bool) -> Iterator[str]:
    job = view.job
    if details:
        yield f"DerivedExitCode={exit_status.format_exit_code(job.derived_exit_code)}"
    limit = "UNLIMITED" if job.time_limit == UNLIMITED else format_time(job.time_limit)
    yield f"RunTime={format_time(int(view.elapsed))} TimeLimit={limit} TimeMin=N/A"
    eligible = job.eligible_time or (job.begin_time if job.begin_time > view.now else 0.0)
    yield f"SubmitTime={format_timestamp(job.submit_time)} EligibleTime={format_timestamp(eligible, 'Unknown')}"
    yield f"AccrueTime={format_timestamp(job.eligible_time, 'Unknown')}"
    end = view.end or (view.start + job.time_limit if view.start and job.time_limit >= 0 else 0.0)
    start = format_timestamp(view.start, "Unknown")
    yield f"StartTime={start} EndTime={format_timestamp(end, 'Unknown')} Deadline={format_timestamp(job.deadline)}"
    if job.start_time:
        yield f"PreemptEligibleTime={start} PreemptTime=None"
    evaluated = format_timestamp(job.start_time or job.submit_time)
    before = int(view.elapsed) if job.suspended_at else 0
    since = format_timestamp(job.suspended_at, "None")
    yield f"SuspendTime={since} SecsPreSuspend={before} LastSchedEval={evaluated} Scheduler=Main"


def _size(view: JobView, *, details: bool) -> Iterator[str]:
    job, request = view.job, view.request
    yield f"Partition={job.partition} AllocNode:Sid={job.submit_host}:{view.session}"
    yield f"ReqNodeList={null(fold(request.nodelist))} ExcNodeList={null(fold(request.exclude))}"
    yield f"NodeList={view.nodelist}"
    if job.nodes:
        yield f"BatchHost={job.nodes[0]}"
    counts = f"NumNodes={_node_range(view)} NumCPUs={view.cpu_count} NumTasks={view.task_count}"
    yield f"{counts} CPUs/Task={request.cpus_per_task} ReqB:S:C:T=0:0:*:*"
    yield f"TRES={view.tres}"
    yield f"Socks/Node=* NtasksPerN:B:S:C={request.tasks_per_node}:0:*:* CoreSpec=*"
    if details and job.nodes:
        yield from _details(view)
    kind, memory = view.memory
    yield f"MinCPUsNode={max(1, request.min_cpus)} MinMemory{kind}={memory} MinTmpDiskNode=0"
    yield f"Features={null(job.options.get('constraint', ''))} DelayBoot=00:00:00"
    shared = "NO" if request.exclusive else "OK"
    licenses = null(job.options.get("licenses", ""))
    yield f"OverSubscribe={shared} Contiguous={int(request.contiguous)} Licenses={licenses} Network=(null)"


def _node_range(view: JobView) -> str:
    request = view.request
    if view.job.nodes or not request.max_nodes:
        return str(view.node_count)
    return f"{request.min_nodes}-{request.max_nodes}"


def _details(view: JobView) -> Iterator[str]:
    gpus = sum(len(share.gpus) for share in view.shares)
    yield f"JOB_GRES=gpu:{gpus}" if gpus else "JOB_GRES=(null)"
    # Neighbours that give the same are one line.
    for (count, mem, devices), shares in groupby(view.shares, lambda share: (share.cpus, share.mem, share.gpus)):
        gres = f"gpu:{len(devices)}(IDX:{','.join(map(str, devices))})" if devices else ""
        cpus = f"0-{count - 1}" if count > 1 else "0"
        yield f"  Nodes={fold(share.node for share in shares)} CPU_IDs={cpus} Mem={mem} GRES={gres}"


def _files(view: JobView) -> Iterator[str]:
    job = view.job
    yield f"Command={null(' '.join([job.command, *job.arguments]).strip())}"
    yield f"WorkDir={job.work_dir}"
    if job.comment:
        yield f"Comment={job.comment} "
    if job.batch:
        logs = view.logs
        yield f"StdErr={logs.stderr}"
        yield f"StdIn={logs.stdin}"
        yield f"StdOut={logs.stdout}"
    yield "Power="
    yield from (f"{name}={text}" for name, text in tres_view.asked(job.options).items())
    if types := job.options.get("mail-type"):
        yield f"MailUser={job.options.get('mail-user') or job.user} MailType={types.upper()}"


def step_text(view: JobView, step: Step) -> str:
    """A step, as a paragraph."""
    tasks = sum(map(len, step.tasks)) or 1
    return (
        f"StepId={step_id(view, step)} UserId={view.job.uid} StartTime={format_timestamp(step.start_time)} "
        "TimeLimit=UNLIMITED\n"
        f"   State={step.state} Partition={view.job.partition} NodeList={fold(step.nodes)}\n"
        f"   Nodes={len(step.nodes)} CPUs={sum(step.cpus)} Tasks={tasks} Name={step.name} Network=(null)\n"
        f"   TRES={tres_view.of_step(step) if step.step_id >= 0 else '(null)'}\n"
        "   ResvPorts=(null)\n   CPUFreqReq=Default\n"
        f"   SrunHost:Pid={view.job.submit_host}:{step.srun.partition(':')[0] or 0}\n"
    )
