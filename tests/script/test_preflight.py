"""What the script of a job with [preflight] does after the verdict on its nodes, on the embedded Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.bench.preflight import read_verdict
from hpc_kit.errors import SpecError
from hpc_kit.run_files import END
from hpc_kit.runs.history import read_history
from hpc_kit.script.render import render
from tests.pocketslurm.conftest import Slurm, wait_for

pytestmark = pytest.mark.waits

JUDGE = """#!/bin/bash
verdict=verdict${SLURM_RESTART_COUNT:-0}
[[ $* = *preflight_rank* ]] || [ ! -e "$verdict" ] || cp "$verdict" "$HPC_KIT_RUN/preflight/excluded"
"""
"""In place of the interpreter: measures nothing, and gives the verdict that the test has written for each attempt."""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A queue whose work folder is the project."""
    # As on a real Slurm: after the requeue, the script has this time to exclude its nodes.
    own = Slurm(tmp_path, gpus=0, kill_wait=30.0)
    (own.folder / "judge").write_text(JUDGE)
    (own.folder / "judge").chmod(0o755)
    try:
        yield own
    finally:
        own.clear()


def submit(slurm: Slurm, *verdicts: str, **settings: object) -> Path:
    """Submit a job whose attempts get these verdicts; returns the folder of its run."""
    for attempt, verdict in enumerate(verdicts):
        (slurm.folder / f"verdict{attempt}").write_text(verdict)
    values: dict[str, object] = {
        "name": "job", "command": ["bash", "-c", "echo on $SLURMD_NODENAME"], "cluster.python": "./judge",
        "resources.time": 5, "resources.nodes": 2, "preflight.enabled": True,
    }  # fmt: skip
    text = render("single", "local", set={**values, **settings}, root=slurm.folder)
    (slurm.folder / "runs" / "job").mkdir(parents=True, exist_ok=True)
    (slurm.folder / "job.sbatch").write_text(text)
    return slurm.folder / "runs" / "job" / slurm.check_output("sbatch", "--parsable", "job.sbatch").strip()


def await_end(run: Path) -> int:
    """Return the exit code of the job after its last attempt."""
    wait_for(lambda: (run / END).is_file() and (run / END).read_text(), seconds=60)
    return int((run / END).read_text().split()[0])


def nodes_of(run: Path) -> str:
    """The nodes on which the ranks have run."""
    return "".join(path.read_text() for path in sorted(run.glob("rank-*.log")))


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history").read_text().splitlines()]


def log(run: Path) -> str:
    return run.with_name(f"{run.name}.log").read_text()


def test_good_nodes_train(slurm: Slurm) -> None:
    run = submit(slurm, "")
    assert await_end(run) == 0, log(run)
    assert nodes_of(run) == "on n1\non n2\n"
    assert log(run) == ""
    (attempt,) = read_history(run).attempts
    assert (attempt.decision, attempt.exit_code, attempt.nodes) == ("finished", 0, "n[1-2]")


def test_without_a_verdict_the_training_starts(slurm: Slurm) -> None:
    run = submit(slurm)
    assert await_end(run) == 0
    assert nodes_of(run) == "on n1\non n2\n"
    assert "the preflight gave no verdict, and the job goes on" in log(run)


def test_a_spare_node_replaces_a_slow_one(slurm: Slurm) -> None:
    run = submit(slurm, "n1 n1 is slow: disk\n", restart={"spares": 1})
    assert await_end(run) == 0, log(run)
    assert nodes_of(run) == "on n2\non n3\n", log(run)
    assert read_history(run).attempts[0].excluded == ("n1",)


@pytest.mark.slow
def test_without_a_spare_node_the_job_is_requeued_without_the_slow_one(slurm: Slurm) -> None:
    run = submit(slurm, 'n1 n1 is slow: disk "a"\n', "")
    assert await_end(run) == 0, log(run)
    assert nodes_of(run) == "on n2\non n3\n", log(run)
    first, second = read_history(run).attempts
    assert (first.decision, first.reason) == ("requeue", "preflight: n1 is slow: disk a")
    assert (second.nodes, second.decision) == ("n[2-3]", "finished")


