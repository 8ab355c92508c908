"""Attempts that only trip over what an earlier one left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.why.test_explain import why

ERROR = """Traceback (most recent call last):
  File "/u/proj/{file}.py", line {line}, in <module>
    main()
  File "/u/proj/{file}.py", line {line}, in main
    go()
{error}
"""
OWN = "KeyError: 'bos_token'"
LEFT = [
    "FileExistsError: [Errno 17] File exists: 'out/run'",
    "ValueError: Output directory (out) already exists and is not empty. Use --overwrite_output_dir to overcome.",
    "RuntimeError: experiment folder out/run exists, pass --resume",
    "OSError: [Errno 39] Directory not empty: 'out/run'",
    "filelock._error.Timeout: The file lock 'out/.lock' could not be acquired.",
    (
        "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, "
        "code: -98, name: EADDRINUSE, message: address already in use"
    ),
]
SACCT = "JobID|State|ExitCode\n7|FAILED|1:0\n"


def attempts(*errors: str, start: str = "=== attempt {number}\n") -> str:
    parts = []
    for number, error in enumerate(errors, 1):
        load = "".join(f"loading shard {shard}/6\n" for shard in range(6))
        parts.append(start.format(number=number) + load + ERROR.format(file="train", line=30 - number, error=error))
    return "".join(parts)


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("start", ["=== attempt {number}\n", "try {number} of 3 on n4\n", "run.sh: retry {number}\n"])
def test_the_first_failure_is_the_cause_of_what_later_attempts_trip_over(tmp_path: Path, left: str, start: str) -> None:
    verdict = why(tmp_path, slurm__7_log=attempts(OWN, left, left, start=start), sacct_txt=SACCT)
    assert "'bos_token'" in verdict.cause
    assert "left behind" in verdict.cause
    assert verdict.confidence == "likely"


def test_the_last_own_failure_is_the_cause_if_several_attempts_failed_by_themselves(tmp_path: Path) -> None:
    verdict = why(tmp_path, slurm__7_log=attempts(OWN, "ValueError: bad shard", LEFT[0]), sacct_txt=SACCT)
    assert "bad shard" in verdict.cause
    assert verdict.earlier == ["attempt 1: the program failed with KeyError: 'bos_token'"]


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ([LEFT[0]] * 3, "FileExistsError"),  # the folder was there before the job
        ([OWN, "FileNotFoundError: [Errno 2] No such file or directory: 'out/run/last.pt'"], "out/run/last.pt"),
        ([OWN, "ValueError: the folder out/run does not exist"], "did not find a file"),
        ([LEFT[0], OWN], "'bos_token'"),
    ],
)
def test_other_last_failures_are_the_cause(tmp_path: Path, errors: list[str], cause: str) -> None:
    verdict = why(tmp_path, slurm__7_log=attempts(*errors), sacct_txt=SACCT)
    assert cause in verdict.cause
    assert "left behind" not in verdict.cause


def test_a_preempted_job_that_cannot_start_again_failed_at_its_start(tmp_path: Path) -> None:
    first = "slurmstepd: error: *** JOB 7 ON n4 CANCELLED AT 2026-01-02T10:00:00 DUE TO PREEMPTION ***\n"
    log = (
        "loading\n"
        + first
        + "started again: SLURM_RESTART_COUNT=1\nreading the index\n"
        + ERROR.format(file="train", line=3, error=LEFT[0])
    )
    verdict = why(tmp_path, slurm__7_log=log, sacct_txt=SACCT)
    assert "FileExistsError" in verdict.cause
    assert "left behind" not in verdict.cause
