"""A queue continues during an upgrade: commands, controller and supervisors may have different releases."""

from __future__ import annotations

import signal

import pytest

from pocketslurm.queue import messages
from pocketslurm.queue.messages import (
    Cancel,
    Complete,
    EndComponent,
    JobOrder,
    Signal,
    TellStep,
)
from pocketslurm.queue.records import Job
from tests.pocketslurm.conftest import Slurm, wait_for


def test_missing_columns_of_an_older_release_have_defaults(slurm: Slurm) -> None:
    state = slurm.state()
    state.execute("INSERT INTO jobs (job_id, state) VALUES (7, 'COMPLETED')")
    job = state.jobs("het_offset = 0")[0]
    state.close()
    defaults = {name: value for name, value in Job._field_defaults.items() if name != "state"}
    assert {name: getattr(job, name) for name in defaults} == defaults


# Orders


@pytest.mark.parametrize(
    ("order", "written"),
    [
        (Cancel("NODE FAILURE"), ("Cancel", '["NODE FAILURE"]')),
        (Complete(256), ("Complete", "[256]")),
        (EndComponent(8), ("EndComponent", "[8]")),
        (Signal(10, "steps"), ("Signal", '[10, "steps", null]')),
        (TellStep("0+1", "signal 10", 8), ("TellStep", '["0+1", "signal 10", 8]')),
    ],
)
def test_the_format_of_orders_never_changes(order: JobOrder, written: tuple[str, str]) -> None:
    assert messages.encode_order(order) == written
    assert messages.decode_order(*written) == order


UNREADABLE = [("Signal", "[10]"), ("Cancel", "why"), ("Complete", "256"), ("EndComponent", "[8, 9]"), ("Dance", "[1]")]


@pytest.mark.parametrize(("kind", "value"), UNREADABLE)
def test_an_unreadable_order_is_ignored(kind: str, value: str) -> None:
    assert messages.decode_order(kind, value) is None


def test_a_supervisor_continues_after_an_unreadable_order(slurm: Slurm) -> None:
    body = "trap 'echo heard' USR1; srun bash -c 'touch up; exec sleep 100'; echo ended; exit 0"
    job_id = slurm.submit(body, "-n1", "-o", "out")
    wait_for((slurm.folder / "up").exists)
    state = slurm.state()
    for kind, value in [
        *UNREADABLE,
        messages.encode_order(Signal(signal.SIGUSR1, "batch")),
        messages.encode_order(TellStep("0", "kill")),
    ]:
        state.execute("INSERT INTO orders (job_id, kind, value) VALUES (?, ?, ?)", (job_id, kind, value))
    state.close()
    messages.wake(slurm.directory, job_id)
    assert slurm.until(job_id, "COMPLETED").attempt == 1
    assert "heard\nended\n" in slurm.log("out")
    assert (slurm.directory / "controller.log").read_text().count(f"error: JobId={job_id}: ") == len(UNREADABLE)


def test_a_step_is_ended_by_its_number(slurm: Slurm) -> None:
    job_id = slurm.submit("srun bash -c 'touch up; exec sleep 100'; echo ended", "-n1", "-o", "out")
    wait_for((slurm.folder / "up").exists)
    slurm.check_output("scancel", f"{job_id}.0")
    assert slurm.until(job_id, "COMPLETED").attempt == 1
