"""`hpc-kit plan --cases`: many runs of a file at once."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_kit.errors import SpecError

SHOWN = 3
"""Cases that a line names."""


def predict(cases: Path, output: Path) -> int:
    """Predict the runs of a file into another one; what was taken for granted goes to stderr.

    Raises:
        SpecError: It cannot be read, or both are one file.
    """
    from hpc_kit.planner import cases as batch
    from hpc_kit.planner.rows import case

    if output.exists() and cases.exists() and output.samefile(cases):
        raise SpecError(f"--output {output} is the file of --cases", remedy="--output predictions.csv")
    found = [batch.predict(case(row)) for row in batch.read(cases)]
    batch.write(output, found)
    without = [one for one in found if one.step_time is None]
    notes: dict[str, list[str]] = {}
    for one in found:
        for note in one.notes if one.step_time is not None else ():
            notes.setdefault(note, []).append(one.case_id)
    for one in without:
        click.echo(f"{one.case_id}: not predicted: {', '.join(one.notes)}", err=True)
    for note, ids in sorted(notes.items(), key=lambda pair: -len(pair[1])):
        click.echo(f"taken for granted in {len(ids)} of {len(found)} runs: {note}{_named(ids, len(found))}", err=True)
    click.echo(f"{len(found) - len(without)} of {len(found)} runs predicted: {output}")
    return 0


def _named(ids: list[str], runs: int) -> str:
    """The first cases of which something holds that does not hold of all."""
    if len(ids) == runs > 1:
        return ""
    return f" ({', '.join(ids[:SHOWN])}{', ...' if len(ids) > SHOWN else ''})"
