"""What a command line without a job file is called and becomes."""

from __future__ import annotations

import shlex

import pytest

from hpc_kit.submission.program_job import job_for_program


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python train.py --steps 3", "train"),
        ("python -W ignore train.py", "train"),
        ("python3 -X dev -u -W error src/fit.py", "fit"),
        ("python -m package.module --flag", "package.module"),
        ("python -c 'print(1)'", "python"),
        ("train.py", "train"),
        ("bash -c 'echo hi; sleep 3'", "bash"),
        ("bash -x run.sh", "run.sh"),
        ("torchrun --nproc-per-node 2 train.py", "train"),
        ("uv run train.py", "train"),
        ("apptainer exec image.sif python -W ignore train.py", "train"),
        ("./my program", "my"),
        ("nice -n 5 ./simulate --all", "simulate"),
    ],
)
def test_a_job_without_a_file_is_named_after_its_program(line: str, name: str) -> None:
    assert job_for_program(tuple(shlex.split(line))).name == name
