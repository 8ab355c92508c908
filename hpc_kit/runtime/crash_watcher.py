"""A child process that records the failure of a rank killed by a signal or crashed in a library.

It is for launchers without a process around each rank (Ray). Under srun, torchrun and mpirun, the shell or agent does
this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.run_files import RUN_VARIABLE, claim_first_failure
from hpc_kit.runtime import first_failure
from hpc_kit.runtime.proc_stat import EXIT_STATUS, read_stat
from hpc_kit.runtime.rendezvous import network

if TYPE_CHECKING:
    from collections.abc import Iterator

_FINISHED = b"over"


@contextmanager
def record_crash_of(rank: int) -> Iterator[None]:
    """Record this rank if it is the first to fail, by an exception or by a crash that raises none.

    Without a run folder nothing is started.
    """
    folder = os.environ.get(RUN_VARIABLE)
    if not folder:
        with first_failure.recording_failures(rank):
            yield
        return
    words = [
        sys.executable,
        "-P",
        "-m",
        "hpc_kit.runtime.crash_watcher",
        folder,
        str(rank),
        network.this_node_name(os.environ),
        str(os.getpid()),
    ]
    # A session of its own, so that signals to the rank's process group do not end it.
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        os.register_at_fork(after_in_child=partial(_release_pipe, process))
        try:
            with first_failure.recording_failures(rank):
                yield
        finally:
            with suppress(OSError):
                process.communicate(_FINISHED)


def _release_pipe(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe in a process that the rank forked, so that the pipe ends with the rank."""
    if process.stdin is not None:
        process.stdin.close()
        process.stdin = None


def exit_code_of(pid: int) -> int:
    """Return the exit code of an ending process, as a shell reports it; 137 if the process is gone."""
    try:
        code = os.waitstatus_to_exitcode(int(read_stat(Path(f"/proc/{pid}"))[EXIT_STATUS]))
    except (OSError, ValueError, IndexError):
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def main() -> None:
    """Wait for the end of the rank, or for its message that it ends by itself."""
    folder, rank, host, pid = sys.argv[1:]
    if sys.stdin.buffer.read(len(_FINISHED)) != _FINISHED and (code := exit_code_of(int(pid))):
        claim_first_failure(Path(folder), int(rank), host, code)


if __name__ == "__main__":
    main()
