"""One rank of `hpc-kit bench strategies`: starts its rank of every program, one after the other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import distributed as dist

from hpc_kit.bench import rank_timing, training_runs
from hpc_kit.bench.recorder import measure_in_turns, recorder_of_rank
from hpc_kit.bench.results import Plot
from hpc_kit.bench.strategies import STRATEGIES, TITLE, StrategyOptions, command_for, judge_rules
from hpc_kit.errors import JobFailed
from hpc_kit.run_files import RUN_VARIABLE
from hpc_kit.runtime.process_group import distributed
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Recorder
    from hpc_kit.bench.training_runs import Summary
    from hpc_kit.runtime import Group

_STATES = ("parameters_mib", "gradients_mib", "optimizer_mib")


def main(arguments: Mapping[str, Any], recorder: Recorder) -> None:
    """Measure each strategy; rank 0 fills in the recorder."""
    options = StrategyOptions(**arguments)
    # Use gloo, because NCCL would occupy GPU memory that the programs need.
    with distributed(backend="gloo") as world:
        recorder, _ = recorder_of_rank(recorder, world)
        for column in ("tokens_per_second", "states", "communication"):
            recorder.add_plot(Plot(name=column, title=TITLE, kind="bars", x="strategy", y=(column,)))
        arguments_of = _program_arguments(options, world, recorder)
        recorder.expect_rows(len(arguments_of) * options.repeats)
        summaries: dict[str, list[Summary]] = defaultdict(list)

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


def _program_arguments(options: StrategyOptions, world: Group, recorder: Recorder) -> dict[str, list[str]]:
    """Return the arguments of each strategy that can use these ranks; rank 0 notes the rest."""
    arguments_of = {}
    for name in options.strategies:
        arguments = command_for(name, options, world.world_size)
        if arguments is not None:
            arguments_of[name] = arguments
        else:
            recorder.add_note(f"{name}: not with {world.world_size} ranks.")
    return arguments_of


@contextmanager
def _shared_folder(world: Group) -> Iterator[Path]:
    """Create a folder for a training's files that all ranks see: in a job, inside the run folder."""
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


def _add_strategy_row(recorder: Recorder, name: str, world: Group, summaries: list[Summary]) -> None:
    values, last = training_runs.summary_values(summaries), summaries[-1]
    # Bytes are the same in every repeat. The keys have MiB, the columns bytes.
    if last.keys() >= set(_STATES):
        values["states"] = sum(float(last[key]) for key in _STATES) * 2**20
    recorder.add_row({"strategy": name, "ranks": STRATEGIES[name].ranks or world.world_size}, **values)


def _add_judgements(recorder: Recorder, speeds: Mapping[str, Sequence[float]]) -> None:
    """Add the table of recommendations beside the measured order."""
    for rule in judge_rules(speeds):
        recorder.add_row(
            {
                "case": rule.situation,
                "order of the table": ", ".join(rule.strategies),
                "measured": ", ".join(rule.compared.order),
                "agrees": rule.compared.verdict,
            }
        )
        if rule.compared.reversed_pairs:
            pairs = "; ".join(f"{faster} before {slower}" for faster, slower in rule.compared.reversed_pairs)
            recorder.add_note(f"{rule.situation}: the measured order differs: {pairs}.")
