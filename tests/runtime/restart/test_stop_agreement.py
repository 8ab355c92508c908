"""The steps between two agreements follow from the duration of a step."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from hpc_kit.runtime.restart.stop_signal import StopAgreement


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("seconds", [0.001, 0.1, 0.3, 3.0])
def test_a_training_stops_at_most_a_second_or_a_step_late(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for requested_at in range(30, 60):
        agreement = StopAgreement()
        for step in range(200):
            clock.now += seconds
            if agreement.is_stop(step + 1, step >= requested_at):
                break
        assert step >= requested_at
        assert (step - requested_at) * seconds <= max(1.0, seconds) + 1e-6


def test_the_ranks_send_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, agreement, sent = Clock(monkeypatch), StopAgreement(), list[float]()
    tensor = torch.tensor

    def note(*arguments: Any, **named: Any) -> torch.Tensor:
        sent.append(clock.now)
        return tensor(*arguments, **named)

    monkeypatch.setattr(torch, "tensor", note)  # a message is a tensor
    for step in range(1000):
        clock.now += 0.1
        agreement.is_stop(step + 1, False)
    assert len(sent) <= 1000 / 9 + 3


def test_a_given_interval_is_kept() -> None:
    agreement = StopAgreement(every=4)
    assert [agreement.is_stop(done, True) for done in range(1, 9)] == [False, False, False, True] * 2
