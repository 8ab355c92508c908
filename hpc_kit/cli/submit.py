"""`hpc-kit submit`."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from hpc_kit.cli import output
from hpc_kit.cli.job_arguments import JobCommand, JobRequest, job_options, parse_requests, resolve_request
from hpc_kit.cli.output import RUNS_META, print_line
from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpc_kit.spec.resolve import Resolved
    from hpc_kit.submission.submit import Submission


RUNS_KEY = "cluster.runs="

CHAIN_KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")
"""Types of dependency on the previous job, as in sbatch."""


@click.command("submit", cls=JobCommand)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
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
@click.option("--test-only", is_flag=True, help="Print the expected start of the job; submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --test-only: print a JSON document.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Also write the job to a job file.")
def command(
    jobs: tuple[str, ...],
    chain: str | None,
    wait: bool | None,
    standalone: bool,
    test_only: bool,
    as_json: bool,
    save: Path | None,
    **_: object,
) -> int:
    """Submit one or several jobs, or any program.

    hpc-kit submit -j 4x2 --time 2:00:00 -- python train.py --steps 100

    JOB is the name or path of a job file. Arguments after -- are added to its command. Every option of sbatch works
    as well. Several jobs are all checked before the first is submitted.

    With --wait, the exit status is that of the job. Ctrl-C stops the output, but not the job.
    """
    from hpc_kit.check.preflight import check_program

    root = search_path.current_folder()
    requests = parse_requests(jobs)
    _check_options(requests, chain, alone=test_only or save is not None)
    resolved = [resolve_request(request, root, require_answer=True) for request in requests]
    for each in resolved:
        check_program(each, root)
    if test_only:
        return _print_start(resolved[0], root, standalone=standalone, as_json=as_json)
    if as_json:
        raise SpecError("--json without --test-only", remedy="use hpc-kit status --json for submitted jobs")
    if any(setting.startswith(RUNS_KEY) for setting in requests[0].settings):
        # The cluster file does not contain this folder, so the printed next commands must.
        click.get_current_context().meta[RUNS_META] = resolved[0].cluster.runs
    embedded = resolved[0].cluster.slurm == "embedded"
    if embedded:
        print_line("slurm", f"the embedded one: nodes {resolved[0].cluster.embedded.nodes} on this machine")
    sent: list[Submission] = []
    try:
        with _saved_job(resolved[0], save):
            _submit_all(requests, resolved, root, chain, sent, standalone=standalone)
        if not (embedded if wait is None else wait):
            for new in sent:
                output.print_next_steps(new.job_id, going=True)
            return 0
        return _follow(sent)
    except KeyboardInterrupt as interrupt:
        if ids := _submitted_ids(sent, interrupt):
            output.exit_interrupted(ids)
        raise


def _follow(sent: list[Submission]) -> int:
    """Print the events of the jobs to the end of the last. Return the status of the first that failed."""
    from hpc_kit.runs.run_folders import open_run

    ids = [each.job_id for each in sent]
    statuses = [
        output.follow_run(open_run(each.run_folder), each.client, others=ids[number:])
        for number, each in enumerate(sent, 1)
    ]
    return next((status for status in statuses if status), 0)


def _submitted_ids(sent: list[Submission], interrupt: KeyboardInterrupt) -> list[str]:
    """Return the ids of the submitted jobs. Ctrl-C may come after the last one was queued and before it was printed."""
    from hpc_kit.submission.sbatch import SubmitInterrupted

    last = [interrupt.job_id] if isinstance(interrupt, SubmitInterrupted) else []
    return list(dict.fromkeys([*(each.job_id for each in sent), *last]))


def _check_options(requests: list[JobRequest], chain: str | None, *, alone: bool) -> None:
    if len(requests) > 1 and alone:
        raise SpecError("--test-only and --save are for one job", remedy="name one job")
    if chain is not None and len(requests) == 1:
        raise SpecError(
            "a chain of one job", found=f"--chain={chain}", remedy="several jobs; or --dependency=afterok:ID of another"
        )


def _submit_all(
    requests: list[JobRequest],
    resolved: list[Resolved],
    root: Path,
    chain: str | None,
    sent: list[Submission],
    *,
    standalone: bool,
) -> None:
    """Submit the jobs in order and add each to `sent`. If one is refused, print the jobs that were submitted."""
    from hpc_kit.cli.submit import chain_dependency
    from hpc_kit.script.render import render_resolved
    from hpc_kit.submission import submit

    for number, (request, job) in enumerate(zip(requests, resolved, strict=True)):
        after = ""
        if chain is not None and sent:
            options = {**request.options, **chain_dependency(chain, sent[-1].job_id, job.job.resources.given())}
            job = resolve_request(structs.replace(request, options=options), root, require_answer=True)  # noqa: PLW2901 - the same job with its dependency
            after = f", {job.job.resources.dependency}"
        text = render_resolved(job, standalone=standalone, root=root)
        tell = partial(_print_submitted, sent=sent, job=job, after=after)
        try:
            submit.submit_script(job, text, root=root, command_line=sys.argv, on_submitted=tell)
        except HpcKitError:
            for earlier in sent[:number]:
                print_line("job", f"{earlier.job_id} is submitted and goes on; to end it: scancel {earlier.job_id}")
            raise


def _print_submitted(new: Submission, sent: list[Submission], job: Resolved, after: str) -> None:
    """Print a job as soon as it is in the queue."""
    sent.append(new)
    for note in (*job.notes, *new.notes):
        print_line("note", note)
    if new.found_again:
        print_line("note", f"job {new.job_id} was taken when its answer was lost: it is not submitted a second time")
    print_line("job", f"{new.job_id} {describe_job(job)}{after}", right=output.short_path(new.run_folder))


@contextmanager
def _saved_job(resolved: Resolved, file: Path | None) -> Iterator[None]:
    """Write the job file before the submission, and remove it if the submission fails."""
    if file is None:
        yield
        return
    from hpc_kit.spec.toml_documents import save_job

    save_job(resolved.requested_job, file)
    try:
        yield
    except HpcKitError:
        file.unlink(missing_ok=True)
        raise


def _print_start(resolved: Resolved, root: Path, *, standalone: bool, as_json: bool) -> int:
    """Print the expected start of the job as text or JSON."""
    import datetime as dt

    from hpc_kit.slurm.start_forecast import format_start
    from hpc_kit.submission.sbatch import estimate_start

    found = estimate_start(resolved, root=root, standalone=standalone)
    if as_json:
        import json

        click.echo(json.dumps({**found._asdict(), "start": found.start.isoformat()}, indent=2))
        return 0
    for note in resolved.notes:
        print_line("note", note)
    print_line("job", describe_job(resolved))
    partition = f", partition {found.partition}" if found.partition else ""
    now = dt.datetime.now()  # noqa: DTZ005 - times of Slurm have no time zone
    print_line("start", f"about {format_start(found.start, now)}, on {found.nodes}{partition}: {found.cpus} CPUs")
    if found.preempts:
        print_line("", f"it would preempt job {', '.join(found.preempts)}")
    print_line("", "nothing was submitted")
    return 0


def describe_job(resolved: Resolved) -> str:
    """Return name, size and launcher of a job in one line."""
    job = resolved.job
    ranks = resolved.world_size // resolved.nodes
    each = f"{ranks} rank{'s'[: ranks != 1]}" if resolved.world_size % resolved.nodes == 0 else "ranks uneven"
    nodes = f"{resolved.nodes} node{'s'[: resolved.nodes != 1]}"
    array = f", array {job.resources.array}" if job.resources.array is not None else ""
    return f"{job.name}: {nodes} x {each} by {job.launch.launcher}{array}"


def chain_dependency(kind: str, previous_id: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that make a job wait for the previous one, in addition to its own dependency.

    A job whose dependency can no longer be satisfied would stay in the queue for ever, with all jobs after it. Slurm
    removes it unless the job sets kill_on_invalid_dep.

    Args:
        kind: Type of the dependency, one of CHAIN_KINDS.
        previous_id: Id of the previous job of the chain.
        options: The options of this job, by field name.

    Raises:
        SpecError: The job's own dependency uses `?`, so that any one of its conditions is enough.
    """
    waits = str(options.get("dependency") or "")
    if "?" in waits:
        raise SpecError(
            "a job of a chain must wait for the one before it",
            found=f"dependency = {waits!r}: one of them is enough",
            remedy="conditions joined by ',', or no dependency of its own",
        )
    chained = ",".join(filter(None, [f"{kind}:{previous_id}", waits]))
    return {"dependency": chained, "kill_on_invalid_dep": options.get("kill_on_invalid_dep", "yes")}
