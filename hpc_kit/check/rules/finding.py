"""A rule is a function of a script that yields problems. `Rule.findings` turns them into findings for the reader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.text_edits import Edit

Severity = Literal["error", "warning"]


class SourceLine(NamedTuple):
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
    evidence: tuple[SourceLine, ...] = ()
    edits: tuple[Edit, ...] = ()


class Place(Protocol):
    """Something with a position in the script: a command, a word, an option of a directive."""

    @property
    def line(self) -> int:
        """Line, from 1."""
        ...

    @property
    def column(self) -> int:
        """Column, from 1."""
        ...


class Problem(NamedTuple):
    """A problem as a rule yields it.

    Args:
        place: The part of the script that is wrong.
        what: The effect, in one clause.
        remedy: The edit. It starts with an imperative.
        see: Further lines that show the problem.
        certain: True makes it an error, False a warning; None: the severity of the rule.
        found: Further text for the message.
        secret: Text that messages must not repeat.
        edits: The remedy as edits, if no decision is needed for it.
    """

    place: Place
    what: str
    remedy: str
    see: tuple[int | None, ...] = ()
    certain: bool | None = None
    found: str | None = None
    secret: str | None = None
    edits: tuple[Edit, ...] = ()


Check = Callable[[BatchScript], Iterator[Problem]]


class Rule(NamedTuple):
    """One rule, with its code and the text that explains it.

    `needs`: a script without any of these texts, in lower case, has nothing for the rule. No texts: the rule reads all
    scripts. Most scripts have no container and no requeue, and these texts are found faster than that.
    """

    code: str
    severity: Severity
    check: Check
    needs: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The explanation: effect, reason, fix, documentation."""
        return inspect.getdoc(self.check) or ""

    @property
    def title(self) -> str:
        """The first line of the explanation."""
        return self.text.partition("\n")[0].rstrip(".")

    def findings(self, script: BatchScript) -> list[Finding]:
        """Return the findings of the rule, one per position."""
        # A function of the script may be traced at several calls, with the same fault each time.
        found: dict[tuple[int, int], Finding] = {}
        for problem in self.check(script):
            line, column = problem.place.line, problem.place.column
            if (line, column) in found:
                continue
            severity = self.severity
            if problem.certain is not None:
                severity = "error" if problem.certain else "warning"
            evidence = []
            for number in sorted({number for number in (line, *problem.see) if number and number <= len(script.lines)}):
                text = script.lines[number - 1]
                evidence.append(SourceLine(number, text.replace(problem.secret, "***") if problem.secret else text))
            shown = (problem.what, problem.remedy, problem.found, tuple(evidence))
            found[line, column] = Finding(self.code, severity, line, column, *shown, problem.edits)
        return list(found.values())


def rule(code: str, severity: Severity = "error", *, needs: tuple[str, ...] = ()) -> Callable[[Check], Rule]:
    """Make a rule of a function. The docstring of the function explains the rule."""
    # A text that contains another one of them is needless.
    shortest = frozenset(text for text in needs if not any(other in text for other in needs if other != text))
    return lambda check: Rule(code, severity, check, shortest)
