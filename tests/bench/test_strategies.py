"""`hpc-kit bench strategies`: what is refused, each program's words, the table of what to choose, ranks that train."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpc_kit.bench import document, programs, strategies
from hpc_kit.cli.bench import command
from hpc_kit.errors import SpecError

ASKED = strategies.Question()


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (ASKED._replace(strategies=("dpp",)), "unknown strategy 'dpp'"),
        (ASKED._replace(ranks=1), "nothing is split over one rank"),
        (ASKED._replace(ranks=16), "do not divide the layers"),
        (ASKED._replace(ranks=10**6, layers=10**6, heads=10**6, global_batch=10**6), "does not fit into memory"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked: strategies.Question, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        strategies.refuse(asked)


def test_every_strategy_has_its_program_and_its_words() -> None:
    for name, strategy in strategies.STRATEGIES.items():
        assert programs.training(strategy.program).is_file()
        line = strategies.words(name, ASKED, 8)
        assert line is not None
        assert line[:2] == ["--layers", "8"]
    assert strategies.words("hybrid_3d", ASKED, 2) is strategies.words("hybrid_3d_zero1", ASKED, 4) is None
    assert strategies.words("async", ASKED, 4)[-1] == "63"  # type: ignore[index]


def test_the_table_is_held_against_what_was_measured() -> None:
    found = strategies.verdicts({"ddp": 3.0, "zero3": 1.0, "pipeline": 0.5, "tensor": 2.0})
    assert [(case.order, measured) for case, measured in found] == [
        (("ddp", "zero3"), ("ddp", "zero3")),
        (("pipeline", "zero3", "tensor"), ("tensor", "zero3", "pipeline")),
    ]


@pytest.mark.slow
def test_ranks_train_by_several_strategies(tmp_path: Path) -> None:
    words = ["--only", "single,ddp,modelparallel,hybrid_3d", "--ranks", "2", "--steps", "2", "--repeats", "1"]
    done = CliRunner().invoke(command, ["strategies", *words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = document.read(tmp_path / "bench_strategies.json")
    assert [row.labels for row in found.results] == [
        {"strategy": "single", "ranks": 1},
        {"strategy": "ddp", "ranks": 2},
        {"strategy": "modelparallel", "ranks": 2},
    ]
    assert found.notes == ["hybrid_3d: not with 2 ranks."]
    assert all(row.values["tokens_per_second"] > 0 for row in found.results)
