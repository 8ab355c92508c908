"""`hpc-kit why`: a run of ours, and logs of any job."""

from __future__ import annotations

import json
from pathlib import Path

from hpc_kit.run_files import FIRST_FAILURE
from tests.cli.conftest import Kit
from tests.runs.fake import FakeSlurm

ERROR = 'Traceback (most recent call last):\n  File "/w/train.py", line 4, in load\n    open(path)\n{}\n'
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-2.bin'"


def test_logs_of_a_job_that_is_not_ours(kit: Kit, project: Path) -> None:
    (project / "slurm-9.out").write_text("srun: error: n3: task 5: Out Of Memory\n")
    (project / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --mem=1G\necho 'No space left on device'\n")
    answer = kit("why", "--log", "slurm-9.out", "job.sbatch")
    assert answer.returncode == 1
    assert answer.stdout.splitlines()[0] == "cause   rank 5 on n3 ran out of host memory: the kernel killed it"
    assert "proof   slurm-9.out:1  srun: error: n3: task 5: Out Of Memory" in answer.stdout


def test_json_has_the_documented_keys(kit: Kit, project: Path) -> None:
    (project / "a.log").write_text(ERROR.format(MISSING))
    document = json.loads(kit("why", "--json", "--log", "a.log").stdout)
    assert list(document) == ["cause", "class", "rank", "host", "evidence", "traceback", "fix", "confidence", "ranks"]
    assert document["class"] == "missing-file"


def test_a_job_that_did_not_fail_gives_status_0(kit: Kit, project: Path) -> None:
    (project / "sacct.txt").write_text("JobID|State|ExitCode\n7|COMPLETED|0:0\n")
    answer = kit("why", "--log", "sacct.txt")
    assert answer.returncode == 0
    assert answer.stdout.startswith("cause   did not fail")


def test_a_file_that_does_not_exist_is_refused(kit: Kit) -> None:
    answer = kit("why", "--log", "missing.out")
    assert answer.returncode == 1
    assert "there is no file missing.out" in answer.stderr


def test_a_run_of_ours(kit: Kit, project: Path, slurm: FakeSlurm) -> None:
    run = project / "runs" / "job" / "7"
    run.mkdir(parents=True)
    (run / "rank-0.log").write_text("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.7]:5512\n")
    (run / "rank-2.log").write_text(ERROR.format(MISSING))
    (run / FIRST_FAILURE).write_text("2 n2 1 1700000000.0\n")
    (run / "end").write_text("1 1700000001.0\n")
    answer = kit("why", "7", "--json", "--cluster", "fake")
    document = json.loads(answer.stdout)
    assert (document["class"], document["rank"], document["host"]) == ("missing-file", 2, "n2"), answer.stderr
