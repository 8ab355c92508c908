"""The job's layout, read inside the job."""

from __future__ import annotations

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.runtime.mesh import mesh_shape, read_layout


def test_the_degrees_of_the_job_are_read() -> None:
    assert read_layout({}) == {}
    assert read_layout({"HPC_KIT_LAYOUT": "pp=2 tp=4 zero=0"}) == {"pp": 2, "tp": 4, "zero": 0}


@pytest.mark.parametrize("text", ["pp", "pp=", "pp=x", "=2", "pp=-2", "pp=2,tp=2"])
def test_an_unreadable_layout_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=f"HPC_KIT_LAYOUT={text}"):
        read_layout({"HPC_KIT_LAYOUT": text})


@pytest.mark.parametrize(
    ("size", "degrees", "expected"),
    [
        (8, {}, [1, 8, 1, 1]),
        (8, {"pp": 2, "tp": 2}, [2, 2, 1, 2]),
        (8, {"dp": 4, "cp": 2}, [1, 4, 2, 1]),
    ],
)
def test_dp_gets_the_remaining_ranks(size: int, degrees: dict[str, int], expected: list[int]) -> None:
    assert mesh_shape(size, degrees) == dict(zip(("pp", "dp", "cp", "tp"), expected, strict=True))


def test_shards_are_a_separate_axis() -> None:
    assert mesh_shape(8, {"dp": 4, "dp_shard": 2, "tp": 2}) == {
        "pp": 1,
        "dp_replicate": 2,
        "dp_shard": 2,
        "cp": 1,
        "tp": 2,
    }


@pytest.mark.parametrize("degrees", [{"pp": 3}, {"tp": 16}, {"dp": 2}, {"dp_shard": 3}, {"tp": 0}, {"dp_shard": -1}])
def test_degrees_that_do_not_fill_the_world_are_refused(degrees: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="8 ranks"):
        mesh_shape(8, degrees)
