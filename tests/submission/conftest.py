"""The fake Slurm of tests/runs."""

from __future__ import annotations

from tests.runs.conftest import slurm

__all__ = ["slurm"]
