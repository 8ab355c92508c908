"""Job ids, taken apart."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.job_id import base_id, element, is_one, order


@pytest.mark.parametrize(
    ("job_id", "base", "index", "one", "number"),
    [
        ("12", "12", "", True, (12, 0)),
        ("12_3", "12", "3", True, (12, 3)),
        ("12+1", "12", "", True, (12, 1)),
        ("12_[4-9%2]", "12", "[4-9%2]", False, (12, 0)),
        ("12.batch", "12", "", False, (0, 0)),
        ("12_3.0", "12", "3", False, (12, 0)),
        ("x_1", "x_1", "", False, (0, 1)),
    ],
)
def test_an_id_and_its_parts(job_id: str, base: str, index: str, one: bool, number: tuple[int, int]) -> None:
    assert (base_id(job_id), element(job_id), is_one(job_id), order(job_id)) == (base, index, one, number)
