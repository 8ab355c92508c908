"""The fake Slurm of the tests of runs."""

from __future__ import annotations

from tests.runs.conftest import slurm

__all__ = ["slurm"]
