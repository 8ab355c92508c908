"""`hpc-kit bench pipeline`: what is refused, the network, the ideal, and two ranks that measure."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from hpc_kit.bench import pipeline, pipeline_rank, rank_timing, resnet_halves, results
from hpc_kit.bench.plots import PlotData, plot_curves
from hpc_kit.bench.recorder import FileRecorder
from hpc_kit.cli.bench import command
from hpc_kit.errors import SpecError

ASKED = pipeline.PipelineOptions()


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (ASKED._replace(sweeps=("split",)), "unknown sweep 'split'"),
        (ASKED._replace(ranks=1), "a pipeline needs two ranks"),
        (ASKED._replace(ranks=4), "fewer micro-batches than stages"),
        (ASKED._replace(ranks=4, sweeps=("splits",)), "two halves need two ranks"),
        (ASKED._replace(image=32), "too small for ResNet-50"),
        (ASKED._replace(batch=40), "larger than the batch"),
        (ASKED._replace(batch=10**9), "does not fit into memory"),
    ],
)
def test_impossible_measurements_are_refused(asked: pipeline.PipelineOptions, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        asked.check()


def test_numbers_on_the_command_line_are_read() -> None:
    for words, fault in (
        (["--splits", "1,x"], "'x' is not a positive number"),
        (["--sweeps", ","], "the value contains no name"),
    ):
        done = CliRunner().invoke(command, ["pipeline", *words])
        assert done.exit_code == 2
        assert fault in done.output


def test_the_network_is_resnet_50() -> None:
    with torch.device("meta"):
        first, second = resnet_halves.first_half(), resnet_halves.second_half()
        middle = first(torch.empty(2, 3, 45, 45))
    assert sum(each.numel() for part in (first, second) for each in part.parameters()) == 25_557_032
    assert middle.shape == (2, *resnet_halves.middle_shape(45)) == (2, 512, 6, 6)
    assert second(middle).shape == (2, resnet_halves.CLASSES)


def test_the_losses_of_splits_add_up_to_the_loss_of_the_batch() -> None:
    scores, targets = torch.randn(6, 5), torch.randn(6, 5)
    parts = [resnet_halves.partial_loss(*each, 6) for each in zip(scores.split(4), targets.split(4), strict=True)]
    torch.testing.assert_close(torch.stack(parts).sum(), torch.nn.functional.mse_loss(scores, targets))


def test_the_ideal_efficiency_follows_from_the_bubble() -> None:
    assert pipeline_rank.ideal_efficiency(8, 1) == 1
    assert pipeline_rank.ideal_efficiency(4, 2) == 4 / 5
    assert pipeline_rank.ideal_efficiency(4, 4, stages_per_rank=2) == 8 / 11
    assert [pipeline_rank.stages_per_rank(name) for name in ASKED.schedules] == [1, 1, 2, 2, 2]
    with pytest.raises(SpecError, match="no schedule 'Fast'"):
        pipeline_rank.stages_per_rank("Fast")


class Scaled(torch.nn.Module):
    """A half that is quick."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1] * self.weight


def test_splits_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resnet_halves, "first_half", torch.nn.Identity)
    monkeypatch.setattr(resnet_halves, "second_half", lambda: Scaled(resnet_halves.CLASSES))
    batch, learned = resnet_halves.Batch(6, 2), []
    for split in (6, 4, 1):
        one = resnet_halves.OneDevice(batch, torch.device("cpu"))
        one.step(split)
        learned.append(one.network.state_dict()["1.weight"])
    torch.testing.assert_close(learned[0], learned[1])
    torch.testing.assert_close(learned[0], learned[2])
    assert not torch.equal(learned[0], torch.ones(resnet_halves.CLASSES))


