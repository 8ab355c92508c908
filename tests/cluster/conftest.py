"""The real cluster, for this room's tests; at the end, how many of them ran on it."""

from __future__ import annotations

import pytest

from .fixture import _to_be_broken, cluster, count, faulty, summary

__all__ = ["_to_be_broken", "cluster", "faulty"]


LAST = ("test_every_shipped_job_is_accepted", "test_faults.py", "test_a_shipped_job_succeeds")
"""The shipped jobs, two cores' work, run while faults on another cluster, which are long waits, are played."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: max((n for n, name in enumerate(LAST, 1) if name in item.nodeid), default=0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    count(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(summary(terminalreporter))
