"""Submits a job: renders, stages, runs sbatch and writes the record. sbatch gets the bytes that `render` prints."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from hpc_kit.check.prerequisites import check_faults, check_program, check_syntax
from hpc_kit.errors import SpecError
from hpc_kit.runs import cluster_match
from hpc_kit.runs.logs import make_log_folders
from hpc_kit.runs.record import RecordedGit
from hpc_kit.script.context import working_folder
from hpc_kit.script.render import render_resolved, resolve_arguments
from hpc_kit.script.shell_files import write_shell_files
from hpc_kit.shared_folders import remove_empty_folders
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.command_environment import drop_overriding_variables, submit_environment
from hpc_kit.spec import partition_checks
from hpc_kit.spec.cluster_client import open_client, slurm_version_of
from hpc_kit.spec.job import Job
from hpc_kit.spec.search_path import current_folder
from hpc_kit.submission import sbatch
from hpc_kit.submission.deferred_signals import defer_signals
from hpc_kit.submission.exclusions import exclude_option
from hpc_kit.submission.program_job import job_for_program
from hpc_kit.submission.provenance import GitQuery, GitState, new_record
from hpc_kit.submission.staging import STAGING, Staging, name_pickles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.deferred_signals import DeferredSignals
    from hpc_kit.submission.job_handles import ScriptJob
    from hpc_kit.submission.staging import Pickles

_EARLIER_RUNS = 10
"""Runs of the same job that are read for a note about lost work."""


def submit(
    job: str | Path | Job | None = None,
    cluster: str | Path | Cluster | None = None,
    *,
    command: Sequence[str] | None = None,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the option's name
    root: str | Path | None = None,
    standalone: bool = False,
    check: bool = True,
) -> ScriptJob:
    """Submit a job file or any program; returns immediately.

    `submit(command=["python", "train.py"], nodes=4, ranks_per_node=2)` is `hpc-kit submit -j 4x2 -- python train.py`.

    Args:
        job: Name or path of a job file, or a job.
        cluster: Name or path of a cluster file, or a cluster (default: the one that fits this machine).
        command: The words of a program that needs no job file.
        nodes: Number of nodes; short for `resources.nodes` in `set`.
        ranks_per_node: Ranks on each node; short for `resources.ntasks_per_node` in `set`.
        set: Values that replace those of the files, by dotted key: {"resources.nodes": 2}.
        root: The user's project (default: the current folder).
        standalone: Render the script that needs no hpc_kit on the nodes.
        check: Refuse a job that `hpc-kit submit` refuses: its program is missing, its script has an error, or it is
            larger than a node or its partition. False is `--no-check`.

    Returns:
        A submitit `Job`: `state`, `stdout()`, `wait()`, `result()`, `exception()`, `cancel()`.

    Raises:
        SpecError: A file is missing or contains an error.
        SlurmUnavailable: There is no Slurm, or it does not answer.
        SubmitRefused: sbatch refused the job.
        RecordError: The record cannot be written; the error states whether the job is in the queue.
    """
    root = Path(root or current_folder()).absolute()
    shape = {"resources.nodes": nodes, "resources.ntasks_per_node": ranks_per_node}
    settings = {**{key: value for key, value in shape.items() if value is not None}, **(set or {})}
    resolved = resolve_arguments(
        _job_to_submit(job, command), cluster, settings, root, require_answer=True, check=check
    )
    text = render_resolved(resolved, standalone=standalone, root=root)
    if check:
        check_submission(resolved, text, root)
    return submit_resolved(resolved, text, root=root)


def check_submission(resolved: Resolved, text: str, root: Path, *, ask_slurm: bool = True) -> None:
    """Refuse a job that lacks its program, whose script has an error, or that can never start.

    `ask_slurm`: also compare the job with its partition, as sinfo prints it.
    """
    check_program(resolved, root)
    check_faults(text, resolved)
    if ask_slurm and resolved.cluster.slurm == "system":
        partition_checks.check_with_sinfo(resolved, open_client(resolved.cluster))


def _job_to_submit(job: object, command: object) -> str | Path | Job:
    """Return the job of the arguments of `submit`: a named one, or that of a program."""
    words = command if command is not None else job
    example = 'submit("ddp_4node"), or submit(command=["python", "train.py"], nodes=4, ranks_per_node=2)'
    if isinstance(job, str | Path | Job) and command is None:
        return job
    if job is not None and command is not None:
        raise SpecError("name either a job or a command", found=f"{job!r} and {command!r}", remedy=example)
    if isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words):
        if command is None:
            raise SpecError("a command needs its name", found=f"submit({words})", remedy=f"submit(command={words})")
        return job_for_program(words)
    if isinstance(command, str):
        example = f"submit(command={shlex.split(command)})"
    raise SpecError("neither a job nor the words of a command", found=f"submit({words!r})", remedy=example)


def submit_resolved(resolved: Resolved, text: str, *, root: Path) -> ScriptJob:
    """Submit the script `text` of a job that is fitted to its cluster."""
    # The import of submitit takes as long as all other work, so it happens while sbatch runs.
    done = submit_script(
        resolved,
        text,
        root=root,
        command_line=sys.argv,
        meanwhile=lambda: import_module("hpc_kit.submission.job_handles"),
    )
    from hpc_kit.submission.job_handles import ScriptJob

    job = ScriptJob(done.run_folder, done.job_id)
    job.attach(done.run_folder, done.client, resolved.cluster)
    job.found_again = done.found_again
    return job


class Submission(NamedTuple):
    """A job that sbatch submitted."""

    job_id: str
    run_folder: Path
    """The folder of the record. The elements of an array have their own folders beside it."""

    client: SlurmClient
    found_again: bool = False
    """An earlier submission, whose answer was lost, created the job. Nothing was submitted now."""

    notes: tuple[str, ...] = ()
    """Notes about variables removed from the environment of sbatch, excluded nodes, and work that a stop may lose."""


def submit_script(
    resolved: Resolved,
    text: str,
    *,
    root: Path,
    command_line: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    pickles: Pickles | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    on_submitted: Callable[[Submission], object] = lambda _: None,
    on_slow: Callable[[], object] = lambda: None,
) -> Submission:
    """Submit the script of a job, and write its record.

    SIGTERM and SIGHUP that come meanwhile end this process after the record is written.

    Args:
        resolved: The job, fitted to its cluster.
        text: Its script.
        root: The user's project, in which sbatch runs.
        command_line: The command that the user typed, for the record.
        environ: Environment of the submission (default: this process's).
        pickles: Functions that the job calls. The caller deletes them if the submission fails.
        meanwhile: Called while sbatch runs, to import modules.
        on_submitted: Called as soon as there is a job. The state of git, which may take seconds, is read afterwards.
        on_slow: Called if sbatch does not answer for some seconds.

    Raises:
        SpecError: The script is not valid bash, or sbatch would submit to another cluster than squeue queries.
        SlurmUnavailable: There is no Slurm, or it does not answer.
        AnswerLost: It is unknown whether Slurm has the job. The next submission looks for it first.
        SubmitRefused: sbatch refused the job; nothing is left behind.
        RecordError: The record cannot be written; the error states whether the job is in the queue.
        SubmitInterrupted: Ctrl-C came after sbatch was started; the job is in the queue, with its record.
    """
    root = root.absolute()
    with defer_signals() as signals, ExitStack() as cleanup:
        prepared = _prepare(resolved, text, root, command_line, environ, pickles, cleanup)
        if isinstance(prepared, Submission):
            cleanup.pop_all()  # the files belong to the job that was found
            on_submitted(prepared)
            return prepared
        signals.defer()
        try:
            script, client, options = prepared.staging.script, prepared.sbatch_client, prepared.options
            result = sbatch.run_sbatch(resolved, script, client, root, meanwhile, signals, on_slow, options)
        except (sbatch.AnswerLost, KeyboardInterrupt):
            cleanup.pop_all()  # there may be a job: its record stays until that is known
            prepared.staging.mark_unanswered(_read_git(prepared.git, signals)[0])
            raise
        cleanup.pop_all()  # the files belong to the new job
        done, interrupted = _commit(result, prepared, on_submitted, signals)
    if signals.received or interrupted or result.interrupted:
        raise sbatch.SubmitInterrupted(result.job_id)
    return done


class _PreparedSubmission(NamedTuple):
    """Everything that can be prepared before there is a job."""

    staging: Staging
    git: GitQuery
    client: SlurmClient
    sbatch_client: SlurmClient
    """The same client with the environment of sbatch."""

    slurm_cluster: str | None
    options: list[str]
    """Options of sbatch that are not in the script."""

    notes: tuple[str, ...]


def _prepare(
    resolved: Resolved,
    text: str,
    root: Path,
    command_line: Sequence[str],
    environ: Mapping[str, str] | None,
    pickles: Pickles | None,
    cleanup: ExitStack,
) -> _PreparedSubmission | Submission:
    """Check the script and write the files, or return the job of an earlier submission of the same script."""
    client = open_client(resolved.cluster, environ)
    client.check_available(resolved.cluster.name)
    check_syntax(text)
    environ, notes = drop_overriding_variables(submit_environment(client.environ), text)
    options, excluded = exclude_option(resolved, client)
    slurm_cluster = cluster_match.choose_submit_cluster(resolved.job.resources.clusters, environ, client)
    # Jobs of functions may have log folders named after the job id, and two of them may have the same script.
    calls_functions = pickles is not None
    if not calls_functions:
        notes = (*notes, *list_unsaved_work(resolved, root))
    cleanup.callback(remove_empty_folders, make_log_folders(resolved, root, allow_ids=calls_functions))
    folder = working_folder(resolved, root) / resolved.log_folder
    if any(folder.glob(f"{STAGING}*")):
        from hpc_kit.submission.lost_answers import resolve_unanswered

        if job_id := resolve_unanswered(folder, text, client, repeat=not calls_functions):
            return Submission(job_id, folder / job_id, client, found_again=True)
    # From here on git runs in the background, until the record is committed.
    git = GitQuery(root, resolved.cluster.runs)
    cleanup.callback(git.stop)
    version = str(slurm_version_of(resolved.cluster, client.environ, is_present=True) or "") or None
    record = new_record(resolved, root, command_line, environ, version=version, slurm_cluster=slurm_cluster)
    staging = Staging(folder, text, record, pickles)
    cleanup.callback(staging.discard)
    # The shell files stay if sbatch refuses the job: another submission may use them by now.
    write_shell_files(text, resolved, root)
    sbatch_client = client._replace(environ=cluster_match.with_unused_job_id(folder, environ, client))
    return _PreparedSubmission(staging, git, client, sbatch_client, slurm_cluster, options, (*notes, *excluded))


def _commit(
    result: sbatch.SbatchResult,
    prepared: _PreparedSubmission,
    on_submitted: Callable[[Submission], object],
    signals: DeferredSignals,
) -> tuple[Submission, bool]:
    """Write the record of a submitted job, even if `on_submitted` fails. Also return whether Ctrl-C came."""
    staging, interrupted = prepared.staging, False
    staging.record = structs.replace(staging.record, slurm_cluster=result.cluster or prepared.slurm_cluster)
    client = prepared.client.for_cluster(result.cluster)
    done = Submission(result.job_id, staging.folder / result.job_id, client, notes=prepared.notes)
    try:
        name_pickles(staging.own, done.job_id)
        with signals.interruptible():
            on_submitted(done)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        git, interrupted_git = _read_git(prepared.git, signals)
        staging.commit(done.job_id, git)
    return done, interrupted or interrupted_git


def _read_git(git: GitQuery, signals: DeferredSignals) -> tuple[GitState, bool]:
    """Return the state of the code, and whether Ctrl-C ended the wait for it."""
    try:
        with signals.interruptible():
            return git.state(), False
    except KeyboardInterrupt:
        git.stop()
        return GitState(RecordedGit(note="unknown: Ctrl-C ended the wait for git")), True


def list_unsaved_work(resolved: Resolved, root: Path) -> Iterator[str]:
    """Yield a note if a stop of an earlier run of a job with [restart] lost more work than fits into `lead`.

    Such a program does not save at the stop signal, so each stop loses the work since its last checkpoint.
    """
    restart = resolved.job.restart
    if restart is None:
        return
    from hpc_kit.runs.history import read_history
    from hpc_kit.slurm.start_forecast import format_duration

    files: list[Path] = []
    with suppress(OSError):  # another process may delete runs
        found = (working_folder(resolved, root) / resolved.log_folder).glob("*/history")
        files = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    for file in files[:_EARLIER_RUNS]:
        attempts = read_history(file.parent).attempts
        lost = [each.unsaved for each in attempts if each.reason.startswith("stopped by") and each.saved is not None]
        if lost and max(lost) > restart.lead_seconds:
            yield (
                f"a stop of job {file.parent.name} lost {format_duration(round(max(lost)))} of work "
                f"since its last save: handle {restart.signal_name}, "
                f"or save at least every {format_duration(restart.lead_seconds)} (lead)"
            )
        if lost:
            return
