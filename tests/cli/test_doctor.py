"""`hpc-kit doctor JOB`: the job that it submits, and the table of the nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_kit.bench.preflight import DISK, MATRIX, MEMORY, NodeReport, judge
from hpc_kit.bench.preflight_job import measuring_job
from hpc_kit.cli import doctor
from hpc_kit.script.render import render_resolved
from hpc_kit.spec.load import load
from hpc_kit.spec.resolve import resolve
from tests.cli.conftest import Kit
from tests.conftest import ROOT


def test_the_job_has_the_nodes_of_the_other_job_and_starts_no_program() -> None:
    settings = {"restart.spares": 1, "restart.lead": 600, "resources.time": "24:00:00", "resources.array": "0-3"}
    resolved = measuring_job(resolve(load("ddp_4node", "slurm", set=settings, root=ROOT), root=ROOT))
    script = render_resolved(resolved, root=ROOT)
    for line in ("#SBATCH --nodes=5", "#SBATCH --time=00:05:00", "#SBATCH --job-name=ddp_4node-preflight"):
        assert f"{line}\n" in script
    assert re.search(r"^  srun .*--nodes=5 --ntasks=5 --ntasks-per-node=1 ", script, re.MULTILINE)
    for word in ("train.py", "ddp.py", "exclude_nodes", "array", "--requeue", "restart.sh"):
        assert word not in script


def test_the_table_fits_a_terminal_and_ends_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [
        NodeReport(
            node=f"gpu-a-{number:03}",
            host=f"gpu-a-{number:03}",
            kind="cpu",
            rates={MATRIX: 123456e9 if number != 3 else 1e12, MEMORY: 3350e9, DISK: 12345e6},
            pairs={"other": 399.5e9},
            all_reduce=350e9,
        )
        for number in range(1, 6)
    ]
    doctor._print_verdict(
        judge([report.node for report in reports] + ["gpu-a-006"], reports), "train", "gpu-a-[006,009]"
    )
    out = capsys.readouterr().out
    table, _, rest = out.partition("all-reduce over 5 nodes: 350 Gb/s\n")
    assert max(map(len, table.splitlines())) <= 80, table
    assert "gpu-a-003 is slow: matrix product 1000 GFLOP/s, 0.0081 of the median" in " ".join(rest.split())
    assert "gpu-a-006 is broken: no report" in rest
    assert rest.endswith(
        "do      hpc-kit submit train --exclude='gpu-a-[003,006,009]'\n"
        "        hpc-kit cluster exclude gpu-a-003 --reason 'slow: matrix product 1000 GFLOP/s' --for 7d\n"
        "        hpc-kit cluster exclude gpu-a-006 "
        "--reason 'broken: no report: the measurement did not start' --for 7d\n"
    )


def test_a_job_and_in_job_exclude_one_another(kit: Kit, project: Path) -> None:
    done = kit("doctor", "ddp_4node", "--in-job")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "hpc-kit: --in-job takes no job")


def test_a_layout_without_a_program_is_refused(kit: Kit, project: Path) -> None:
    done = kit("doctor", "-j", "4x2")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "hpc-kit: neither a job nor a program")
