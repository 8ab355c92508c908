"""The paragraphs of `scontrol show`: jobs, steps, nodes, partitions, the configuration."""

from __future__ import annotations

import os
import time
from itertools import groupby
from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from hpc_kit.slurm.units import format_time
from pocketslurm import exit_status
from pocketslurm.errors import CommandError, PlainError
from pocketslurm.listings import views
from pocketslurm.listings.views import (
    JobView,
    format_limit,
    format_timestamp,
    megabytes,
    node_views,
    null,
    step_id,
)
from pocketslurm.processes import pid_of
from pocketslurm.queue import job_ids, nodes
from pocketslurm.queue.state import now
from pocketslurm.queue.submission import niceness
from pocketslurm.settings import SLURM_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pocketslurm.listings.views import NodeView
    from pocketslurm.queue.records import Job, Step
    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.settings import Partition


_KINDS = {
    "job": ("job", "jobs", "jobid"),
    "node": ("node", "nodes", "nodename"),
    "partition": ("partition", "partitions", "partitionname"),
    "step": ("step", "steps", "stepid"),
    "config": ("config",),
    "reservation": ("reservation", "reservations"),
}


class NotFound(PlainError):
    """A node or partition does not exist; scontrol prints this on stdout."""


def show(state: StateDirectory, entity: str, name: str | None, flags: Collection[str]) -> None:
    """Print one entity, or all of a kind."""
    # scontrol accepts abbreviations: `show part`.
    kind = next((kind for kind, names in _KINDS.items() if entity in names or kind.startswith(entity)), None)
    if kind is None:
        raise PlainError(f"invalid entity:{entity} for keyword:show ")
    oneliner = "oneliner" in flags
    if kind == "job":
        texts = _jobs(state, name, details="details" in flags)
    elif kind == "step":
        texts = _steps(state, name)
    elif kind == "node":
        texts = [node_text(state, view) for view in _nodes(state, name)]
    elif kind == "partition":
        texts = [partition_text(state, partition) for partition in _partitions(state, name)]
    elif kind == "config":
        print(_config(state))
        return
    else:
        print("No reservations in the system")
        return
    for text in texts:
        # The blank line behind a paragraph is a blank behind the line.
        print(" ".join(line.lstrip() for line in text.removesuffix("\n").split("\n")) if oneliner else text)


def _find(state: StateDirectory, name: str) -> list[Job]:
    try:
        jobs = job_ids.find_by_text(state, name, *job_ids.recent_jobs(state))
    except ValueError:
        raise PlainError("scontrol_print_job error: Invalid job id specified") from None
    # 22.05 answers an unknown array task on stdout, and an unknown job on stderr.
    if not jobs and "_" in name:
        raise NotFound(f"Job {name} not found")
    if not jobs:
        raise PlainError("slurm_load_jobs error: Invalid job id specified")
    return jobs


def _jobs(state: StateDirectory, name: str | None, *, details: bool) -> list[str]:
    jobs = _find(state, name) if name else state.jobs(*job_ids.recent_jobs(state))
    if not jobs:
        return ["No jobs in the system"]
    return [job_text(JobView(state, job, now()), details=details) for job in jobs]


def _steps(state: StateDirectory, name: str | None) -> list[str]:
    job_name, _, step_name = (name or "").partition(".")
    jobs = _find(state, job_name) if job_name else state.jobs("state = 'RUNNING'")
    texts = [
        step_text(JobView(state, job, now()), step)
        for job in jobs
        for step in state.steps(job.job_id)
        if step.state == "RUNNING" and step_name in {"", step.label, str(step.step_id)}
    ]
    if name and not texts:
        raise PlainError(f"Job step {name} not found")
    return texts or ["No job steps in the system"]


def _nodes(state: StateDirectory, name: str | None) -> list[NodeView]:
    views = node_views(state)
    if name is None:
        return views
    wanted = nodes.expand_names(name)
    found = [view for view in views if view.name in wanted]
    if not found:
        raise NotFound(f"Node {name} not found")
    return found


def _partitions(state: StateDirectory, name: str | None) -> list[Partition]:
    if name is None:
        return list(state.settings.partitions)
    try:
        return [nodes.partition(state.settings, name)]
    except CommandError:
        raise NotFound(f"Partition {name} not found") from None


