"""The options of every program here, and the refusals that need no training to be known."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from data import Text, window_count
from hpc_kit.errors import SpecError
from hpc_kit.run_files import RUN_VARIABLE
from hpc_kit.runtime import mesh
from model import Config
from restart import own_checkpoint

T = TypeVar("T")


def count(text: str) -> int:
    """A whole number from 1."""
    if (value := int(text)) < 1:
        raise ValueError
    return value


def whole(text: str) -> int:
    """A whole number from 0."""
    if (value := int(text)) < 0:
        raise ValueError
    return value


def positive(text: str) -> float:
    """A number above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """One of these, in whatever case."""

    def read(text: str) -> str:
        for word in words:
            if word.lower() == text.lower():
                return word
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")

    return read


def among(*numbers: int) -> Callable[[str], int]:
    """One of these numbers."""

    def read(text: str) -> int:
        if text.isdigit() and int(text) in numbers:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(map(str, numbers))}")

    return read


def flag(text: str) -> bool:
    """Said or not."""
    return bool(text)


def option(default: T, read: Callable[[str], object], text: str) -> T:
    """A field that is an option too. Default and `among` are read from here before a job is submitted, too."""
    return field(default=default, metadata={"read": read, "help": text})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run is asked to do. A program that needs more adds fields in a class of its own."""

    steps: int = option(60, count, "optimiser steps")
    global_batch: int = option(64, count, "windows of text a step, over all ranks")
    accumulate: int = option(1, count, "passes a step; the gradients travel in the last one only")
    sequence: int = option(64, count, "bytes in a window")
    layers: int = option(4, count, "layers of the model")
    width: int = option(128, count, "width of the model")
    heads: int = option(4, count, "heads of its attention")
    lr: float = option(6e-3, positive, "learning rate, reached after the warm-up, then a cosine down to 0")
    warmup: int = option(10, whole, "steps of the warm-up")
    weight_decay: float = option(0.1, float, "AdamW's, for matrices")
    clip: float = option(1.0, positive, "largest norm of the gradients")
    seed: int = option(1, int, "of the first weights and of the order of the data")
    data: Path | None = option(None, Path, "folder of Python files to train on, not the standard library")
    bf16: bool = option(False, flag, "compute in bfloat16 (autocast); parameters and their gradients stay in float32")
    recompute: bool = option(False, flag, "keep a layer's input only, and compute the rest again in backward")
    compile: str = option("", str, "torch.compile each layer with this backend, such as inductor")
    eval_windows: int = option(256, count, "held-back windows of an evaluation, over all ranks")
    eval_every: int = option(0, whole, "steps between evaluations; 0: before and after only")
    log_every: int = option(10, count, "steps between lines")
    unwatched: bool = option(False, flag, "leave torch's wait() as it is: what ranks wait for is not measured")
    checkpoint: Path | None = option(None, Path, "folder to write; in a job: checkpoint of the run")
    checkpoint_every: int = option(0, whole, "steps between writing it; 0: at the end only")
    resume: Path | None = option(None, Path, "checkpoint to go on from")
    timeout: float | None = option(
        None, positive, "seconds that a rank waits for the others; not given: what the job says"
    )

    @classmethod
    def parse(cls, description: str | None, argv: Sequence[str] | None = None) -> Self:
        """Read the command line; wrong use ends the program with status 2, on every rank alike."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        told = mesh.of_environment(os.environ)
        for entry in fields(cls):
            add(parser, entry, told.pop(entry.name, None))
        if others := [name for name, degree in told.items() if splits(name, degree)]:
            listed = ", ".join(f"{name} {told[name]}" for name in others)
            parser.error(f"this program does not split by {listed}, which the job's [layout] says")
        options = cls(**vars(parser.parse_args(argv)))
        if options.width % options.heads:
            parser.error(f"--heads {options.heads} does not divide --width {options.width}")
        options = replace(options, checkpoint=options.checkpoint or checkpoint_of_run())
        if options.checkpoint_every and not options.checkpoint:
            parser.error("--checkpoint-every needs --checkpoint")
        return options.gone_on(parser)

    def gone_on(self, parser: argparse.ArgumentParser) -> Self:
        """With what these ranks wrote before they were started again as the checkpoint to go on from, if they did."""
        own = own_checkpoint(self.checkpoint, os.environ) if self.checkpoint else None
        if own is None:
            return self
        place, step = own
        if step >= self.steps:  # what was lost is the end of a training that was over
            first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
            parser.exit(0, f"{place} is at step {step} of {self.steps}: nothing is left to train\n" * first)
        return replace(self, resume=place)

    @property
    def asks_for_checkpoint(self) -> bool:
        """Whether somebody has said that one is to be written; a job's run has one without being asked."""
        return self.checkpoint not in {None, checkpoint_of_run()} or self.checkpoint_every > 0

    @property
    def model(self) -> Config:
        return Config(layers=self.layers, width=self.width, heads=self.heads, sequence=self.sequence)

    @property
    def passes(self) -> int:
        """Into how many parts a rank cuts its windows."""
        return self.accumulate


