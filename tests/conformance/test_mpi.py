"""MPI programs under srun: the PMI protocol, and programs of the MPICH wheel."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.conformance.engine import Ended, Engine
from tests.pocketslurm.pmi import pmi_talk
from tests.pocketslurm.pmi.pmi_talk import ONE, TWO, answers

MPICH = pytest.mark.skipif(
    not Path(sys.prefix, "lib", "libmpi.so.12").exists(), reason="needs MPICH's wheel (pip install mpich)"
)


@pytest.mark.parametrize("talk", [ONE, TWO], ids=["PMI-1", "PMI-2"])
def test_pmi_requests_are_answered(engine: Engine, talk: dict[str, str]) -> None:
    shutil.copy(Path(pmi_talk.__file__).with_name("pmi_client.py"), engine.folder)
    asks = f"srun -N2 -n3 --mpi=pmi2 python3 pmi_client.py {shlex.join(talk)}"
    lines = engine.run_job(asks, "-N2", "-n8", "--mem=200").splitlines()
    found = [[line[2:] for line in lines if line.startswith(f"{task} ")] for task in range(3)]
    assert found == [answers(talk, task) for task in range(3)]


@MPICH
def test_ranks_communicate(engine: Engine) -> None:
    (engine.folder / "world.py").write_text(
        "from mpi4py import MPI\nw = MPI.COMM_WORLD\nn = w.Split_type(MPI.COMM_TYPE_SHARED)\n"
        "print(w.rank, w.size, w.allreduce(w.rank + 1), n.size, flush=True)\n"
    )
    output = engine.run_job(
        f"srun -N2 -n4 --mpi=pmi2 {shlex.quote(sys.executable)} world.py", "-N2", "-n8", "--mem=400"
    )
    assert sorted(output.splitlines()) == ["0 4 10 3", "1 4 10 3", "2 4 10 3", "3 4 10 1"]


@MPICH
@pytest.mark.parametrize(
    ("ends", "status"),
    [("w.Abort(7)", 137), ("os._exit(3)", 3), ("raise SystemExit(5)", 5), ("os._exit(0)", 0)],
)
def test_a_failed_mpi_rank_sets_the_exit_code_of_srun(engine: Engine, ends: str, status: int) -> None:
    """After MPI_Abort srun kills all ranks. After an ordinary exit the remaining ranks continue."""
    (engine.folder / "ends.py").write_text(
        f"import os\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\nw.Barrier()\nif w.rank == 1:\n    {ends}\n"
        + ("w.Barrier()\n" if "Abort" in ends else "print('goes on', flush=True)\n")
        + ("os._exit(0)\n" if "_exit" in ends else "")
    )
    body = f"srun -N2 -n2 --mpi=pmi2 {shlex.quote(sys.executable)} ends.py; echo $?"
    output = engine.run_job(f"{{ {body}; }} 2>/dev/null", "-N2", "-n2", "--mem=200")
    assert output.splitlines() == [*(["goes on"] if status != 137 else []), str(status)]


def test_the_plugin_is_named_and_none_removes_the_variable(engine: Engine) -> None:
    tell = "sh -c 'echo ${SLURM_MPI_TYPE-no} ${PMI_RANK-no} ${PMI_SIZE-no}'"
    body = f"export SLURM_MPI_TYPE=pmi2; srun {tell}; srun --mpi=none {tell}"
    assert engine.run_job(body, "-n1", "--mem=200").splitlines() == ["pmi2 0 1", "no no no"]
    ended = engine.await_end(engine.submit("srun --mpi=nosuch true", "-n1", "--mem=200", "--output=/dev/null"))
    assert ended == Ended("FAILED", "1:0")


def test_a_step_of_two_components_is_one_world(engine: Engine) -> None:
    component = "#SBATCH -N1 -n2 --mem=200\n"
    tell = "sh -c 'echo $PMI_RANK $PMI_SIZE $PMI_JOBID'"
    body = f"#!/bin/bash\n{component}#SBATCH hetjob\n{component}srun --mpi=pmi2 --het-group=0,1 {tell}\n"
    told = [line.split() for line in sorted(engine.run_job(body).splitlines())]
    assert [(rank, size) for rank, size, _ in told] == [(str(rank), "4") for rank in range(4)]
    # MPICH names its shared memory after it: one name for all components, and of this step.
    names = {name for *_, name in told}
    assert len(names) == 1
    assert re.fullmatch(r"\d+\.0(\.\w+)?", names.pop())
