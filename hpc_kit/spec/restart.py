"""`[restart]` of a job file: the job starts again after its time limit, a preemption or a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.slurm.option_values import SIGNALS
from hpc_kit.slurm.units import parse_time
from hpc_kit.spec.resources import Count, Number, Resources

if TYPE_CHECKING:
    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.job import Job
    from hpc_kit.spec.job_checks import Origins

LONGEST_LEAD = 65535
"""Slurm stores the seconds of --signal in 16 bits."""

UNCAUGHT = frozenset({"KILL", "STOP", "CONT"})
"""Signals that no shell can handle, and CONT, which Slurm sends before other signals."""

NODE_FOLDERS = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - the beginnings of paths, nothing is written there
"""Folders that are on the disk of each node on almost every cluster."""

ExitCode = Annotated[int, Meta(ge=0, le=255)]


class Restart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Stop signal before the time limit, and the conditions of another attempt."""

    signal: Annotated[str, Meta(description="Signal that asks the program to save and end")] = "USR1"
    lead: Annotated[
        str | int, Meta(description="Seconds between the signal and the time limit, or a time such as '5:00'")
    ] = 120
    max_attempts: Annotated[Count, Meta(description="Most attempts in a row without known progress")] = 20
    exit_codes: Annotated[
        tuple[ExitCode, ...],
        Meta(
            description="Exit codes after which the job is tried again, as after a stop; 128 + N: signal N ended a rank"
        ),
    ] = (134, 137, 143)
    resume_args: Annotated[
        tuple[str, ...], Meta(description="Arguments that are added to the command from the second attempt on")
    ] = ()
    progress: Annotated[
        str | None,
        Meta(
            description="File or folder of the checkpoints. Two attempts that leave it unchanged end the job; before it"
            " exists, resume_args are left out"
        ),
    ] = None
    spares: Annotated[
        Number, Meta(description="Further nodes of the job, which replace nodes that fail while it runs")
    ] = 0

    @property
    def signal_name(self) -> str:
        """The name of the signal without SIG."""
        return self.signal.upper().removeprefix("SIG")

    @property
    def lead_seconds(self) -> int:
        """The seconds between the signal and the time limit."""
        text = str(self.lead)
        return int(text) if text.isascii() and text.isdigit() else parse_time(text)


def check_restart(job: Job, origins: Origins) -> None:
    """Check the table [restart] against the options of the job."""
    if job.restart is None:
        return
    _check_signal(job.restart, origins)
    _check_lead(job.restart, job.resources, origins)
    _check_exit_codes(job.restart, origins)
    _check_paths(job.restart, origins)
    _check_options(job, origins)
    _check_spares(job, job.restart, origins)


def list_restart_doubts(job: Job, cluster: Cluster) -> Iterator[str]:
    """Yield notes about values of [restart] that work on some clusters only."""
    if job.restart is None or cluster.slurm == "embedded":
        return
    for path in (job.restart.progress or "", *job.restart.resume_args):
        if path.startswith(NODE_FOLDERS):
            yield f"{path} is on the disk of one node: an attempt on other nodes does not find the checkpoints"
    partitions = cluster.partition.items()
    name = job.resources.partition or next((name for name, each in partitions if each.default), "")
    limit = cluster.partition[name].default_time if name in cluster.partition else None
    if job.resources.time is None and limit is not None and 0 < parse_time(str(limit)) <= job.restart.lead_seconds:
        yield f"the time limit {limit} of partition {name} is not longer than lead = {job.restart.lead!r}: set time"


def _check_signal(restart: Restart, origins: Origins) -> None:
    if restart.signal_name not in SIGNALS.keys() - UNCAUGHT:
        remedy = f"use one of {', '.join(sorted(SIGNALS.keys() - UNCAUGHT))}"
        raise origins.wrong_value("restart.signal", f"= {restart.signal!r}", remedy)