def add(parser: argparse.ArgumentParser, entry: Field[Any], told: object) -> None:
    """A field as an option; what the job says of it is its default, as if it stood on the command line."""
    name, text, read = f"--{entry.name.replace('_', '-')}", entry.metadata["help"], entry.metadata["read"]
    if read is flag:
        parser.add_argument(name, action="store_true", help=text)
        return
    default = entry.default if told is None else str(told)
    metavar = "PATH" if read is Path else "WORD" if isinstance(default, str) else "N"
    shown = text if default in {None, ""} else f"{text} [{default}]"
    parser.add_argument(name, type=read, default=default, metavar=metavar, help=shown)


def splits(name: str, degree: int) -> bool:
    """Whether a word of the job's layout asks for ranks that share something."""
    return degree > 0 if name == "zero" else name in mesh.DEGREES and degree > 1


def checkpoint_of_run() -> Path | None:
    """Where a job's own checkpoint goes."""
    run = os.environ.get(RUN_VARIABLE)
    return Path(run, "checkpoint") if run else None


def without(options: Options, *names: str) -> None:
    """Refuse options that the program does not heed.

    Raises:
        SpecError: one of them is said.
    """

    def is_said(name: str) -> bool:
        return options.asks_for_checkpoint if name == "checkpoint" else getattr(options, name) != getattr(Options, name)

    if said := [f"--{name.replace('_', '-')}" for name in names if is_said(name)]:
        raise SpecError("this program does not know how to do that", found=", ".join(said), remedy="ddp.py does")


def refuse(options: Options, text: Text, ranks: int) -> None:
    """What cannot work is refused before the first step; every rank computes the same answer.

    Raises:
        SpecError: the batch does not divide, or the text is too short.
    """
    passes = ranks * options.passes
    if options.global_batch % passes:
        lower = options.global_batch // passes * passes
        each = "--accumulate" if options.passes == options.accumulate else "--micro-batches"
        raise SpecError(
            "the global batch does not divide over the ranks",
            found=f"--global-batch {options.global_batch} / ({ranks} ranks * {each} {options.passes})",
            remedy=" or ".join(f"--global-batch {size}" for size in (lower, lower + passes) if size),
        )
    windows = window_count(text.training, options.sequence)
    if windows < options.global_batch:
        raise SpecError(
            "the text is shorter than one batch",
            found=f"{text}: {windows} windows of --sequence {options.sequence}\n--global-batch {options.global_batch}",
            remedy="a smaller --global-batch or --sequence, or --data with more text",
        )
    if not window_count(text.held_back, options.sequence):
        raise SpecError(
            "no text is held back for the evaluation",
            found=f"{text}, {text.held_back.numel()} of them held back; --sequence {options.sequence}",
            remedy="a smaller --sequence, or --data with more files",
        )
