"""Job states with their short codes and a sentence for each."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The states of a job, and the flags that squeue shows in place of a state. UNKNOWN is any other word."""

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
        """The job has ended. Only a requeue could start it again."""
        return self in _FINISHED

    @property
    def failed(self) -> bool:
        """The job has ended without success."""
        return self in _FINISHED and self is not JobState.COMPLETED


ENDED_BY_SLURM = frozenset({
    JobState.BOOT_FAIL, JobState.CANCELLED, JobState.DEADLINE, JobState.LAUNCH_FAILED, JobState.NODE_FAIL,
    JobState.PREEMPTED, JobState.RECONFIG_FAIL, JobState.REVOKED, JobState.TIMEOUT,
})  # fmt: skip
"""States of jobs that a command, a limit or a node ended, and not their program."""

_FINISHED = ENDED_BY_SLURM | {JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY}

STATE_CODES = {
    "PENDING": "PD", "RUNNING": "R", "SUSPENDED": "S", "COMPLETED": "CD", "CANCELLED": "CA", "FAILED": "F",
    "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR", "BOOT_FAIL": "BF", "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM",
    "COMPLETING": "CG", "CONFIGURING": "CF", "RESIZING": "RS", "RESV_DEL_HOLD": "RD", "REQUEUED": "RQ",
    "REQUEUE_FED": "RF", "REQUEUE_HOLD": "RH", "REVOKED": "RV", "SIGNALING": "SI", "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO", "STOPPED": "ST",
}  # fmt: skip
"""States that Slurm 22.05 accepts as arguments, in its order, with their short codes."""

_STATES_BY_CODE = {code: JobState(name) for name, code in STATE_CODES.items()} | {
    "LF": JobState.LAUNCH_FAILED, "PU": JobState.POWER_UP_NODE, "UD": JobState.UPDATE_DB,
}  # fmt: skip

_SENTENCES = {
    JobState.BOOT_FAIL: "Its nodes could not be booted.",
    JobState.CANCELLED: "It was cancelled by its user or an administrator.",
    JobState.COMPLETED: "Its script ended with exit code 0.",
    JobState.COMPLETING: "It has ended; some of its processes or the epilog are still running.",
    JobState.CONFIGURING: "It has its nodes and waits for them to be ready.",
    JobState.DEADLINE: "It could not end before its deadline and was removed.",
    JobState.EXPEDITING: "It was requeued to start again before other jobs.",
    JobState.FAILED: "Its script ended with a nonzero exit code.",
    JobState.LAUNCH_FAILED: "It could not be started on its nodes.",
    JobState.NODE_FAIL: "One of its nodes failed.",
    JobState.OUT_OF_MEMORY: "It used more memory than it had asked for and was killed.",
    JobState.PENDING: "It waits in the queue.",
    JobState.POWER_UP_NODE: "It has its nodes; they are being switched on.",
    JobState.PREEMPTED: "It was stopped to make room for a job that goes before it.",
    JobState.RECONFIG_FAIL: "Its nodes could not be reconfigured.",
    JobState.REQUEUED: "It was put back into the queue and will start again.",
    JobState.REQUEUE_FED: "It was put back into the queue of its federation.",
    JobState.REQUEUE_HOLD: "It was put back into the queue and is held there.",
    JobState.RESIZING: "Its size is about to change.",
    JobState.RESV_DEL_HOLD: "It is held: the reservation that it asked for was deleted.",
    JobState.REVOKED: "Another cluster of the federation has taken it.",
    JobState.RUNNING: "It is running.",
    JobState.SIGNALING: "It is being sent a signal.",
    JobState.SPECIAL_EXIT: "It ended with an exit code for which the site holds jobs in the queue.",
    JobState.STAGE_OUT: "It has ended; its files are being staged out.",
    JobState.STOPPED: "It was stopped by a signal and keeps its CPUs.",
    JobState.SUSPENDED: "It is suspended; its CPUs are lent to other jobs.",
    JobState.TIMEOUT: "It reached its time limit and was killed.",
    JobState.UPDATE_DB: "It is being written to the accounting database.",
    JobState.UNKNOWN: "Slurm gave a state that this version of hpc_kit does not know.",
}


def parse_state(text: str) -> JobState:
    """Parse `RUNNING`, `CG`, `CANCELLED by 2345`, `OUT_OF_ME+`; return UNKNOWN for any other word."""
    words = text.split()
    word = words[0].upper() if words else ""
    beginning = word.removesuffix("+")
    # A short code comes from squeue's %t, a full name from all other columns.
    if beginning in _STATES_BY_CODE:
        return _STATES_BY_CODE[beginning]
    if beginning in JobState.__members__:
        return JobState[beginning]
    # sacct cuts a column to its width and marks the cut.
    long_enough = [state for state in JobState if word.endswith("+") and beginning and state.startswith(beginning)]
    return long_enough[0] if len(long_enough) == 1 else JobState.UNKNOWN


def parse_state_filter(text: str) -> frozenset[str]:
    """Parse the value of squeue's `--states`, such as `PD,running` or `all`.

    Raises:
        ValueError: A word is no state; the error contains the word.
    """
    names = {code: name for name, code in STATE_CODES.items()}
    found: set[str] = set()
    for word in text.split(","):
        name = names.get(word.upper(), word.upper())
        if name == "ALL":
            return frozenset(STATE_CODES)
        if name not in STATE_CODES:
            raise ValueError(word)
        found.add(name)
    return frozenset(found)


def explain_state(state: JobState) -> str:
    """Return a sentence that explains the state."""
    return _SENTENCES[state]
