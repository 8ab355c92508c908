"""The types of rules and of their findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.slurm.versions import SlurmVersion

Severity = Literal["error", "warning"]


class Evidence(NamedTuple):
    """A line of the script that shows the problem."""

    line: int
    text: str


class Finding(NamedTuple):
    """A problem, its position, and the edit that fixes it. Line 0: it is in no line of the script."""

    code: str
    severity: Severity
    line: int
    column: int
    what: str
    remedy: str
    found: str | None = None
    evidence: tuple[Evidence, ...] = ()


class RuleInput(NamedTuple):
    """The input of a rule.

    Args:
        script: The batch script.
        is_folder: Tests whether a path, relative to the folder of sbatch, is a folder; None: unknown.
        version: The Slurm release of the cluster; None: unknown.
    """

    script: BatchScript
    is_folder: Callable[[str], bool] | None = None
    version: SlurmVersion | None = None


class RuleFinding(NamedTuple):
    """A finding as a rule returns it, with line numbers as evidence.

    `severity` overrides the severity of the rule. `secret` is text that messages must not repeat.
    """

    line: int
    column: int
    what: str
    remedy: str
    evidence: tuple[int | None, ...] = ()
    severity: Severity | None = None
    found: str | None = None
    secret: str | None = None


class Rule(NamedTuple):
    """One rule, with its code and the text that explains it."""

    code: str
    severity: Severity
    check: Callable[[RuleInput], Iterator[RuleFinding]]

    @property
    def text(self) -> str:
        """The explanation: effect, reason, fix, documentation."""
        return inspect.getdoc(self.check) or ""

    @property
    def title(self) -> str:
        """The first line of the explanation."""
        return self.text.partition("\n")[0].rstrip(".")

    def findings(self, subject: RuleInput) -> Iterator[Finding]:
        """Yield the findings of the rule, one per position."""
        seen: set[tuple[int, int]] = set()
        for fault in self.check(subject):
            if (fault.line, fault.column) not in seen:
                seen.add((fault.line, fault.column))
                yield self._finding(fault, subject.script.lines)

    def _finding(self, fault: RuleFinding, lines: list[str]) -> Finding:
        numbers = sorted({number for number in (fault.line, *fault.evidence) if number and number <= len(lines)})
        hidden = fault.secret
        evidence = tuple(
            Evidence(number, lines[number - 1].replace(hidden, "***") if hidden else lines[number - 1])
            for number in numbers
        )
        severity = fault.severity or self.severity
        return Finding(
            self.code, severity, fault.line, fault.column, fault.what, fault.remedy, fault.found, evidence
        )  # fmt: skip


def rule(code: str, severity: Severity = "error") -> Callable[[Callable[[RuleInput], Iterator[RuleFinding]]], Rule]:
    """Make a rule of a function. The docstring of the function explains the rule."""

    def made(check: Callable[[RuleInput], Iterator[RuleFinding]]) -> Rule:
        return Rule(code, severity, check)

    return made
