"""Times of steps over several ranks, and the speed in the summary of a training."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hpc_kit.runtime import Group, resolve
from hpc_kit.runtime.step_timer import StepTimer, combine_ranks, spaced
from hpc_kit.runtime.training_report import quantile, report_training, speed_of


def test_the_shortest_wait_is_transfer_and_the_rest_is_waiting_for_slower_ranks() -> None:
    # Rank 1 is 3 s late: it waits for the transfer alone. Rank 0 waits for the transfer and for rank 1.
    on_time, late = [8.0, 4.0, 0.5], [8.0, 1.0, 0.0]
    times = combine_ranks(torch.tensor([[on_time], [late]], dtype=torch.float64))
    assert (times.seconds, times.data) == ([8.0], [0.25])
    assert (times.transfer, times.waiting) == ([1.0], [1.5])
    assert (times.communication, times.imbalance) == (1 / 8, 1.5 / 8)
    rank, later = times.slowest_rank()
    assert rank == 1
    assert later == pytest.approx(7 / 5.5 - 1)


def test_speed_is_tokens_of_all_ranks_per_second_without_the_first_step() -> None:
    assert speed_of([9.0, 2.0, 2.0], tokens=10) == 5.0
    assert speed_of([2.0], tokens=10) == 5.0
    assert [spaced(number) for number in (21384.2, 987.6)] == ["21 400", "988"]


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.25, 0.95, 1.0)] == [1.0, 1.0, 4.0, 4.0]


def test_the_slowest_host_is_that_of_the_rank_also_if_mpirun_uses_the_nodes_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    world = dataclasses.replace(resolve({}), hosts=("n1", "n2"))
    values = {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}
    group = Group(**values, backend="gloo", device=torch.device("cpu"))
    timer = StepTimer(group, None, is_measured=True)
    timer.times = combine_ranks(torch.tensor([[[2.0, 1.0, 0.5]]], dtype=torch.float64))
    lines: list[str] = []
    report_training(group, timer, lines.append, losses=[1.0], kept={}, tokens=1)
    assert lines[0].endswith("slowest: rank 0 on n2, +0%")
