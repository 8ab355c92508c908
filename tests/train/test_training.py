"""Timing of steps over several ranks, and the lines that rank 0 prints."""

from __future__ import annotations

import pytest
import torch

from training import combine_ranks


def test_the_shortest_wait_is_the_transfer_and_what_others_wait_beyond_it_is_waiting() -> None:
    # Rank 1 comes 3 s late: it waits for the transfer alone, rank 0 for it and for rank 1.
    on_time, late = [5.0, 1.0, 8.0, 4.0, 0.5], [3.0, 1.0, 8.0, 1.0, 0.0]
    steps = combine_ranks(torch.tensor([[on_time], [late]], dtype=torch.float64))
    assert (steps.losses, steps.seconds, steps.data) == ([4.0], [8.0], [0.25])
    assert (steps.transfer, steps.waiting) == ([1.0], [1.5])
    assert (steps.communication, steps.imbalance) == (1 / 8, 1.5 / 8)
    rank, later = steps.slowest_rank()
    assert rank == 1
    assert later == pytest.approx(7 / 5.5 - 1)


def test_only_ranks_that_see_a_loss_have_a_say_in_it() -> None:
    steps = combine_ranks(torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]], [[3.0, 1.0, 1.0, 0.0, 0.0]]], dtype=torch.float64))
    assert steps.losses == [3.0]
