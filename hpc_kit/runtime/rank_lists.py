"""Lists of ranks and hosts in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_HOSTS, _MOST_RANKS = 8, 16


def list_some(items: Iterable[object], most: int = _MOST_HOSTS) -> str:
    """Join hosts or ranks with commas; beyond `most` of them only their number follows."""
    named = list(map(str, items))
    return ", ".join(named[:most]) + (f" and {len(named) - most} more" if len(named) > most else "")


def format_ranks(ranks: list[int]) -> str:
    """Return `rank 3` or `ranks 0, 2`; of many ranks, the first ones and a number."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {list_some(ranks, _MOST_RANKS)}"
