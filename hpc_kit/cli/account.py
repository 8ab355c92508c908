"""What a person is told of a job: events as they come, how it ended, and what to type next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.session import line

if TYPE_CHECKING:
    from hpc_kit.submit.access import Access
    from hpc_kit.submit.failure import Failure
    from hpc_kit.submit.outcome import Outcome
    from hpc_kit.submit.runs import Run

INTERRUPTED = 130


def follow(run: Run, access: Access, *, rank: int = 0, lines: int | None = None) -> int:
    """Print what happens to a job until it ends; returns the status to end with.

    Ctrl-C stops the following only: the job goes on, and the way to end it is printed.
    """
    from hpc_kit.submit import monitor

    try:
        for event in monitor.follow([run], access, rank=rank, lines=lines):
            match event:
                case monitor.StateChanged(_, old, new, elapsed, _):
                    line("", f"{old} -> {new}" if old else f"{new}", right=f"{elapsed:.1f} s" if old else "")
                case monitor.Waiting(_, reason, meaning):
                    line("", f"{reason}: {meaning.sentence}")
                case monitor.RankLine(_, number, text):
                    line(f"rank {number}", text)
                case monitor.Unreachable(error):
                    line("slurm", f"{error.what}; the job goes on, and so does the asking")
                case monitor.Ended(_, outcome):
                    conclude(outcome)
                    return outcome.exit_status
    except KeyboardInterrupt:
        click.echo()
        line("", f"job {run.job_id} goes on")
        next_steps(run.job_id, going=True)
        return INTERRUPTED
    return 0


def conclude(outcome: Outcome) -> None:
    """How a job ended: its summary or its first failure, where its files are, what to type next."""
    if outcome.failure:
        show_failure(outcome.failure)
    elif outcome.exit_status:
        line("ended", f"{outcome.state}: {outcome.sentence}")
    else:
        line("done", summary(outcome.summary) or outcome.sentence)
    line("logs", f"{shown(outcome.run)}/rank-*.log, {shown(outcome.batch_log)}")
    if outcome.record:
        line("record", shown(outcome.record))
    next_steps(outcome.job_id, going=False, rank=outcome.failure.rank if outcome.failure else None)


def show_failure(failure: Failure) -> None:
    """The rank that failed first, and its own words alone."""
    who = "the batch script" if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    how = failure.signal or (f"exit code {failure.exit_code}" if failure.exit_code is not None else "")
    told = failure.headline if not how or how in failure.headline else f"{failure.headline} ({how})"
    line("failed", f"{who}{where}: {told}")
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
    """Commands to paste."""
    kit = program()
    which = f" --rank {rank}" if rank is not None else ""
    steps: Iterable[tuple[str, str]] = [("status", f"{kit} status {job_id}")]
    steps = [*steps, ("logs", f"{kit} logs {job_id}{' -f' if going else which or ' --all'}")]
    steps = [*steps, ("cancel", f"{kit} cancel {job_id}")] if going else steps
    for label, text in steps:
        line(label, text)


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
    absolute = Path.cwd() / path
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)
