"""Provides the real cluster to these tests, and prints at the end how many tests ran on it."""

from __future__ import annotations

import pytest

from .fixture import _to_be_broken, cluster, count, faulty, summary

__all__ = ["_to_be_broken", "cluster", "faulty"]


LAST = ("test_every_shipped_job_is_accepted", "test_faults.py", "test_a_shipped_job_succeeds")
"""Tests that run last, in this order: the shipped jobs use both cores while tests of faults mostly wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: max((n for n, name in enumerate(LAST, 1) if name in item.nodeid), default=0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    count(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(summary(terminalreporter))
