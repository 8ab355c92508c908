"""What a rule is, and what it finds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.slurm.versions import SlurmVersion

Severity = Literal["error", "warning"]


class Evidence(NamedTuple):
    """A line of the script by which a fault was seen."""

    line: int
    text: str


class Finding(NamedTuple):
    """A fault: where it is, what it is, and the edit that mends it. Line 0: it is in no line of the script."""

    code: str
    severity: Severity
    line: int
    column: int
    what: str
    remedy: str
    found: str | None = None
    evidence: tuple[Evidence, ...] = ()


class RuleInput(NamedTuple):
    """What is looked at.

    Args:
        script: The batch script.
        is_folder: Tells of a path, relative to where sbatch will be run, whether it is a folder; None: not known.
        version: The release of the Slurm that it is for; None: not known.
    """

    script: BatchScript
    is_folder: Callable[[str], bool] | None = None
    version: SlurmVersion | None = None


class RuleFinding(NamedTuple):
    """A finding as a rule sees it: lines instead of their text; `severity`: where it is not the rule's usual one.

    `secret` is text that must not be repeated.
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
    """One check, with its code and the text that explains it."""

    code: str
    severity: Severity
    check: Callable[[RuleInput], Iterator[RuleFinding]]

    @property
    def text(self) -> str:
        """What happens, why, how to mend it, where it is documented."""
        return inspect.getdoc(self.check) or ""

    @property
    def title(self) -> str:
        """One line."""
        return self.text.partition("\n")[0].rstrip(".")

    def findings(self, subject: RuleInput) -> Iterator[Finding]:
        """What the rule finds, each place once."""
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
    """Make a rule of a function; its docstring explains it."""

    def made(check: Callable[[RuleInput], Iterator[RuleFinding]]) -> Rule:
        return Rule(code, severity, check)

    return made
