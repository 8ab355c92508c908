"""Runs for tests: a model on a machine, one change at a time."""

from __future__ import annotations

from typing import Any

from hpc_kit.planner import hardware, model_catalogue
from hpc_kit.planner.constants import Constants, constants_for
from hpc_kit.planner.layout import TrainingLayout
from hpc_kit.planner.search import PlanningTask
from hpc_kit.planner.step_time import step_time


def fitted(machine: str = "dgx-a100", framework: str = "torch") -> Constants:
    there = hardware.find_machine(machine)
    return constants_for(framework, there.gpu.generation, there.fabric)


def run(model: str = "gpt3-175b", machine: str = "dgx-a100", **other: Any) -> TrainingLayout:
    chosen = model_catalogue.model_by_name(model)
    return TrainingLayout(
        model=chosen, machine=hardware.find_machine(machine), **{"seq_len": chosen.seq_len, "global_batch": 8, **other}
    )


def task(model: str = "llama3-8b", machine: str = "dgx-h100", gpus: int = 32, global_batch: int = 1024) -> PlanningTask:
    chosen = model_catalogue.model_by_name(model)
    there = hardware.find_machine(machine)
    return PlanningTask(model=chosen, machine=there, gpus=gpus, global_batch=global_batch, seq_len=chosen.seq_len)


def rate(one: TrainingLayout, machine: str = "dgx-a100", framework: str = "torch") -> float:
    """Model operations a second a GPU."""
    work = one.model.flops(one.global_batch * one.seq_len, one.seq_len)
    return work / step_time(one, fitted(machine, framework)).total / one.gpus