def _config(state: StateDirectory) -> str:
    settings = state.settings
    next_id = state.meta("next_job_id") or "1"
    values = {
        "AccountingStorageType": "accounting_storage/none",
        "ClusterName": settings.cluster,
        "EnforcePartLimits": "NO",
        "FirstJobId": "1",
        "GresTypes": "gpu" if settings.gpus else "(null)",
        "JobFileAppend": "0",
        "JobRequeue": str(int(settings.requeue)),
        "KillOnBadExit": "0",
        "KillWait": f"{settings.kill_wait:g} sec",
        "MaxArraySize": str(settings.max_array_size),
        "MinJobAge": f"{settings.min_job_age:g} sec",
        "MpiDefault": settings.mpi_default,
        "NEXT_JOB_ID": next_id,
        "OverTimeLimit": "0 min",
        "PreemptMode": "OFF",
        "ProctrackType": "proctrack/cgroup",
        "SchedulerType": "sched/builtin",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_MEMORY",
        "SlurmctldHost[0]": os.uname().nodename,
        "SlurmctldLogFile": str(state.directory / "controller.log"),
        "SLURM_CONF": str(state.directory / "slurm.json"),
        "SLURM_VERSION": SLURM_VERSION,
        "StateSaveLocation": str(state.directory),
        "TaskPlugin": "task/none",
    }
    lines = [f"Configuration data as of {format_timestamp(now())}"]
    lines += [f"{name:<23} = {value}" for name, value in values.items()]
    return "\n".join([*lines, "", f"Slurmctld(primary) at {os.uname().nodename} is UP"])


def job_text(view: JobView, *, details: bool) -> str:
    """Return the paragraph of a job, with an empty line after it."""
    lines = [*_identity(view), *_times(view, details=details), *_size(view, details=details), *_files(view)]
    return "\n".join([lines[0], *(f"   {line}" for line in lines[1:]), "   ", ""])


def _identity(view: JobView) -> Iterator[str]:
    job = view.job
    het = "" if job.het_job_id is None else f"HetJobId={job.het_job_id} HetJobOffset={job.het_offset} "
    yield f"JobId={job.job_id} {_array(view)}{het}JobName={job.name}"
    if het:
        yield f"HetJobIdSet={view.het_job_id_set}"
    yield f"UserId={job.user}({job.uid}) GroupId={job.group}({job.gid}) MCS_label=N/A"
    yield f"Priority={job.priority} Nice={niceness(job.options)} Account={null(job.account)} QOS={null(job.qos)}"
    yield (f"JobState={view.job.shown_state} Reason={job.reason.replace(' ', '_')} Dependency={null(view.dependency)}")
    flags = f"Requeue={int(job.requeue)} Restarts={job.restart_count} BatchFlag={int(job.batch)}"
    yield f"{flags} Reboot=0 ExitCode={exit_status.format_exit_code(job.exit_code)}"


def _array(view: JobView) -> str:
    job = view.job
    if job.array_job_id is None:
        return ""
    limit = f"ArrayTaskThrottle={job.array_at_once} " if job.array_at_once else ""
    return f"ArrayJobId={job.array_job_id} ArrayTaskId={view.array_task} {limit}"


def _times(view: JobView, *, details: bool) -> Iterator[str]:
    job = view.job
    if details:
        yield f"DerivedExitCode={exit_status.format_exit_code(job.derived_exit_code)}"
    yield f"RunTime={format_time(int(view.elapsed))} TimeLimit={format_limit(job.time_limit)} TimeMin=N/A"
    eligible = job.eligible_time or (job.begin_time if job.begin_time > view.now else 0.0)
    yield f"SubmitTime={format_timestamp(job.submit_time)} EligibleTime={format_timestamp(eligible, 'Unknown')}"
    yield f"AccrueTime={format_timestamp(job.eligible_time, 'Unknown')}"
    # A pending job with a known start also has the end that its time limit allows.
    end = view.end or (view.start + job.time_limit if view.start and job.time_limit >= 0 else 0.0)
    start = format_timestamp(view.start, "Unknown")
    yield f"StartTime={start} EndTime={format_timestamp(end, 'Unknown')} Deadline={format_timestamp(job.deadline)}"
    if job.start_time:
        yield f"PreemptEligibleTime={start} PreemptTime=None"
    evaluated = format_timestamp(job.start_time or job.submit_time)
    yield f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={evaluated} Scheduler=Main"


