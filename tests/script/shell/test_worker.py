"""worker.sh: the log, the first failure and the exit code of a rank that mpirun or torchrun started."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hpc_kit.run_files import rank_log, read_first_failure
from tests.script.shell.conftest import SHELL, Run, await_file, environment


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"PMI_RANK": "4"}, 4),
        # srun --mpi=pmi2 sets the agent's rank, which torchrun's workers inherit.
        ({"HPC_KIT_RANK": "5", "PMI_RANK": "1"}, 5),
    ],
)
def test_a_rank_has_a_log_and_is_recorded_if_it_fails_first(
    run: Run, tmp_path: Path, variables: dict[str, str], rank: int
) -> None:
    done = run("worker.sh", "bash", "-c", "echo out; echo err >&2; exit 6", **variables)
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "")
    assert (tmp_path / rank_log(rank)).read_text() == "out\nerr\n"
    first = read_first_failure(tmp_path)
    assert first is not None
    assert first[:3] == (rank, os.uname().nodename, 6)


def test_the_shell_survives_a_signal_to_the_group(tmp_path: Path) -> None:
    program = 'trap "sleep 0.2; exit 9" TERM; touch ready; while :; do sleep 0.02; done'
    argv = ["bash", str(SHELL / "worker.sh"), "bash", "-c", program]
    process = subprocess.Popen(argv, env=environment(tmp_path, PMI_RANK="0"), cwd=tmp_path, start_new_session=True)
    await_file(tmp_path / "ready")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=20) == 9
