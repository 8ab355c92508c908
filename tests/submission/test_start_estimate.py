"""Reading the start time that `sbatch --test-only` estimates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable, SubmitRefused
from hpc_kit.script.render import render_resolved
from hpc_kit.spec import load
from hpc_kit.spec.resolve import resolve
from hpc_kit.submission.sbatch import StartEstimate, estimate_start, parse_start_estimate
from tests.runs.fake import FakeSlurm

TOMORROW = dt.datetime.fromisoformat("2026-11-23T14:20:05")

MAIN = "sbatch: Job 2 to start at 2026-11-23T14:20:05 using 4 processors on nodes n[1-4] in partition main\n"


@pytest.mark.parametrize(
    ("output", "start"),
    [
        (
            MAIN.replace("main", "high") + "sbatch:   Preempts: 4,5\n",
            StartEstimate(TOMORROW, "n[1-4]", 4, "high", ("4", "5")),
        ),
        (MAIN, StartEstimate(TOMORROW, "n[1-4]", 4, "main", ())),
        ("sbatch: Job 9 to start at 2026-11-23T14:20:05 using 2 processors on n[1-2]\n",
         StartEstimate(TOMORROW, "n[1-2]", 2, None, ())),
        ("lua: welcome\n" + MAIN.replace("using", "a using"), StartEstimate(TOMORROW, "n[1-4]", 4, "main", ())),
        (MAIN.replace("2026-11-23T14:20:05", "soon"), None),
        ("", None),
    ],
)  # fmt: skip
def test_the_estimate_of_sbatch_is_read(output: str, start: StartEstimate | None) -> None:
    assert parse_start_estimate(output) == start


SAYS = """echo "${!#}" >"$FAKE/asked"; cp "${!#}" "$FAKE/script"; cat "$FAKE/says" >&2; exit "$(cat "$FAKE/exit")"\n"""


def ask(slurm: FakeSlurm, project: Path, says: str, status: int = 0) -> StartEstimate:
    slurm.write("sbatch.hook", SAYS)
    slurm.write("says", says)
    slurm.write("exit", str(status))
    job = resolve(load.load("job", "fake", root=project), root=project)
    return estimate_start(job, render_resolved(job, root=project))


def test_the_estimate_uses_the_rendered_script_and_leaves_no_file(slurm: FakeSlurm, project: Path) -> None:
    assert ask(slurm, project, MAIN).nodes == "n[1-4]"
    assert slurm.read("sbatch.argv").split()[0] == "--test-only"
    assert "#SBATCH --nodes=2" in slurm.read("script")
    assert not Path(slurm.read("asked").strip()).exists()
    assert not (project / "runs").exists()


def test_the_time_is_requested_in_slurms_format(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    ask(slurm, project, MAIN)
    assert not {"SLURM_TIME_FORMAT", "SBATCH_TIMELIMIT"} & slurm.sbatch_environ().keys()


def test_a_refused_estimate_is_an_error_of_submit(slurm: FakeSlurm, project: Path) -> None:
    with pytest.raises(SubmitRefused, match="sbatch refused job") as refused:
        ask(slurm, project, "allocation failure: Requested node configuration is not available\n", 1)
    assert refused.value.found == "allocation failure: Requested node configuration is not available"
    assert "asks for 2 nodes" in str(refused.value.remedy)


def test_an_estimate_without_a_time_is_an_error(slurm: FakeSlurm, project: Path) -> None:
    with pytest.raises(SlurmUnavailable, match="does not print when") as unclear:
        ask(slurm, project, "sbatch: all fine\n")
    assert unclear.value.found == "all fine"
