"""Which program of jobs/train can do a layout, and what its command says for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, structs

from hpc_kit.planner.layout import Run
from hpc_kit.planner.search import Plan
from hpc_kit.spec import load
from hpc_kit.spec.job import Job, Program
from hpc_kit.spec.program_options import RunProgram, can_split, find_program

BASES = ("ddp_1node", "zero1_2node", "zero2_2node", "context_1node", "hybrid_3d_4node")
"""Jobs whose programs are asked, the plainest first."""


class Found(Struct, frozen=True):
    """A plan that a shipped program can do.

    Attributes:
        name: The shipped job.
        base: That job, with what the plan asks of its program in its command.
        place: Which of the plans it is, from 1.
    """

    plan: Plan
    name: str
    base: Job
    place: int


def first(plans: Iterable[Plan], root: Path, own: Job | None = None, *, only: bool = False) -> Found | None:
    """The first of the plans that a shipped program can do; None where there is none.

    Args:
        plans: In order.
        root: The user's project, whose programs come before the shipped ones.
        own: A job that is asked first, where it starts one of their programs on nodes of one kind.
        only: The job that is asked, whatever it starts; no other is.
    """
    shipped = {name: load.load_job(name, root=root) for name in BASES}
    bases = {own.name: own} if own is not None else {}
    if not only:
        ours = {base.command[1] for base in shipped.values()}
        bases = {name: base for name, base in bases.items() if ours & {*base.command} and not base.component}
        bases |= {name: base for name, base in shipped.items() if name not in bases}
    known = {name: find(base, root).program for name, base in bases.items()}
    for place, plan in enumerate(plans, start=1):
        for name, base in bases.items():
            program = known[name]
            if program and (words := said(plan.run, program)) is not None:
                return Found(plan, name, structs.replace(base, command=(*base.command, *words)), place)
    return None


def find(base: Job, root: Path) -> RunProgram:
    """Returns the program of a job with its description."""
    return find_program(base.command, base.program, root, root)


def steps(base: Job, root: Path) -> int | None:
    """Returns the number of steps that a job trains; None if it is not known."""
    run = find(base, root)
    given = run.values.get("steps", "")
    if given.isdecimal() or run.program is None:
        return int(given) if given.isdecimal() else None
    return run.program.defaults.get("steps")


def said(run: Run, program: Program) -> tuple[str, ...] | None:
    """Returns the options with which a program uses a layout; None if it cannot."""
    if run.precision in {"fp16", "fp8"} or run.recompute == "selective":
        return None  # none of them does
    degrees = {"dp": run.dp, "tp": run.tp, "pp": run.pp, "cp": run.cp, "zero": run.zero_stage}
    wanted: dict[str, tuple[bool, tuple[str, ...]]] = {
        "bf16": (run.machine.gpu.generation != "cpu", ()),
        "recompute": (run.recompute == "full", ()),
        "sequence_parallel": (run.sequence_parallel, ()),
        "schedule": (run.virtual_stages > 1, ("Interleaved1F1B",)),
        "stages_per_rank": (run.virtual_stages > 1, (str(run.virtual_stages),)),
        "accumulate": (run.micro_batches > 1 and "micro_batches" not in program.names, (str(run.micro_batches),)),
    }
    asked = {name: value for name, (is_so, value) in wanted.items() if is_so}
    if not can_split(program, degrees) or not asked.keys() <= program.names:
        return None
    return tuple(word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", *value))
