"""`hpc-kit plan --write`: the first layout that a program can do, as a job file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.planner.search import Answer, Plan
    from hpc_kit.spec.job import Job

OPTION = "--write"
SHORT = 0.25
"""Days of a training that fits most limits: nothing is said of it."""


def refuse(path: Path) -> None:
    """Refuse a name under which no job file can be written, before anything is reckoned.

    Raises:
        SpecError: The file exists, or is no .toml.
    """
    from hpc_kit.spec.write import check_new

    check_new(path, OPTION)


def write(answer: Answer, named: Job | None, program: tuple[str, ...], path: Path, tokens: float) -> None:
    """Write the first plan for the user's program, or the first that one of jobs/train can do.

    Args:
        answer: The plans.
        named: The job that was planned, whose program comes first.
        program: The program behind `--`, in place of all others.
        path: The new job file.
        tokens: To train on.

    Raises:
        SpecError: None of these can do any.
    """
    from hpc_kit.cli.request import adhoc
    from hpc_kit.planner.jobfile import job
    from hpc_kit.planner.jobmodel import shipped
    from hpc_kit.spec.write import save_job

    base = named or (adhoc(program) if program else None)
    if base is not None and not shipped(base):
        save_job(job(answer.plans[0], base, path.stem), path, OPTION)
        _say_limit(answer.plans[0], base, path, tokens)
    else:
        _write_shipped(answer, base, path, only=bool(program))
    click.echo(f"written: {path}   submit with: hpc-kit submit {path}", err=True)


def _say_limit(plan: Plan, base: Job, path: Path, tokens: float) -> None:
    """How long a training is beside the limit of its job."""
    from hpc_kit.planner import report

    limit = (
        f"{base.resources.time}, the limit in its file" if base.resources.time is not None else "the cluster's limit"
    )
    days = report.training(plan, tokens, 1.0)["days"]
    if days < SHORT:
        return
    click.echo(
        f"{tokens:.3g} tokens take {days:.3g} days, and one job has {limit}: with checkpoints, several in a chain,\n"
        f"hpc-kit submit {path} {path} --chain=afterany",
        err=True,
    )


def _write_shipped(answer: Answer, base: Job | None, path: Path, *, only: bool) -> None:
    from hpc_kit.planner import programs
    from hpc_kit.planner.jobfile import job
    from hpc_kit.planner.search import shown
    from hpc_kit.spec.write import save_job

    best, root = answer.plans[0], Path.cwd()
    found = programs.first(answer.plans, root, base, only=only)
    who = base.command[1] if base is not None and only else "no program of jobs/train"
    if found is None:
        raise SpecError(
            f"{who} can do {'none' if only else 'any'} of these layouts",
            found=f"{shown(best.run)}, {best.run.precision}, and {len(answer.plans) - 1} others",
            remedy=f"your own behind --: hpc-kit plan ... --write {path} -- python train.py",
        )
    if found.place > 1:
        more = found.plan.time.total / best.time.total - 1
        click.echo(
            f"{who} can{'not' if only else ''} do the first layout, {shown(best.run)};\n"
            f"written is number {found.place} of {len(answer.plans)}, {shown(found.plan.run)}: "
            f"{found.plan.time.total:.4g} s a step, {more:.1%} more",
            err=True,
        )
    steps = programs.steps(found.base, root)
    made = job(found.plan, found.base, path.stem, steps=steps)
    save_job(made, path, OPTION)
    lines = [] if only else [f"its command is that of job {found.name}: name your own behind --, or edit {path}"]
    if made.model.parameters != best.run.model.parameters:
        lines.append(
            f"its model has {made.model.parameters:.3g} parameters (a GPT of bytes, without grouped keys or SwiGLU): "
            f"it is not {best.run.model.name}"
        )
    if steps is not None:
        lines.append(f"its limit, {made.resources.time}, is for {steps} steps of {found.plan.time.total:.4g} s")
    click.echo(";\n".join(lines), err=True)
