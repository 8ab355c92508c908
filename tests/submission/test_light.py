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


def test_submitting_imports_neither_submitit_nor_the_rules_of_check(slurm: FakeSlurm, project: Path) -> None:
    (project / "train.py").touch()
    python = f"cluster.python={sys.executable}"
    names = list_imports("submit", "job", "--cluster", "fake", "--set", python, "--no-wait")
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


def test_submitting_a_program_does_not_import_the_script_reader(slurm: FakeSlurm, project: Path) -> None:
    (project / "train.py").touch()
    python = f"cluster.python={sys.executable}"
    own = ("--cluster", "fake", "--set", python, "--no-wait", "-j", "1x2")
    names = list_imports("submit", *own, "--", "python", "train.py")
    assert slurm.read("sbatch.argv")
    assert "hpc_kit.check.launch_lines" not in names