def _check_lead(restart: Restart, resources: Resources, origins: Origins) -> None:
    place = origins.of("restart.lead")
    try:
        lead = restart.lead_seconds
    except HpcKitError as error:
        raise SpecError(f"{error.what}, in {place}", found=f"lead = {restart.lead!r}", remedy=error.remedy) from error
    if not 1 <= lead <= LONGEST_LEAD:
        found = f"= {restart.lead!r}, which is {lead} s"
        raise origins.wrong_value("restart.lead", found, f"use 1 to {LONGEST_LEAD} seconds")
    # `job_checks.check_options` has refused a time that Slurm does not read.
    limit = 0 if resources.time is None else parse_time(str(resources.time))
    if 0 < limit <= lead:
        raise SpecError(
            "the stop signal would come before the job starts",
            found=f"lead = {restart.lead!r} in {place} is {lead} s; "
            f"time = {resources.time!r} in {origins.of('resources.time')} is {limit} s",
            remedy=f"set a longer time, or a lead that a save needs, such as lead = {min(60, limit // 2)}",
        )


def _check_exit_codes(restart: Restart, origins: Origins) -> None:
    refused = {0: "is a success", 1: "ends every Python exception, which would be raised again"}
    for code, reason in refused.items():
        if code in restart.exit_codes:
            raise SpecError(
                f"exit code {code} is no reason to try again",
                found=f"exit_codes = {list(restart.exit_codes)} in {origins.of('restart.exit_codes')}; {code} {reason}",
                remedy="let the program end with a code of its own, such as sys.exit(75), and list that code",
            )


def _check_paths(restart: Restart, origins: Origins) -> None:
    path = restart.progress
    if path is not None and (not path.strip() or path.startswith("~") or any(each in path for each in "$\n")):
        found = f"= {path!r}: the value is not expanded: '~' and '$' have no meaning"
        raise origins.wrong_value(
            "restart.progress", found, "name a path from the project's folder, or an absolute path"
        )


def _check_options(job: Job, origins: Origins) -> None:
    """Check the options that [restart] sets itself, and the launcher."""
    for name, reason in (
        ("signal", "the signal goes to the batch script, which passes it on"),
        ("no_requeue", "the job must be allowed to requeue"),
        ("open_mode", "the logs keep the output of earlier attempts"),
    ):
        value = getattr(job.resources, name)
        # "append" is what [restart] sets itself.
        if value not in {None, False, "append"}:
            raise SpecError(
                f"{name} contradicts [restart]",
                found=f"{name} = {value!r} in {origins.of(f'resources.{name}')}; [restart] sets it: {reason}",
                remedy=f"leave {name} out, or leave [restart] out",
            )
    if job.component or job.launch.launcher == "ray":
        kind = "heterogeneous jobs" if job.component else "launcher 'ray'"
        raise SpecError(
            f"[restart] does not support {kind}",
            found=origins.of("component" if job.component else "launch.launcher"),
            remedy="leave [restart] out, or use one set of resources with srun, torchrun or mpirun",
        )


def _check_spares(job: Job, restart: Restart, origins: Origins) -> None:
    """Check that a step can leave out nodes of the job."""
    resources, place = job.resources, origins.of("restart.spares")
    totals = [name for name in ("gpus", "nodelist", "nodefile") if getattr(resources, name) is not None]
    if not restart.spares:
        return
    if job.launch.launcher == "mpirun":
        raise SpecError(
            "spare nodes need launcher srun or torchrun",
            found=f"spares = {restart.spares} in {place}; launcher = 'mpirun', which uses all nodes of the job",
            remedy="set launcher = 'srun', or leave spares out",
        )
    if resources.ntasks_per_node is None or totals:
        name = totals[0] if totals else "ntasks"
        raise SpecError(
            "spare nodes need the same options on each node",
            found=f"spares = {restart.spares} in {place}; {name} in {origins.of(f'resources.{name}')}",
            remedy="set ntasks_per_node, and gpus_per_node instead of gpus; leave nodelist and nodefile out",
        )
