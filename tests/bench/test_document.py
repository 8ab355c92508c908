"""What a bench leaves: flat results in JSON, Markdown, curves, and pictures."""

from __future__ import annotations

import json
import random
import re
import statistics
from pathlib import Path

import pytest
from msgspec import structs

from hpc_kit.bench import markdown_report, plots, results
from hpc_kit.bench.results import BenchResult, Plot, format_quantity, median_error, summarize
from hpc_kit.errors import SpecError
from tests.bench import papers


@pytest.fixture
def two_sizes() -> BenchResult:
    return papers.document([papers.row(4096, [3e-6, 1e-6, 2e-6]), papers.row(1 << 20, [0.5, 0.5, 0.5], "mpi|x")])


def test_a_result_is_flat_and_reads_back(two_sizes: BenchResult) -> None:
    data = results.encode_result(two_sizes)
    first = json.loads(data)["results"][0]
    assert {name: first[name] for name in ("backend", "bytes", "seconds")} == {
        "backend": "gloo",
        "bytes": 4096,
        "seconds": 2e-6,
    }
    assert first["spread"]["seconds"]["repeats"] == 3
    assert results.decode_result(data) == two_sizes


def test_nan_is_omitted(two_sizes: BenchResult) -> None:
    two_sizes.results[0].values["algbw"] = float("nan")
    assert list(results.decode_result(results.encode_result(two_sizes)).results[0].values) == ["seconds"]


@pytest.mark.parametrize("text", ["", "[]", '{"results": []}', '{"columns": {}, "results": [1]}'])
def test_a_file_that_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "A.json"
    path.write_text(text)
    with pytest.raises(SpecError, match="cannot read"):
        results.read_result(path)


def test_the_table_has_units_quartiles_and_no_stray_bars(two_sizes: BenchResult) -> None:
    text = markdown_report.render_result(two_sizes)
    lines = [re.sub(" +", " ", line) for line in text.splitlines()]
    assert "| gloo | 4 KiB | 2 us (1.5-2.5) | 2.048 |" in lines
    assert "| mpi\\|x | 1 MiB | 500 ms (500-500) | 0.002097 |" in lines
    assert "Medians of 3 repeats, quartiles in brackets." in lines
    assert "**" not in text
    assert "**Interrupted: " in markdown_report.render_result(structs.replace(two_sizes, interrupted=True))


def test_rows_with_other_labels_form_a_separate_table(two_sizes: BenchResult) -> None:
    two_sizes.results.append(structs.replace(two_sizes.results[0], labels={"link": "n1-n2"}, values={"algbw": 1.0}))
    two_sizes.results.append(structs.replace(two_sizes.results[1], labels={"link": "n1-n3"}))
    assert [len(rows) for rows in markdown_report.group_rows(two_sizes)] == [2, 2]
    bare = [re.sub(" +", "", line) for line in markdown_report.render_tables(two_sizes)]
    assert "|n1-n2||1|" in bare
    assert sum(line.startswith("| ---") for line in markdown_report.render_tables(two_sizes)) == 2


def test_a_missing_value_is_blank(two_sizes: BenchResult) -> None:
    two_sizes.results.append(structs.replace(two_sizes.results[0], values={}))
    assert len(markdown_report.group_rows(two_sizes)) == 1
    assert re.search(r"^\| gloo +\| 4 KiB \|[ |]+$", markdown_report.render_result(two_sizes), re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.1234e-5, "s", "41.23 us"),
        (0, "s", "0 s"),
        (3 << 19, "B", "1.5 MiB"),
        (0.25, "GB/s", "0.25 GB/s"),
        (12345.6, "", "12346"),
    ],
)
def test_quantities_are_printed_with_units(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


def test_few_repeats_have_no_spread() -> None:
    assert summarize([2.0])[1].std == 0
    assert median_error(summarize([1.0, 2.0])[1]) is None
    assert median_error(summarize([1.0, 2.0, 3.0])[1]) == pytest.approx(0.805, abs=1e-3)


@pytest.mark.parametrize("repeats", [3, 4, 7])
def test_the_error_of_a_median_is_that_of_many_medians(repeats: int) -> None:
    draw = random.Random(0).gauss
    summaries = [summarize([draw(10, 1) for _ in range(repeats)]) for _ in range(2000)]
    errors = [error for _, spread in summaries if (error := median_error(spread)) is not None]
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(median for median, _ in summaries), rel=0.15)


def test_each_series_has_its_own_curve(two_sizes: BenchResult) -> None:
    data = plots.PlotData(two_sizes.columns, two_sizes.results)
    first, second = plots.plot_curves(data, two_sizes.plots[0])
    assert (first.name, first.points[0][:2], second.name) == ("gloo", (4096, 2e-6), "mpi|x")
    stacked = Plot(name="s", title="", x="backend", y=("seconds", "algbw"), kind="stacked", where={"bytes": 4096})
    assert [curve.name for curve in plots.plot_curves(data, stacked)] == ["time", "algbw"]


def test_an_inline_plot_uses_the_names_and_colours_of_its_page() -> None:
    text = """<?xml version="1.0"?><!DOCTYPE svg PUBLIC "http://x">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="5pt"><metadata>a</metadata>
<path id="m1" style="fill: #2f6fde; stroke: #1d1d20"/><use xlink:href="#m1" clip-path="url(#c1)"/></svg>
"""
    assert plots.use_page_colours(text, "p1") == (
        '<svg width="5pt">\n<path id="p1-m1" style="fill: var(--c1); stroke: var(--ink)"/>'
        '<use href="#p1-m1" clip-path="url(#p1-c1)"/></svg>'
    )


@pytest.mark.slow
def test_inline_plots_refer_to_colours_of_the_page(two_sizes: BenchResult) -> None:
    pytest.importorskip("matplotlib")
    text = plots.inline_svg(plots.PlotData(two_sizes.columns, two_sizes.results), two_sizes.plots[0], "p1")
    assert text.startswith("<svg")
    assert "http" not in text
    assert "var(--c1)" in text
    assert "var(--ink)" in text
    names = set(re.findall(r'\bid="([^"]+)"', text))
    assert all(name.startswith("p1-") for name in names)
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= names


def test_without_matplotlib_tables_are_still_printed(
    two_sizes: BenchResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SpecError, match="needs matplotlib") as caught:
        plots.draw_files(two_sizes, tmp_path)
    assert "pip install" in str(caught.value)


def test_a_result_of_a_later_version_is_refused(two_sizes: BenchResult, tmp_path: Path) -> None:
    (tmp_path / "A.json").write_bytes(results.encode_result(structs.replace(two_sizes, format=results.FORMAT + 1)))
    with pytest.raises(SpecError, match="of a later hpc_kit"):
        results.read_result(tmp_path / "A.json")
