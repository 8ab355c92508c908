"""`hpc-kit bench strategies`: all shipped ways to split a training, and the table of recommendations."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.bench import local_ranks, option_checks, training_runs
from hpc_kit.bench.recorder import Recorder, measure_in_turns, recorder_of_rank
from hpc_kit.bench.results import SIGNIFICANT_ERRORS, Column, Plot, median_error, summarize
from hpc_kit.errors import JobFailed
from hpc_kit.planner import advice
from hpc_kit.run_files import RUN_VARIABLE
from hpc_kit.runtime.process_group import distributed
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

TITLE = "Ways of splitting the training, side by side"
COLUMNS = {
    "tokens_per_second": Column(unit="1/s", better="higher"),
    "step": Column(unit="s"),
    "states": Column(unit="B", title="parameters, gradients, optimizer of a rank", kind="counted"),
    "memory": Column(unit="B", title="memory of a rank"),
    "communication": Column(unit="%"),
    "waiting": Column(unit="%"),
}

_STATES = ("parameters_mib", "gradients_mib", "optimizer_mib")
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
        option_checks.check_several_ranks(self.ranks, "nothing is split over one rank")
        for name, number in (("layers", self.layers), ("heads", self.heads), ("global-batch", self.global_batch)):
            option_checks.check_divides(self.ranks, name, number)
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


def judge_rules(speeds: Mapping[str, Sequence[float]]) -> list[tuple[advice.AdviceRule, advice.ComparedOrder]]:
    """Compare each rule with the tokens per second of at least two of its strategies."""
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
            known = rule._replace(strategies=measured)
            found.append((known, advice.compare_order(known, seconds, are_equal)))
    return found


def main(arguments: Mapping[str, Any], recorder: Recorder) -> None:
    """Measure each strategy as one of the ranks; rank 0 fills in the recorder.

    Each rank starts its rank of every program, one after the other.
    """
    options = StrategyOptions(**arguments)
    # Use gloo, because NCCL would occupy GPU memory that the programs need.
    with distributed(backend="gloo") as world:
        recorder, _ = recorder_of_rank(recorder, world)
        for column in ("tokens_per_second", "states", "communication"):
            recorder.add_plot(Plot(name=column, title=TITLE, kind="bars", x="strategy", y=(column,)))
        commands = {name: command_for(name, options, world.world_size) for name in options.strategies}
        arguments_of = {name: arguments for name, arguments in commands.items() if arguments is not None}
        for name in [name for name in commands if name not in arguments_of]:
            recorder.add_note(f"{name}: not with {world.world_size} ranks.")
        recorder.expect_rows(len(arguments_of) * options.repeats)
        summaries: dict[str, list[training_runs.Summary]] = defaultdict(list)

        def measure(name: str) -> None:
            with _shared_folder(world) as folder:
                # All ranks get the fault, so all of them skip the further repeats.
                if fault := run_strategy(name, arguments_of[name], world, folder, options.timeout):
                    raise JobFailed(fault)
                if world.is_main:
                    summaries[name].append(training_runs.read_summary(folder))
                    _add_strategy_row(recorder, name, world, summaries[name])

        measure_in_turns(recorder, arguments_of, options.repeats, measure)
        if world.is_main:
            _add_judgements(
                recorder,
                {name: training_runs.summary_values(own)["tokens_per_second"] for name, own in summaries.items()},
            )


@contextmanager
def _shared_folder(world: Group) -> Iterator[Path]:
    """Create a folder for a training's files that all ranks see: in a job, inside the run folder."""
    from torch import distributed as dist

    from hpc_kit.bench import rank_timing

    made = tempfile.mkdtemp(dir=os.environ.get(RUN_VARIABLE), prefix="bench-") if world.is_main else ""
    folder = Path(rank_timing.broadcast_value(made, world))
    try:
        yield folder
    finally:
        dist.barrier()
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)


def run_strategy(name: str, arguments: list[str], world: Group, folder: Path, timeout: float) -> str:
    """Run this rank of the program to its end; return the first failure of any rank, on every rank."""
    from torch import distributed as dist

    from hpc_kit.bench import rank_timing

    ranks = STRATEGIES[name].ranks or world.world_size
    # The port of this measurement is in use, so each training gets a free one of rank 0's host.
    address = (os.environ["MASTER_ADDR"], network.free_port(everywhere=True)) if world.is_main else ("", 0)
    master = rank_timing.broadcast_value(address, world)
    fault = None
    if world.rank < ranks:
        local = (world.local_rank, min(world.local_world_size, ranks))
        environ = training_runs.program_environment(folder)
        environ |= training_runs.torch_variables_of_rank(world.rank, ranks, local, master)
        argv = training_runs.training_command(STRATEGIES[name].program, *arguments)
        fault = training_runs.run_program(argv, environ, timeout)
    faults: list[str | None] = [None] * world.world_size
    dist.all_gather_object(faults, fault)
    return next((f"rank {rank}: {fault}" for rank, fault in enumerate(faults) if fault), "")


def _add_strategy_row(recorder: Recorder, name: str, world: Group, summaries: list[training_runs.Summary]) -> None:
    values, last = training_runs.summary_values(summaries), summaries[-1]
    # Bytes are the same in every repeat. The keys have MiB, the columns bytes.
    if last.keys() >= set(_STATES):
        values["states"] = sum(float(last[key]) for key in _STATES) * 2**20
    recorder.add_row({"strategy": name, "ranks": STRATEGIES[name].ranks or world.world_size}, **values)


def _add_judgements(recorder: Recorder, speeds: Mapping[str, Sequence[float]]) -> None:
    """Add the table of recommendations beside the measured order."""
    for rule, compared in judge_rules(speeds):
        recorder.add_row(
            {
                "case": rule.situation,
                "order of the table": ", ".join(rule.strategies),
                "measured": ", ".join(compared.order),
                "agrees": compared.verdict,
            }
        )
        if compared.reversed_pairs:
            pairs = "; ".join(f"{faster} before {slower}" for faster, slower in compared.reversed_pairs)
            recorder.add_note(f"{rule.situation}: the measured order differs: {pairs}.")
