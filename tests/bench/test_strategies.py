"""`hpc-kit bench strategies`: what is refused, each program's words, the table of what to choose, ranks that train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hpc_kit.bench import results, strategies, strategies_rank, training_runs
from hpc_kit.cli.bench import command
from hpc_kit.errors import SpecError

ASKED = strategies.StrategyOptions()


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (ASKED._replace(strategies=("dpp",)), "unknown strategy 'dpp'"),
        (ASKED._replace(ranks=1), "nothing is split over one rank"),
        (ASKED._replace(ranks=16), "do not divide the layers"),
        (ASKED._replace(ranks=10**6, layers=10**6, heads=10**6, global_batch=10**6), "does not fit into memory"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked: strategies.StrategyOptions, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        asked.check()


def test_every_strategy_has_its_program_and_its_words() -> None:
    for name, strategy in strategies.STRATEGIES.items():
        assert training_runs.find_program(strategy.program).is_file()
        line = strategies.command_for(name, ASKED, 8)
        assert line is not None
        assert line[:2] == ["--layers", "8"]
    assert strategies.command_for("hybrid_3d", ASKED, 2) is strategies.command_for("hybrid_3d_zero1", ASKED, 4) is None
    assert strategies.command_for("async", ASKED, 4)[-1] == "63"  # type: ignore[index]


def around(speed: float, spread: float = 0.001) -> list[float]:
    return [speed * (1 + spread * number) for number in (-2, -1, 0, 1, 2)]


def test_the_table_is_held_against_what_was_measured() -> None:
    speeds = {"ddp": around(3), "zero3": around(1), "pipeline": around(0.5), "tensor": around(2)}
    assert [(case.order, measured, agrees) for case, measured, agrees in strategies.judge_cases(speeds)] == [
        (("ddp", "zero3"), ("ddp", "zero3"), "yes"),
        (("pipeline", "zero3", "tensor"), ("tensor", "zero3", "pipeline"), "no"),
    ]


@pytest.mark.parametrize("ddp", [around(1.01, 0.02), around(0.99, 0.02), [2.0, 2.0], [0.5]])
def test_an_order_within_the_noise_or_of_few_repeats_is_none(ddp: list[float]) -> None:
    ((_, _, agrees),) = strategies.judge_cases({"ddp": ddp, "zero3": around(1, 0.02)})
    assert agrees == "cannot be told"


def test_a_parameter_server_has_the_columns_that_it_tells() -> None:
    told: list[dict[str, object]] = []
    sheet = SimpleNamespace(add_row=lambda _, **values: told.append(values))
    server: training_runs.Summary = {
        "tokens_per_second": 5,
        "step_time_median": 2,
        "peak_memory_mib": 3,
        "communication_share": 0.5,
    }
    every: training_runs.Summary = {
        **server,
        "waiting_share": 0.25,
        "parameters_mib": 1,
        "gradients_mib": 1,
        "optimizer_mib": 2,
    }
    least: training_runs.Summary = {"tokens_per_second": 5}
    for summary in (server, every, least):
        strategies_rank._add_strategy_row(sheet, "async", SimpleNamespace(world_size=2), [summary])  # type: ignore[arg-type]
    first = {"tokens_per_second": [5.0], "step": [2.0], "communication": [50.0], "memory": 3 * 2**20}
    assert told == [first, {**first, "waiting": [25.0], "states": 4 * 2**20}, {"tokens_per_second": [5.0]}]


@pytest.mark.slow
def test_ranks_train_by_several_strategies(tmp_path: Path) -> None:
    words = ["--only", "single,ddp,hybrid_3d", "--ranks", "2", "--steps", "2", "--repeats", "2"]
    done = CliRunner().invoke(command, ["strategies", *words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    told = [line.split()[1:3] for line in done.output.splitlines() if line.startswith("bench ") and " of 2" in line]
    assert told == [[f"{number}/4", f"{name},"] for number, name in enumerate(("single", "ddp") * 2, start=1)]
    found = results.read_result(tmp_path / "bench_strategies.json")
    assert [row.labels for row in found.results] == [
        {"strategy": "single", "ranks": 1},
        {"strategy": "ddp", "ranks": 2},
    ]
    assert found.notes == ["hybrid_3d: not with 2 ranks."]
    assert all(row.spread["tokens_per_second"].repeats == 2 for row in found.results)
