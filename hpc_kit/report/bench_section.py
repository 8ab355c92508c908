"""The section of a bench's result."""

from __future__ import annotations

import shlex

from hpc_kit.bench import markdown_report
from hpc_kit.bench.results import Document, encode
from hpc_kit.report.pictures import pictures
from hpc_kit.report.section import Section, Table, Text


def section(document: Document, source: str, prefix: str) -> Section:
    """What a bench has measured, and on what.

    Args:
        document: Its result.
        source: Where that was read.
        prefix: Before every id in the page.
    """
    drawn, notes = pictures(document, document.plots, prefix)
    tables = [Table("Results", *markdown_report.cells(document, rows)) for rows in markdown_report.kinds(document)]
    versions = [[name, version] for name, version in document.machine.versions.items()]
    hosts = [
        [host.name, ", ".join(markdown_report.host_parts(host)), *markdown_report.loads(host)]
        for host in document.machine.hosts
    ]
    return Section(
        name=f"bench {document.bench}",
        title=document.title,
        source=source,
        headline=markdown_report.ended(document),
        bad=document.interrupted or bool(document.missing),
        failure=None,
        facts=[
            ("Command", shlex.join(document.command)),
            ("File", source),
            ("Started", document.started),
            ("Ended", document.ended or "no"),
            ("Kernel", document.machine.kernel),
        ],
        pictures=drawn,
        tables=[
            *tables,
            Table("Hosts", ["host", "what it is", "before", "after"], hosts, left=4),
            Table("Versions", ["what", "version"], versions, left=2),
        ],
        notes=[*markdown_report.repeats(document), *document.notes, *notes],
        texts=[Text("The result as JSON", encode(document).decode())],
    )
