"""Runs checkers of other projects if they are installed: bash, shellcheck, and the parser of sbatch."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.finding import Finding, Severity, SourceLine
from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.client import Runner, has_slurm
from hpc_kit.slurm.command_environment import submit_environment

NO_SLURM = "this machine has no Slurm"
"""The reason to skip sbatch on a machine that is no login node."""

_SECONDS = 20.0
_SHELLCHECK_LINES = 1000
"""The time of shellcheck grows with the square of the lines: 5000 take it a minute."""
_BASH = {"bash", "sh", "dash", None}
_SHELLCHECK = {"bash", "sh", "dash", "ksh"}
_IGNORED = {1008, 1017, 1071, 1090, 1091, 1101, 1128, 1143, 2148, 2154, 2215, 2239}
"""Findings that our own rules replace, or that one file cannot decide: #!, line ends, sourced files, variables."""
_HABITS = {1083, 2034, 2046, 2054, 2128, 2140, 2155, 2164, 2206, 2207}
"""Findings about `export A=$(...)`, `nodes=($(...))`, `cd DIR`, `(--betas 0.9,0.95)` and `--export=ALL,A="$B",C="$D"`,
which most working batch scripts contain."""
_OWN_GRAMMAR = {1072, 1073, 1088, 1089}
"""Syntax that shellcheck cannot read. `bash -n` decides whether the shell can."""
_VALID = {1037, 1087, 1097}
"""Errors of shellcheck in code that bash runs: `$10` is `${1}0`, `$HOST[1-4]` keeps the brackets, and `NAME==value`
sets NAME to `=value`."""


class CheckerResult(NamedTuple):
    """The findings of a checker. `skipped`: the reason why it did not run."""

    name: str
    findings: tuple[Finding, ...] = ()
    skipped: str | None = None


class Checker(NamedTuple):
    """A checker, with its code and the text that explains it."""

    code: str
    name: str
    run: Callable[[BatchScript, Path, Runner, Mapping[str, str]], list[Finding] | str]
    severity: Severity = "error"

    @property
    def text(self) -> str:
        """The explanation of its findings."""
        return inspect.getdoc(self.run) or ""


def run_checkers(
    script: BatchScript, runner: Runner, environ: Mapping[str, str], *, real_slurm: bool = True
) -> list[CheckerResult]:
    """Run all checkers on a script.

    Args:
        script: The script.
        runner: Runs the commands.
        environ: The environment in which commands are found and run.
        real_slurm: Also run sbatch, if there is a configured Slurm.
    """
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="hpc_kit.") as folder:
        file = Path(folder) / "script.sbatch"
        file.write_bytes(script.text.encode("utf-8", errors="surrogateescape"))
        for checker in CHECKERS:
            if checker.code == "KIT902" and not real_slurm:
                outcomes.append(CheckerResult(checker.name, skipped="the job is for the embedded Slurm"))
            # After a syntax error, shellcheck would only repeat it.
            elif any(finding[:2] == ("KIT901", "error") for outcome in outcomes for finding in outcome.findings):
                outcomes.append(CheckerResult(checker.name, skipped="bash cannot read it"))
            else:
                outcomes.append(_ask(checker, script, file, runner, environ))
    return outcomes


def _ask(
    checker: Checker, script: BatchScript, file: Path, runner: Runner, environ: Mapping[str, str]
) -> CheckerResult:
    try:
        answer = checker.run(script, file, runner, environ)
    except SlurmUnavailable as error:
        return CheckerResult(checker.name, skipped=error.what)
    if isinstance(answer, str):
        return CheckerResult(checker.name, skipped=answer)
    return CheckerResult(checker.name, tuple(answer))


def _missing(program: str, environ: Mapping[str, str]) -> bool:
    return shutil.which(program, path=environ.get("PATH")) is None


def _finding(
    code: str, severity: Severity, script: BatchScript, line: int, column: int, what: str, remedy: str
) -> Finding:
    evidence = (SourceLine(line, script.lines[line - 1]),) if 0 < line <= len(script.lines) else ()
    return Finding(code, severity, line, column, what, remedy, None, evidence)


