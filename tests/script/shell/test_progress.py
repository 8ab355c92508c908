"""Files that show the progress of a job with [restart]."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.script.shell.conftest import SHELL, environment


def test_a_name_in_another_encoding_hides_no_file(tmp_path: Path) -> None:
    names = [b"mod\xe8le.pt", b"step-1/model.pt", b"step-1/.draft", b".lock"]
    for name in names:
        path = os.fsencode(tmp_path / "saved") + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_text("1")
    code = f". {SHELL}/history.sh; . {SHELL}/restart.sh; list_saved"
    variables = {"HPC_KIT_STOP_SIGNAL": "USR1", "HPC_KIT_PROGRESS": "saved", "LC_ALL": "C.UTF-8"}
    environ = environment(tmp_path, **variables)
    done = subprocess.run(["bash", "-c", code], env=environ, cwd=tmp_path, capture_output=True, timeout=30)
    assert [line.partition(b"\t")[0] for line in done.stdout.splitlines()] == names[:2]
