"""A Python interpreter that starts without the seconds of `import torch`.

A server imports torch once. Its executable is a stand-in for `python`: it sends its arguments, environment, folder and
open files to the server, which forks a process that runs them. In that process torch counts as not imported; the
program's `import torch` goes through all finders and then takes the modules of the server.

The stand-in ends as the process does, and forwards signals except for SIGSTOP. If it is killed, the process is, too.
Tests that stop a process, or that look at its process id, need a real interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOCKET = "socket"
LISTENING = b"listening\n"


@contextmanager
def start(folder: Path) -> Iterator[str]:
    """Return the path of the executable in an empty folder. It works inside the `with` block."""
    stand_in = folder / "python"
    stand_in.write_text(f"#!{sys.executable} -IS\n{Path(__file__).with_name('stand_in.py').read_text()}")
    stand_in.chmod(0o700)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "tests.preloaded.server", str(folder / SOCKET)]
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == LISTENING
        yield str(stand_in)
        server.communicate()  # the end of its standard input ends the server
