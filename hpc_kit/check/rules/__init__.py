"""Checks of a batch script: each with a code, a test that it finds its fault, and one that it leaves others alone."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_kit.check.rules import (
    agents,
    counts,
    disks,
    ending,
    form,
    hosts,
    launch,
    lines,
    options,
    preparation,
    rendezvous,
    secrets,
    signals,
    steps,
)
from hpc_kit.check.rules.base import Evidence as Evidence
from hpc_kit.check.rules.base import Finding as Finding
from hpc_kit.check.rules.base import Rule as Rule
from hpc_kit.check.rules.base import Subject as Subject

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *form.RULES,
            *lines.RULES,
            *options.RULES,
            *launch.RULES,
            *agents.RULES,
            *counts.RULES,
            *steps.RULES,
            *rendezvous.RULES,
            *hosts.RULES,
            *preparation.RULES,
            *disks.RULES,
            *ending.RULES,
            *signals.RULES,
            *secrets.RULES,
        ),
        key=lambda rule: rule.code,
    )
)
"""All rules, by code."""


def check(subject: Subject, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """What the rules find, in the order of the script."""
    found = [finding for rule in rules for finding in rule.findings(subject)]
    return sorted(found, key=lambda finding: (finding.line, finding.column, finding.code))
