"""Ranks that measure: started here, or, in a step of several ranks, this process is one of them already."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from hpc_kit.bench.sheet import Sheet, Told, hear
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.runtime import addresses
from hpc_kit.runtime.launchers import resolve

SAID = "hpc_kit-bench "
"""Before each line with which rank 0 fills in the sheet."""

TIMEOUT = 4 * 3600.0
"""Seconds; a collective that hangs is given up much earlier, by its group's own time-out."""

_GRACE, _LAST_LINES = 10.0, 12


class Started(NamedTuple):
    """A process and what it says; rank 0 is heard while it runs, the others when they have ended."""

    process: subprocess.Popen[str]
    words: IO[str]

    def tail(self) -> list[str]:
        """Its last words, from the file."""
        self.words.seek(0)
        return [line for line in self.words.read().splitlines() if line.strip()][-_LAST_LINES:]


def world_size() -> int:
    """How many ranks this process is one of; 1 where it has to start them."""
    return resolve(os.environ).world_size


def chosen(asked: int | None, default: int) -> int:
    """How many ranks take part: those of the step that this process is in, else as many as were asked for.

    Raises:
        SpecError: The step has another number of ranks than was asked for.
    """
    here = world_size()
    if here > 1 and asked not in {None, here}:
        raise SpecError(
            "this step has another number of ranks",
            found=f"--ranks {asked}; {resolve(os.environ)}",
            remedy="no --ranks; in the job file, resources.nodes and resources.ntasks_per_node",
        )
    return here if here > 1 else asked or default


def on_this_host(number: int) -> int:
    """How many of so many ranks run here: all, where this process has to start them."""
    world = resolve(os.environ)
    return number if world.world_size == 1 else world.local_world_size or number


def measure(
    program: str,
    asked: Mapping[str, object],
    sheet: Sheet,
    *,
    ranks: int,
    launcher: str | None = None,
    mpi: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Let every rank call the `main(asked, sheet)` of a module; rank 0's sheet is this one.

    Args:
        program: The module's name.
        asked: What is to be measured, as JSON can hold it.
        sheet: Is filled in by rank 0.
        ranks: How many to start.
        launcher: The words that start them: `srun --mpi=pmix -N4 -n4`.
            Default: mpirun for `mpi`, else processes of this one. In a step of several ranks nothing is started.
        mpi: Whether they must be ranks of MPI.
        timeout: Seconds for the whole.

    Raises:
        SpecError: There is no mpirun.
        JobFailed: A rank failed, or they took too long.
    """
    if world_size() > 1:
        import_module(program).main(dict(asked), sheet)
        return
    words = [sys.executable, "-m", "hpc_kit.bench.ranks", program, json.dumps(asked)]
    with ExitStack() as stack:
        if launcher is None and not mpi:
            starts = [(words, environ) for environ in _environments(ranks)]
        else:
            start = shlex.split(launcher) if launcher else mpirun(ranks)
            starts = [([*start, *words], _environment())]
        started = [
            stack.enter_context(_running(argv, environ, speaks=number == 0))
            for number, (argv, environ) in enumerate(starts)
        ]
        _follow(started, sheet, timeout)


def has_mpirun() -> bool:
    """Whether ranks of MPI can be started here."""
    return _find_mpirun() is not None


def _find_mpirun() -> str | None:
    """The mpirun on PATH, or beside this Python."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    return next((path for name in ("mpirun", "mpiexec") if (path := shutil.which(name, path=folders))), None)


def mpirun(ranks: int) -> list[str]:
    """The command line of the mpirun that is here: on PATH, or beside this Python.

    Raises:
        SpecError: There is none.
    """
    found = _find_mpirun()
    if found is None:
        raise SpecError(
            "there is no mpirun here",
            found="neither mpirun nor mpiexec on PATH",
            remedy="load the site's MPI module; Debian: apt-get install openmpi-bin; or pip install mpich;\n"
            "or name what starts the ranks: --launcher 'srun --mpi=pmix -n 2'",
        )
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    # Bound to one core each, ranks would leave gloo's threads no other.
    options = ["--oversubscribe", "--bind-to", "none"] if "Open MPI" in told or "OpenRTE" in told else []
    return [found, *options, "-n", str(ranks)]


def _environment() -> dict[str, str]:
    # An Open MPI that root starts, as in a container, wants to be told twice that it may.
    environ = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ.setdefault("OMP_NUM_THREADS", "1")
    return environ


def _environments(ranks: int) -> Iterator[dict[str, str]]:
    """Of processes on this machine: who each is, and where they meet."""
    port = addresses.free_port()
    for rank in range(ranks):
        numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HPC_KIT_LAUNCHER": "env"}
        yield _environment() | {name: str(number) for name, number in numbers.items()} | place


@contextmanager
def _running(argv: Sequence[str], environ: Mapping[str, str], *, speaks: bool) -> Iterator[Started]:
    """A process that is not left behind; who does not speak while it runs writes a file, which nobody must empty."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        output = subprocess.PIPE if speaks else log
        process = subprocess.Popen(
            argv, stdout=output, stderr=subprocess.STDOUT, env=environ, encoding="utf-8", errors="replace"
        )
        try:
            yield Started(process, process.stdout or log)
        finally:
            if process.poll() is None:
                process.terminate()
                _end(process)
            if process.stdout is not None:
                process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _follow(started: Sequence[Started], sheet: Sheet, timeout: float) -> None:
    """Hear rank 0 to its end, then see how all have ended."""
    overdue = threading.Timer(timeout, _terminate, [started])
    overdue.start()
    try:
        said, others = 0, deque[str](maxlen=_LAST_LINES)
        for line in started[0].words:
            if line.startswith(SAID):
                hear(line.removeprefix(SAID), sheet)
                said += 1
            elif line.strip():
                others.append(line.rstrip())
        codes = [each.process.wait() for each in started]
    finally:
        overdue.cancel()
    for code, each in zip(codes, started, strict=True):
        if code:
            _blame(code, others if each is started[0] else each.tail())
    if not said:
        raise JobFailed(
            "the ranks ended well and said no results",
            found="\n".join(others) or "no word",
            remedy="--launcher: does it hand output on?",
        )


def _terminate(started: Sequence[Started]) -> None:
    for each in started:
        each.process.terminate()


def _blame(code: int, words: Iterable[str]) -> NoReturn:
    raise JobFailed(
        f"a rank of the measurement failed with exit code {code}",
        found="\n".join(words) or "it said nothing",
        remedy="the last lines of its output are above",
    )


def _main(program: str, asked: str) -> None:
    """One of the ranks: rank 0 speaks for all."""

    def say(line: str) -> None:
        sys.stdout.write(f"\n{SAID}{line}\n")
        sys.stdout.flush()

    import_module(program).main(json.loads(asked), Told(say))


if __name__ == "__main__":
    _main(*sys.argv[1:])
