"""The example for the library fabric starts a rendered shell script on the hosts of a real sshd."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.ssh.conftest import Hosts

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "docs" / "examples" / "fabfile.py"


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40


@pytest.mark.parametrize("status", [0, 7])
def test_fabric_starts_a_rendered_script_on_all_hosts(hosts: Hosts, status: int) -> None:
    end = f'[ "$RANK" = 3 ] && exit {status}; [ {status} = 0 ] || exec sleep 600'
    marks = ("--set", f"env.MARK={hosts.mark}", "--set", f"env.PYTHONPATH={ROOT}")
    words = ["render", "--shell", "-j", "2x2", *marks, "--", "bash", "-c", f'echo "rank $RANK of $WORLD_SIZE"; {end}']
    done = subprocess.run([sys.executable, "-m", "hpc_kit", *words], capture_output=True, text=True, check=True)
    (hosts.project / "job.sh").write_text(done.stdout)
    fab = [sys.executable, "-m", "fabric", "-r", str(EXAMPLE.parent), "launch", "--script=job.sh", "--nodes=n1,n2"]
    environ = {**os.environ, **hosts.environ(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(fab, cwd=hosts.project, env=environ, capture_output=True, text=True, timeout=150)
    assert done.returncode == status, done.stdout + done.stderr
    assert hosts.await_none() == []
    (run,) = (hosts.project / "runs" / "fabric").iterdir()
    ranks = range(4) if status == 0 else [3]
    assert [(run / f"rank-{rank}.log").read_text() for rank in ranks] == [f"rank {rank} of 4\n" for rank in ranks]
