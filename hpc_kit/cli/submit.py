"""`hpc-kit submit`."""

from __future__ import annotations

import datetime as dt
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import structs

from hpc_kit.cli.job_arguments import (
    JobCommand,
    JobRequest,
    complete_job,
    job_options,
    parse_requests,
    resolve_request,
)
from hpc_kit.cli.options import FILE, RUNS_META
from hpc_kit.cli.outcomes import follow_run
from hpc_kit.cli.output import exit_interrupted, print_line, print_next_steps, short_path
from hpc_kit.cli.terminal import GO_ON, READER_GONE, echo
from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.script.render import render_resolved
from hpc_kit.slurm.units import format_count
from hpc_kit.spec import search_path
from hpc_kit.submission import sbatch
from hpc_kit.submission.submit import check_submission, submit_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.submit import Submission


RUNS_KEY = "cluster.runs="
"""Beginning of a value of --set that replaces the folder of the runs."""

CHAIN_KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")
"""Types of dependency on the previous job, as in sbatch."""

_NOTHING = "interrupted: nothing was submitted"


class Order(NamedTuple):
    """The jobs of one command with their scripts, and its options."""

    requests: list[JobRequest]
    resolved: list[Resolved]
    scripts: list[str]
    root: Path
    chain: str | None
    save: Path | None
    standalone: bool
    check: bool


@click.command("submit", cls=JobCommand)
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_job)
@job_options
@click.option(
    "--chain",
    type=click.Choice(CHAIN_KINDS),
    default=None,
    is_flag=False,
    flag_value="afterok",
    metavar="[=KIND]",
    help="Start each job after the previous one: afterok [default], afterany, afternotok, after, aftercorr.",
)
@click.option("--wait/--no-wait", default=None, help="Follow the job to its end [default: on the embedded Slurm only].")
@click.option("--standalone", is_flag=True, help="Submit a script that needs no hpc_kit on the nodes.")
@click.option("--no-check", is_flag=True, help="Submit a job with errors, or one that seems unable to start, too.")
@click.option("--test-only", is_flag=True, help="Print the expected start of the job; submit nothing.")
@click.option("--parsable", is_flag=True, help="Print only the job id, or ID;CLUSTER, as sbatch does.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object: id, name, run folder, cluster.")
@click.option("--save", type=FILE, metavar="FILE", help="Also write the job to a job file.")
def command(
    jobs: tuple[str, ...],
    chain: str | None,
    wait: bool | None,
    standalone: bool,
    no_check: bool,
    test_only: bool,
    parsable: bool,
    as_json: bool,
    save: Path | None,
    **_: object,
) -> int:
    """Submit one or several jobs, or any program.

    hpc-kit submit -j 4x2 --time 2:00:00 -- python train.py --steps 100

    JOB is the name or path of a job file. Arguments after -- are added to its command. Every option of sbatch works
    as well. Several jobs are all checked before the first is submitted.

    With --wait, the exit status is that of the job, also if the output goes to `head`. Ctrl-C stops the output, but not
    the job. With --parsable or --json, the command returns when the job is in the queue, and prints notes to stderr.
    """
    # As for `sbatch --wait | head`: all jobs are submitted, and the exit status is that of the job.
    click.get_current_context().meta[READER_GONE] = GO_ON
    try:
        requests = parse_requests(jobs)
        _check_submit_options(requests, chain, alone=test_only or save is not None)
        order = _prepare_order(
            requests, chain, save, standalone=standalone, check=not no_check, ask_slurm=not test_only
        )
        if test_only:  # `_check_submit_options` allows one job only
            return _print_start(order.resolved[0], order.scripts[0], as_json=as_json)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_NOTHING) from None
    if parsable or as_json:
        if wait or (parsable and as_json):
            options = ("--wait" if wait else "--json", "--parsable" if parsable else "--json")
            raise SpecError(" with ".join(options), remedy="use one of the two options")
        return _submit_quietly(order, as_json=as_json)
    if any(setting.startswith(RUNS_KEY) for setting in requests[0].settings):
        # The cluster file does not contain this folder, so the printed next commands must.
        click.get_current_context().meta[RUNS_META] = order.resolved[0].cluster.runs
    return _submit_and_follow(order, wait)


