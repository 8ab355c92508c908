"""Follows jobs on the screen, and prints their events and outcomes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.output import INTERRUPTED, exit_interrupted, print_line, print_next_steps, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.run_files import RECORD
from hpc_kit.slurm.job_ids import sort_key

if TYPE_CHECKING:
    from hpc_kit.runs.first_failure import RankFailure
    from hpc_kit.runs.follow import Event
    from hpc_kit.runs.outcome import Outcome
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.client import SlurmClient


def follow_run(
    run: Run,
    client: SlurmClient,
    *,
    ranks: Sequence[int] | None = (0,),
    as_json: bool = False,
    later_jobs: Sequence[str] = (),
) -> int:
    """Print the events of a job or of all array elements until the end, and return the exit status.

    Ctrl-C only stops the printing. The job and the later jobs keep running; the commands for each are printed.
    """
    from hpc_kit.runs import follow

    elements = run.elements()
    outcomes: list[Outcome] = []
    try:
        for event in follow.follow(elements or [run], client, ranks=ranks):
            if isinstance(event, follow.Ended):
                outcomes.append(event.outcome)
            if as_json:
                echo(json.dumps(event_json(event)))
            else:
                _print_event(event, of_several=bool(elements), one_rank=ranks is not None and len(ranks) == 1)
    except KeyboardInterrupt:
        if as_json:
            echo(f"\njob {run.job_id} goes on", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        exit_interrupted([run.job_id, *later_jobs])
    # The elements of an array end in any order.
    outcomes.sort(key=lambda outcome: sort_key(outcome.job_id))
    # As for `submit --wait`, an array has the exit status of its first element that failed.
    if as_json:
        return next((outcome.exit_status for outcome in outcomes if outcome.exit_status), 0)
    return print_array_outcome(run, outcomes, client) if elements else print_outcome(outcomes[0], client)


def _print_event(event: Event, *, of_several: bool, one_rank: bool) -> None:
    """Print one event. With several jobs, the job id comes first, and the outcomes are printed together later."""
    from hpc_kit.runs import follow

    match event:
        case follow.StateChanged(job_id, old, new, elapsed):
            right = f"{elapsed:.1f} s" if old else ""
            print_line(job_id if of_several else "", f"{old} -> {new}" if old else f"{new}", right=right)
        case follow.Waiting(job_id, reason, meaning):
            print_line(job_id if of_several else "", f"{reason}: {meaning.sentence}")
        case follow.RankLine(job_id, rank, text):
            labels = [job_id] * of_several + [f"rank {rank}"] * (not of_several or not one_rank)
            print_line(" ".join(labels), text)
        case follow.Unreachable(error):
            print_line("slurm", f"{error.what}; the job goes on, and hpc-kit keeps asking")


def event_json(event: Event) -> dict[str, object]:
    """Return one event as a JSON object."""
    from hpc_kit.runs import follow

    match event:
        case follow.StateChanged(job_id, old, new, elapsed):
            states = {"old": str(old) if old else None, "state": str(new), "elapsed": round(elapsed, 3)}
            return {"event": "state", "job_id": job_id, **states}
        case follow.Waiting(job_id, reason, meaning):
            return {"event": "waiting", "job_id": job_id, "reason": reason, "sentence": meaning.sentence}
        case follow.RankLine(job_id, rank, text):
            return {"event": "line", "job_id": job_id, "rank": rank, "text": text}
        case follow.Unreachable(error):
            return {"event": "unreachable", "error": error.what, "found": error.found}
        case follow.Ended(job_id, outcome):
            return {"event": "ended", "job_id": job_id, **outcome_json(outcome)}


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """Return the outcome of a job as a JSON object."""
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


def print_array_outcome(run: Run, outcomes: list[Outcome], client: SlurmClient | None) -> int:
    """Print the outcome of an array: failed elements and paths of the logs. Return the status of the first failure."""
    from hpc_kit.cli.job_tables import fold_elements

    failed = [outcome for outcome in outcomes if outcome.exit_status]
    alike: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in failed:
        alike.setdefault(_failure_key(outcome), []).append(outcome)
    for outcome, *more in alike.values():
        elements = fold_elements([each.job_id for each in (outcome, *more)])
        if outcome.failure:
            print_failure(outcome.failure, f"{elements}, ", client)
        else:
            print_line("ended", f"{elements} {outcome.state}: {outcome.sentence}")
    print_line("ended" if failed else "done", f"{len(outcomes) - len(failed)} of {len(outcomes)} elements completed")
    print_line("logs", f"{short_path(run.folder)}_*/rank-*.log, {short_path(run.batch_log).replace('%a', '*')}")
    if run.record:
        print_line("record", short_path(run.folder / RECORD))
    print_next_steps(run.job_id, going=False)
    return failed[0].exit_status if failed else 0


def _failure_key(outcome: Outcome) -> tuple[str, ...]:
    """Return a key that is equal for elements whose failures differ only in hosts and numbers."""
    failure = outcome.failure
    if failure is None:
        return (str(outcome.state), outcome.sentence)
    headline = failure.headline.replace(failure.host, "") if failure.host else failure.headline
    return (re.sub(r"\d+", "", headline), failure.fix)


def print_outcome(outcome: Outcome, client: SlurmClient | None) -> int:
    """Print the outcome of a job, the paths of its files and the next commands. Return its exit status."""
    from hpc_kit.runs.first_failure import find_hidden_failure
    from hpc_kit.runs.run_folders import open_run

    hidden = None
    if outcome.failure:
        print_failure(outcome.failure, client=client)
    elif outcome.exit_status:
        print_line("ended", f"{outcome.state}: {outcome.sentence}")
    else:
        print_line("done", format_summary(outcome.summary) or outcome.sentence)
        hidden = find_hidden_failure(open_run(outcome.run))
        if hidden:
            print_line("note", f"the log shows a failure: {hidden}")
    batch = f", {short_path(outcome.batch_log)}" if outcome.batch_log else ""
    print_line("logs", f"{short_path(outcome.run)}/rank-*.log{batch}")
    if outcome.record:
        print_line("record", short_path(outcome.record))
    rank = outcome.failure.rank if outcome.failure else None
    print_next_steps(outcome.job_id, going=False, rank=rank, failed=bool(outcome.exit_status or hidden))
    return outcome.exit_status


def print_failure(failure: RankFailure, element: str = "", client: SlurmClient | None = None) -> None:
    """Print the first failed rank and its error.

    Args:
        failure: The failure.
        element: Prefix for an array element.
        client: The Slurm whose commands the fix names.
    """
    print_line("failed", element + failure.headline)
    for text in failure.text.splitlines():
        print_line("", text)
    if failure.fix:
        print_line("fix", (client and client.typed_command(failure.fix)) or failure.fix)


def format_summary(values: dict[str, object]) -> str:
    """Return the summary of a training in one line. Known figures get units."""
    # The training writes its summary itself, so a value may have any type.
    first, last = values.get("loss_first"), values.get("loss_last")
    tokens_per_second, memory = values.get("tokens_per_second"), values.get("peak_memory_mib")
    parts = []
    if isinstance(last, int | float):
        parts.append(f"loss {first:.2f} -> {last:.2f}" if isinstance(first, int | float) else f"loss {last:.2f}")
    if isinstance(tokens_per_second, int | float):
        parts.append(f"{tokens_per_second:,.0f} tokens/s".replace(",", " "))
    if isinstance(memory, int | float):
        parts.append(f"peak {memory:.0f} MiB a rank")
    return ", ".join(parts or [f"{name} {value}" for name, value in values.items()])
