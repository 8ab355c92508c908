"""Job states, in full and by their short codes, each with a plain sentence; why jobs wait is in `reasons`."""

from __future__ import annotations

from enum import StrEnum

from hpc_kit.slurm.pending_reasons import Reason, explain_reason

__all__ = ["Reason", "State", "explain_reason", "explain_state", "parse_state"]


class State(StrEnum):
    """The states of a job, and the flags that squeue shows in their place; UNKNOWN: a word that Slurm may know."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    EXPEDITING = "EXPEDITING"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    POWER_UP_NODE = "POWER_UP_NODE"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UPDATE_DB = "UPDATE_DB"
    UNKNOWN = "UNKNOWN"

    @property
    def finished(self) -> bool:
        """Nothing of the job will run any more, unless somebody requeues it."""
        return self in _FINISHED

    @property
    def failed(self) -> bool:
        """It ended, and not well."""
        return self in _FINISHED and self is not State.COMPLETED


_FINISHED = frozenset({
    State.BOOT_FAIL, State.CANCELLED, State.COMPLETED, State.DEADLINE, State.FAILED, State.LAUNCH_FAILED,
    State.NODE_FAIL, State.OUT_OF_MEMORY, State.PREEMPTED, State.RECONFIG_FAIL, State.REVOKED, State.TIMEOUT,
})  # fmt: skip

_CODES = {
    "BF": State.BOOT_FAIL, "CA": State.CANCELLED, "CD": State.COMPLETED, "CF": State.CONFIGURING,
    "CG": State.COMPLETING, "DL": State.DEADLINE, "F": State.FAILED, "LF": State.LAUNCH_FAILED,
    "NF": State.NODE_FAIL, "OOM": State.OUT_OF_MEMORY, "PD": State.PENDING, "PR": State.PREEMPTED,
    "PU": State.POWER_UP_NODE, "R": State.RUNNING, "RD": State.RESV_DEL_HOLD, "RF": State.REQUEUE_FED,
    "RH": State.REQUEUE_HOLD, "RQ": State.REQUEUED, "RS": State.RESIZING, "RV": State.REVOKED,
    "S": State.SUSPENDED, "SE": State.SPECIAL_EXIT, "SI": State.SIGNALING, "SO": State.STAGE_OUT,
    "ST": State.STOPPED, "TO": State.TIMEOUT, "UD": State.UPDATE_DB,
}  # fmt: skip

_SENTENCES = {
    State.BOOT_FAIL: "Its nodes could not be booted.",
    State.CANCELLED: "It was cancelled by its user or an administrator.",
    State.COMPLETED: "It ended, and its script returned 0.",
    State.COMPLETING: "It has ended; some of its processes or the epilog are still running.",
    State.CONFIGURING: "It has its nodes and waits for them to be ready.",
    State.DEADLINE: "It could not end before its deadline and was removed.",
    State.EXPEDITING: "It was requeued to start again before other jobs.",
    State.FAILED: "It ended, and its script returned something other than 0.",
    State.LAUNCH_FAILED: "It could not be started on its nodes.",
    State.NODE_FAIL: "One of its nodes failed.",
    State.OUT_OF_MEMORY: "It used more memory than it had asked for and was killed.",
    State.PENDING: "It waits in the queue.",
    State.POWER_UP_NODE: "It has its nodes; they are being switched on.",
    State.PREEMPTED: "It was stopped to make room for a job that goes before it.",
    State.RECONFIG_FAIL: "Its nodes could not be reconfigured.",
    State.REQUEUED: "It was put back into the queue and will start again.",
    State.REQUEUE_FED: "It was put back into the queue of its federation.",
    State.REQUEUE_HOLD: "It was put back into the queue and is held there.",
    State.RESIZING: "Its size is about to change.",
    State.RESV_DEL_HOLD: "It is held: the reservation that it asked for was deleted.",
    State.REVOKED: "Another cluster of the federation has taken it.",
    State.RUNNING: "It is running.",
    State.SIGNALING: "It is being sent a signal.",
    State.SPECIAL_EXIT: "It ended with an exit status that its site treats apart, and is held in the queue.",
    State.STAGE_OUT: "It has ended; its files are being staged out.",
    State.STOPPED: "It was stopped by a signal and keeps its CPUs.",
    State.SUSPENDED: "It is suspended; its CPUs are lent to other jobs.",
    State.TIMEOUT: "It reached its time limit and was killed.",
    State.UPDATE_DB: "It is being written to the accounting database.",
    State.UNKNOWN: "Slurm gave a state that this version of hpc_kit does not know.",
}


def parse_state(text: str) -> State:
    """Read `RUNNING`, `CG`, `CANCELLED by 2345`, `OUT_OF_ME+`; UNKNOWN for any other word."""
    words = text.split()
    word = words[0].upper() if words else ""
    beginning = word.removesuffix("+")
    if beginning in _CODES:
        return _CODES[beginning]
    if beginning in State.__members__:
        return State[beginning]
    # sacct cuts a column to its width and marks the cut.
    long_enough = [state for state in State if word.endswith("+") and beginning and state.startswith(beginning)]
    return long_enough[0] if len(long_enough) == 1 else State.UNKNOWN


def explain_state(state: State) -> str:
    """A plain sentence on what the state means."""
    return _SENTENCES[state]