def _prepare_order(
    requests: list[JobRequest], chain: str | None, save: Path | None, *, standalone: bool, check: bool, ask_slurm: bool
) -> Order:
    """Resolve, render and check the jobs of a command."""
    root = search_path.current_folder()
    resolved = [resolve_request(request, root, require_answer=True, check=check) for request in requests]
    scripts = [render_resolved(each, standalone=standalone, root=root) for each in resolved]
    if check:
        for each, text in zip(resolved, scripts, strict=True):
            check_submission(each, text, root, ask_slurm=ask_slurm)
    return Order(requests, resolved, scripts, root, chain, save, standalone=standalone, check=check)


def _submit_and_follow(order: Order, wait: bool | None) -> int:
    """Submit the jobs, and follow them to their end or print the next commands."""
    cluster = order.resolved[0].cluster
    embedded = cluster.slurm == "embedded"
    if embedded:
        print_line("slurm", f"the embedded one: nodes {cluster.embedded.nodes} on this machine")
    submitted: list[Submission] = []
    try:
        with _saved_job(order):
            _submit_all(order, submitted, _print_submission)
        if embedded if wait is None else wait:
            return _follow(submitted)
    except KeyboardInterrupt as interrupt:
        # Ctrl-C may come after the last job was queued and before it was printed.
        last = [interrupt.job_id] if isinstance(interrupt, sbatch.SubmitInterrupted) else []
        if ids := list(dict.fromkeys([*(each.job_id for each in submitted), *last])):
            exit_interrupted(ids, unsubmitted=len(order.requests) - len(ids))
        raise KeyboardInterrupt(_NOTHING) from None
    print_next_steps(*(each.job_id for each in submitted), going=True)
    return 0


def _submit_quietly(order: Order, *, as_json: bool) -> int:
    """Submit the jobs and print their ids for a program. The ids of a broken chain are printed, too."""
    submitted: list[Submission] = []

    def announce(new: Submission, job: Resolved, _after: str, notes: list[str]) -> None:
        for note in notes:
            echo(f"hpc-kit: {note}", err=True)
        if not as_json:
            cluster = new.client.environ.get("SLURM_CLUSTERS") if job.job.resources.clusters else None
            echo(f"{new.job_id};{cluster}" if cluster else new.job_id)

    try:
        with _saved_job(order):
            _submit_all(order, submitted, announce)
    except KeyboardInterrupt as interrupt:
        if submitted or isinstance(interrupt, sbatch.SubmitInterrupted):
            raise
        raise KeyboardInterrupt(_NOTHING) from None
    finally:
        if as_json:
            # A broken chain has fewer submissions than jobs.
            documents = [
                {"job_id": new.job_id, "name": job.job.name, "run": str(new.run_folder), "cluster": job.cluster.name}
                for new, job in zip(submitted, order.resolved, strict=False)
            ]
            echo(json.dumps(documents if len(order.requests) > 1 else next(iter(documents), None), indent=2))
    return 0


def _follow(submitted: list[Submission]) -> int:
    """Print the events of the jobs to the end of the last. Return the status of the first that failed."""
    from hpc_kit.runs.run_folders import open_run

    ids = [each.job_id for each in submitted]
    statuses = [
        follow_run(open_run(each.run_folder), each.client, later_jobs=ids[number:])
        for number, each in enumerate(submitted, 1)
    ]
    return next((status for status in statuses if status), 0)


def _check_submit_options(requests: list[JobRequest], chain: str | None, *, alone: bool) -> None:
    if len(requests) > 1 and alone:
        raise SpecError("--test-only and --save are for one job", remedy="name one job")
    if chain is not None and len(requests) == 1:
        raise SpecError(
            "a chain of one job",
            found=f"--chain={chain}",
            remedy="name several jobs, or use --dependency=afterok:ID of another",
        )


