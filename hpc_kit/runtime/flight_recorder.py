"""Reads torch's flight recorder, which keeps the latest collectives of this process in memory.

All ranks take part in each collective of the default group, in the same order. So in a stall, the ranks that have begun
fewer of them are those that the others wait for, and different collectives with the same number never end.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions for the records of gloo and of NCCL. None is public: torch writes files when NCCL has timed out."""

_SAME_SHAPES = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives whose input has the same shape on each rank."""


def latest_collectives() -> dict[str, tuple[int, str]]:
    """Return the latest collective that this rank has begun in the default group, by backend.

    Each is a number, which counts from 1, and a call such as `all_reduce of [8] Float`. Empty before the process group
    exists, for a backend that records nothing, and with TORCH_FR_BUFFER_SIZE=0.
    """
    torch = sys.modules.get("torch._C._distributed_c10d")
    latest: dict[str, tuple[int, str]] = {}
    for name in _DUMPS:
        # The format is torch's own. Without it, the stacks still show where the ranks are.
        with suppress(AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            for entry in json.loads(getattr(torch, name)()).get("entries", ()):
                if entry["process_group"][1] == "default_pg" and not entry["is_p2p"]:
                    backend, _, call = entry["profiling_name"].partition(":")
                    number = int(entry["collective_seq_id"])
                    latest[backend] = max(latest.get(backend, (0, "")), (number, _describe(call, entry)))
    return latest


def _describe(call: str, entry: dict[str, Any]) -> str:
    """Return a collective, with the shape and type of its input if all ranks must have the same."""
    if call not in _SAME_SHAPES:
        return call
    shapes, types = entry["input_sizes"], dict.fromkeys(entry["input_dtypes"])
    return f"{call} of {', '.join(map(str, shapes))} {', '.join(map(str, types))}"
