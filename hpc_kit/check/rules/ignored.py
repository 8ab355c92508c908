"""Comments that silence rules: `# kit: ignore[KIT302] the port is reserved for us`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.finding import Finding, SourceLine
from hpc_kit.lazy_pattern import lazy_pattern

CODE = "KIT100"

_COMMENT = lazy_pattern(r"#\s*kit:\s*ignore\[\s*([A-Z]{2,3}\d+(?:\s*,\s*[A-Z]{2,3}\d+)*)\s*\]\s*(.*)")
_MALFORMED = lazy_pattern(r"#\s*kit:\s*(ignore|noqa|disable)\b(?!\[\s*[A-Z]{2,3}\d)")


class _Ignore(NamedTuple):
    """The codes that a comment silences, in which lines, and its reason."""

    line: int
    codes: frozenset[str]
    lines: range
    reason: str


def drop_ignored(script: BatchScript, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no comment silences, and a finding for each comment without a reason or an effect."""
    if "kit:" not in script.text:
        return sorted(findings, key=_position)
    ignores = [ignore for number, line in enumerate(script.lines, start=1) if (ignore := _read(script, number, line))]
    kept, used = [], set[int]()
    for finding in findings:
        lines = {finding.line, *(line.line for line in finding.evidence)} if finding.line else {0}
        matching = [each for each in ignores if finding.code in each.codes and not lines.isdisjoint(each.lines)]
        used |= {each.line for each in matching}
        if not matching:
            kept.append(finding)
    for each in ignores:
        if each.line not in used:
            kept.append(_complain(script, each.line, "this silences no finding", "remove the comment"))
        elif not each.reason:
            kept.append(_complain(script, each.line, "this gives no reason", "write the reason behind the bracket"))
    for number, line in enumerate(script.lines, start=1):
        if _MALFORMED.search(line):
            what, remedy = "this silences nothing: the code is missing", "write # kit: ignore[KIT302] and the reason"
            kept.append(_complain(script, number, what, remedy))
    return sorted(kept, key=_position)


def _position(finding: Finding) -> tuple[int, int, str]:
    return finding.line, finding.column, finding.code


def _read(script: BatchScript, number: int, line: str) -> _Ignore | None:
    """Return the comment of a line. Alone in its line, it counts for the command or directive below."""
    match = _COMMENT.search(line)
    if match is None:
        return None
    last = number
    # The command below may go on over several lines.
    if line.lstrip().startswith("#") and not line.startswith("#SBATCH"):
        last = min(number + 1, len(script.lines))
        while last < len(script.lines) and script.lines[last - 1].endswith("\\"):
            last += 1
    return _Ignore(number, frozenset(re.split(r"\s*,\s*", match[1])), range(number, last + 1), match[2].strip())


def _complain(script: BatchScript, line: int, what: str, remedy: str) -> Finding:
    return Finding(CODE, "warning", line, 1, what, remedy, evidence=(SourceLine(line, script.lines[line - 1]),))


class IgnoreComments(NamedTuple):
    """The explanation of the findings about these comments."""

    code: str = CODE
    severity: str = "warning"
    text: str = """A comment that silences a rule without a reason, or without an effect.

`# kit: ignore[KIT302] the port is reserved for this project` silences a rule, at the end of the line of the finding, or
in a line of its own above the command. Several codes stand between the brackets with commas. The reason is for the next
reader. A comment that silences nothing hides the fault that comes next.

Fix: write the reason behind the bracket, or remove the comment.
Documented: docs/rules.md."""


IGNORE_COMMENTS = IgnoreComments()
