"""External checkers run if they are installed, are named if they are missing, and never stop a check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.external_checkers import CheckerResult, run_checkers
from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import Completed, run_command

HEAD = "#!/bin/bash\n"


class Answers:
    """A runner with prepared answers by program: exit status, stdout, stderr."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(
        self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        self.asked.append(list(argv))
        if argv[0] not in self.answers:
            raise SlurmUnavailable(f"{argv[0]} does not answer")
        return Completed(tuple(argv), *self.answers[argv[0]])


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A PATH with all three programs on it, and a Slurm that is configured."""
    for name in ("bash", "shellcheck", "sbatch"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.conf").write_text("")
    return {"PATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "slurm.conf")}


FINE = {"bash": (0, "", ""), "shellcheck": (0, "[]", ""), "sbatch": (0, "", "sbatch: Job 5 to start at ...")}


def outcomes(
    text: str, environ: Mapping[str, str], runner: Answers, *, real_slurm: bool = True
) -> dict[str, CheckerResult]:
    return {each.name: each for each in run_checkers(BatchScript(text), runner, environ, real_slurm=real_slurm)}


def test_all_three_checkers_run(environ: dict[str, str]) -> None:
    runner = Answers(**FINE)
    assert list(outcomes(HEAD, environ, runner).values()) == [
        CheckerResult("bash"),
        CheckerResult("shellcheck"),
        CheckerResult("sbatch's parser"),
    ]
    assert [argv[:2] for argv in runner.asked] == [
        ["bash", "-n"],
        ["shellcheck", "--format=json"],
        ["sbatch", "--test-only"],
    ]


def test_a_missing_checker_is_named(tmp_path: Path) -> None:
    found = outcomes(HEAD, {"PATH": str(tmp_path)}, Answers())
    assert {name: outcome.skipped for name, outcome in found.items()} == {
        "bash": "not installed",
        "shellcheck": "not installed",
        "sbatch's parser": "this machine has no Slurm",
    }


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("#!/usr/bin/env python3\n", {"bash", "shellcheck"}),
        ("#!/bin/zsh\n", {"bash", "shellcheck"}),
        ("echo\n", {"shellcheck", "sbatch's parser"}),
        (HEAD + "#SBATCH --ndoes=4\n", {"sbatch's parser"}),
    ],
)
def test_checkers_get_only_scripts_that_they_can_read(environ: dict[str, str], text: str, skipped: set[str]) -> None:
    found = outcomes(text, environ, Answers(**FINE))
    assert {name for name, outcome in found.items() if outcome.skipped} == skipped


def test_a_script_for_the_embedded_slurm_is_not_given_to_sbatch(environ: dict[str, str]) -> None:
    runner = Answers(**FINE)
    found = outcomes(HEAD, environ, runner, real_slurm=False)
    assert found["sbatch's parser"].skipped == "the job is for the embedded Slurm"
    assert [argv[0] for argv in runner.asked] == ["bash", "shellcheck"]


def test_shellchecks_findings_keep_their_codes(environ: dict[str, str]) -> None:
    comments = [
        {"line": 2, "column": 3, "level": "warning", "code": 2115, "message": "Use ${var:?}"},
        {"line": 2, "column": 3, "level": "warning", "code": 2164, "message": "Use cd ... || exit"},
        {"line": 2, "column": 1, "level": "error", "code": 1020, "message": "You need a space"},
        {"line": 2, "column": 1, "level": "error", "code": 2068, "message": "Double quote"},
        {"line": 1, "column": 1, "level": "error", "code": 2148, "message": "Add a shebang"},
    ]
    found = outcomes(HEAD + "cd x\n", environ, Answers(**FINE | {"shellcheck": (1, json.dumps(comments), "")}))
    findings = found["shellcheck"].findings
    assert [(finding.code, finding.severity, finding.line, finding.column) for finding in findings] == [
        ("SC2115", "warning", 2, 3),
        ("SC1020", "error", 2, 1),
        ("SC2068", "warning", 2, 1),
    ]
    assert findings[0].remedy == "see www.shellcheck.net/wiki/SC2115"
    assert findings[0].evidence == ((2, "cd x"),)


def test_unreadable_shellcheck_output_is_no_finding(environ: dict[str, str]) -> None:
    found = outcomes(HEAD, environ, Answers(**FINE | {"shellcheck": (2, "", "unknown option")}))
    assert found["shellcheck"] == CheckerResult("shellcheck", skipped="its answer is not valid JSON")


def test_a_script_that_would_take_shellcheck_minutes_is_not_given_to_it(environ: dict[str, str]) -> None:
    script = HEAD + "".join(f"export A{number}=1\n" for number in range(5000))
    assert outcomes(script, environ, Answers(**FINE))["shellcheck"].skipped == "the script has more than 1000 lines"


def test_a_refusal_of_sbatch_is_quoted(environ: dict[str, str]) -> None:
    words = "sbatch: error: invalid partition specified: gpuu\nallocation failure: Invalid partition name specified\n"
    (finding,) = outcomes(HEAD, environ, Answers(**FINE | {"sbatch": (1, "", words)}))["sbatch's parser"].findings
    assert (finding.code, finding.severity, finding.line) == ("KIT902", "error", 0)
    assert finding.what == "sbatch: invalid partition specified: gpuu"
    assert finding.found == "invalid partition specified: gpuu\nInvalid partition name specified"


@pytest.mark.parametrize(
    "sbatch", [(1, "", "sbatch: error: Unable to contact slurm controller (connect failure)"), None]
)
def test_a_slurm_that_does_not_answer_adds_no_finding(
    environ: dict[str, str], sbatch: tuple[int, str, str] | None
) -> None:
    answers = {name: FINE[name] for name in ("bash", "shellcheck")} | ({"sbatch": sbatch} if sbatch else {})
    found = outcomes(HEAD, environ, Answers(**answers))
    assert found["sbatch's parser"].skipped is not None
    assert "does not answer" in found["sbatch's parser"].skipped


def test_bash_reports_syntax_errors() -> None:
    text = HEAD + "if true; then\necho 'x\n"
    found = {each.name: each for each in run_checkers(BatchScript(text), run_command, {"PATH": "/usr/bin:/bin"})}
    (finding,) = found["bash"].findings
    assert (finding.code, finding.severity) == ("KIT901", "error")
    assert "unexpected EOF" in finding.what
    assert found["shellcheck"].skipped == "bash cannot read it"


def test_an_unfinished_here_document_is_a_warning() -> None:
    found = run_checkers(BatchScript(HEAD + "cat <<E\ntext\n"), run_command, {"PATH": "/usr/bin:/bin"})
    (finding,) = found[0].findings
    assert (finding.code, finding.severity) == ("KIT901", "warning")


@pytest.mark.oracle("shellcheck")
def test_findings_of_the_real_shellcheck_are_read() -> None:
    found = {
        each.name: each
        for each in run_checkers(BatchScript(HEAD + 'rm -rf "$X/"\n'), run_command, {"PATH": "/usr/bin:/bin"})
    }
    assert [finding.code for finding in found["shellcheck"].findings] == ["SC2115"]


@pytest.mark.oracle("shellcheck")
def test_code_that_bash_runs_is_no_error() -> None:
    """NCCL's documentation has `NCCL_SOCKET_IFNAME==ib0`, for the interface of exactly this name."""
    text = "export NCCL_SOCKET_IFNAME==ib0\nMODE==fast\nsrun -w $HOST[1-4] python train.py --mode $MODE\n"
    checked = run_checkers(BatchScript("#!/bin/bash\n" + text), run_command, {"PATH": "/usr/bin:/bin"})
    found = [(each.code, each.severity, each.line) for outcome in checked for each in outcome.findings]
    assert found == [("SC1097", "warning", 3), ("SC1087", "warning", 4)]
