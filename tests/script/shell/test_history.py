"""The history of a job is a line of JSON for each event, whatever its values contain."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.script.shell.conftest import SHELL, environment


def test_a_value_of_several_lines_stays_one_line_of_json(tmp_path: Path) -> None:
    answer = 'scontrol: error: "slurm_requeue"\n\tUnable to contact slurm controller\\'
    code = f'. {SHELL}/history.sh; record_event end reason "$ANSWER" exit_code 1'
    environ = environment(tmp_path, ANSWER=answer, HPC_KIT_ATTEMPT="1")
    subprocess.run(["bash", "-c", code], env=environ, check=True, timeout=30)
    (line,) = (tmp_path / "history").read_text().splitlines()
    event = json.loads(line)
    assert event["reason"] == "scontrol: error: slurm_requeue  Unable to contact slurm controller"
    assert event["exit_code"] == 1
