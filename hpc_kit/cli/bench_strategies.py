"""`hpc-kit bench strategies`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, carry_out, names

if TYPE_CHECKING:
    from pathlib import Path


@click.command("strategies")
@click.option("--only", callback=names, default="all", show_default=True, metavar="NAME,...", help="ddp,zero3,pipeline")
@click.option("--ranks", type=click.IntRange(1), help="[default: 4, or those of the job]")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--layers", type=click.IntRange(1), default=8, show_default=True, help="Of the model.")
@click.option("--width", type=click.IntRange(1), default=128, show_default=True, help="Of the model.")
@click.option("--heads", type=click.IntRange(1), default=8, show_default=True, help="Of the model.")
@click.option("--global-batch", type=click.IntRange(1), default=64, show_default=True)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one training.")
@bench_options
def command(only: tuple[str, ...], ranks: int | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """Every way of splitting the training, on the same model, batch and ranks: speed, memory, communication.

    Below it the table of what to choose, beside the order that was measured.

    Exit status 1 where a rank failed, 2 where the ranks do not divide the model or do not fit into memory.
    """
    from hpc_kit.bench import strategies
    from hpc_kit.bench.local_ranks import chosen

    wanted = {} if only == ("all",) else {"strategies": only}
    question = strategies.Question(**wanted, **asked, ranks=chosen(ranks, 4))  # type: ignore[arg-type]
    strategies.refuse(question)
    return carry_out(
        "strategies",
        strategies.TITLE,
        strategies.COLUMNS,
        question._asdict(),
        lambda sheet: strategies.measure(question, sheet),
        out=out,
        as_json=as_json,
    )
