"""Commands import only the modules they need, because the prompt has to return quickly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.runs.fake import FakeSlurm


def list_imports(*words: str) -> set[str]:
    """The modules that a command of hpc-kit imports."""
    argv = [sys.executable, "-X", "importtime", "-m", "hpc_kit", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_rendering_imports_nothing_that_queries_slurm(project: Path) -> None:
    names = list_imports("render", "ddp_4node", "--cluster", "local")
    assert "jinja2" in names
    heavy = {"submitit", "torch", "tree_sitter", "hpc_kit.slurm.job_status", "hpc_kit.slurm.nodelist", "subprocess"}
    assert not heavy & names


def test_submitting_imports_neither_submitit_nor_what_follows_a_job(slurm: FakeSlurm, project: Path) -> None:
    (project / "train.py").touch()
    python = f"cluster.python={sys.executable}"
    names = list_imports("submit", "job", "--cluster", "fake", "--set", python, "--no-wait")
    assert slurm.read("sbatch.argv")
    assert not {"submitit", "torch", "hpc_kit.runs.follow", "hpc_kit.runs.run_folders"} & names


def test_submitting_without_a_check_does_not_import_its_rules(slurm: FakeSlurm, project: Path) -> None:
    (project / "train.py").touch()
    python = f"cluster.python={sys.executable}"
    names = list_imports("submit", "job", "--cluster", "fake", "--set", python, "--no-wait", "--no-check")
    assert slurm.read("sbatch.argv")
    assert not {"submitit", "torch", "tree_sitter", "hpc_kit.check.rules", "hpc_kit.runs.follow"} & names
    # What follows a job, what asks for its state, and what reads launch lines that are more than `python FILE`.
    assert (
        not {
            "hpc_kit.runs.run_folders",
            "hpc_kit.slurm.job_status",
            "hpc_kit.check.launch_lines",
            "hpc_kit.slurm.nodelist",
        }
        & names
    )
