"""Findings as JSON, as SARIF 2.1.0 for code scanning, and as annotations of GitHub Actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import quote

from hpc_kit.check.rules.finding import Finding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class CheckReport(NamedTuple):
    """The findings for one script, and the checks that ran."""

    name: str
    findings: list[Finding]
    checked: list[str]
    not_checked: dict[str, str]


def format_json(reports: Sequence[CheckReport]) -> str:
    """Return the reports as a JSON document: an object for one script, a list for several."""
    documents = [
        {
            **report._asdict(),
            "findings": [
                {
                    **finding._asdict(),
                    "evidence": [line._asdict() for line in finding.evidence],
                    "edits": [edit._asdict() for edit in finding.edits],
                }
                for finding in report.findings
            ],
        }
        for report in reports
    ]
    return json.dumps(documents if len(documents) != 1 else documents[0], indent=2)


def format_sarif(reports: Sequence[CheckReport], version: str) -> str:
    """Return the reports as one run of SARIF 2.1.0.

    Args:
        reports: The reports.
        version: The version of hpc_kit.
    """
    from hpc_kit.check.rule_docs import explained_codes

    found = {finding.code for report in reports for finding in report.findings}
    rules: list[dict[str, object]] = [
        {
            "id": topic.code,
            "shortDescription": {"text": topic.text.partition("\n")[0]},
            "fullDescription": {"text": " ".join(topic.text.split("\n\n")[1].split()) if "\n\n" in topic.text else ""},
            "help": {"text": topic.text},
            "defaultConfiguration": {"level": topic.severity},
        }
        for topic in explained_codes()
        if topic.code in found
    ]
    known = [rule["id"] for rule in rules]
    rules += [{"id": code} for code in sorted(found.difference(map(str, known)))]
    index = {str(rule["id"]): number for number, rule in enumerate(rules)}
    results = [
        _sarif_result(report.name, finding, index[finding.code]) for report in reports for finding in report.findings
    ]
    driver: dict[str, object] = {
        "name": "hpc-kit check",
        "version": version,
        "semanticVersion": version,
        "rules": rules,
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_result(name: str, finding: Finding, index: int) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"{finding.what}. Do: {finding.remedy}"},
        "locations": [_location(name, max(1, finding.line), max(1, finding.column))],
    }
    related = [line.line for line in finding.evidence if line.line != finding.line]
    if related:
        result["relatedLocations"] = [_location(name, line, 1) for line in related]
    if finding.edits:
        replacements = [
            {
                "deletedRegion": {
                    "startLine": edit.line,
                    "startColumn": edit.column,
                    "endLine": edit.line + edit.old.count("\n"),
                    "endColumn": 1 if edit.old.endswith("\n") else edit.column + len(edit.old),
                },
                "insertedContent": {"text": edit.new},
            }
            for edit in finding.edits
        ]
        change = {"artifactLocation": {"uri": _uri(name)}, "replacements": replacements}
        result["fixes"] = [{"description": {"text": finding.remedy}, "artifactChanges": [change]}]
    return result


def _location(name: str, line: int, column: int) -> dict[str, object]:
    region = {"startLine": line, "startColumn": column}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(name)}, "region": region}}


def _uri(name: str) -> str:
    return quote(PurePath(name).as_posix())


def format_github(reports: Sequence[CheckReport]) -> str:
    """Return the reports as workflow commands, which GitHub shows at the lines of a change."""
    lines = []
    for report in reports:
        for finding in report.findings:
            place = f"file={_property(report.name)},line={max(1, finding.line)},col={max(1, finding.column)}"
            title = _property(finding.code)
            message = _data(f"{finding.what}\ndo: {finding.remedy}")
            lines.append(f"::{finding.severity} {place},title={title}::{message}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
