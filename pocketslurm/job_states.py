"""The states of jobs, as Slurm's commands name them."""

from __future__ import annotations

STATES = {
    "PENDING": "PD", "RUNNING": "R", "SUSPENDED": "S", "COMPLETED": "CD", "CANCELLED": "CA", "FAILED": "F",
    "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR", "BOOT_FAIL": "BF", "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM",
    "COMPLETING": "CG", "CONFIGURING": "CF", "RESIZING": "RS", "RESV_DEL_HOLD": "RD", "REQUEUED": "RQ",
    "REQUEUE_FED": "RF", "REQUEUE_HOLD": "RH", "REVOKED": "RV", "SIGNALING": "SI", "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO", "STOPPED": "ST",
}  # fmt: skip
"""The states that Slurm 22.05 knows, in its order, with their short forms."""


def parse_states(text: str) -> frozenset[str]:
    """Read `PD,running,all`.

    Raises:
        ValueError: The word that is no state.
    """
    long = {short: name for name, short in STATES.items()}
    found: set[str] = set()
    for word in text.split(","):
        name = long.get(word.upper(), word.upper())
        if name == "ALL":
            return frozenset(STATES)
        if name not in STATES:
            raise ValueError(word)
        found.add(name)
    return frozenset(found)
