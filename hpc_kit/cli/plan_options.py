"""The options of `hpc-kit plan`, each said once: its name, its type, and what it is for."""

# ruff: noqa: RUF009 - option() is field()

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from hpc_kit.errors import SpecError

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def option(*names: str, **words: Any) -> Any:
    """A field that is an option of the command line, in click's words."""
    return field(metadata={"names": names, "words": words})


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    model: str | None = option(
        "--model", metavar="MODEL", help="A name, the path of a config.json, or layers=32,hidden=4096,heads=32."
    )
    cluster: str | None = option(
        "--cluster", metavar="NAME", help="A cluster file, or a machine such as dgx-h100 [default: as submit]."
    )
    nodes: int | None = option("--nodes", type=click.IntRange(1, 100_000), help="Nodes [default: the job's, or 1].")
    global_batch: int | None = option(
        "--global-batch", type=click.IntRange(1), help="Sequences a step [default: the job's, or 1024]."
    )
    seq_len: int | None = option("--seq-len", type=click.IntRange(1), help="Tokens a sequence [default: the model's].")
    gpu: str | None = option(
        "--gpu", help="Kind of GPU in place of the cluster's, or NAME:memory=80,memory_tb=2,tflops=312,link=300."
    )
    gpus_per_node: int | None = option(
        "--gpus-per-node", type=click.IntRange(1, 1024), help="In place of the cluster's."
    )
    network: float | None = option(
        "--network", type=float, metavar="GBPS", help="Gb/s of network a GPU, in place of the cluster's."
    )
    framework: str | None = option(
        "--framework", help="Whose constants: torchtitan, megatron, nanotron ... [default: the job's, or torch]."
    )
    precision: str | None = option(
        "--precision",
        type=click.Choice(["bf16", "fp16", "fp8"]),
        help="Of the matrix products [default: the job's, or bf16].",
    )
    flash: bool | None = option(
        "--flash/--no-flash", default=None, help="Attention without an s x s matrix [default: the job's, or --flash]."
    )
    tokens: float | None = option("--tokens", type=float, help="Tokens to train on [default: 20 a parameter].")
    storage: float = option(
        "--storage", type=float, default=5.0, show_default=True, help="GB/s to which checkpoints are written."
    )
    top: int = option("--top", type=click.IntRange(1), default=8, show_default=True, help="Layouts to show.")
    explain: bool = option("--explain", is_flag=True, help="Every term of the first layout, with its formula.")
    write: Path | None = option(
        "--write", type=FILE, metavar="FILE", help="The first layout, or one that surely fits, as a job."
    )
    plot: Path | None = option("--plot", type=FILE, metavar="FILE", help="Time and memory of the layouts as a picture.")
    as_json: bool = option("--json", is_flag=True, help="Everything as a JSON object.")
    cases: Path | None = option("--cases", type=FILE, metavar="CSV", help="Predict the runs of this file ...")
    output: Path | None = option("--output", type=FILE, metavar="CSV", help="... into this one.")
    measured: Path | None = option("--measured", type=FILE, metavar="FILE", help="Measured numbers of the cluster.")
    comm: Path | None = option("--comm", type=FILE, metavar="FILE", help="calibrate: results of bench comm --json.")


def options(function: F) -> F:
    """Give a command all of them; it is called with their values by name."""
    for each in reversed(fields(Options)):
        names, words = each.metadata["names"], each.metadata["words"]
        function = click.option(*names, each.name, **words)(function)
    return function


BATCH = frozenset({"cases", "output"})
CALIBRATION = frozenset({"cluster", "measured", "comm"})


def refuse_others(way: str, known: frozenset[str]) -> None:
    """Refuse the options on the command line that mean nothing for one way of planning.

    Raises:
        SpecError: There are some.
    """
    context = click.get_current_context()
    given = [
        each.metadata["names"][0].partition("/")[0]
        for each in fields(Options)
        if each.name not in known and context.get_parameter_source(each.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if context.meta.get("program"):
        given.append("a program behind --")
    if given:
        own = [each.metadata["names"][0] for each in fields(Options) if each.name in known]
        raise SpecError(f"{way} does not take {', '.join(given)}", remedy=f"it takes {', '.join(own)}")