@pytest.mark.slow
def test_a_job_with_restart_is_requeued_too_and_its_history_has_all_attempts(slurm: Slurm) -> None:
    run = submit(slurm, "n2 n2 is broken: clock\n", "", restart={"progress": "saved"})
    assert await_end(run) == 0, log(run)
    assert nodes_of(run) == "on n1\non n3\n"
    assert [attempt.decision for attempt in read_history(run).attempts] == ["requeue", "finished"]
    assert [event["decision"] for event in events(run) if event["event"] == "end"] == ["requeue", "finished"]


def test_a_job_with_restart_that_fails_because_of_its_nodes_has_one_end(slurm: Slurm) -> None:
    run = submit(slurm, "n2 n2 is broken: clock\n", restart={}, **{"preflight.requeues": 0})
    assert await_end(run) == 1
    assert [event["decision"] for event in events(run) if event["event"] == "end"] == ["failed"]


def test_later_exclusions_keep_the_earlier_ones(slurm: Slurm) -> None:
    run = submit(slurm, "n1 n1 is slow: disk\n", "n3 n3 is slow: disk\n", "", **{"resources.exclude": "n4"})
    assert await_end(run) == 1, log(run)
    assert "partition local has 1 other usable nodes like those of the job, which needs 2" in log(run)


@pytest.mark.slow
def test_the_number_of_requeues_is_limited(slurm: Slurm) -> None:
    run = submit(slurm, *(f"n{node} n{node} is slow: disk\n" for node in (1, 2)), **{"preflight.requeues": 1})
    assert await_end(run) == 1
    assert nodes_of(run) == ""
    assert [event.get("decision") for event in events(run) if event["event"] == "end"] == ["requeue", "failed"]
    assert log(run).endswith(
        "hpc-kit: the job cannot go on without n2\n"
        "  found  n2 is slow: disk\n"
        "         the job was requeued 1 times because of its nodes\n"
        "  do     submit the job again with --exclude=n2, or set [preflight] enabled = false\n"
    )


def test_a_job_that_may_not_be_requeued_fails(slurm: Slurm) -> None:
    run = submit(slurm, "n1 n1 is slow: disk\n", **{"resources.no_requeue": True})
    assert await_end(run) == 1
    assert "--exclude=n1" in log(run)


@pytest.mark.parametrize("variant", ["standalone", "simple"])
def test_nodes_without_hpc_kit_cannot_be_measured(variant: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"a {variant} script has no preflight"):
        render("single", "local", set={"preflight.enabled": True}, root=tmp_path, **{variant: True})


def test_heterogeneous_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=re.escape("[preflight] does not support heterogeneous jobs")):
        render("hetjob", "slurm", set={"preflight.enabled": True}, root=tmp_path)


@pytest.mark.slow
def test_the_nodes_are_measured_and_the_training_follows(tmp_path: Path) -> None:
    # The names of these nodes are addresses, so that the nodes find each other.
    slurm = Slurm(tmp_path, gpus=0, nodes="127.0.0.[1-3]")
    try:
        run = submit(slurm, **{"cluster.python": None, "resources.nodes": 3})
        wait_for((run / END).is_file, seconds=70)
    finally:
        slurm.clear()
    assert nodes_of(run) == "on 127.0.0.1\non 127.0.0.2\non 127.0.0.3\n", log(run)
    verdict = read_verdict(run)
    assert verdict is not None
    assert [report.error or report.stage for report in verdict.reports] == ["", "", ""]
    for report in verdict.reports:
        assert set(report.rates) == {"matrix product", "memory", "disk"}
        assert len(report.pairs) == 2
        assert report.all_reduce
        assert report.seconds < 60