def _bash(script: BatchScript, file: Path, runner: Runner, environ: Mapping[str, str]) -> list[Finding] | str:
    """A syntax error in the script.

    `bash -n` reads the script to its end without running it. Without this check, an unclosed quote, `if` or
    here-document would fail in the middle of the job.

    Fix: follow the message of bash; the cause is often above the line that it names.
    Documented: bash(1), set -n.
    """
    if script.interpreter not in _BASH:
        return f"it is for {script.interpreter}"
    if _missing("bash", environ):
        return "not installed"
    # The message is read by its words: it must not be translated.
    answer = runner(["bash", "-n", str(file)], timeout=_SECONDS, environ={**environ, "LC_ALL": "C"})
    severity: Severity = "error" if answer.returncode else "warning"
    # bash prints two lines for an error; the second one quotes the line of the script in backquotes.
    match = re.search(r": line (\d{1,9}): (?!`)(.*)", answer.stderr)
    if match is None:
        return []
    what, remedy = f"bash: {match[2].strip()}", "fix the syntax; bash -n FILE shows the error again"
    return [_finding("KIT901", severity, script, int(match[1]), 1, what, remedy)]


def _shellcheck(script: BatchScript, file: Path, runner: Runner, environ: Mapping[str, str]) -> list[Finding] | str:
    """A warning of shellcheck, with its own code (SC2086, ...).

    Only errors and warnings of shellcheck count; its notes on style do not.

    Fix: `shellcheck FILE` explains each, as does www.shellcheck.net/wiki/SC2086. A line `# shellcheck disable=SC2086`
    above the place silences one.
    Documented: www.shellcheck.net.
    """
    if script.interpreter not in _SHELLCHECK:
        return f"it is for {script.interpreter or 'no interpreter'}"
    if _missing("shellcheck", environ):
        return "not installed"
    if len(script.lines) > _SHELLCHECK_LINES:
        return f"the script has more than {_SHELLCHECK_LINES} lines"
    answer = runner(["shellcheck", "--format=json", "--severity=warning", str(file)], timeout=_SECONDS, environ=environ)
    try:
        comments = json.loads(answer.stdout)
    except ValueError:
        return "its answer is not valid JSON"
    found = [_from_shellcheck(comment, script) for comment in comments if comment["code"] not in _IGNORED | _HABITS]
    # `NCCL_SOCKET_IFNAME==ib0` is the interface of exactly this name (NCCL's documentation).
    return [each for each in found if not (each.code == "SC1097" and "NCCL_" in each.evidence[0].text)]


def _from_shellcheck(comment: Mapping[str, object], script: BatchScript) -> Finding:
    code, line, column = (int(str(comment[key])) for key in ("code", "line", "column"))
    # Only its errors about syntax end a job. Scripts with its further errors mostly work.
    ends = comment["level"] == "error" and code < 2000 and code not in _OWN_GRAMMAR | _VALID
    severity: Severity = "error" if ends else "warning"
    remedy = f"see www.shellcheck.net/wiki/SC{code}"
    return _finding(f"SC{code}", severity, script, line, column, str(comment["message"]), remedy)


def _sbatch(script: BatchScript, file: Path, runner: Runner, environ: Mapping[str, str]) -> list[Finding] | str:
    """The sbatch of the cluster refuses the script.

    If there is a configured Slurm, `sbatch --test-only` checks the script against the partitions, limits and plugins of
    the site. It submits nothing.

    Fix: follow the message of sbatch.
    Documented: sbatch(1), --test-only.
    """
    if not has_slurm(environ, runner):
        return NO_SLURM
    if script.problems or not script.text.startswith("#!"):
        return "the directives have errors"
    answer = runner(["sbatch", "--test-only", str(file)], timeout=_SECONDS, environ=submit_environment(environ))
    words = re.sub(r"^(sbatch|allocation failure): (error: |fatal: )?", "", answer.stderr, flags=re.MULTILINE).strip()
    if answer.returncode == 0:
        return []
    if re.search(r"unable to contact|connection|timed out|configuration source|munge", words, re.IGNORECASE):
        return "Slurm does not answer"
    what = words.splitlines()[0] if words else f"exit status {answer.returncode}"
    return [Finding("KIT902", "error", 0, 0, f"sbatch: {what}", "fix the problem that sbatch names", words or None)]


CHECKERS = (
    Checker("KIT901", "bash", _bash),
    Checker("SCnnnn", "shellcheck", _shellcheck, "warning"),
    Checker("KIT902", "sbatch's parser", _sbatch),
)
