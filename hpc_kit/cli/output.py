"""What a person is told of a job: events as they come, how it ended, and what to type next."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

import click

from hpc_kit.cli.session import line, other_runs
from hpc_kit.run_files import RECORD
from hpc_kit.slurm.job_ids import sort_key
from hpc_kit.spec.default_cluster import VARIABLE

if TYPE_CHECKING:
    from hpc_kit.runs.first_failure import RankFailure
    from hpc_kit.runs.follow import Event
    from hpc_kit.runs.outcome import Outcome
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.client import SlurmClient

INTERRUPTED = 130


def follow(
    run: Run,
    client: SlurmClient,
    *,
    ranks: Sequence[int] | None = (0,),
    as_json: bool = False,
    others: Sequence[str] = (),
) -> int:
    """Print what happens to a job, or to all elements of an array, until the end; returns the status to end with.

    Ctrl-C stops the following only: the job goes on, and so do `others`, ids of those that were to be followed behind
    it; the way to end each is printed.

    Raises:
        Exit: Ctrl-C came; its status is 130.
    """
    elements = run.elements()
    outcomes: list[Outcome] = []
    try:
        from hpc_kit.runs import follow as monitor

        for event in monitor.follow(elements or [run], client, ranks=ranks):
            if isinstance(event, monitor.Ended):
                outcomes.append(event.outcome)
            if as_json:
                click.echo(json.dumps(_entry(event)))
            else:
                _tell(event, of_several=bool(elements), one_rank=ranks is not None and len(ranks) == 1)
    except KeyboardInterrupt:
        if as_json:
            click.echo(f"\njob {run.job_id} goes on", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        interrupted([run.job_id, *others])
    if as_json:
        return next((each.exit_status for each in _in_order(outcomes) if each.exit_status), 0)
    return conclude_array(run, outcomes) if elements else conclude(outcomes[0])


def interrupted(ids: Sequence[str]) -> NoReturn:
    """End by Ctrl-C, which jobs that are submitted do not: each, and what to type next.

    Raises:
        Exit: Always; its status is 130.
    """
    click.echo()
    for job_id in ids:
        line("", f"job {job_id} goes on")
        next_steps(job_id, going=True)
    raise click.exceptions.Exit(INTERRUPTED) from None


def _in_order(outcomes: list[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda each: sort_key(each.job_id))


def _tell(event: Event, *, of_several: bool, one_rank: bool) -> None:
    """One event for a person; of several jobs, each is named. Their ends are told together."""
    from hpc_kit.runs import follow as monitor

    match event:
        case monitor.StateChanged(job_id, old, new, elapsed, _):
            right = f"{elapsed:.1f} s" if old else ""
            line(job_id if of_several else "", f"{old} -> {new}" if old else f"{new}", right=right)
        case monitor.Waiting(job_id, reason, meaning):
            line(job_id if of_several else "", f"{reason}: {meaning.sentence}")
        case monitor.RankLine(job_id, number, text):
            who = [job_id] * of_several + [f"rank {number}"] * (not of_several or not one_rank)
            line(" ".join(who), text)
        case monitor.Unreachable(error):
            line("slurm", f"{error.what}; the job goes on, and so does the asking")
        case monitor.Ended():
            pass


def _entry(event: Event) -> dict[str, object]:
    """One event for a program."""
    from hpc_kit.runs import follow as monitor

    match event:
        case monitor.StateChanged(job_id, old, new, elapsed, _):
            told = {"old": str(old) if old else None, "state": str(new), "elapsed": round(elapsed, 3)}
            return {"event": "state", "job_id": job_id, **told}
        case monitor.Waiting(job_id, reason, meaning):
            return {"event": "waiting", "job_id": job_id, "reason": reason, "sentence": meaning.sentence}
        case monitor.RankLine(job_id, number, text):
            return {"event": "line", "job_id": job_id, "rank": number, "text": text}
        case monitor.Unreachable(error):
            return {"event": "unreachable", "error": error.what, "found": error.found}
        case monitor.Ended(job_id, outcome):
            return {"event": "ended", "job_id": job_id, **outcome_entry(outcome)}


def outcome_entry(outcome: Outcome) -> dict[str, object]:
    """How a job ended, for a program."""
    failure = outcome.failure
    first = failure and {**failure._asdict(), "log": str(failure.log) if failure.log else None}
    return {
        "state": str(outcome.state),
        "sentence": outcome.sentence,
        "exit_status": outcome.exit_status,
        "first_failure": first,
        "summary": outcome.summary,
        "run": str(outcome.run),
    }


def conclude_array(run: Run, outcomes: list[Outcome]) -> int:
    """How the elements of an array ended: each that failed, and where their files are; the status is the first's."""
    failed = [each for each in _in_order(outcomes) if each.exit_status]
    for outcome in failed:
        if outcome.failure:
            show_failure(outcome.failure, f"{outcome.job_id}, ")
        else:
            line("ended", f"{outcome.job_id} {outcome.state}: {outcome.sentence}")
    line("ended" if failed else "done", f"{len(outcomes) - len(failed)} of {len(outcomes)} elements completed")
    line("logs", f"{shown(run.folder)}_*/rank-*.log, {shown(run.batch_log).replace('%a', '*')}")
    if run.record:
        line("record", shown(run.folder / RECORD))
    next_steps(run.job_id, going=False)
    return failed[0].exit_status if failed else 0


