from __future__ import annotations

import pytest

from training import Curve, compare_curves


def test_both_curves_are_compared_at_the_loss_that_both_reached() -> None:
    curves = {
        "synchronous": Curve([5.0, 4.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0]),
        "asynchronous": Curve([5.0, 4.5, 4.0, 3.0], [0.5, 1.0, 1.5, 2.0], staleness=2.0),
    }
    lines, facts = compare_curves(curves, 2)
    assert lines == [
        "synchronous    loss 3.50 after 3 steps, 3.0 s; a gradient 0.0 updates late",
        "asynchronous   loss 3.50 after 4 steps, 2.0 s; a gradient 2.0 updates late",
    ]
    assert facts["loss_reached"] == 3.5
    assert (facts["synchronous_steps"], facts["asynchronous_seconds"]) == (3, 2.0)


def test_a_curve_of_updates_is_converted_to_steps() -> None:
    found = Curve([1.0, 3.0, 5.0, 7.0], [0.1, 0.2, 0.3, 0.4], 1.5).per_step(2)
    assert (found.losses, found.seconds, found.staleness) == ([2.0, 6.0], [0.2, 0.4], 1.5)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_curve_shorter_than_the_window_is_not_smoothed(steps: int) -> None:
    curve = Curve([4.0] * steps, [1.0] * steps)
    assert curve.smooth(5) == {steps: 4.0}
