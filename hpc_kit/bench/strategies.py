"""Options of `hpc-kit bench strategies`: all shipped ways to split a training, and the table of recommendations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.bench import local_ranks, option_checks
from hpc_kit.bench.results import SIGNIFICANT_ERRORS, Column, median_error, summarize
from hpc_kit.errors import SpecError
from hpc_kit.planner import advice

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Recorder

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
"""Memory of a torch rank with such a small model."""


class Strategy(NamedTuple):
    """A training program with its arguments."""

    program: str
    words: str
    ranks: int | None = None
    """Number of ranks it needs; None: all."""
    multiple: int = 1
    """The number of ranks must be a multiple of this."""


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
"""Strategies by the name of their job, without the number of nodes."""


REPRESENTATIVES = {"DDP": "ddp", "ZeRO": "zero3", "PP": "pipeline", "TP": "tensor", "PP + TP + DP": "hybrid_3d"}
"""The measured strategy of each kind in the rules of `hpc_kit.planner.advice`."""
RULES = {
    advice.FITS: REPRESENTATIVES,
    advice.ONE_NODE: REPRESENTATIVES,
    advice.FAST_LINKS: REPRESENTATIVES,
    advice.SLOW_LINKS: {**REPRESENTATIVES, "PP + TP + DP": "hybrid_3d_zero1"},
}


class StrategyOptions(NamedTuple):
    """Options of `bench strategies`."""

    strategies: tuple[str, ...] = tuple(STRATEGIES)
    ranks: int = 4
    steps: int = 20
    repeats: int = 3
    layers: int = 8
    width: int = 128
    """Of the model."""
    heads: int = 8
    global_batch: int = 64
    timeout: float = 600.0
    """Time limit of one run, in seconds."""

    def check(self) -> None:
        """Check the options before anything is measured.

        Raises:
            SpecError: A strategy is unknown, the model cannot be cut, or memory is too small.
        """
        option_checks.check_known_names("strategy", self.strategies, STRATEGIES)
        if self.ranks < 2:
            raise SpecError("nothing is split over one rank", found=f"--ranks {self.ranks}", remedy="--ranks 4")
        for name, number in (("layers", self.layers), ("heads", self.heads), ("global-batch", self.global_batch)):
            if number % self.ranks:
                raise SpecError(
                    f"the ranks do not divide the {name}",
                    found=f"--{name} {number}, --ranks {self.ranks}",
                    remedy=f"--{name} {self.ranks * (number // self.ranks + 1)}",
                )
        here = local_ranks.ranks_on_this_host(self.ranks)
        option_checks.check_memory(2 * here * _PROCESS_BYTES, f"{here} ranks of this host", "fewer ranks a host")


def command_for(name: str, options: StrategyOptions, world_size: int) -> list[str] | None:
    """Return the arguments of the program; None if the strategy cannot use this number of ranks."""
    strategy = STRATEGIES[name]
    if world_size < (strategy.ranks or 2) or world_size % strategy.multiple:
        return None
    model = f"--layers {options.layers} --width {options.width} --heads {options.heads} --steps {options.steps}"
    # One rank is the parameter server; all remaining ranks share the batch.
    workers = max(1, world_size - 1)
    own = strategy.words.format(async_batch=max(1, options.global_batch // workers) * workers)
    # The evaluation is not measured, so one batch is enough.
    return f"{model} --global-batch {options.global_batch} --eval-windows {options.global_batch} {own}".split()


def measure_strategies(options: StrategyOptions, recorder: Recorder) -> None:
    """Measure one row for each strategy; note strategies that fail or cannot use these ranks.

    Raises:
        JobFailed: A rank of the measurement itself failed.
    """
    each = options.timeout + 60
    limit = each * len(options.strategies) * options.repeats
    local_ranks.run_ranks(
        "hpc_kit.bench.strategies_rank", options._asdict(), recorder, ranks=options.ranks, timeout=limit
    )


class JudgedRule(NamedTuple):
    """A rule with its measured strategies, and their measured order."""

    situation: str
    strategies: tuple[str, ...]
    compared: advice.ComparedOrder


def judge_rules(speeds: Mapping[str, Sequence[float]]) -> list[JudgedRule]:
    """Compare each rule with the measured speeds of at least two of its strategies.

    Args:
        speeds: Tokens per second of each repeat, by strategy.
    """
    medians = {name: summarize(repeats) for name, repeats in speeds.items()}
    seconds = {name: 1 / speed for name, (speed, _) in medians.items()}

    def are_equal(one: str, other: str) -> bool:
        (first, spread), (second, other_spread) = medians[one], medians[other]
        errors = median_error(spread), median_error(other_spread)
        return None in errors or abs(first - second) <= SIGNIFICANT_ERRORS * math.hypot(*filter(None, errors))

    found = []
    for rule, names in RULES.items():
        measured = tuple(name for kind in rule.strategies if (name := names[kind]) in speeds)
        if len(measured) > 1:
            compared = advice.compare_order(rule._replace(strategies=measured), seconds, are_equal)
            found.append(JudgedRule(rule.situation, measured, compared))
    return found