def conclude(outcome: Outcome) -> int:
    """How a job ended: its summary or its first failure, where its files are, what to type next; its status."""
    if outcome.failure:
        show_failure(outcome.failure)
    elif outcome.exit_status:
        line("ended", f"{outcome.state}: {outcome.sentence}")
    else:
        line("done", summary(outcome.summary) or outcome.sentence)
    batch = f", {shown(outcome.batch_log)}" if outcome.batch_log else ""
    line("logs", f"{shown(outcome.run)}/rank-*.log{batch}")
    if outcome.record:
        line("record", shown(outcome.record))
    next_steps(outcome.job_id, going=False, rank=outcome.failure.rank if outcome.failure else None)
    return outcome.exit_status


def show_failure(failure: RankFailure, of: str = "") -> None:
    """The rank that failed first, `of` which element of an array, and its own words alone."""
    who = "the batch script" if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    how = failure.signal or (f"exit code {failure.exit_code}" if failure.exit_code is not None else "")
    told = failure.headline if not how or how in failure.headline else f"{failure.headline} ({how})"
    line("failed", f"{of}{who}{where}: {told}")
    for text in failure.text.splitlines():
        line("", text)


def summary(values: dict[str, object]) -> str:
    """What the training said of itself, in one line; known figures with their units, others as they are."""
    first, last = values.get("loss_first"), values.get("loss_last")
    speed, memory = values.get("tokens_per_second"), values.get("peak_memory_mib")
    parts = []
    if isinstance(last, int | float):
        parts.append(f"loss {first:.2f} -> {last:.2f}" if isinstance(first, int | float) else f"loss {last:.2f}")
    if isinstance(speed, int | float):
        parts.append(f"{speed:,.0f} tokens/s".replace(",", " "))
    if isinstance(memory, int | float):
        parts.append(f"peak {memory:.0f} MiB a rank")
    if not parts:
        parts = [f"{name} {value}" for name, value in values.items()]
    return ", ".join(parts)


def next_steps(job_id: str, *, going: bool, rank: int | None = None) -> None:
    """Commands to paste, for the cluster and the runs that were named: another shell knows nothing of them."""
    kit = program()
    which = f" --rank {rank}" if rank is not None else ""
    named = click.get_current_context().params.get("cluster") or os.environ.get(VARIABLE)
    runs = other_runs()
    there = (f" --cluster {quote(named)}" if named else "") + (f" --runs {quote(runs)}" if runs else "")
    steps: Iterable[tuple[str, str]] = [("status", f"{kit} status {job_id}")]
    steps = [*steps, ("logs", f"{kit} logs {job_id}{' -f' if going else which or ' --all'}")]
    steps = [*steps, ("cancel", f"{kit} cancel {job_id}")] if going else steps
    for label, text in steps:
        line(label, text + there)


def program() -> str:
    """How this command is called here: by its name where that finds it, else by its path."""
    own = Path(sys.argv[0])
    if own.name == "__main__.py":
        return f"{Path(sys.executable)} -m hpc_kit"
    found = shutil.which("hpc-kit")
    if found and Path(found).resolve() == own.resolve():
        return "hpc-kit"
    return shown(own)


def shown(path: Path) -> str:
    """A path as it is shortest from here."""
    try:
        here = Path.cwd()
    except OSError:  # it is gone
        return str(path)
    absolute = here / path
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)
