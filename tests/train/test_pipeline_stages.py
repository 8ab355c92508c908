from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, ScheduleZBVZeroBubble

from pipeline_stages import BubbleClock, idle_share, number_stages, split_layers


@given(costs=st.lists(st.integers(1, 9), min_size=1, max_size=8), parts=st.integers(1, 8))
def test_layers_stay_in_order_and_the_most_expensive_part_is_minimal(costs: list[int], parts: int) -> None:
    parts = min(parts, len(costs))
    found = split_layers([float(each) for each in costs], parts)
    assert [layer for part in found for layer in part] == list(range(len(costs)))
    assert len(found) == parts
    assert all(found)
    assert max(sum(costs[layer] for layer in part) for part in found) == cheapest(costs, parts)


def cheapest(costs: list[int], parts: int) -> int:
    """Over all cuts."""
    if parts == 1:
        return sum(costs)
    ends = range(1, len(costs) - parts + 2)
    return min(max(sum(costs[:end]), cheapest(costs[end:], parts - 1)) for end in ends)


def test_the_ends_with_embeddings_and_head_get_fewer_layers() -> None:
    assert split_layers([3, 1, 1, 1, 2], 3) == [range(1), range(1, 3), range(3, 5)]


@pytest.mark.parametrize("each", [1, 2, 3])
def test_every_stage_is_on_one_rank(each: int) -> None:
    stages = [stage for rank in range(4) for stage in number_stages(ScheduleInterleaved1F1B, rank, 4, each)]
    assert sorted(stages) == list(range(4 * each))


def test_a_v_schedule_returns_to_the_first_rank() -> None:
    assert [number_stages(ScheduleZBVZeroBubble, rank, 3, 2) for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]


@pytest.mark.parametrize(("ranks", "micro", "each", "idle"), [(1, 4, 1, 0), (4, 4, 1, 3 / 7), (2, 8, 2, 1 / 17)])
def test_the_idle_share_agrees_with_the_papers(ranks: int, micro: int, each: int, idle: float) -> None:
    assert idle_share(ranks, micro, each) == pytest.approx(idle)


def test_the_bubble_is_what_the_passes_leave_of_the_steps_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda total: None)
    times = iter([0.0, 0.0, 9.0, 10.0, 20.0, 20.0, 21.0, 22.0, 24.0, 24.0])
    clock = BubbleClock(torch.device("cpu"))
    monkeypatch.setattr(clock, "mark", lambda: next(times))
    for passes in (1, 2):  # 10 s with a pass of 9 s, then 4 s with passes of 1 s and 2 s
        with clock.measure_step():
            for _ in range(passes):
                with clock.measure_pass():
                    pass
    assert clock.idle_share() == pytest.approx(1 / 4)
