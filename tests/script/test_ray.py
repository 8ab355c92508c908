"""The script of a job on Ray, executed: the job has the program's exit code, and Ray ends with the program."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from hpc_kit.script.render import render

SRUN = """#!/bin/bash
# Runs the command on two nodes together, and ends with the highest code; the first that fails ends both.
while [[ $1 == -* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & echo $! >>nodes; done
worst=0
for _ in 0 1; do
  wait -n
  code=$?
  if [ "$code" -gt "$worst" ]; then worst=$code && xargs kill -TERM <nodes; fi
done 2>/dev/null
exit "$worst"
"""
SCANCEL = """#!/bin/bash
xargs kill -TERM <nodes 2>/dev/null
"""
PYTHON = """#!/bin/bash
# A node of Ray, or the program.
if [ "$2" = ray.scripts.scripts ]; then
  echo "$@" >"ray-$SLURM_NODEID"
  if [ "$NODE_FAILS" = "$SLURM_NODEID" ] && [ ! -e failed ]; then touch failed; exit 3; fi
  exec sleep 60
fi
until [ -e ray-0 ] && [ -e ray-1 ] && { [ -z "$NODE_FAILS" ] || [ -e failed ]; }; do sleep 0.02; done
stat --format=%a "$RAY_AUTH_TOKEN_PATH" >mode
exec $PROGRAM
"""


def executed(project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script on two nodes, with small programs in place of Slurm and Ray."""
    (project / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("python", PYTHON)):
        (project / "bin" / name).write_text(text)
        (project / "bin" / name).chmod(0o755)
    changes = {"resources.nodes": 2, "cluster.python": "bin/python", "name": "job"}
    text = render("ray_4node", "slurm", set=changes, root=project)
    environ = {
        **os.environ,
        "PATH": f"{project}/bin:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURMD_NODENAME": "n1",
    }
    return subprocess.run(["bash", "-c", text], env=environ | variables, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(("program", "status"), [("false", 1), ("timeout 0.1 sleep 9", 124)])
def test_the_end_of_the_program_ends_ray_and_the_job(project: Path, program: str, status: int) -> None:
    done = executed(project, PROGRAM=program)
    assert done.returncode == status, done.stderr
    assert (project / "runs" / "job" / "7" / "end").read_text().split()[0] == str(done.returncode)
    for pid in (project / "nodes").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_a_ray_node_that_fails_late_ends_the_program(project: Path) -> None:
    done = executed(project, PROGRAM="sleep 60", NODE_FAILS="1", SECONDS="121")
    output = f"hpc-kit: a node of Ray ended before the program: see {project}/runs/job/7/node-*.log\n"
    assert (done.returncode, output in done.stderr) == (1, True)


@pytest.mark.parametrize("node", ["0", "1"])
def test_a_ray_node_that_cannot_start_retries(project: Path, node: str) -> None:
    done = executed(project, PROGRAM="true", NODE_FAILS=node)
    assert done.returncode == 0, done.stderr


def test_ray_nodes_find_the_head_with_a_private_token(project: Path) -> None:
    executed(project, PROGRAM="true")
    head, other = ((project / f"ray-{node}").read_text() for node in (0, 1))
    port = head.partition("--port=")[2].split()[0]
    assert "--head" in head
    assert f"--address=n1:{port} --temp-dir=/tmp/ray-7-1" in other
    assert (project / "mode").read_text() == "600\n"
    assert not (project / "runs" / "job" / "7" / "ray-token").exists()


def test_a_busy_port_is_skipped(project: Path) -> None:
    first = 10000 + 9 * 31
    with socket.create_server(("127.0.0.1", first)):
        executed(project, PROGRAM="true", SLURM_JOB_ID="9")
    assert f"--port={first + 1621} " in (project / "ray-0").read_text()
    assert f"--address=n1:{first + 1621} " in (project / "ray-1").read_text()
