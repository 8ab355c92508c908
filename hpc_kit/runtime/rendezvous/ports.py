"""The ports on which a launch may meet: below those that Linux hands out by itself, different for each launch."""

from __future__ import annotations

from zlib import crc32

FIRST, LAST = 10_000, 32_767
"""Above the ports that services ask for, below 32768, where Linux begins to hand them out by itself."""

CANDIDATES = 12

_STRIDE = 1_621


def candidate_ports(key: str, first: int | None = None) -> list[int]:
    """Ports for the store of a launch, in the order to try; `first` is one that somebody has asked for.

    Every rank computes the same ones from the key of its launch.
    """
    ports = _spaced_ports(crc32(key.encode()))
    return ports if first is None else [first, *(port for port in ports if port != first)]


def discovery_ports(key: str) -> list[int]:
    """Ports on which rank 0 tells the others which of the candidates it has got."""
    return _spaced_ports(crc32(f"beacon of {key}".encode()))


def _spaced_ports(start: int) -> list[int]:
    span = LAST - FIRST + 1
    return [FIRST + (start + step * _STRIDE) % span for step in range(CANDIDATES)]
