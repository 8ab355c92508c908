"""Every shipped way of splitting the training side by side, and the table of what to choose beside the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.bench import local_ranks as ranks
from hpc_kit.bench import room
from hpc_kit.bench.results import Column, Spread
from hpc_kit.bench.sample import SURE, summary, uncertainty
from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet

TITLE = "Ways of splitting the training, side by side"
COLUMNS = {
    "tokens_per_second": Column(unit="1/s", better="higher"),
    "step": Column(unit="s"),
    "states": Column(unit="B", title="parameters, gradients, optimizer of a rank", kind="counted"),
    "memory": Column(unit="B", title="memory of a rank"),
    "communication": Column(unit="%"),
    "waiting": Column(unit="%"),
}

_PROCESS_BYTES = 500 << 20
"""What a rank of torch takes with a model this small."""


class Strategy(NamedTuple):
    """A program, and its words for a number of ranks; None where it cannot use so many."""

    program: str
    words: str
    ranks: int | None = None
    """As many as it needs; None: all."""
    multiple: int = 1
    """What the ranks must be a multiple of."""


STRATEGIES: Mapping[str, Strategy] = {
    "single": Strategy("ddp.py", "", ranks=1),
    "dataparallel": Strategy("dataparallel.py", "", ranks=1),
    "ddp": Strategy("ddp.py", ""),
    "modelparallel": Strategy("modelparallel.py", "", ranks=2),
    "pipelined": Strategy("modelparallel.py", "--split-size 8", ranks=2),
    "pipeline": Strategy("pipeline.py", "--micro-batches 16"),
    "tensor": Strategy("tensor.py", ""),
    "context": Strategy("context.py", ""),
    "zero1": Strategy("zero1.py", ""),
    "zero2": Strategy("fsdp.py", "--zero 2"),
    "zero3": Strategy("fsdp.py", ""),
    "hsdp": Strategy("fsdp.py", "--dp-shard 2", multiple=2),
    "hybrid_pp_dp": Strategy("hybrid.py", "--pp 2 --micro-batches 4", multiple=2),
    "hybrid_tp_dp": Strategy("hybrid.py", "--tp 2", multiple=2),
    "hybrid_3d": Strategy("hybrid.py", "--pp 2 --tp 2 --micro-batches 4", multiple=4),
    "hybrid_3d_zero1": Strategy("hybrid.py", "--pp 2 --tp 2 --micro-batches 4 --zero 1", multiple=8),
    "async": Strategy("parameter_server.py", "--global-batch {async_batch}"),
}
"""By the names of their jobs, without what says on how many nodes."""


class Case(NamedTuple):
    """A line of the table of what to choose."""

    case: str
    order: tuple[str, ...]
    """The better the earlier; strategies that are here stand for their kind."""


TABLE = (
    Case("one node, the model fits: DDP before ZeRO", ("ddp", "zero3")),
    Case("one node, the model does not fit: PP, then ZeRO, then TP", ("pipeline", "zero3", "tensor")),
    Case("several nodes, fast links: ZeRO or PP + TP + DP", ("zero3", "hybrid_3d")),
    Case("several nodes, slow links, little memory: DP + PP + TP + ZeRO-1 before ZeRO", ("hybrid_3d_zero1", "zero3")),
)


class Question(NamedTuple):
    """What is to be measured."""

    strategies: tuple[str, ...] = tuple(STRATEGIES)
    ranks: int = 4
    steps: int = 20
    repeats: int = 3
    layers: int = 8
    width: int = 128
    heads: int = 8
    global_batch: int = 64
    timeout: float = 600.0
    """Seconds for one training."""


def words(name: str, asked: Question, world_size: int) -> list[str] | None:
    """The command line behind the program; None where the strategy cannot use these ranks."""
    strategy = STRATEGIES[name]
    if world_size < (strategy.ranks or 2) or world_size % strategy.multiple:
        return None
    model = f"--layers {asked.layers} --width {asked.width} --heads {asked.heads} --steps {asked.steps}"
    # Of the parameter server's ranks one holds the parameters, and the others share the batch.
    workers = max(1, world_size - 1)
    own = strategy.words.format(async_batch=max(1, asked.global_batch // workers) * workers)
    # An evaluation is no part of what is measured: one batch of it will do.
    return f"{model} --global-batch {asked.global_batch} --eval-windows {asked.global_batch} {own}".split()


def refuse(asked: Question) -> None:
    """Say what cannot be measured before anything is.

    Raises:
        SpecError: A strategy is none, the model cannot be cut, or the ranks do not fit into memory.
    """
    if unknown := [name for name in asked.strategies if name not in STRATEGIES]:
        raise SpecError(
            f"unknown strategy {unknown[0]!r}", found=",".join(asked.strategies), remedy=",".join(STRATEGIES)
        )
    if asked.ranks < 2:
        raise SpecError("nothing is split over one rank", found=f"--ranks {asked.ranks}", remedy="--ranks 4")
    for name, number in (("layers", asked.layers), ("heads", asked.heads), ("global-batch", asked.global_batch)):
        if number % asked.ranks:
            raise SpecError(
                f"the ranks do not divide the {name}",
                found=f"--{name} {number}, --ranks {asked.ranks}",
                remedy=f"--{name} {asked.ranks * (number // asked.ranks + 1)}",
            )
    here = ranks.on_this_host(asked.ranks)
    room.refuse_beyond(2 * here * _PROCESS_BYTES, f"{here} ranks of this host", "fewer ranks a host")


def measure(asked: Question, sheet: Sheet) -> None:
    """A row for each strategy; one that fails or cannot use these ranks is noted.

    Raises:
        SpecError: A strategy is none, the model cannot be cut, or the ranks do not fit into memory.
        JobFailed: A rank of the measurement itself failed.
    """
    refuse(asked)
    each = asked.timeout + 60
    limit = each * len(asked.strategies) * asked.repeats
    ranks.measure("hpc_kit.bench.strategies_rank", asked._asdict(), sheet, ranks=asked.ranks, timeout=limit)


def verdicts(speeds: Mapping[str, Sequence[float]]) -> list[tuple[Case, tuple[str, ...], str]]:
    """Each line of the table of which two strategies were measured, their measured order, and whether both agree.

    Args:
        speeds: Tokens a second of each repeat.
    """
    found = []
    medians = {name: summary(repeats) for name, repeats in speeds.items()}
    for case in TABLE:
        known = [name for name in case.order if name in speeds]
        if len(known) > 1:
            order = tuple(sorted(known, key=lambda name: -medians[name][0]))
            found.append((case._replace(order=tuple(known)), order, _agrees([medians[name] for name in known])))
    return found


def _agrees(medians: Sequence[tuple[float, Spread]]) -> str:
    """Whether each is quicker than those after it: yes, no, or that two are within their uncertainty."""
    doubtful = False
    for (one, its), (other, of_other) in combinations(medians, 2):
        errors = uncertainty(its), uncertainty(of_other)
        if None in errors or abs(one - other) <= SURE * math.hypot(*filter(None, errors)):
            doubtful = True
        elif one < other:
            return "no"
    return "cannot be told" if doubtful else "yes"
