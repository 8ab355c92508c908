"""`hpc-kit bench memory`: the formulas, what is refused, the bytes that are counted, and ranks that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from hpc_kit.bench import model_memory, results
from hpc_kit.bench.model_memory_rank import MixedPrecisionAdamW, TrainedModel, count_bytes, storage_bytes
from hpc_kit.cli.bench import command
from hpc_kit.errors import SpecError
from hpc_kit.planner.memory import model_state_bytes

ASKED = model_memory.MemoryOptions()
STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@pytest.mark.parametrize("way", model_memory.FORMULAS)
def test_the_formulas_are_the_planner_s(way: str) -> None:
    assert model_memory.state_bytes(way, 1000, 8) == sum(model_state_bytes(1000, 8, STAGES[way]))


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (ASKED._replace(ways=("zero4",)), "unknown way 'zero4'"),
        (ASKED._replace(ranks=1), "no other rank to share with"),
        (ASKED._replace(ranks=32), "more ranks than layers"),
        (ASKED._replace(width=10**6), "does not fit into memory"),
    ],
)
def test_impossible_measurements_are_refused(asked: model_memory.MemoryOptions, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        asked.check()


def test_a_shared_storage_counts_once() -> None:
    whole = torch.zeros(10)
    assert storage_bytes([whole, whole[:3], torch.zeros(2, dtype=torch.bfloat16)]) == 44


def test_one_rank_uses_sixteen_bytes_per_parameter_and_learns() -> None:
    weight = (model := torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)).weight
    optimizer = MixedPrecisionAdamW(model.parameters(), lr=0.1)
    before = weight.detach().clone()
    model(torch.ones(2, 8, dtype=torch.bfloat16)).float().square().mean().backward()
    optimizer.step()
    found = count_bytes(TrainedModel(model, model, optimizer), torch.device("cpu"))
    assert (found.parameters, found.gradients, found.optimizer) == (2 * 64, 2 * 64, 12 * 64)
    assert found.total == found.on_device == 16 * 64
    assert not torch.equal(before, weight)
    (state,) = optimizer.state.values()
    assert torch.equal(state["master"].bfloat16(), weight)


@pytest.mark.slow
def test_four_ranks_use_the_memory_of_the_formulas(tmp_path: Path) -> None:
    words = ["--layers", "4", "--width", "32", "--steps", "1", "--ranks", "4", "--out", str(tmp_path)]
    done = CliRunner().invoke(command, ["memory", *words])
    assert done.exit_code == 0, done.output
    found = results.read_result(tmp_path / "bench_memory.json")
    assert [(row.labels["way"], row.labels["offload"]) for row in found.results] == [
        (way, offload) for offload in (False, True) for way in model_memory.FORMULAS
    ]
    assert [row.labels["formula"] for row in found.results[:4]] == [
        *map(model_memory.formula_text, model_memory.FORMULAS)
    ]
    for row in found.results:
        assert row.values["total"] == pytest.approx(row.values["expected"], rel=0.01), row.labels
    assert [plot.marks["zero1: 4 P + 12 P / d"] for plot in found.plots] == [4096 * 7]
    assert (tmp_path / "bench_memory-states.png").stat().st_size > 1000
    (zero3,) = (row for row in found.results if row.labels == {**found.results[3].labels})
    assert zero3.values["gathered"] >= 2 * 32**2 * 3 / 4