@pytest.mark.parametrize(
    ("again", "attempts", "missing"),
    [
        ([1.02], 1, []),
        ([1.3, 1.04], 2, []),
        ([1.3, 0.8], 2, ["a steady machine"]),
    ],
)
def test_a_drifting_machine_is_measured_again_and_reported(
    again: list[float], attempts: int, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`again` is the time of one device at the end of each attempt; it takes 1 s at the beginning."""
    one, two = SimpleNamespace(name="one"), SimpleNamespace(name="two")
    starts: list[int] = []

    def time_once(work: partial[None], _barrier: object) -> float:
        network, split = work.args
        if network is two:
            return 1.0 if split == 120 else 0.6 + abs(split - 20) / 100
        if split != 120:
            return 0.9
        # Each attempt has a warm-up and a repeat at its beginning, and both once more at its end.
        attempt, call = divmod(len(starts), 4)
        starts.append(split)
        return 1.0 if call < 2 else again[attempt]

    monkeypatch.setattr(rank_timing, "time_once", time_once)
    monkeypatch.setattr(rank_timing, "broadcast_value", lambda value, _world: value)
    monkeypatch.setattr(resnet_halves, "Batch", lambda *_: None)
    monkeypatch.setattr(resnet_halves, "OneDevice", lambda *_: one)
    monkeypatch.setattr(pipeline_rank, "_two_halves", lambda *_: two)
    lines: list[str] = []
    columns, print_progress = pipeline.COLUMNS, lines.append
    sheet = FileRecorder(
        "pipeline", title="", columns=columns, parameters={}, print_progress=print_progress, load_seconds=0
    )
    world: Any = SimpleNamespace(is_main=True, device=torch.device("cpu"))
    pipeline_rank.SplitExperiment(ASKED._replace(repeats=1), sheet, world, lambda: None).measure()
    document = sheet.close()
    number, total = map(int, lines[-1].split()[0].split("/"))
    assert number == total == (len(ASKED.splits) + 4) * attempts
    assert len(starts) == 4 * attempts
    assert document.missing == missing
    assert any(note.startswith("Best split size: 20, 67% quicker") for note in document.notes)
    assert any("One device takes -10% in splits of 20" in note and "+50% quicker" in note for note in document.notes)
    data = PlotData(document.columns, document.results)
    single, bars = (
        {point.x for curve in plot_curves(data, plot) for point in curve.points}
        for plot in document.plots
        if plot.kind == "bars"
    )
    assert (single, bars) == ({"one device", "model parallel"}, {"one device", "model parallel", "pipelined"})


@pytest.mark.slow
def test_two_ranks_measure_both_sweeps(tmp_path: Path) -> None:
    words = ["--batch", "4", "--splits", "2,4", "--repeats", "2", "--image", "33", "--schedules", "GPipe"]
    done = CliRunner().invoke(command, ["pipeline", *words, "--micro-batches", "2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = results.read_result(tmp_path / "bench_pipeline.json")
    assert [row.labels for row in found.results] == [
        {"way": "one device", "split_size": 4},
        {"way": "model parallel", "split_size": 4},
        {"way": "pipelined", "split_size": 2},
        {"way": "pipelined", "split_size": 4},
        {"way": "one device, again", "split_size": 4},
        found.results[5].labels,
        {"schedule": "ideal", "micro_batches": 2},
        {"schedule": "GPipe", "micro_batches": 2},
    ]
    assert found.results[5].labels["way"] == "one device, in splits"
    assert {row.spread["seconds"].repeats for row in found.results if "seconds" in row.values} == {2}
    one, halves_ = (row.values["seconds"] for row in found.results[:2])
    assert found.results[1].spread["gain"].low <= 100 * (one / halves_ - 1) <= found.results[1].spread["gain"].high
    assert found.results[-1].values["ideal"] == pytest.approx(2 / 3)
    assert any("Best split size" in note for note in found.notes)
    assert {plot.name for plot in found.plots} == {"splits", "model-parallel", "pipelined", "schedules"}
    assert (tmp_path / "bench_pipeline-pipelined.png").stat().st_size > 1000
    assert (tmp_path / "bench_pipeline-splits.png").stat().st_size > 1000
