"""One rank of `hpc-kit bench strategies`: it starts its rank of every program, one program after the other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import distributed as dist

from hpc_kit.bench import training_runs, turns
from hpc_kit.bench.hosts import hosts_of
from hpc_kit.bench.results import Plot
from hpc_kit.bench.strategies import STRATEGIES, TITLE, Question, verdicts, words
from hpc_kit.run_files import RUN_VARIABLE
from hpc_kit.runtime.process_group import distributed
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet
    from hpc_kit.bench.training_runs import Summary
    from hpc_kit.runtime import Group

_STATES = ("parameters_mib", "gradients_mib", "optimizer_mib")
_COLUMNS = (
    ("step", "step_time_median", 1.0),
    ("communication", "communication_share", 100.0),
    ("waiting", "waiting_share", 100.0),
)
"""Column, its key in a summary and how many of the one are the other; a parameter server has not all keys."""


def main(asked: Mapping[str, Any], sheet: Sheet) -> None:
    """Measure each strategy; rank 0 fills in the sheet."""
    question = Question(**asked)
    # gloo: a backend of the GPUs would hold memory there that the programs need.
    with distributed(backend="gloo") as world:
        hosts, _ = hosts_of(world)
        if world.is_main:
            sheet.hosts(hosts)
            for column in ("tokens_per_second", "states", "communication"):
                sheet.plot(Plot(name=column, title=TITLE, kind="bars", x="strategy", y=(column,)))
        lines = _lines(question, world, sheet)
        if world.is_main:
            sheet.expect(len(lines) * question.repeats)
        found: dict[str, list[Summary]] = {}
        # In turns, so that a machine whose speed drifts drifts for all of them.
        for turn in range(question.repeats):
            for name in list(lines):
                if world.is_main:
                    sheet.doing(f"{name}, {turn + 1} of {question.repeats}")
                with _folder(world) as folder:
                    fault = run(name, lines[name], world, folder, question.timeout)
                    if fault:
                        del lines[name]
                    if world.is_main:
                        _hear(sheet, name, world, fault or folder, found)
        if world.is_main:
            _conclude(sheet, {name: _speeds(summaries) for name, summaries in found.items()})


def _hear(sheet: Sheet, name: str, world: Group, ended: str | Path, found: dict[str, list[Summary]]) -> None:
    """Note the fault of a strategy, or add what is in its folder to its row."""
    if isinstance(ended, str):
        sheet.miss(name, ended)
        return
    found.setdefault(name, []).append(training_runs.summary(ended))
    _add(sheet, name, world, found[name])


def _lines(asked: Question, world: Group, sheet: Sheet) -> dict[str, list[str]]:
    """The command line of each strategy that can use these ranks; rank 0 notes the others."""
    lines = {}
    for name in asked.strategies:
        line = words(name, asked, world.world_size)
        if line is not None:
            lines[name] = line
        elif world.is_main:
            sheet.note(f"{name}: not with {world.world_size} ranks.")
    return lines


def _speeds(summaries: list[Summary]) -> list[float]:
    return [float(each["tokens_per_second"]) for each in summaries]


@contextmanager
def _folder(world: Group) -> Iterator[Path]:
    """For a training's files, seen by all ranks: in a job below its run folder."""
    made = tempfile.mkdtemp(dir=os.environ.get(RUN_VARIABLE), prefix="bench-") if world.is_main else ""
    folder = Path(turns.told(made, world))
    try:
        yield folder
    finally:
        dist.barrier()
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)


def run(name: str, line: list[str], world: Group, folder: Path, timeout: float) -> str:
    """Start this rank of the program and wait for its end; the first fault of any rank, on every rank."""
    number = STRATEGIES[name].ranks or world.world_size
    meeting = (os.environ["MASTER_ADDR"], network.free_port(everywhere=True)) if world.is_main else ("", 0)
    master = turns.told(meeting, world)
    fault = None
    if world.rank < number:
        local = (world.local_rank, min(world.local_world_size, number))
        variables: dict[str, Any] = training_runs.of_rank(world.rank, number, local, master)
        argv = training_runs.python(training_runs.training(STRATEGIES[name].program), *line)
        fault = training_runs.run(argv, training_runs.environment(folder, **variables), timeout)
    faults: list[str | None] = [None] * world.world_size
    dist.all_gather_object(faults, fault)
    return next((f"rank {rank}: {words_}" for rank, words_ in enumerate(faults) if words_), "")


def _add(sheet: Sheet, name: str, world: Group, summaries: list[Summary]) -> None:
    values: dict[str, Any] = {"tokens_per_second": _speeds(summaries)}
    last = summaries[-1]
    for column, key, unit in _COLUMNS:
        if key in last:
            values[column] = [unit * float(each[key]) for each in summaries]
    if last.keys() >= set(_STATES):
        values["states"] = sum(float(last[kind]) for kind in _STATES) * 2**20
    if "peak_memory_mib" in last:
        values["memory"] = float(last["peak_memory_mib"]) * 2**20
    sheet.add({"strategy": name, "ranks": STRATEGIES[name].ranks or world.world_size}, **values)


def _conclude(sheet: Sheet, speeds: Mapping[str, Sequence[float]]) -> None:
    """The table of what to choose beside the measured order."""
    for case, measured, agrees in verdicts(speeds):
        labels = {"case": case.case, "order of the table": ", ".join(case.order), "measured": ", ".join(measured)}
        sheet.add({**labels, "agrees": agrees})
