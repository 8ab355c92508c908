"""Faults of the batch script that explain what the logs alone leave open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.runs.why.verdicts import NO_FAILURE, UNKNOWN, Proof

if TYPE_CHECKING:
    from hpc_kit.check.rules.finding import Finding
    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.verdicts import Verdict

_OPEN = {NO_FAILURE, UNKNOWN, "rendezvous-timeout"}
"""Classes of answers that a fault of the script may explain."""

_NO_WAIT = "KIT402"
_HARMLESS = {"KIT501"}
"""Errors that end no job: a secret in the script."""


def add_script_fault(attempt: Attempt, verdict: Verdict) -> Verdict:
    """Return the answer with the first fault of the job's script, if the logs do not show the cause themselves."""
    scripts = list(attempt.evidence.scripts.items())
    if verdict.class_ not in _OPEN or len(scripts) != 1:
        return verdict
    ((name, lines),) = scripts
    found = next((each for each in _faults(name, lines) if _may_explain(attempt, verdict, each)), None)
    if found is None:
        return verdict
    proof = Proof(name, found.line, lines[found.line - 1].strip())
    fault = f"line {found.line} of its script is wrong: {found.what} ({found.code})"
    if verdict.class_ == NO_FAILURE:
        answer = replace(verdict, cause=f"{verdict.cause}; but {fault}")
    else:
        class_ = "world-size" if verdict.class_ != UNKNOWN else "script"
        answer = replace(verdict, cause=f"{fault}; {verdict.cause.removeprefix('unknown: ')}", class_=class_)
    return replace(answer, evidence=[proof, *verdict.evidence], fix=found.remedy, confidence="likely")


def _faults(name: str, lines: list[str]) -> list[Finding]:
    # Parsing a script takes as long as reading many logs, and few answers need it.
    from hpc_kit.check.batch_script import BatchScript
    from hpc_kit.check.rules import check

    return check(BatchScript("\n".join(lines) + "\n", name))


def _may_explain(attempt: Attempt, verdict: Verdict, finding: Finding) -> bool:
    """Return whether a fault fits the answer: those of a successful job let a part of the work out."""
    if finding.code == _NO_WAIT:
        return verdict.class_ == NO_FAILURE and bool(attempt.named("step-cancelled"))
    if finding.severity != "error" or finding.code in _HARMLESS or not finding.line:
        return False
    # Of an incomplete rendezvous, the line that starts the ranks is the cause.
    return verdict.class_ == UNKNOWN or finding.code.startswith(("KIT2", "KIT4"))
