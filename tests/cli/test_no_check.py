"""`submit` refuses a job that can never start; `--no-check` submits it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.submission.submit import submit
from tests.cli.conftest import Kit
from tests.runs.fake import FakeSlurm


def test_submit_refuses_and_no_check_insists(slurm: FakeSlurm, kit: Kit, project: Path) -> None:
    (project / "train.py").write_text("")
    (project / "env/real.toml").write_text('slurm = "system"\n[node]\ncpus = 8\n')
    slurm.write("sinfo.out", "main*|4|8|1:00:00|1-infinite\n")
    refused = kit("submit", "--cluster", "real", "-j", "5x2", "--", "python", "train.py")
    assert refused.returncode == 2
    assert "5 nodes; the partition has 4" in refused.stderr
    with pytest.raises(SpecError, match="would wait for ever"):
        submit(command=["python", "train.py"], cluster="real", nodes=5, root=project)
    assert not (project / "runs").exists()
    sent = kit("submit", "--cluster", "real", "--no-check", "-j", "4x9", "--", "python", "train.py")
    assert sent.returncode == 0, sent.stderr
    assert submit(command=["python", "train.py"], cluster="real", nodes=5, root=project, check=False).job_id


def test_submit_refuses_a_script_with_an_error(slurm: FakeSlurm, kit: Kit, project: Path) -> None:
    (project / "train.py").write_text("")
    (project / "env/real.toml").write_text('slurm = "system"\n[node]\ncpus = 8\n')
    slurm.write("sinfo.out", "main*|4|8|1:00:00|1-infinite\n")
    words = ["--cluster", "real", "-j", "2x2", "--signal", "B:USR1@60", "--", "python", "train.py"]
    refused = kit("submit", *words)
    assert refused.returncode == 2
    assert "KIT411" in refused.stderr
    assert "#SBATCH --signal=B:USR1@60" in refused.stderr
    assert "--no-check" in refused.stderr
    assert kit("submit", "--no-check", *words).returncode == 0
