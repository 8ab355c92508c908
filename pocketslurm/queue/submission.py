"""Checks a job, adds it to the queue, and requeues it."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm import option_values, units
from hpc_kit.slurm.datetimes import parse_datetime
from hpc_kit.slurm.errors import HpcKitError
from pocketslurm import processes, resources
from pocketslurm.errors import INVALID_GRES, NOT_AVAILABLE, CommandError
from pocketslurm.option_support import NO_SUCH, SBATCH_SUPPORT, Support
from pocketslurm.queue import (
    controller_start,
    dependencies,
    job_environment,
    job_size,
    node_selection,
    nodes,
)
from pocketslurm.queue.job_size import JobRequest, encode_size, read_request
from pocketslurm.queue.records import Job
from pocketslurm.queue.state import now
from pocketslurm.settings import FIRST_ID_VARIABLE
from pocketslurm.users import current_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketslurm.queue.state import StateDirectory
    from pocketslurm.settings import Partition, Settings


TOP_PRIORITY = 4294901760
"""Slurm's basic priorities count down from here."""


class JobDescription(NamedTuple):
    """A job to submit: its options, script and folder."""

    options: dict[str, str]
    name: str
    command: str = ""
    arguments: tuple[str, ...] = ()
    script: bytes | None = None
    holder: str = ""
    submit_line: str = ""


def check_supported(options: Mapping[str, str], settings: Settings) -> None:
    """Check that all options are supported here.

    Raises:
        CommandError: An option is refused; the error names the first one.
    """
    for name, value in options.items():
        row = SBATCH_SUPPORT.get(name)
        if row and row.support is Support.REFUSED:
            raise CommandError(f"error: --{name} is not supported by the embedded Slurm: {row.note}")
        if settings.strict and value and name in NO_SUCH:
            raise CommandError(denied=NO_SUCH[name])
        if settings.strict and name == "clusters" and (lines := settings.other_clusters(value)):
            raise CommandError(*lines)


def submit_components(
    state: StateDirectory, components: Sequence[JobDescription], environ: Mapping[str, str]
) -> list[Job]:
    """Add the components of a heterogeneous job with consecutive ids; the first one has the script.

    Raises:
        CommandError: Slurm refuses one of them.
    """
    jobs = [prepare(state, description, environ)[0] for description in components]
    controller_start.check_code(state)
    try:
        jobs = _enter(state, jobs, components, environ)
    except sqlite3.OperationalError as error:  # the disk is full, or may not be written
        raise CommandError(f"error: {error}", denied="I/O error writing script/environment to file") from error
    controller_start.ensure_running(state)
    return jobs


def _enter(
    state: StateDirectory, jobs: Sequence[Job], components: Sequence[JobDescription], environ: Mapping[str, str]
) -> list[Job]:
    """Give a job, or each component of it, its id and its place in the queue."""
    entered: list[Job] = []
    # One transaction: no other submission may get an id between those of the components.
    with state.transaction():
        for offset, (job, description) in enumerate(zip(jobs, components, strict=True)):
            if job.dependency and dependencies.unknown_task(state, job.dependency):
                raise CommandError(denied="Job dependency problem")
            least = environ.get(FIRST_ID_VARIABLE, "")
            job_id = state.next_job_id(int(least) if least.isdecimal() else 0)
            leader = entered[0].job_id if entered else job_id
            numbered = job._replace(
                job_id=job_id,
                array_job_id=job_id if job.array_spec else None,
                het_job_id=leader if len(jobs) > 1 else None,
                het_offset=offset,
                priority=_priority(description.options, job_id),
            )
            state.add_job(numbered)
            if description.script is not None and leader == job_id:
                state.add_script(
                    job_id,
                    description.script,
                    job_environment.encode_environ(job_environment.exported_environ(description.options, environ)),
                )
            entered.append(numbered)
    return entered


def prepare(state: StateDirectory, description: JobDescription, environ: Mapping[str, str]) -> tuple[Job, JobRequest]:
    """Check a job, and build its record without an id."""
    options = description.options
    check_supported(options, state.settings)
    request = _request(state.settings, options)
    partition, reason = _choose_partition(state, options, request)
    begin, deadline = _begin_and_deadline(options)
    array_spec, at_once = _array(options, state.settings.max_array_size)
    time_limit = _time_limit(options, partition)
    if nodes.over_limit(partition, time_limit):
        reason = reason or "PartitionTimeLimit"
    owner = current_user()
    # PWD keeps the links of the path, which getcwd resolves.
    folder = environ.get("PWD", "")
    here = folder if folder and _is_current_folder(folder) else working_folder()
    job = Job(
        job_id=0,
        name=description.name,
        user=owner.user,
        uid=owner.uid,
        group=owner.group,
        gid=owner.gid,
        partition=partition.name,
        array_spec=array_spec,
        array_waiting=array_spec,
        array_at_once=at_once,
        account=options.get("account", ""),
        qos=options.get("qos", ""),
        comment=options.get("comment", ""),
        cluster=state.settings.cluster,
        reason=reason or "None",
        options=dict(options),
        request=encode_size(request),
        command=description.command,
        arguments=list(description.arguments),
        submit_line=description.submit_line,
        submit_dir=here,
        submit_host=os.uname().nodename,
        work_dir=os.path.normpath(os.path.join(here, options.get("chdir", ""))),  # noqa: PTH118
        batch=description.script is not None,
        holder=description.holder,
        limits=resources.propagated_limits(options.get("propagate")),
        submit_time=now(),
        time_limit=time_limit,
        dependency=_dependency(options),
        begin_time=begin,
        deadline=deadline,
        requeue="requeue" in options or ("no-requeue" not in options and state.settings.requeue),
        umask=_umask(environ),
    )
    return job, request


