"""ray_node.sh: the options, the retries and the end of one node of a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.script.shell.conftest import SHELL, Run, await_file, environment

ADDRESS = "n1:10007"


@pytest.mark.parametrize(
    ("node", "options"),
    [
        ("0", "--head --port=10007 --include-dashboard=false --disable-usage-stats"),
        ("1", f"--address={ADDRESS}"),
    ],
)
def test_the_first_node_is_the_head_and_the_others_join_it(
    run: Run, command: Callable[[str, str], None], tmp_path: Path, node: str, options: str
) -> None:
    command("ray", 'folder="${@: -1:1}"; mkdir "${folder#*=}"; echo "$@" >arguments')
    job = str(os.getpid())
    done = run("ray_node.sh", "ray", "start", "--block", SLURM_NODEID=node, SLURM_JOB_ID=job, RAY_ADDRESS=ADDRESS)
    assert (done.returncode, done.stderr) == (0, "")
    own = f"/tmp/ray-{job}-{node}"
    assert (tmp_path / "arguments").read_text() == f"start --block {options} --temp-dir={own}\n"
    assert not Path(own).exists()


@pytest.mark.parametrize(("seconds", "status", "starts"), [("0", 0, 2), ("121", 3, 1)])
def test_only_a_young_job_starts_a_failed_node_again(
    run: Run, command: Callable[[str, str], None], tmp_path: Path, seconds: str, status: int, starts: int
) -> None:
    command("ray", '[ -e started ] && again=1; echo start >>started; [ -n "$again" ] || exit 3')
    done = run("ray_node.sh", "ray", "start", RAY_ADDRESS=ADDRESS, SECONDS=seconds)
    assert done.returncode == status
    assert len((tmp_path / "started").read_text().splitlines()) == starts


def test_a_signal_kills_the_node_and_removes_its_folder(command: Callable[[str, str], None], tmp_path: Path) -> None:
    own = Path(f"/tmp/ray-{os.getpid()}-1")
    command("ray", f'trap "" TERM; mkdir {own}; echo $$ >pid.new; mv pid.new pid; while true; do sleep 0.1; done')
    environ = environment(tmp_path, SLURM_NODEID="1", SLURM_JOB_ID=str(os.getpid()), RAY_ADDRESS=ADDRESS)
    argv = ["bash", str(SHELL / "ray_node.sh"), "ray", "start"]
    with subprocess.Popen(argv, env=environ, cwd=tmp_path) as process:
        await_file(tmp_path / "pid")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert not own.exists()
