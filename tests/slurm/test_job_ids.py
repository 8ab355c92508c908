"""Job ids, taken apart."""

from __future__ import annotations

import pytest

from hpc_kit.slurm.job_ids import array_index, base_id, is_single_job, parse_job_ids, sort_key


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
def test_an_id_is_split_into_its_parts(job_id: str, base: str, index: str, one: bool, number: tuple[int, int]) -> None:
    assert (base_id(job_id), array_index(job_id), is_single_job(job_id), sort_key(job_id)) == (base, index, one, number)


@pytest.mark.parametrize(
    ("word", "ids"),
    [
        ("12", ("12",)),
        ("12,13_1,14+2", ("12", "13_1", "14+2")),
        ("12_[3-5,8%2],13", ("12_3", "12_4", "12_5", "12_8", "13")),
        ("12_[5-3]", ("12_[5-3]",)),
        ("12,", ()),
        ("12.batch", ()),
        ("ddp_4", ()),
    ],
)
def test_ids_are_printed_as_slurm_prints_them(word: str, ids: tuple[str, ...]) -> None:
    assert parse_job_ids(word) == ids
