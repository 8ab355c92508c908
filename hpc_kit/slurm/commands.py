"""Slurm's commands: their argv, and one query for the state of any number of jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.runner import Completed, Runner, run
from hpc_kit.slurm.status import (
    SACCT_FIELDS,
    SQUEUE_FIELDS,
    JobStatus,
    base_id,
    parse_sacct,
    parse_scontrol_job,
    parse_squeue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "SACCT_FORMAT",
    "SQUEUE_FORMAT",
    "Completed",
    "JobStatus",
    "Runner",
    "clean_environ",
    "find_slurm",
    "parse_sacct",
    "parse_scontrol_job",
    "parse_squeue",
    "query",
    "run",
    "sacct_argv",
    "scancel_argv",
    "scontrol_job_argv",
    "squeue_argv",
]

SQUEUE_FORMAT = "|".join(SQUEUE_FIELDS.values())
SACCT_FORMAT = ",".join(SACCT_FIELDS.values())

MAX_IDS = 200
"""More ids than this are not named on the command line: all jobs of this user are asked for, and sorted out here."""

QUERY_SECONDS = 60.0
PROBE_SECONDS = 5.0
"""Without a configuration Slurm asks DNS for one, and a broken DNS takes long to say no."""

CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")

_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_INHERITED_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip


def squeue_argv(ids: Sequence[str] | None = None) -> list[str]:
    """Ask squeue for these jobs, or for all of this user; finished ones too, which it knows for some minutes."""
    which = f"--jobs={','.join(ids)}" if ids is not None and len(ids) <= MAX_IDS else "--me"
    return ["squeue", "--noheader", "--array", "--states=all", which, f"--format={SQUEUE_FORMAT}"]


def sacct_argv(ids: Sequence[str], *, steps: bool = False) -> list[str]:
    """Ask the accounting for these jobs, whenever they ran; with `steps` for their batch shells and steps as well."""
    scope = [] if steps else ["--allocations"]
    return ["sacct", "--noheader", "--parsable2", *scope, f"--jobs={','.join(ids)}", f"--format={SACCT_FORMAT}"]


def scontrol_job_argv(job_id: str | None = None) -> list[str]:
    """Ask the controller for one job, or for all that it remembers."""
    return ["scontrol", "show", "job", *([job_id] if job_id else [])]


def scancel_argv(ids: Sequence[str], signal: str | None = None) -> list[str]:
    """Cancel jobs, or send a signal to their steps."""
    return ["scancel", *([f"--signal={signal}"] if signal else []), *ids]


def query(runner: Runner, ids: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, JobStatus]:
    """The state of jobs by id, an array's tasks each under its own; a job that nobody knows is left out.

    One squeue for all; one sacct for what squeue no longer knows or whose exit status it does not tell; where the
    accounting is off or behind, one scontrol. At most three commands, whatever the number of ids.

    Raises:
        SlurmUnavailable: squeue itself cannot be asked.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    plain = _plain_environ(os.environ if environ is None else environ)
    found = _wanted(_ask_squeue(runner, wanted, plain), wanted)
    # squeue forgets an array's tasks one by one, minutes after their end.
    arrays = [job_id for job_id in wanted if any(each.startswith(f"{job_id}_") for each in found)]
    if missing := [*_incomplete(found, wanted), *arrays]:
        statuses = parse_sacct(_answer(runner, sacct_argv(_bases(missing)), plain))
        _merge(found, _wanted(statuses, missing))
    if missing := _incomplete(found, wanted):
        bases = _bases(missing)
        argv = scontrol_job_argv(bases[0] if len(bases) == 1 else None)
        _merge(found, _wanted(parse_scontrol_job(_answer(runner, argv, plain)), missing))
    return found


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for submitting from inside a job: without what belongs to that job and its launcher.

    Outside a job nothing is taken away: SBATCH_ACCOUNT and its like are then the user's own defaults.
    """
    if not {"SLURM_JOB_ID", "SLURM_JOBID"} & environ.keys():
        return dict(environ)
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not (name.startswith(_INHERITED) or name in _INHERITED_NAMES)
    }


def find_slurm(environ: Mapping[str, str], runner: Runner = run) -> str | None:
    """`system` where sbatch is on PATH and Slurm has a configuration, else None."""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    if not any(os.access(f"{folder or '.'}/sbatch", os.X_OK) for folder in folders):
        return None
    # Slurm would look for a file that is named and not there for a whole minute.
    if named := environ.get("SLURM_CONF"):
        return "system" if os.access(named, os.R_OK) else None
    if any(os.access(path, os.R_OK) for path in CONFIGURATIONS):
        return "system"
    try:
        answer = runner(["sinfo", "--noheader"], timeout=PROBE_SECONDS, environ=environ)
    except SlurmUnavailable:
        return None
    configured = answer.returncode == 0 or "configuration source" not in answer.stderr
    return "system" if configured else None


def _plain_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables that filter or reshape what squeue and sacct print."""
    shaping = ("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
    return {name: value for name, value in environ.items() if not name.startswith(shaping)}


def _ask_squeue(runner: Runner, ids: Sequence[str], environ: Mapping[str, str]) -> list[JobStatus]:
    answer = runner(squeue_argv(ids), timeout=QUERY_SECONDS, environ=environ)
    unknown = answer.returncode and "Invalid job id" in answer.stderr
    if unknown and len(ids) > 1:
        # One id that Slurm has forgotten may spoil the answer for all.
        answer = runner(squeue_argv(None), timeout=QUERY_SECONDS, environ=environ)
    elif unknown:
        return []
    if answer.returncode:
        raise SlurmUnavailable(
            "squeue does not tell the state of the jobs",
            found=answer.stderr.strip() or f"exit status {answer.returncode}",
            remedy="try again; `scontrol ping` tells whether the controller is up",
        )
    return parse_squeue(answer.stdout)


def _answer(runner: Runner, argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a command prints; nothing where it is missing or fails, as sacct does without accounting."""
    try:
        answer = runner(argv, timeout=QUERY_SECONDS, environ=environ)
    except SlurmUnavailable:
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _bases(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(base_id(job_id) for job_id in ids))


def _wanted(statuses: Iterable[JobStatus], ids: Sequence[str]) -> dict[str, JobStatus]:
    """Those that were asked for, by id or by the array or heterogeneous job that they belong to."""
    asked = set(ids)
    found = {}
    for each in statuses:
        if each.job_id in asked or base_id(each.job_id) in asked:
            found[each.job_id] = each
        elif each.raw_id in asked:
            found[each.raw_id] = each
    return found


def _incomplete(found: Mapping[str, JobStatus], wanted: Sequence[str]) -> list[str]:
    """Ids that nobody knows yet, and jobs that ended with an exit status not yet told."""
    known = set(found) | {base_id(job_id) for job_id in found}
    open_ends = [job_id for job_id, each in found.items() if each.state.failed and each.exit_code is None]
    return [*(job_id for job_id in wanted if job_id not in known), *open_ends]


def _merge(found: dict[str, JobStatus], known: Mapping[str, JobStatus]) -> None:
    """Add what was unknown; of a job that squeue knows take the exit status alone, its state being the fresher."""
    for job_id, status in known.items():
        earlier = found.get(job_id)
        if earlier is None:
            found[job_id] = status
        elif status.exit_code is not None:
            found[job_id] = earlier._replace(exit_code=status.exit_code, signal=status.signal)