def _size(view: JobView, *, details: bool) -> Iterator[str]:
    job, request = view.job, view.request
    yield f"Partition={job.partition} AllocNode:Sid={job.submit_host}:{pid_of(job.supervisor)}"
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
    yield f"OverSubscribe={shared} Contiguous=0 Licenses={licenses} Network=(null)"


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
        # CPUs are counted here, and have no numbers: the first ones stand for them.
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
    yield from (f"{name}={text}" for name, text in views.gpu_requests(job.options).items())
    if types := job.options.get("mail-type"):
        yield f"MailUser={job.options.get('mail-user') or job.user} MailType={types.upper()}"


def step_text(view: JobView, step: Step) -> str:
    """Return the paragraph of a step."""
    tasks = sum(map(len, step.tasks)) or 1
    return (
        f"StepId={step_id(view, step)} UserId={view.job.uid} StartTime={format_timestamp(step.start_time)} "
        "TimeLimit=UNLIMITED\n"
        f"   State={step.state} Partition={view.job.partition} NodeList={fold(step.nodes)}\n"
        f"   Nodes={len(step.nodes)} CPUs={sum(step.cpus)} Tasks={tasks} Name={step.name} Network=(null)\n"
        f"   TRES={views.step_tres(step) if step.step_id >= 0 else '(null)'}\n"
        "   ResvPorts=(null)\n   CPUFreqReq=Default\n"
        f"   SrunHost:Pid={view.job.submit_host}:{step.srun.partition(':')[0] or 0}\n"
    )


def node_text(state: StateDirectory, view: NodeView) -> str:
    """Return the paragraph of a node, with an empty line after it."""
    settings, uname, load = state.settings, os.uname(), os.getloadavg()[0]
    booted = format_timestamp(now() - time.clock_gettime(time.CLOCK_BOOTTIME))
    partitions = ",".join(each.name for each in settings.partitions if view.name in nodes.of_partition(settings, each))
    free_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2**20
    gres = f",gres/gpu={settings.gpus}" if settings.gpus else ""
    tres = f"cpu={settings.cpus},mem={megabytes(settings.memory_of_node)},billing={settings.cpus}{gres}"
    counts = {"cpu": view.cpus_used, "mem": view.cpus_used and view.mem_used, "gres/gpu": view.gpus_used}
    used = ",".join(f"{name}={megabytes(n) if name == 'mem' else n}" for name, n in counts.items() if n)
    return (
        f"NodeName={view.name} Arch={uname.machine} CoresPerSocket=1 \n"
        f"   CPUAlloc={view.cpus_used} CPUEfctv={settings.cpus} CPUTot={settings.cpus} CPULoad={load:.2f}\n"
        f"   AvailableFeatures=(null)\n   ActiveFeatures=(null)\n   Gres={settings.gres}\n"
        f"   NodeAddr={view.name} NodeHostName={view.name} Version={SLURM_VERSION}\n"
        f"   OS={uname.sysname} {uname.release} {uname.version} \n"
        f"   RealMemory={settings.memory_of_node} AllocMem={view.mem_used} FreeMem={free_memory} "
        f"Sockets={settings.cpus} Boards=1\n"
        f"   State={view.state.upper()} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
        f"   Partitions={partitions} \n   BootTime={booted} SlurmdStartTime={booted}\n"
        f"   LastBusyTime={format_timestamp(now())}\n"
        f"   CfgTRES={tres}\n"
        f"   AllocTRES={used}\n   CapWatts=n/a\n   CurrentWatts=0 AveWatts=0\n"
        f"   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s\n"
    )


def partition_text(state: StateDirectory, partition: Partition) -> str:
    """Return the paragraph of a partition, with an empty line after it."""
    settings = state.settings
    names = nodes.of_partition(settings, partition)
    default = "NONE" if partition.default_time is None else format_limit(partition.default_time)
    cpus, count = settings.cpus * len(names), len(names)
    gres = f",gres/gpu={settings.gpus * count}" if settings.gpus else ""
    first = "YES" if partition == settings.partitions[0] else "NO"
    return (
        f"PartitionName={partition.name}\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n"
        f"   AllocNodes=ALL Default={first} QoS=N/A\n"
        f"   DefaultTime={default} DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO\n"
        f"   MaxNodes=UNLIMITED MaxTime={format_limit(partition.max_time)} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED\n"
        f"   Nodes={fold(names)}\n"
        "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO\n"
        "   OverTimeLimit=NONE PreemptMode=OFF\n"
        f"   State=UP TotalCPUs={cpus} TotalNodes={count} SelectTypeParameters=NONE\n   JobDefaults=(null)\n"
        "   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
        f"   TRES=cpu={cpus},mem={megabytes(settings.memory_of_node * count)},node={count},billing={cpus}{gres}\n"
    )
