"""Two results of one bench: ratios where they may be compared, and a refusal where they may not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from hpc_kit.bench.comparison import compare_results
from hpc_kit.bench.results import BenchResult, ResultRow, encode_result
from hpc_kit.cli.bench import command
from hpc_kit.errors import AnswerNo, SpecError
from tests.bench.papers import document, host, row

STEADY = [1.00, 1.02, 0.98, 1.01, 0.99]


def scaled(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def list_verdicts(first: BenchResult, second: BenchResult) -> list[tuple[str, str]]:
    return [(each.column, each.verdict) for each in compare_results(first, second).ratios]


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "better"), (2.0, "worse"), (1.002, "same")])
def test_a_ratio_counts_if_it_exceeds_its_uncertainty(factor: float, verdict: str) -> None:
    found = list_verdicts(document([row(4, STEADY)]), document([row(4, scaled(factor))]))
    assert found == [("seconds", verdict)]


def test_without_repeats_only_equal_or_exact_values_have_a_verdict() -> None:
    def document_without_repeats(**values: float) -> BenchResult:
        return document([ResultRow(labels={}, values=values)])

    one = document_without_repeats(seconds=1.0, memory=100, total=100)
    assert list_verdicts(one, one) == [("seconds", "same"), ("memory", "same"), ("total", "same")]
    other = document_without_repeats(seconds=2.0, memory=200, total=200)
    assert list_verdicts(one, other) == [("seconds", "?"), ("memory", "?"), ("total", "worse")]


def test_with_repeated_values_exact_ones_are_compared_and_estimates_are_not() -> None:
    rows = [structs.replace(row(4, STEADY), values=row(4, STEADY).values | {"total": size}) for size in (100, 50)]
    assert list_verdicts(document([rows[0]]), document([rows[1]])) == [("seconds", "same"), ("total", "better")]


def test_rows_and_labels_of_one_result_only_are_counted() -> None:
    found = compare_results(
        document([row(4, STEADY), row(8, STEADY)]), document([row(4, STEADY), row(16, STEADY)], torch="2.14")
    )
    assert (len(found.ratios), found.only_first, found.only_second) == (1, 1, 1)
    assert (found.labels_only_first, found.labels_only_second) == ("bytes 8 B", "bytes 16 B")
    assert found.notes == ("torch: 2.13.0 and 2.14",)


def test_rows_of_the_library_match_whether_other_algorithms_were_measured_or_not(tmp_path: Path) -> None:
    def row_of_algorithm(algorithm: str) -> ResultRow:
        return structs.replace(row(4, STEADY), labels={"algorithm": algorithm, **row(4, STEADY).labels})

    without, beside = (
        document([row(4, STEADY)]),
        document([row_of_algorithm("library"), row_of_algorithm("ring"), row_of_algorithm("star")]),
    )
    for first, second in ((without, beside), (beside, without)):
        assert list_verdicts(first, second) == [("seconds", "same")]
    names = [str(tmp_path / name) for name in ("A.json", "B.json")]
    for name, each in zip(names, (without, beside), strict=True):
        Path(name).write_bytes(encode_result(each))
    text = CliRunner().invoke(command, ["compare", *names]).output
    assert text.endswith("\nonly in B: 2 rows (algorithm ring, star)\n")


def test_another_load_or_machine_is_refused_unless_allowed() -> None:
    quiet, rows = document([row(4, STEADY)]), [row(4, STEADY)]
    loud = document(rows, hosts=[host(busy=0.6)])
    with pytest.raises(AnswerNo, match=r"under different load\n.*0% before.*\n.*60% before"):
        compare_results(quiet, loud)
    assert compare_results(quiet, loud, ("load",)).ratios
    other = document(rows, hosts=[host(cpu="another")])
    with pytest.raises(AnswerNo, match="different machines"):
        compare_results(quiet, other)
    assert compare_results(quiet, other, ("machine",)).ratios
    with pytest.raises(SpecError, match="unknown condition 'weather'"):
        compare_results(quiet, quiet, ("weather",))


def test_load_at_only_one_end_is_noted_and_not_refused() -> None:
    rows = [row(4, STEADY)]
    quiet = document(rows, hosts=[host(after=0.05)])
    for busy, after in ((0.9, 0.0), (0.0, 1.0)):
        (note,) = compare_results(quiet, document(rows, hosts=[host(busy=busy, after=after)])).notes
        assert note.startswith("the load was not always alike: the first: 0% before and 5% after")
    with pytest.raises(AnswerNo, match="under different load"):
        compare_results(quiet, document(rows, hosts=[host(busy=0.9, after=0.8)]))
    assert compare_results(quiet, quiet).notes == ()


def test_two_benches_or_no_common_row_cannot_be_compared() -> None:
    with pytest.raises(SpecError, match="two benches"):
        compare_results(document([row(4, STEADY)]), document([row(4, STEADY)], bench="dp"))
    with pytest.raises(AnswerNo, match="no row is in both"):
        compare_results(document([row(4, STEADY)]), document([row(8, STEADY)]))


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("A.json", "B.json")]
    for name, factor in zip(names, (1.0, 2.0), strict=True):
        measured = row(4096, scaled(factor))
        counted = structs.replace(measured, values=measured.values | {"total": 1024})
        Path(name).write_bytes(encode_result(document([counted])))
    text = CliRunner().invoke(command, ["compare", *names]).output
    lines = [re.sub(" +", " ", line) for line in text.splitlines()]
    assert "| gloo | 4 KiB | time | 1 s | 2 s | 2.000 +- 0.029 | worse |" in lines
    assert "| gloo | 4 KiB | total | 1 KiB | 1 KiB | 1.000 | same |" in lines
    printed = json.loads(CliRunner().invoke(command, ["compare", *names, "--json"]).output)
    assert printed["ratios"][0]["ratio"] == 2.0
    assert printed["ratios"][0]["labels"] == {"backend": "gloo", "bytes": 4096}
