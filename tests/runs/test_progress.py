"""The progress of a running job, as `status` and `watch` show it."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.cli.job_tables import job_json
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.progress import draw_line, find_slowest, read_progress
from hpc_kit.runs.run_folders import Run, RunIndex, open_run
from hpc_kit.runs.status import JobLine, list_jobs
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm


def note(folder: Path, **changes: Any) -> None:
    """Write the progress of rank 0."""
    content = {"time": time.time(), "rank": 0, "host": "n1", "step": 40, "total": 100, "phase": None, "seconds": 2.0}
    content |= {"losses": [3.0, 2.0, 1.0], "numbers": {"loss": 2.25}}
    (folder / "progress-0.json").write_text(json.dumps(content | changes))


@pytest.fixture
def run(slurm: FakeSlurm, project: Path) -> Run:
    submit("job", "fake")
    slurm.queue("12 RUNNING")
    return open_run(project / "runs/job/12")


def line_of(slurm: FakeSlurm, project: Path) -> JobLine:
    (line,) = list_jobs(
        JobSelection.from_words(["12"]), RunIndex(project / "runs"), slurm.client(os.environ), cluster="fake"
    ).lines
    return line


def test_a_running_job_shows_its_step_and_the_time_to_go(slurm: FakeSlurm, project: Path, run: Run) -> None:
    note(run.folder)
    line = line_of(slurm, project)
    assert line.sentence == "step 40/100, loss 2.25, about 2 min to go; 9 min 50 s left of 10 min on n[1-2]"
    assert line.progress is not None
    assert line.progress.seconds_left() == 120


def test_a_job_that_will_not_end_in_time_says_so(slurm: FakeSlurm, project: Path, run: Run) -> None:
    note(run.folder, seconds=20.0)
    assert "about 20 min to go, the time limit comes first, in 9 min 50 s" in line_of(slurm, project).sentence


def test_a_stall_is_shown_until_the_training_goes_on(slurm: FakeSlurm, project: Path, run: Run) -> None:
    (run.folder / "stacks").mkdir()
    verdict = {"time": time.time(), "step": 40, "sentence": "rank 3 does not answer", "ranks": [3]}
    (run.folder / "stacks/verdict.json").write_text(json.dumps(verdict))
    note(run.folder, time=time.time() - 60)
    line = line_of(slurm, project)
    assert line.sentence.startswith("rank 3 does not answer; ")
    assert line.next_step == "hpc-kit stacks 12"
    note(run.folder, time=time.time() + 1)
    assert line_of(slurm, project).sentence.startswith("step 40/100")


def test_an_old_note_is_shown_with_its_age(run: Run) -> None:
    note(run.folder, time=time.time() - 300)
    progress = read_progress(run)
    assert progress is not None
    assert progress.describe(None).startswith("step 40/100, loss 2.25, 5 min ago")


def test_a_phase_and_a_missing_total_are_described(run: Run) -> None:
    note(run.folder, total=None, phase="evaluation", numbers={})
    progress = read_progress(run)
    assert progress is not None
    assert progress.describe(None) == "step 40, evaluation"


def test_the_slowest_rank_is_named_with_its_node(slurm: FakeSlurm, project: Path, run: Run) -> None:
    note(run.folder, ranks={"0": {"waits": 0.4, "memory": 1 << 30}, "1": {"waits": 0.43}})
    second = {"time": time.time(), "rank": 2, "host": "n2"}
    second["ranks"] = {"2": {"waits": 0.03, "memory": 3 << 29, "gpu_memory": 1 << 29}, "3": {"waits": 0.41}}
    (run.folder / "progress-1.json").write_text(json.dumps(second))
    earlier = {"time": time.time() - 900, "rank": 4, "host": "n3", "ranks": {"4": {"waits": 0.0}}}
    (run.folder / "progress-2.json").write_text(json.dumps(earlier))
    line = line_of(slurm, project)
    slowest = "slowest rank 2 on n2: waits 3 %, the others 41 %; "
    assert f"loss 2.25, memory 1.5 GiB, GPU memory 0.5 GiB, about 2 min to go, {slowest}" in line.sentence
    progress: Any = job_json(line)["progress"]
    assert progress["slowest"] == {"ranks": [2], "hosts": ["n2"], "waits": 0.03, "others_wait": 0.41}


@pytest.mark.parametrize(
    ("waits", "slow"),
    [
        ([0.40, 0.03, 0.41, 0.45], [1]),
        ([0.40, 0.03, 0.04, 0.45], [1, 2]),
        ([0.03, 0.04, 0.05, 0.60], None),
        ([0.40, 0.30, 0.41, 0.45], None),
        ([0.40, 0.10], [1]),
        ([0.40], None),
        ([], None),
    ],
    ids=["one", "two", "one fast rank", "no clear difference", "of two", "one rank", "no samples"],
)
def test_a_rank_is_slow_if_it_waits_clearly_less_than_most(waits: list[float], slow: list[int] | None) -> None:
    slowest = find_slowest(dict(enumerate(waits)), dict.fromkeys(range(len(waits)), "n1"))
    assert (slowest.ranks if slowest else None) == slow


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 1}', '{"step": "x", "time": 1}'])
def test_a_damaged_note_counts_as_none(run: Run, text: str) -> None:
    (run.folder / "progress-0.json").write_text(text)
    assert read_progress(run) is None


def test_a_job_without_notes_shows_its_time_only(slurm: FakeSlurm, project: Path, run: Run) -> None:
    assert line_of(slurm, project).sentence == "9 min 50 s left of 10 min on n[1-2]"


def test_json_has_no_nan(slurm: FakeSlurm, project: Path, run: Run) -> None:
    note(run.folder, numbers={"loss": math.nan, "norm": math.inf, "lr": 0.1}, losses=[1.0, math.nan])
    progress: Any = job_json(line_of(slurm, project))["progress"]
    assert (progress["numbers"], progress["losses"]) == ({"loss": None, "norm": None, "lr": 0.1}, [1.0, None])
    json.dumps(progress, allow_nan=False)


def test_losses_are_drawn_as_bars() -> None:
    assert draw_line([3.0, 2.0, 1.0]) == "█▅▁"
    assert draw_line([1.0]) == ""
    assert draw_line([1.0, float("nan"), 2.0]) == "▁?█"
