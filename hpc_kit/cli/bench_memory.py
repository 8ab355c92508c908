"""`hpc-kit bench memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_kit.cli.bench_output import bench_options, carry_out, names

if TYPE_CHECKING:
    from pathlib import Path

_OFFLOAD = {"both": (False, True), "yes": (True,), "no": (False,)}


@click.command("memory")
@click.option("--ways", callback=names, default="ddp,zero1,zero2,zero3", show_default=True, metavar="NAME,...")
@click.option("--offload", type=click.Choice(tuple(_OFFLOAD)), default="both", show_default=True)
@click.option("--layers", type=click.IntRange(1), default=16, show_default=True, help="Square matrices, all alike.")
@click.option("--width", type=click.IntRange(1), default=512, show_default=True, help="Of each.")
@click.option("--rows", type=click.IntRange(1), default=8, show_default=True, help="Of a rank's batch.")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True)
@click.option("--ranks", type=click.IntRange(1), help="[default: 4, or those of the job]")
@bench_options
def command(offload: str, ranks: int | None, out: Path | None, as_json: bool, **asked: object) -> int:
    """Model states of a rank under DDP and ZeRO-1, -2, -3, against 16 P, 4 P + 12 P / d, 2 P + 14 P / d, 16 P / d.

    Exit status 1 where a rank failed, 2 where a way is none or the model does not fit into memory.
    """
    from hpc_kit.bench import model_memory
    from hpc_kit.bench.local_ranks import chosen

    question = model_memory.Question(**asked, offload=_OFFLOAD[offload], ranks=chosen(ranks, 4))  # type: ignore[arg-type]
    model_memory.refuse(question)
    return carry_out(
        "memory",
        model_memory.TITLE,
        model_memory.COLUMNS,
        question._asdict(),
        lambda sheet: model_memory.measure(question, sheet),
        out=out,
        as_json=as_json,
    )
