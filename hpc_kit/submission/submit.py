"""One submission: render, stage, hand over, record. What goes to sbatch are the very bytes that `render` prints."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from hpc_kit.check.syntax import check_syntax
from hpc_kit.runs import cluster_match
from hpc_kit.runs.access import Access, access_of, version_of
from hpc_kit.runs.logs import make_log_folders, remove_empty_folders, working_folder
from hpc_kit.script.render import render_resolved, resolved_of
from hpc_kit.slurm.command_environment import drop_overriding_variables, submit_environment
from hpc_kit.spec.layout_checks import machine_too_small
from hpc_kit.spec.search_path import current_folder
from hpc_kit.submission import sbatch
from hpc_kit.submission.deferred_signals import defer_signals
from hpc_kit.submission.provenance import GitQuery, GitState, new_record
from hpc_kit.submission.staging import STAGING, Staging, name_pickles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.job import Job
    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.deferred_signals import DeferredSignals
    from hpc_kit.submission.job_handles import ScriptJob
    from hpc_kit.submission.staging import Pickles


def submit(
    job: str | Path | Job,
    cluster: str | Path | Cluster | None = None,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the option's name
    root: str | Path | None = None,
    standalone: bool = False,
) -> ScriptJob:
    """Submit a program from a job file; returns at once.

    Args:
        job: Name or path of a job file, or a job.
        cluster: Name or path of a cluster file, or a cluster (default: what fits this machine).
        set: Values over those of the files, by dotted key: {"resources.nodes": 2}.
        root: The user's project (default: the current folder).
        standalone: Need no hpc_kit on the nodes.

    Returns:
        A submitit `Job`: `state`, `stdout()`, `wait()`, `result()`, `exception()`, `cancel()`.

    Raises:
        SpecError: A file is missing or says something that cannot be.
        SlurmUnavailable: There is no Slurm, or it does not answer.
        SubmitRefused: Sbatch took no job.
        RecordError: The record cannot be written; the error says whether the job is in the queue.
    """
    root = Path(root or current_folder()).absolute()
    resolved = resolved_of(job, cluster, set or {}, root, sure=True)
    if small := machine_too_small(resolved.job, resolved.cluster, resolved.world_size):
        raise small
    return submit_resolved(resolved, root=root, standalone=standalone)


def submit_resolved(
    resolved: Resolved,
    *,
    root: Path,
    standalone: bool = False,
    command_line: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ScriptJob:
    """As `submit`, for a job that is fitted to its cluster.

    Args:
        resolved: The job.
        root: The user's project: sbatch runs there.
        standalone: Need no hpc_kit on the nodes.
        command_line: What the user typed, for the record (default: this process's).
        environ: The environment to submit from (default: this process's).
    """
    # submitit takes as long to import as all else does: it comes while sbatch is at work.
    done = submit_script(
        resolved,
        render_resolved(resolved, standalone=standalone, root=root),
        root=root,
        command_line=sys.argv if command_line is None else command_line,
        environ=environ,
        meanwhile=lambda: import_module("hpc_kit.submission.job_handles"),
    )
    from hpc_kit.submission.job_handles import ScriptJob

    job = ScriptJob(done.run_folder, done.job_id)
    job.attach(done.run_folder, done.access, resolved.cluster)
    job.found_again = done.found_again
    return job


class Submission(NamedTuple):
    """A job that sbatch has taken."""

    job_id: str
    run_folder: Path
    """Its run folder; that of an array holds the record, and each element has its own beside it."""

    access: Access
    found_again: bool = False
    """It was taken already, by a submission whose answer was lost; nothing was submitted now."""

    notes: tuple[str, ...] = ()
    """What was left out of the environment for it."""


def submit_script(
    resolved: Resolved,
    text: str,
    *,
    root: Path,
    command_line: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    pickles: Pickles | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    taken: Callable[[Submission], object] = lambda _: None,
) -> Submission:
    """Submit a job that is fitted to its cluster, and leave its record.

    Args:
        resolved: The job.
        text: Its script.
        root: The user's project: sbatch runs there.
        command_line: What the user typed, for the record.
        environ: The environment to submit from (default: this process's).
        pickles: Functions that the job is to call; of those that no job gets, the caller disposes.
        meanwhile: What to import while sbatch is at work.
        taken: Told of the job as soon as there is one; git, which may take seconds, is waited for behind it.

    Raises:
        SpecError: The script is no valid bash, or another cluster would take the job than squeue and scancel ask.
        SlurmUnavailable: There is no Slurm, or it does not answer.
        AnswerLost: It is not known whether Slurm has the job; the next submission finds out first.
        SubmitRefused: Sbatch took no job; nothing is left behind.
        RecordError: The record cannot be written; the error says whether the job is in the queue.
        SubmitInterrupted: Ctrl-C came from there on; the job is in the queue, with its record.

    SIGTERM and SIGHUP end this process when that is done.
    """
    root = root.absolute()
    with defer_signals() as ends, ExitStack() as undo:
        ready = _prepare(resolved, text, root, command_line, environ, pickles, undo)
        if isinstance(ready, Submission):
            undo.pop_all()
            taken(ready)
            return ready
        ends.hold()
        try:
            answer = sbatch.run_sbatch(resolved, ready.staging.script, ready.asked, root, meanwhile, ends)
        except (sbatch.AnswerLost, KeyboardInterrupt):
            # The job may be there: its record stays where it is until that is known.
            undo.pop_all()
            ready.staging.mark_unanswered(_code(ready.git, ends)[0])
            raise
        undo.pop_all()
        done, stopped = _keep(answer, ready, taken, ends)
    if ends.heard or stopped or answer.interrupted:
        raise sbatch.SubmitInterrupted(answer.job_id)
    return done


class _Ready(NamedTuple):
    """A submission that nobody but this process knows of yet."""

    staging: Staging
    git: GitQuery
    access: Access
    asked: Access
    """The same with the environment for sbatch."""

    recipient: str | None
    notes: tuple[str, ...]


def _prepare(
    resolved: Resolved,
    text: str,
    root: Path,
    command_line: Sequence[str],
    environ: Mapping[str, str] | None,
    pickles: Pickles | None,
    undo: ExitStack,
) -> _Ready | Submission:
    """Write all that can be written while there is no job; or the job that an earlier submission was found to be."""
    access = access_of(resolved.cluster, environ)
    access.require(resolved.cluster.name)
    check_syntax(text)
    environ, notes = drop_overriding_variables(submit_environment(access.environ), text)
    recipient = cluster_match.recipient(resolved.job.resources.clusters, environ, access)
    # The folders of functions are named by the job's id; and the same script is not the same call.
    of_functions = pickles is not None
    undo.callback(remove_empty_folders, make_log_folders(resolved, root, allow_ids=of_functions))
    folder = working_folder(resolved, root) / resolved.log_folder
    if job_id := _settled(folder, text, access, repeat=not of_functions):
        return Submission(job_id, folder / job_id, access, found_again=True)
    git = GitQuery(root, resolved.cluster.runs)
    undo.callback(git.stop)
    version = str(version_of(resolved.cluster, access.environ, here=True) or "") or None
    record = new_record(resolved, root, command_line, environ, version=version, recipient=recipient)
    staging = Staging(folder, text, record, pickles)
    undo.callback(staging.discard)
    asked = access._replace(environ=cluster_match.with_own_ids(folder, environ, access))
    return _Ready(staging, git, access, asked, recipient, notes)


def _keep(
    answer: sbatch.SbatchResult, ready: _Ready, taken: Callable[[Submission], object], ends: DeferredSignals
) -> tuple[Submission, bool]:
    """Leave the record of a job that is in the queue, however its news are taken; whether Ctrl-C came meanwhile."""
    staging, stopped = ready.staging, False
    staging.record = structs.replace(staging.record, slurm_cluster=answer.cluster or ready.recipient)
    run = staging.folder / answer.job_id
    done = Submission(answer.job_id, run, ready.access.at(answer.cluster), notes=ready.notes)
    try:
        name_pickles(staging.own, done.job_id)
        with ends.heard_at_once():
            taken(done)
    except KeyboardInterrupt:
        stopped = True
    finally:
        code, late = _code(ready.git, ends)
        staging.commit(done.job_id, code)
    return done, stopped or late


def _code(git: GitQuery, ends: DeferredSignals) -> tuple[GitState, bool]:
    """What git says; Ctrl-C meanwhile costs that alone, and is told."""
    try:
        with ends.heard_at_once():
            return git.state(), False
    except KeyboardInterrupt:
        git.stop()
        return GitState(note="git was not waited for: Ctrl-C"), True


def _settled(folder: Path, text: str, access: Access, *, repeat: bool) -> str | None:
    """The job that this script has become already, where an answer was lost; see `lost.settle`."""
    if not any(folder.glob(f"{STAGING}*")):
        return None
    from hpc_kit.submission.lost_answers import resolve_unanswered

    return resolve_unanswered(folder, text, access, repeat=repeat)
