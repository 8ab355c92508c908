"""Reads torch's flight recorder, which keeps the latest collectives of this process in memory.

All ranks take part in each collective of the default group, in the same order. So in a stall, the ranks that have begun
fewer of them are those that the others wait for, and different collectives with the same number never end.
"""

from __future__ import annotations

import json
import sys


def latest_collectives() -> dict[str, tuple[int, str]]:
    """Return the latest collective that this rank has begun in the default group, by backend.

    Each is a number, which counts from 1, and a call such as `all_reduce of [8] Float`. Empty before the process group
    exists, for a backend that records nothing, and with TORCH_FR_BUFFER_SIZE=0.
    """
    torch = sys.modules.get("torch._C._distributed_c10d")
    # No public function returns the record: torch writes it to a file only when NCCL has timed out.
    dump = getattr(torch, "_dump_fr_trace_json", None)
    if dump is None:
        return {}
    latest: dict[str, tuple[int, str]] = {}
    for entry in json.loads(dump()).get("entries", ()):
        if entry["process_group"][1] == "default_pg" and not entry["is_p2p"]:
            backend, _, call = entry["profiling_name"].partition(":")
            number = int(entry["collective_seq_id"])
            latest[backend] = max(latest.get(backend, (0, "")), (number, describe(call, entry)))
    return latest


def describe(call: str, entry: dict[str, list[object]]) -> str:
    """Return a collective with the shapes and types of its inputs."""
    shapes = ", ".join(map(str, entry["input_sizes"]))
    types = ", ".join(map(str, dict.fromkeys(entry["input_dtypes"])))
    return f"{call} of {shapes} {types}" if shapes else call
