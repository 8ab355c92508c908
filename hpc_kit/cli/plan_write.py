"""`hpc-kit plan --write`: the first layout that a program can do, or one that surely fits, as a job file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpc_kit.planner.programs import Found
    from hpc_kit.planner.search import Answer, Plan
    from hpc_kit.spec.job import Job

OPTION = "--write"
SHORT = 0.25
"""Days of a training that fits most limits: nothing is said of it."""
SAFE = 0.03
"""Share of the time for which a layout that surely fits is written in place of one that may not."""


def refuse(path: Path) -> None:
    """Refuse a name under which no job file can be written, before anything is reckoned.

    Raises:
        SpecError: The file exists, or is no .toml.
    """
    from hpc_kit.spec.toml_documents import check_new

    check_new(path, OPTION)


def write(answer: Answer, limit: float, named: Job | None, program: tuple[str, ...], path: Path, tokens: float) -> None:
    """Write the first plan for the user's program, or the first that one of jobs/train can do.

    Where that may not fit, and one that surely does takes little more time, it is that one; both are told.

    Args:
        answer: The plans.
        limit: Bytes of a GPU that can be filled.
        named: The job that was planned, whose program comes first.
        program: The program behind `--`, in place of all others.
        path: The new job file.
        tokens: To train on.

    Raises:
        SpecError: None of these can do any.
    """
    from hpc_kit.cli.job_arguments import adhoc
    from hpc_kit.planner.jobfile import job
    from hpc_kit.planner.jobmodel import shipped
    from hpc_kit.spec.toml_documents import save_job

    base = named or (adhoc(program) if program else None)
    if base is not None and not shipped(base):
        first, safe = answer.plans[0], next(iter(_roomy(answer, limit)), None)
        instead = _instead(first, safe, limit)
        plan = instead or first
        save_job(job(plan, base, path.stem), path, OPTION)
        _say_limit(plan, base, path, tokens)
    else:
        _write_shipped(answer, limit, base, path, only=bool(program))
    click.echo(f"written: {path}   submit with: hpc-kit submit {path}", err=True)


def _roomy(answer: Answer, limit: float) -> Iterator[Plan]:
    """The plans that fit also if their memory is larger than expected by its usual error."""
    from hpc_kit.planner.search import with_room
    from hpc_kit.planner.sureness import memory_error

    error = memory_error(answer.plans[0].run.framework)
    return (plan for plan in answer.plans if with_room((plan,), limit, error))


def _instead(first: Plan, safe: Plan | None, limit: float) -> Plan | None:
    """The plan to write in place of the first; None: the first. That it may not fit is said."""
    from hpc_kit.planner.search import shown

    if safe is first:
        return None
    full = (
        f"{shown(first.run)} fills {first.memory.total / limit:.0%} of what can be filled of a GPU, and may not fit;\n"
    )
    if safe is None:
        click.echo(f"warning: {full}it is written, for no layout leaves more room: try it before a long wait", err=True)
        return None
    more = safe.time.total / first.time.total - 1
    if more < SAFE:
        click.echo(f"{full}written is {shown(safe.run)}, which surely does: {more:.1%} more time", err=True)
        return safe
    click.echo(
        f"warning: {full}it is written, for {shown(safe.run)}, which surely does, takes {more:.1%} more time", err=True
    )
    return None


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


def _write_shipped(answer: Answer, limit: float, base: Job | None, path: Path, *, only: bool) -> None:
    from hpc_kit.planner import programs
    from hpc_kit.planner.jobfile import job
    from hpc_kit.spec.toml_documents import save_job

    best, root = answer.plans[0], Path.cwd()
    found = programs.first(answer.plans, root, base, only=only)
    if found is None:
        raise _no_program(answer, base, path, only=only)
    if found.place > 1:
        _say_place(answer, found, base, only=only)
    safe = programs.first(_roomy(answer, limit), root, base, only=only)
    if _instead(found.plan, safe.plan if safe is not None else None, limit) and safe is not None:
        found = safe
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


def _no_program(answer: Answer, base: Job | None, path: Path, *, only: bool) -> SpecError:
    from hpc_kit.planner.search import shown

    run = answer.plans[0].run
    own = base.command[1] if base is not None and only else ""
    return SpecError(
        f"{own} can do none of these layouts" if own else "no program of jobs/train can do any of these layouts",
        found=f"{shown(run)}, {run.precision}, and {len(answer.plans) - 1} others",
        remedy=f"your own behind --: hpc-kit plan ... --write {path} -- python train.py",
    )


def _say_place(answer: Answer, found: Found, base: Job | None, *, only: bool) -> None:
    """Which layout is the first that a program can do, and what it costs."""
    from hpc_kit.planner.search import shown

    best, plan = answer.plans[0], found.plan
    own = base.command[1] if base is not None and only else ""
    none = f"{own} cannot do" if own else "no program of jobs/train can do"
    first = "the first that it can do" if own else "the first that one of them can do"
    more = plan.time.total / best.time.total - 1
    click.echo(
        f"{none} the first layout, {shown(best.run)};\n"
        f"{first} is number {found.place} of {len(answer.plans)}, "
        f"{shown(plan.run)}: {plan.time.total:.4g} s a step, {more:.1%} more",
        err=True,
    )
