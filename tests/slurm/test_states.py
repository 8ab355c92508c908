"""States and pending reasons: every one has a sentence, unknown ones are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.slurm.pending_reasons import REASONS, Reason, explain_reason, is_user_limit, needs_intervention
from hpc_kit.slurm.states import JobState, explain_state, parse_state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("running", JobState.RUNNING),
        ("CANCELLED by 2345", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("CG", JobState.COMPLETING),
        ("PD", JobState.PENDING),
        ("OOM", JobState.OUT_OF_MEMORY),
        ("RESV_DEL_HOLD", JobState.RESV_DEL_HOLD),
        ("SPECIAL_EXIT", JobState.SPECIAL_EXIT),
        ("RE+", JobState.UNKNOWN),
        ("+", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
        ("HIBERNATING", JobState.UNKNOWN),
        ("UNKNOWN", JobState.UNKNOWN),
    ],
)
def test_states_are_read(text: str, state: JobState) -> None:
    assert parse_state(text) is state


@pytest.mark.parametrize("state", JobState)
def test_every_state_has_a_sentence_and_reads_back(state: JobState) -> None:
    assert parse_state(state) is state
    assert explain_state(state).endswith(".")


def test_final_and_failed_states_are_distinguished() -> None:
    finished = {state for state in JobState if state.finished}
    assert finished == {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.LAUNCH_FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.RECONFIG_FAIL,
        JobState.REVOKED,
        JobState.TIMEOUT,
    }
    assert {state for state in JobState if state.failed} == finished - {JobState.COMPLETED}


def test_every_state_of_the_manual_is_listed() -> None:
    codes = {"BF", "CA", "CD", "CF", "CG", "DL", "F", "NF", "OOM", "PD", "PR", "R", "RD", "RF", "RH", "RQ", "RS"}
    codes |= {"RV", "SI", "SE", "SO", "ST", "S", "TO"}
    assert len({parse_state(code) for code in codes} - {JobState.UNKNOWN}) == len(codes)


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_has_a_sentence_and_a_next_step_with_the_id(name: str) -> None:
    reason = explain_reason(name, "4711")
    assert reason.sentence.endswith(".")
    assert reason.next_step
    assert "{" not in reason.sentence + reason.next_step
    assert explain_reason(f"({name.upper()})", "4711") == reason


@pytest.mark.parametrize(
    ("text", "sentence", "step"),
    [
        ("(Resources)", "It is next in line and waits for nodes to become free.", "squeue --start --job=7"),
        ("JobHeldUser", "It is held by its user.", "scontrol release 7"),
        ("DependencyNeverSatisfied", "A job that it depends on did not end as required.", "scancel 7"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
            "A node that it needs is down, drained or reserved (UnavailableNodes:n[1-2]).",
            "sinfo --list-reasons",
        ),
        (
            "ReqNodeNotAvail(Unavailable:n1)",
            "A node that it needs is down, drained or reserved (Unavailable:n1).",
            "sinfo",
        ),
        ("ReqNodeNotAvail, UnavailableNodes:", "A node that it needs is down, drained or reserved.", "sinfo"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "so it starts after that.", "--time"),
        ("QOSMaxCpuPerUserLimit", "than its QOS allows (QOSMaxCpuPerUserLimit).", "sacctmgr show qos"),
        ("QOSGrpGRES", "have reached a limit (QOSGrpGRES).", "sacctmgr show qos"),
        ("QOSMinGRES", "the minimum of its QOS (QOSMinGRES).", "sacctmgr show qos"),
        ("AssocGrpCPUMinutesLimit", "have reached a limit (AssocGrpCPUMinutesLimit).", "sacctmgr show assoc"),
        ("AssocMaxNodePerJobLimit", "its account allows (AssocMaxNodePerJobLimit).", "sacctmgr show assoc"),
        ("AssocMaxJobsLimit", "You already run as many jobs as your account allows.", "sacctmgr show assoc"),
        ("MaxCpuPerAccount", "its QOS keeps it from starting (MaxCpuPerAccount).", "sacctmgr show qos"),
        ("RaisedSignal:9(Killed)", "A signal ended it (RaisedSignal:9(Killed)).", "logs"),
        ("(launch failed requeued held)", "It could not be started on its nodes.", "scontrol release 7"),
        ("job requeued in held state", "It is held by its user.", "scontrol release 7"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "A node that it needs is down, drained or reserved.",
            "sinfo",
        ),
        ("QuantumFlux", "Slurm gives the reason QuantumFlux.", "scontrol show job 7"),
        ("", "Slurm gives no reason.", "scontrol show job 7"),
    ],
)
def test_a_reason_is_explained(text: str, sentence: str, step: str) -> None:
    found = explain_reason(text, "7")
    assert found.sentence.endswith(sentence)
    assert step in found.next_step


def test_without_an_id_the_command_has_a_placeholder() -> None:
    assert explain_reason("JobHeldUser") == Reason("It is held by its user.", "Release it: scontrol release JOBID")


@given(st.text(max_size=30))
def test_any_reason_is_explained(text: str) -> None:
    found = explain_reason(text)
    assert found.sentence.endswith(".")
    assert found.next_step


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionConfig",
        "(ReqNodeNotAvail, UnavailableNodes:n[1-2])",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "QOSMaxCpuPerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "AssocMaxGRESMinutesPerJob",
        "QOSMaxCpuPerNode",
        "QOSMinGRES",
        "AssocGrpCPUMinutesLimit",
        "QOSGrpWallLimit",
        "launch failed requeued held",
    ],
)
def test_some_reasons_need_an_intervention(reason: str) -> None:
    assert needs_intervention(reason)
    assert not is_user_limit(reason)


@pytest.mark.parametrize(
    ("reason", "mine"),
    [
        ("AssocMaxJobsLimit", True),
        ("QOSMaxCpuPerUserLimit", True),
        ("MaxJobsPerUser", True),
        ("MaxCpuPerAccount", False),
        ("AssocGrpCPURunMinutesLimit", False),
        ("AssocGrpNodeLimit", False),
        ("Priority", False),
        ("None", False),
        ("", False),
    ],
)
def test_other_reasons_need_no_intervention(reason: str, mine: bool) -> None:
    assert not needs_intervention(reason)
    assert is_user_limit(reason) == mine
