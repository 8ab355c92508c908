"""Errors that the functions of this package raise, for programs that use no other part of hpc_kit."""

from __future__ import annotations

from hpc_kit.errors import DirectiveError, HostlistError, HpcKitError, UnitError

__all__ = ["DirectiveError", "HostlistError", "HpcKitError", "UnitError"]
