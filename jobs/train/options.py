"""Options that every program has: from the command line, or else from [layout] and [model] of the job."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from model import Config

T = TypeVar("T")
DEGREES = ("pp", "dp_shard", "cp", "tp")
"""Degrees of parallelism that share something between ranks."""


def count(text: str) -> int:
    """Parse a whole number from 1."""
    if (value := int(text)) < 1:
        raise ValueError
    return value


def whole(text: str) -> int:
    """Parse a whole number from 0."""
    if (value := int(text)) < 0:
        raise ValueError
    return value


def positive(text: str) -> float:
    """Parse a number above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of these words, in upper or lower case."""

    def parse(text: str) -> str:
        for word in words:
            if word.lower() == text.lower():
                return word
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")

    return parse


def among(*numbers: int) -> Callable[[str], int]:
    """Return a parser of one of these numbers."""

    def parse(text: str) -> int:
        if text.isdigit() and int(text) in numbers:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(map(str, numbers))}")

    return parse


def flag(text: str) -> bool:
    """Marks an option without a value."""
    return bool(text)


def option(default: T, parse: Callable[[str], object], text: str) -> T:
    """Return a dataclass field that is also an option of the command line."""
    return field(default=default, metadata={"parse": parse, "help": text})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a training. A program with more options adds fields in a subclass, and names those that it lacks."""

    unsupported: ClassVar[tuple[str, ...]] = ()

    steps: int = option(60, count, "optimizer steps")
    global_batch: int = option(64, count, "windows of text per step, over all ranks")
    accumulate: int = option(1, count, "passes per step; the ranks exchange gradients in the last one only")
    sequence: int = option(64, count, "bytes in a window")
    layers: int = option(4, count, "layers of the model")
    width: int = option(128, count, "width of the model")
    heads: int = option(4, count, "attention heads")
    lr: float = option(6e-3, positive, "learning rate after the warm-up; a cosine then takes it to 0")
    warmup: int = option(10, whole, "steps of the warm-up")
    weight_decay: float = option(0.1, float, "weight decay of the matrices")
    clip: float = option(1.0, positive, "largest norm of the gradients")
    seed: int = option(1, int, "seed of the first parameters and of the order of the data")
    data: Path | None = option(None, Path, "folder of Python files to train on instead of the standard library")
    bf16: bool = option(False, flag, "compute in bfloat16; optimizer, sums of gradients and loss stay in float32")
    recompute: bool = option(False, flag, "keep only the input of each layer, and compute it again in backward")
    compile: str = option("", str, "torch.compile each layer with this backend, such as inductor")
    eval_windows: int = option(256, count, "held-back windows per evaluation, over all ranks")
    eval_every: int = option(0, whole, "steps between evaluations; 0: before and after the training only")
    log_every: int = option(10, count, "steps between lines")
    unwatched: bool = option(False, flag, "do not measure how long the ranks wait")
    profile: int = option(0, whole, "steps to record with torch.profiler, from the third step on")
    checkpoint: Path | None = option(None, Path, "folder to save in; in a job: checkpoint of the run")
    checkpoint_every: int = option(0, whole, "steps between saves; 0: at the end only")
    resume: Path | None = option(None, Path, "checkpoint to resume from")
    timeout: float | None = option(None, positive, "seconds before a collective fails; default: timeout of the job")

    @classmethod
    def parse(cls, description: str | None, argv: Sequence[str] | None = None) -> Self:
        """Read the command line. Wrong use ends the program with status 2, on every rank alike."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        layout = read_layout(parser)
        for entry in fields(cls):
            if entry.name not in cls.unsupported:
                add_argument(parser, entry, layout.pop(entry.name, None))
        unknown = [name for name in layout if name in DEGREES and layout[name] > 1]
        if unknown := [*unknown, *(["zero"] if layout.get("zero") else [])]:
            listed = ", ".join(f"{name} {layout[name]}" for name in unknown)
            parser.error(f"this program does not split by {listed}, which the job's [layout] asks for")
        options = cls(**vars(parser.parse_args(argv)))
        if options.width % options.heads:
            parser.error(f"--heads {options.heads} does not divide --width {options.width}")
        options = replace(options, checkpoint=options.checkpoint or checkpoint_of_run())
        if options.checkpoint_every and not options.checkpoint:
            parser.error("--checkpoint-every needs --checkpoint")
        return options

    @property
    def requests_checkpoint(self) -> bool:
        """True if the user asked for a checkpoint. Without asking, a job saves one in the folder of its run."""
        return self.checkpoint not in {None, checkpoint_of_run()} or self.checkpoint_every > 0

    @property
    def model(self) -> Config:
        return Config(layers=self.layers, width=self.width, heads=self.heads, sequence=self.sequence)

    @property
    def passes(self) -> int:
        """The number of parts in which a rank computes its share of the batch."""
        return self.accumulate


def read_layout(parser: argparse.ArgumentParser) -> dict[str, int]:
    """Return [layout] and [model] of the job file, which the script exports as `dp=2 pp=2 layers=8`."""
    text = os.environ.get("HPC_KIT_LAYOUT", "")
    try:
        return {name: int(number) for name, _, number in (word.partition("=") for word in text.split())}
    except ValueError:
        parser.error(f"HPC_KIT_LAYOUT cannot be read: {text}")


def add_argument(parser: argparse.ArgumentParser, entry: Field[Any], from_layout: int | None) -> None:
    """Add a field as an option; a value from the job's layout becomes its default."""
    name, text, parse = f"--{entry.name.replace('_', '-')}", entry.metadata["help"], entry.metadata["parse"]
    if parse is flag:
        parser.add_argument(name, action="store_true", help=text)
        return
    # argparse parses a default that is a string, so a wrong value of the layout is refused like one typed here.
    default = entry.default if from_layout is None else str(from_layout)
    metavar = "PATH" if parse is Path else "WORD" if isinstance(default, str) else "N"
    shown = text if default in {None, ""} else f"{text} [{default}]"
    parser.add_argument(name, type=parse, default=default, metavar=metavar, help=shown)


def checkpoint_of_run() -> Path | None:
    """Return the place of a job's own checkpoint."""
    run = os.environ.get("HPC_KIT_RUN")
    return Path(run, "checkpoint") if run else None