def _request(settings: Settings, options: Mapping[str, str]) -> JobRequest:
    """Return the size of a job; unless the settings are strict, it may exceed the nodes."""
    if not settings.strict:
        return job_size.relax(read_request(job_size.portable_options(options)), set(nodes.names(settings)))
    request = read_request(options)
    if not settings.gpus and (request.gpus or request.gpus_per_node or request.gpus_per_task):
        raise CommandError(f"error: {INVALID_GRES}")
    if not set(request.gpu_types) <= {settings.gpu_type}:
        raise CommandError(denied=NOT_AVAILABLE)
    return request


def _choose_partition(
    state: StateDirectory, options: Mapping[str, str], request: JobRequest
) -> tuple[Partition, str | None]:
    """Return the first named partition that the job fits into, and the reason if it can never run there."""
    settings = state.settings
    wanted = (options.get("partition") or settings.partitions[0].name).split(",")
    found = [nodes.partition(settings, name) for name in wanted]
    refusal: CommandError | None = None
    for each in found:
        try:
            reason = node_selection.impossible(request, nodes.in_partition(state.settings, each))
        except CommandError as error:
            refusal = refusal or error
            continue
        if not reason or each is found[-1]:
            return each, reason
    raise refusal or CommandError(denied="Invalid partition name specified")


def _priority(options: Mapping[str, str], job_id: int) -> int:
    if "hold" in options:
        return 0
    if options.get("priority", "").isdigit():
        return int(options["priority"])
    # Earlier jobs come first, as with the plug-in priority/basic.
    return TOP_PRIORITY - job_id - niceness(options)


def niceness(options: Mapping[str, str]) -> int:
    """Return the number that --nice subtracts from a job's priority; 100 without a value."""
    return 100 if options.get("nice") == "" else int(options.get("nice", 0))


def working_folder() -> str:
    """Return the current folder; `/` if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return "/"


def _is_current_folder(folder: str) -> bool:
    """Return whether a path, possibly through links, is the current folder."""
    try:
        return os.path.samefile(folder, ".")  # noqa: PTH121
    except OSError:
        return False


NOTHING_ALLOCATED: dict[str, object] = {"nodes": [], "cpus": [], "mem": [], "gpus": [], "tasks": [], "supervisor": ""}


def put_back(state: StateDirectory, job: Job) -> None:
    """Requeue a job whose processes have ended. A job with priority 0 stays held."""
    queued: dict[str, object] = {
        "state": "PENDING",
        "completing": False,
        "priority": job.priority,
        "reason": "None" if job.priority else job.reason,
        "restart_count": job.restart_count + 1,
        "start_time": 0.0,
        "end_time": 0.0,
        "exit_code": 0,
        **NOTHING_ALLOCATED,
    }
    for part in state.components(job):
        state.update_job(part.job_id, **queued)
    state.delete_orders(job.job_id)  # of a killed supervisor; they do not apply to the next start


def _begin_and_deadline(options: Mapping[str, str]) -> tuple[float, float]:
    begin, deadline = _instant(options, "begin"), _instant(options, "deadline")
    if deadline and deadline < begin:
        raise CommandError("error: Incompatible begin and deadline time specification")
    if deadline and deadline < int(now()):
        raise CommandError(denied="Requested time limit is invalid (missing or exceeds some limit)")
    return begin, deadline


def _time_limit(options: Mapping[str, str], partition: Partition) -> int:
    if options.get("time"):
        seconds = units.parse_time(options["time"])
        if seconds:  # zero means the partition's own limit
            # Slurm counts time limits in minutes; a negative one means UNLIMITED.
            return seconds if seconds < 0 else -(-seconds // 60) * 60
    return partition.max_time if partition.default_time is None else partition.default_time


def _array(options: Mapping[str, str], max_array_size: int) -> tuple[str, int]:
    text = options.get("array")
    if not text:
        return "", 0
    try:
        # Slurm takes a limit of 0 for none.
        spec = option_values.parse_array(text.removesuffix("%0"), max_array_size)
    except HpcKitError:
        raise CommandError(denied="Invalid job array specification") from None
    return option_values.fold_indices(spec.indices), spec.at_once or 0


def _dependency(options: Mapping[str, str]) -> str:
    text = options.get("dependency", "")
    try:
        if text:
            option_values.parse_dependency(text)
    except HpcKitError:
        raise CommandError(denied="Job dependency problem") from None
    return text


def _instant(options: Mapping[str, str], name: str) -> float:
    return parse_datetime(options[name]).timestamp() if options.get(name) else 0.0


def _umask(environ: Mapping[str, str]) -> int:
    try:
        return int(environ["SLURM_UMASK"], 8)
    except (KeyError, ValueError):
        return processes.current_umask()
