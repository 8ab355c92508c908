"""Figures for the advice: the memory that a job used, its limit, and its time limit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.slurm_tables import JobRow

GIB = 1024**3
_GPU_MEMORY = re.compile(
    r"this process has (\d[\d.]* [KMG])iB memory in use\. Of the allocated memory (\d[\d.]* [KMG])iB is allocated by"
    r" PyTorch,.* (\d[\d.]* [KMG])iB is reserved by PyTorch"
)
_MORE_MEMORY = re.compile(r"ask for more memory(?: \(--mem[^)]*\))?")


def add_figures(attempt: Attempt, class_: str, fix: str) -> str:
    """Return an advice with the figures that the evidence contains."""
    if class_ == "host-memory":
        return _MORE_MEMORY.sub(lambda found: _memory_advice(attempt) or found[0], fix, count=1)
    limits = [row.time_limit for row in attempt.rows if row.time_limit]
    if class_ == "time-limit" and limits:
        return fix.replace("--time", f"--time (now {limits[0]})", 1)
    return fix


def describe_foreign_memory(text: str) -> str:
    """Return the words for GPU memory that the process of a rank holds, but not torch, by torch's message."""
    found = _GPU_MEMORY.search(text)
    used, *own = (_bytes(size.replace(" ", "")) for size in found.groups()) if found else (0.0,)
    # The context of CUDA, its libraries and NCCL need a few GiB.
    if (other := used - sum(own)) < 8 * GIB:
        return ""
    holder = "a library such as JAX (XLA_PYTHON_CLIENT_PREALLOCATE=false), TensorFlow or vLLM"
    return f"; {_human(other)} of the {_human(used)} of its process are not torch's: {holder} holds them"


def used_up_memory(attempt: Attempt) -> JobRow | None:
    """Return a step that used nearly all memory that the job had asked for."""
    of_job = next((row.req_mem for row in attempt.rows if row.req_mem), "")
    for row in attempt.rows:
        asked = row.req_mem or of_job  # sacct may show ReqMem for the job only
        limit, per_cpu = _requested(asked)
        if limit and not per_cpu and _bytes(row.max_rss) > 0.9 * limit:
            return replace(row, req_mem=asked)
    return None


def _memory_advice(attempt: Attempt) -> str | None:
    """Return the advice for `--mem`: half as much again as the job used or had."""
    used = [_bytes(row.max_rss) for row in attempt.rows]
    limits = [_requested(row.req_mem) for row in attempt.rows if row.req_mem]
    for event in attempt.of_class("host-memory"):
        used += [1024 * int(event.groups[name]) for name in ("used", "rss") if name in event.groups]
        limits += [(1024 * int(event.groups["limit"]), False)] if "limit" in event.groups else []
    peak, (limit, per_cpu) = max(used, default=0.0), max(limits, default=(0.0, False))
    if not peak and not limit:
        return None
    figures = [f"peak {_human(peak)}"] * bool(peak) + [f"limit {_human(limit)}"] * bool(limit)
    option = "--mem-per-cpu" if per_cpu else "--mem"
    more = math.ceil(1.5 * (limit if per_cpu else max(peak, limit)) / GIB)
    return f"ask for more memory: {option}={more}G ({', '.join(figures)})"


def _requested(text: str) -> tuple[float, bool]:
    """Return the memory of ReqMem in bytes, and whether it is that of one CPU: `4Gc` in Slurm before 21.08."""
    return _bytes(text), text.endswith("c")


def _bytes(text: str) -> float:
    found = re.match(r"([\d.]+)([KMGT]?)", text)
    return float(found[1]) * 1024 ** " KMGT".index(found[2] or " ") if found else 0.0


def _human(size: float) -> str:
    return f"{size / GIB:.3g} GiB" if size >= GIB else f"{size / 1024**2:.0f} MiB"
