"""Several jobs in one command, and when and where they may start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpc_kit.cli import main, root
from hpc_kit.cli.submit import CHAIN_KINDS
from hpc_kit.errors import HpcKitError, SpecError, SubmitRefused
from hpc_kit.script.render import render
from tests.cli.conftest import Kit
from tests.runs.fake import FakeSlurm
from tests.slurm.oracle import sbatch_defined_options


@pytest.fixture
def jobs(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Jobs a, b and c beside `job`, for the cluster `fake`."""
    monkeypatch.setenv("HPC_KIT_CLUSTER", "fake")
    for name in ("a", "b"):
        (project / f"jobs/{name}.toml").write_text('command = ["true"]\n')
    (project / "jobs/c.toml").write_text('command = ["true"]\n[resources]\ndependency = "singleton"\n')
    return slurm


def submit(*words: str) -> None:
    root.main(["submit", *words], standalone_mode=False)


def read_directives(slurm: FakeSlurm, job_id: int) -> list[str]:
    text = slurm.read(f"{job_id}.script")
    return [line[8:] for line in text.splitlines() if line.startswith(("#SBATCH --dep", "#SBATCH --kill"))]


@pytest.mark.parametrize("kind", [None, *CHAIN_KINDS])
def test_each_job_of_a_chain_waits_for_the_previous_one(jobs: FakeSlurm, kind: str | None) -> None:
    submit("a", "b", "c", "--chain" if kind is None else f"--chain={kind}")
    told = kind or "afterok"
    assert [read_directives(jobs, job_id) for job_id in (12, 13, 14)] == [
        [],
        [f"--dependency={told}:12", "--kill-on-invalid-dep=yes"],
        [f"--dependency={told}:13,singleton", "--kill-on-invalid-dep=yes"],
    ]
    again = f"--dependency={told}:12 --kill-on-invalid-dep=yes"
    assert again in next(line for line in jobs.read("13.script").splitlines() if line.startswith("# again"))


def test_without_chain_jobs_are_independent(jobs: FakeSlurm) -> None:
    submit("a", "b", "--qos", "high")
    assert [read_directives(jobs, job_id) for job_id in (12, 13)] == [[], []]
    assert "#SBATCH --qos=high" in jobs.read("12.script")
    assert "#SBATCH --qos=high" in jobs.read("13.script")


def test_equal_notes_and_the_next_commands_are_printed_once(
    jobs: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    submit("a", "b", "a", "b", "a", "b", "--no-wait", "--gpus-per-node", "2")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["note", *["job"] * 6, "status", "logs", "cancel"]
    words = [line.partition(f" {line.split()[0]} ")[2] for line in lines[-3:]]
    assert words == [f"{each} --cluster fake" for each in ("$(seq 12 17)", "12 -f", "$(seq 12 17)")]


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("place", ["check_submission", "submit_script"])
@pytest.mark.parametrize("options", [[], ["--parsable"]])
def test_ctrl_c_before_sbatch_tells_that_nothing_was_submitted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, options: list[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"hpc_kit.cli.submit.{place}", interrupt)
    monkeypatch.setattr(sys, "argv", ["hpc-kit", "submit", "a", "--no-wait", *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err.strip() == "hpc-kit: interrupted: nothing was submitted"


def test_a_chain_with_an_invalid_job_submits_nothing(jobs: FakeSlurm, project: Path) -> None:
    (project / "jobs/bad.toml").write_text('command = ["bash", "gone.sh"]\n')
    with pytest.raises(SpecError, match="gone"):
        submit("a", "bad", "--chain")
    assert not (jobs.folder / "last").exists()


def test_jobs_submitted_before_a_refusal_are_named(jobs: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    refuse = '[ -f "$FAKE/last" ] && { echo "sbatch: error: Invalid qos specification" >&2; exit 1; }\n'
    jobs.write("sbatch.hook", refuse)
    with pytest.raises(SubmitRefused):
        submit("a", "b", "--chain")
    assert "12 was submitted and continues; to cancel it: scancel 12" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "--chain"], "a chain of one job"),
        (["a", "b", "--", "--steps", "3"], "arguments after -- belong to one job"),
        (["a", "b", "--test-only"], "are for one job"),
        (["a", "either", "--chain"], "must wait for the one before it"),
    ],
)
def test_an_impossible_chain_is_refused(jobs: FakeSlurm, project: Path, words: list[str], text: str) -> None:
    waits = 'command = ["true"]\n[resources]\ndependency = "afterok:1?afterok:2"\n'
    (project / "jobs/either.toml").write_text(waits)
    with pytest.raises(HpcKitError) as error:
        submit(*words)
    assert text in str(error.value)


@pytest.mark.oracle("sbatch")
def test_options_on_time_and_place_reach_sbatch_unchanged(project: Path) -> None:
    (project / "jobs/a.toml").write_text('command = ["true"]\n')
    asked: dict[str, object] = {
        "resources.begin": "now+1hour", "resources.reservation": "training", "resources.qos": "high",
        "resources.constraint": "a100&nvlink", "resources.dependency": "afterok:12,singleton",
    }  # fmt: skip
    told = sbatch_defined_options(render("a", "slurm", set=asked, root=project))
    assert {name: told[name] for name in ("reservation", "qos", "constraint", "dependency")} == {
        "reservation": "training", "qos": "high", "constraint": "a100&nvlink", "dependency": "afterok:12,singleton",
    }  # fmt: skip
    assert "begin" in told


@pytest.mark.parametrize("number", [12, 13])
def test_ctrl_c_in_a_chain_names_the_jobs_in_the_queue(jobs: FakeSlurm, kit: Kit, project: Path, number: int) -> None:
    jobs.write("sbatch.hook", f'[ "$(cat "$FAKE/last" 2>/dev/null || echo 11)" = {number - 1} ] && kill -INT $PPID')
    done = kit("submit", "a", "b", "c", "--chain")
    assert (done.returncode, done.stderr) == (130, "")
    ids = [str(each) for each in range(12, number + 1)]
    lines = done.stdout.splitlines()
    assert [line.strip() for line in lines if "goes on" in line] == [f"job {each} goes on" for each in ids]
    cancels = [line.partition(" cancel ")[2] for line in lines if line.startswith("cancel  ")]
    assert cancels == [f"{' '.join(ids)} --cluster fake"]
    assert f"not submitted: {14 - number} job" in done.stdout
    assert sorted(path.parent.name for path in project.glob("runs/*/1?/record.json")) == ids
    assert (jobs.folder / "last").read_text() == f"{number}\n"
