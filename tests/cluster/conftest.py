"""The real cluster, for this room's tests."""

from __future__ import annotations

from .fixture import cluster

__all__ = ["cluster"]