def _submit_all(
    order: Order, submitted: list[Submission], print_job: Callable[[Submission, Resolved, str, list[str]], None]
) -> None:
    """Submit the jobs in order and add each to `submitted`. If one is refused, print the jobs before it.

    `print_job` gets the notes that no job before has.
    """
    seen: dict[str, None] = {}
    for request, job, text in zip(order.requests, order.resolved, order.scripts, strict=True):
        after = ""
        if order.chain is not None and submitted:
            # The id of the previous job is only known now, so the job is resolved and rendered a second time.
            own_options = job.job.resources.given()
            options = {**request.options, **chain_dependency(order.chain, submitted[-1].job_id, own_options)}
            chained = structs.replace(request, options=options)
            job = resolve_request(chained, order.root, require_answer=True, check=order.check)  # noqa: PLW2901
            text = render_resolved(job, standalone=order.standalone, root=order.root)  # noqa: PLW2901
            after = f", {job.job.resources.dependency}"

        # Called as soon as there is a job, so that after Ctrl-C `submitted` contains every job in the queue.
        def announce(new: Submission, job: Resolved = job, after: str = after) -> None:
            submitted.append(new)
            notes = [note for note in (*job.notes, *new.notes) if note not in seen]
            seen.update(dict.fromkeys(notes))
            print_job(new, job, after, notes)

        count = len(submitted)
        try:
            submit_script(
                job, text, root=order.root, command_line=sys.argv, on_submitted=announce, on_slow=_print_slow_sbatch
            )
        except HpcKitError:
            for earlier in submitted[:count]:
                sentence = f"{earlier.job_id} was submitted and continues; to cancel it: scancel {earlier.job_id}"
                echo(f"job     {sentence}", err=print_job is not _print_submission)
            raise


def _print_slow_sbatch() -> None:
    seconds = f"{sbatch.SBATCH_SECONDS:.0f} s"
    echo(f"hpc-kit: sbatch has not answered yet; waiting up to {seconds}; Ctrl-C ends the wait", err=True)


def _print_submission(new: Submission, job: Resolved, after: str, notes: list[str]) -> None:
    for note in notes:
        print_line("note", note)
    if new.found_again:
        print_line("note", f"job {new.job_id} was taken when its answer was lost: it is not submitted a second time")
    print_line("job", f"{new.job_id} {describe_job(job)}{after}", right=short_path(new.run_folder))


@contextmanager
def _saved_job(order: Order) -> Iterator[None]:
    """Write the job file of --save before the submission, and remove it if the submission fails."""
    if order.save is None:
        yield
        return
    from hpc_kit.spec.toml_documents import save_job

    save_job(order.resolved[0].requested_job, order.save)
    try:
        yield
    except HpcKitError:
        order.save.unlink(missing_ok=True)
        raise


def _print_start(resolved: Resolved, text: str, *, as_json: bool) -> int:
    """Print the expected start of the job as text or JSON."""
    from hpc_kit.slurm.start_forecast import format_start

    estimate = sbatch.estimate_start(resolved, text)
    if as_json:
        echo(json.dumps({**estimate._asdict(), "start": estimate.start.isoformat()}, indent=2))
        return 0
    for note in resolved.notes:
        print_line("note", note)
    print_line("job", describe_job(resolved))
    partition = f", partition {estimate.partition}" if estimate.partition else ""
    start = format_start(estimate.start, dt.datetime.now())  # noqa: DTZ005 - times of Slurm have no time zone
    print_line("start", f"about {start}, on {estimate.nodes}{partition}: {estimate.cpus} CPUs")
    if estimate.preempts:
        print_line("", f"it would preempt job {', '.join(estimate.preempts)}")
    print_line("", "nothing was submitted")
    return 0


def describe_job(resolved: Resolved) -> str:
    """Return name, size and launcher of a job in one line."""
    job = resolved.job
    ranks, remainder = divmod(resolved.world_size, resolved.nodes)
    each = "ranks uneven" if remainder else format_count(ranks, "rank")
    array = f", array {job.resources.array}" if job.resources.array is not None else ""
    return f"{job.name}: {format_count(resolved.nodes, 'node')} x {each} by {job.launch.launcher}{array}"


def chain_dependency(kind: str, previous_id: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that make a job wait for the previous one, in addition to its own dependency.

    A job whose dependency can no longer be satisfied would stay in the queue for ever, with all jobs after it. Slurm
    removes it unless the job sets kill_on_invalid_dep.
    """
    waits = str(options.get("dependency") or "")
    if "?" in waits:
        raise SpecError(
            "a job of a chain must wait for the one before it",
            found=f"dependency = {waits!r}: one of them is enough",
            remedy="join the conditions by ',', or remove the dependency",
        )
    chained = ",".join(filter(None, [f"{kind}:{previous_id}", waits]))
    return {"dependency": chained, "kill_on_invalid_dep": options.get("kill_on_invalid_dep", "yes")}
