"""Starts ranks that measure, or joins the ranks of the surrounding Slurm step."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import IO, NamedTuple

from hpc_kit.bench import processes
from hpc_kit.bench.machine import find_executable
from hpc_kit.bench.recorder import Recorder, apply_line, pipe_recorder
from hpc_kit.bench.training_runs import torch_variables_of_rank
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.runtime.launchers import resolve
from hpc_kit.runtime.rendezvous import network

RESULT_PREFIX = "hpc_kit-bench "
"""Prefix of each output line with which rank 0 fills in the recorder."""

ERROR_PREFIX = "hpc_kit-refused "
"""Prefix of the output line with which rank 0 reports options that cannot be measured."""

TIMEOUT = 24 * 3600.0
"""Seconds; each program, and the timeout of each process group, ends much earlier."""

_GRACE = processes.GRACE + 5
"""Seconds between SIGTERM and SIGKILL: a rank first ends the program that it runs."""


class StartedProcess(NamedTuple):
    """A process and its output; rank 0's output is read while it runs, that of all other ranks at the end."""

    name: str
    process: subprocess.Popen[str]
    output: IO[str]


def count_ranks_of_step() -> int:
    """Return the number of ranks in this process's step; 1 if it must start them."""
    return resolve(os.environ).world_size


def rank_count(requested: int | None, default: int) -> int:
    """Return the number of ranks: that of the step, otherwise the requested number.

    Raises:
        SpecError: The number of ranks of the step differs from the requested one.
    """
    step_ranks = count_ranks_of_step()
    if step_ranks > 1 and requested not in {None, step_ranks}:
        raise SpecError(
            "this step has another number of ranks",
            found=f"--ranks {requested}; {resolve(os.environ)}",
            remedy="no --ranks; in the job file, resources.nodes and resources.ntasks_per_node",
        )
    return step_ranks if step_ranks > 1 else requested or default


def ranks_on_this_host(number: int) -> int:
    """Return how many of `number` ranks run on this host; all of them if this process starts them."""
    world = resolve(os.environ)
    return number if world.world_size == 1 else world.local_world_size or number


def run_ranks(
    program: str,
    options: Mapping[str, object],
    recorder: Recorder,
    *,
    ranks: int,
    launcher: str | None = None,
    mpi: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Run `main(options, recorder)` of a module in every rank; rank 0 fills in this recorder.

    In a step of several ranks, these ranks measure and nothing is started. Otherwise `launcher` starts the ranks, such
    as `srun --mpi=pmix -N4 -n4`; by default mpirun for `mpi`, else one subprocess for each rank. `timeout` limits the
    whole measurement, in seconds. JSON must be able to represent the options.

    Raises:
        SpecError: There is no mpirun, or rank 0 cannot measure with these options.
        JobFailed: A rank failed, or the timeout expired.
    """
    if count_ranks_of_step() > 1:
        import_module(program).main(dict(options), recorder)
        return
    argv = [sys.executable, "-P", "-m", "hpc_kit.bench.local_ranks", program, json.dumps(options)]
    if launcher is None and not mpi:
        master = ("127.0.0.1", network.free_port())
        environs = [torch_variables_of_rank(rank, ranks, (rank, ranks), master) for rank in range(ranks)]
        commands = [(f"rank {rank}", argv, environ) for rank, environ in enumerate(environs)]
    else:
        prefix = shlex.split(launcher) if launcher else mpirun_command(ranks)
        commands = [(prefix[0], [*prefix, *argv], {})]
    with ExitStack() as stack, processes.ended_together(_GRACE) as start:
        started: list[StartedProcess] = []
        for name, command, environ in commands:
            # A file needs no reader, as a pipe does.
            log = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            process = start(command, _RANK_DEFAULTS | os.environ | environ, log if started else subprocess.PIPE)
            started.append(StartedProcess(name, process, stack.enter_context(process.stdout or log)))
        _follow_ranks(started, recorder, timeout)


_RANK_DEFAULTS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
"""Open MPI refuses to run as root, the user in many containers, unless both of its variables allow it."""


def find_mpirun() -> str | None:
    """Return the path of the program that starts MPI ranks here; None if there is none."""
    return find_executable("mpirun") or find_executable("mpiexec")


def mpirun_command(ranks: int) -> list[str]:
    """Return the command line of mpirun, found on PATH or beside this Python.

    Raises:
        SpecError: There is none.
    """
    found = find_mpirun()
    if found is None:
        raise SpecError(
            "there is no mpirun here",
            found="neither mpirun nor mpiexec on PATH",
            remedy="load the site's MPI module; Debian: apt-get install openmpi-bin; or pip install mpich;\n"
            "or name what starts the ranks: --launcher 'srun --mpi=pmix -n 2'",
        )
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    # Binding each rank to one core would leave no other core for gloo's threads.
    options = ["--oversubscribe", "--bind-to", "none"] if "Open MPI" in version or "OpenRTE" in version else []
    return [found, *options, "-n", str(ranks)]


def _follow_ranks(started: Sequence[StartedProcess], recorder: Recorder, timeout: float) -> None:
    """Read rank 0's output to its end, then check the exit codes of all ranks."""
    running = [each.process for each in started]
    exit_order, timed_out = processes.ExitOrder(running), threading.Event()

    def end_ranks() -> None:
        timed_out.set()
        processes.end(*running, grace=_GRACE)

    # Reading the output blocks, so another thread ends ranks that hang.
    timer = threading.Timer(timeout, end_ranks)
    timer.start()
    try:
        result_count, other_lines = _read_results(started[0].output, recorder)
        failed = exit_order.first_failure()
    finally:
        timer.cancel()
    what, remedy = f"the ranks did not end within {timeout:g} s", "fewer or smaller things to measure"
    if failed is not None:
        first = started[failed]
        if not timed_out.is_set():
            what, remedy = processes.describe_failure(f"{first.name} of the measurement", first.process.returncode)
        lines = other_lines if failed == 0 else processes.last_lines(first.output)
        raise JobFailed(what, found="\n".join(lines) or "no output", remedy=remedy)
    if not result_count:
        raise JobFailed(
            "the ranks succeeded but reported no results",
            found="\n".join(other_lines) or "no output",
            remedy="check that the command of --launcher passes on the output of rank 0",
        )


def _read_results(output: Iterable[str], recorder: Recorder) -> tuple[int, deque[str]]:
    """Apply rank 0's result lines; return their number and the last lines of other output."""
    result_count, other_lines = 0, deque[str](maxlen=processes.LAST_LINES)
    for line in output:
        if line.startswith(ERROR_PREFIX):
            raise SpecError(**json.loads(line.removeprefix(ERROR_PREFIX)))
        if line.startswith(RESULT_PREFIX):
            apply_line(line.removeprefix(RESULT_PREFIX), recorder)
            result_count += 1
        elif line.strip():
            other_lines.append(line.rstrip())
    return result_count, other_lines


def _main(program: str, options: str) -> None:
    """Run as one of the ranks; rank 0 reports for all of them."""

    def write_line(line: str, prefix: str = RESULT_PREFIX) -> None:
        # A library may have left an unfinished line, so the result begins on a new one.
        sys.stdout.write(f"\n{prefix}{line}\n")
        sys.stdout.flush()

    try:
        import_module(program).main(json.loads(options), pipe_recorder(write_line))
    except SpecError as error:
        write_line(json.dumps({"what": error.what, "found": error.found, "remedy": error.remedy}), ERROR_PREFIX)
        raise


if __name__ == "__main__":
    _main(*sys.argv[1:])
