"""`hpc-kit bench strategies`: what is refused, each program's words, the table of what to choose, ranks that train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hpc_kit.bench import results, strategies, training_runs
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
def test_impossible_measurements_are_refused(asked: strategies.StrategyOptions, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        asked.check()


def test_every_strategy_has_a_program_and_arguments() -> None:
    for name, strategy in strategies.STRATEGIES.items():
        assert training_runs.find_training_program(strategy.program).is_file()
        line = strategies.command_for(name, ASKED, 8)
        assert line is not None
        assert line[:2] == ["--layers", "8"]
    assert strategies.command_for("hybrid_3d", ASKED, 2) is strategies.command_for("hybrid_3d_zero1", ASKED, 4) is None
    line = strategies.command_for("async", ASKED, 4)
    assert line is not None
    assert line[-1] == "63"


def measure_around(speed: float, spread: float = 0.001) -> list[float]:
    return [speed * (1 + spread * number) for number in (-2, -1, 0, 1, 2)]


def test_the_table_is_compared_with_measurements() -> None:
    speeds = {
        "ddp": measure_around(3),
        "zero3": measure_around(1),
        "pipeline": measure_around(0.5),
        "tensor": measure_around(2),
    }
    judged = strategies.judge_rules(speeds)
    assert [(rule.strategies, compared.order, compared.verdict) for rule, compared in judged] == [
        (("ddp", "zero3"), ("ddp", "zero3"), "yes"),
        (("pipeline", "zero3", "tensor"), ("tensor", "zero3", "pipeline"), "no"),
    ]
    assert judged[1][1].reversed_pairs == (("zero3", "pipeline"), ("tensor", "pipeline"), ("tensor", "zero3"))


def test_alternatives_have_no_order() -> None:
    ((_, compared),) = strategies.judge_rules({"zero3": measure_around(1), "hybrid_3d": measure_around(2)})
    assert (compared.order, compared.verdict) == (("hybrid_3d", "zero3"), "no order")


@pytest.mark.parametrize("ddp", [measure_around(1.01, 0.02), measure_around(0.99, 0.02), [2.0, 2.0], [0.5]])
def test_an_order_within_the_noise_or_from_few_repeats_has_no_verdict(ddp: list[float]) -> None:
    ((_, compared),) = strategies.judge_rules({"ddp": ddp, "zero3": measure_around(1, 0.02)})
    assert compared.verdict == "cannot be told"


def test_a_parameter_server_fills_only_the_columns_that_it_measures() -> None:
    printed: list[dict[str, object]] = []
    sheet = SimpleNamespace(add_row=lambda _, **values: printed.append(values))
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
        strategies._add_strategy_row(sheet, "async", SimpleNamespace(world_size=2), [summary])  # type: ignore[arg-type]  # only the size is used
    first = {"tokens_per_second": [5.0], "step": [2.0], "communication": [50.0], "memory": 3 * 2**20}
    assert printed == [first, {**first, "waiting": [25.0], "states": 4 * 2**20}, {"tokens_per_second": [5.0]}]


@pytest.mark.slow
def test_ranks_train_by_several_strategies(tmp_path: Path) -> None:
    words = ["--only", "single,ddp,hybrid_3d", "--ranks", "2", "--steps", "2", "--repeats", "2"]
    done = CliRunner().invoke(command, ["strategies", *words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    printed = [line.split()[1:3] for line in done.output.splitlines() if line.startswith("bench ") and " of 2" in line]
    assert printed == [[f"{number}/4", f"{name},"] for number, name in enumerate(("single", "ddp") * 2, start=1)]
    found = results.read_result(tmp_path / "bench_strategies.json")
    assert [row.labels for row in found.results] == [
        {"strategy": "single", "ranks": 1},
        {"strategy": "ddp", "ranks": 2},
    ]
    assert found.notes == ["hybrid_3d: not with 2 ranks."]
    assert all(row.spread["tokens_per_second"].repeats == 2 for row in found.results)
