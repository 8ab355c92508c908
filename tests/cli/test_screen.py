"""Standard output of a command that goes on whoever reads it."""

from __future__ import annotations

import sys
import threading

import pytest

from hpc_kit.cli.output import LineWriter


def test_without_standard_output_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    screen = LineWriter(threading.Event())
    screen.show("text")
    assert screen.incomplete
