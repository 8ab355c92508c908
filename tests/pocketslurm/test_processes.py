"""Forked processes of the embedded Slurm and their open files."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

FORK = """
import gc, os, socket, sys
from pocketslurm import processes

class Cycle:
    pass

gc.disable()
cycle = Cycle()
cycle.self, cycle.pair = cycle, socket.socketpair()
del cycle
if os.fork() == 0:
    processes.close_files()
    ours = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    gc.collect()
    for number in ours:
        os.fstat(number)
    print("all open", flush=True)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_garbage_of_the_parent_closes_no_file_of_a_fork() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all open\n"), done.stderr
