"""The rules for batch scripts, each with a code and the text that explains it."""

from __future__ import annotations

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules import (
    agents,
    arrays,
    commands,
    containers,
    counts,
    cpus,
    devices,
    environment,
    errexit,
    file_lists,
    files,
    frameworks,
    host_files,
    job_end,
    job_options,
    launch_line,
    log_files,
    network_interfaces,
    parallelism,
    ports,
    rendezvous,
    resources,
    restarts,
    secrets,
    set_up,
    signals,
    steps,
    variables,
)
from hpc_kit.check.rules.finding import Finding as Finding
from hpc_kit.check.rules.finding import Rule as Rule
from hpc_kit.check.rules.ignored import drop_ignored

_MODULES = (
    job_options, log_files, resources, launch_line, host_files, steps, agents, frameworks, counts, cpus, parallelism,
    arrays, rendezvous, ports, network_interfaces, devices, set_up, variables, environment, secrets, files, containers,
    file_lists, commands, job_end, errexit, signals, restarts,
)  # fmt: skip

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, Rule)),
        key=lambda rule: rule.code,
    )
)
"""All rules, by code."""


_NEEDED_TEXTS = frozenset[str]().union(*(rule.needs for rule in RULES))


def applicable_rules(script: BatchScript) -> list[Rule]:
    """Return the rules that may find anything in a script."""
    texts = script.contained(_NEEDED_TEXTS)
    return [rule for rule in RULES if not rule.needs or not texts.isdisjoint(rule.needs)]


def check(script: BatchScript) -> list[Finding]:
    """Return the findings of all rules, in the order of the script."""
    return drop_ignored(script, [finding for rule in applicable_rules(script) for finding in rule.findings(script)])
