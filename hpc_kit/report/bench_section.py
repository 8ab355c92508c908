"""Builds the section of a benchmark's result."""

from __future__ import annotations

import shlex

from hpc_kit.bench import markdown_report
from hpc_kit.bench.plots import PlotData
from hpc_kit.bench.results import BenchResult, encode_result
from hpc_kit.report.page import ReportTable, ReportText, Section, draw_pictures


def build_bench_section(document: BenchResult, source: str, prefix: str) -> Section:
    """Build the section of a result from the file `source`. Every id in it begins with the prefix."""
    pictures, notes = draw_pictures(PlotData(document.columns, document.results), document.plots, prefix)
    tables = [
        ReportTable("Results", *markdown_report.table_cells(document, rows))
        for rows in markdown_report.group_rows(document)
    ]
    versions = [[name, version] for name, version in document.machine.versions.items()]
    hosts = [
        [host.name, ", ".join(markdown_report.describe_host(host)), *markdown_report.format_loads(host)]
        for host in document.machine.hosts
    ]
    return Section(
        name=f"bench {document.bench}",
        title=document.title,
        source=source,
        headline=markdown_report.completion_sentence(document),
        failed=document.interrupted or bool(document.missing),
        failure=None,
        facts=[
            ("Command", shlex.join(document.command)),
            ("File", source),
            ("Started", document.started),
            ("Ended", document.ended or "no"),
            ("Kernel", document.machine.kernel),
        ],
        pictures=pictures,
        tables=[
            *tables,
            ReportTable("Hosts", ["host", "description", "before", "after"], hosts, left=4),
            ReportTable("Versions", ["software", "version"], versions, left=2),
        ],
        notes=[*markdown_report.repeats_note(document), *document.notes, *notes],
        texts=[ReportText("The result as JSON", encode_result(document).decode())],
    )
