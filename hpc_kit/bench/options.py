"""Checks that the option classes of several benchmarks share."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpc_kit.errors import SpecError


def check_known_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Check that all names are known.

    Raises:
        SpecError: A name is unknown; the error lists the known names.
    """
    if unknown := [name for name in names if name not in known]:
        raise SpecError(
            f"unknown {kind} {unknown[0]!r}", found=",".join(names), remedy=f"one or more of {','.join(known)}"
        )
