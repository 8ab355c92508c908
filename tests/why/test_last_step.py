"""Jobs that stood still until their time limit, with logs whose times have no date or in which a monitor goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.why.test_explain import why

END = "slurmstepd: error: *** JOB 7 ON n4 CANCELLED AT 2026-01-03T03:00:10 DUE TO TIME LIMIT ***\n"
SACCT = "JobID|State|ExitCode|Elapsed\n7|TIMEOUT|0:0|08:00:10\n"
STEPS_TO = 22 * 60 + 10
"""Minutes since midnight of the last step."""


def clock(minutes: int) -> str:
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}:07"


def steps(
    form: str = "[{time}] step {number} loss 0.{number} of model-with-a-long-name, 61.2 GiB", every: int = 1
) -> str:
    # Enough lines to show that the last ones are not only in the buffer of Python.
    times = range(STEPS_TO - 190 * every, STEPS_TO + 1, every)
    return "".join(form.format(time=clock(at), number=100 + n) + "\n" for n, at in enumerate(times))


def monitor(form: str, until: int = 27 * 60) -> Iterator[str]:
    return (form.format(time=clock(at), day=2 + at // 1440) + "\n" for at in range(STEPS_TO + 10, until, 10))


@pytest.mark.parametrize(
    "form",
    [
        "[{time}] [monitor] nothing new; gpu util 100 %",
        "[{time}] no progress since the last check",
        "{time} heartbeat of the launcher",
        "2026-01-{day:02} {time} WARNING watchdog: still waiting for the next step",
    ],
)
def test_a_monitor_that_goes_on_does_not_hide_a_hang(tmp_path: Path, form: str) -> None:
    log = steps() + "saving the model\n" + "".join(monitor(form)) + END
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT)
    assert verdict.cause.startswith("the job stood still since 22:10:07")
    assert "step 290" in verdict.cause
    assert "saving the model" in verdict.cause
    assert verdict.confidence == "likely"


def test_times_without_a_date_show_a_silence(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm__7_log=steps() + "saving the model\n" + END, sacct_txt=SACCT)
    assert "stood still since 22:10:07" in verdict.cause
    assert "04:50:03" in verdict.cause


@pytest.mark.parametrize(
    "log",
    [
        # The program itself goes on, in another way.
        steps() + "".join(monitor("[{time}] wrote the embeddings of another file")),
        # It trains until the end.
        steps() + "".join(monitor("[{time}] step 9 loss 0.1")),
        # Steps take hours.
        steps(every=100) + "".join(monitor("[{time}] [monitor] gpu util 100 %")),
        # The last steps may still have been in the buffer of Python.
        steps(form="{time} step {number}") + "".join(monitor("[{time}] [monitor] gpu util 100 %", STEPS_TO + 150)),
    ],
)
def test_a_job_that_may_have_gone_on_reached_its_limit(tmp_path: Path, log: str) -> None:
    verdict = why(tmp_path, slurm__7_log=log + END)
    assert verdict.cause.startswith("the job reached its time limit")
