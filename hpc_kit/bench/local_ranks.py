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
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import IO, NamedTuple

from hpc_kit.bench import processes
from hpc_kit.bench.recorder import Sheet, Told, hear
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.runtime.launchers import resolve
from hpc_kit.runtime.rendezvous import network

SAID = "hpc_kit-bench "
"""Before each line with which rank 0 fills in the sheet."""

REFUSED = "hpc_kit-refused "
"""Before the line with which rank 0 says that what was asked for cannot be measured."""

TIMEOUT = 4 * 3600.0
"""Seconds; a collective that hangs is given up much earlier, by its group's own time-out."""

_GRACE, _LAST_LINES = processes.GRACE + 5, 12
"""A rank that runs a program of its own ends that first."""


class Started(NamedTuple):
    """A process and what it says; rank 0 is heard while it runs, the others when they have ended."""

    name: str
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
        SpecError: There is no mpirun, or rank 0 found that it cannot be measured.
        JobFailed: A rank failed, or they took too long.
    """
    if world_size() > 1:
        import_module(program).main(dict(asked), sheet)
        return
    words = [sys.executable, "-m", "hpc_kit.bench.local_ranks", program, json.dumps(asked)]
    if launcher is None and not mpi:
        starts = [(f"rank {rank}", words, environ) for rank, environ in enumerate(_environments(ranks))]
    else:
        start = shlex.split(launcher) if launcher else mpirun(ranks)
        starts = [(start[0], [*start, *words], _environment())]
    with ExitStack() as stack:
        started: list[Started] = []
        try:
            for each in starts:
                started.append(stack.enter_context(_begun(*each, speaks=not started)))
            _follow(started, sheet, timeout)
        finally:
            processes.end(*(each.process for each in started), grace=_GRACE)


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
    port = network.free_port()
    for rank in range(ranks):
        numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HPC_KIT_LAUNCHER": "env"}
        yield _environment() | {name: str(number) for name, number in numbers.items()} | place


@contextmanager
def _begun(name: str, argv: Sequence[str], environ: Mapping[str, str], *, speaks: bool) -> Iterator[Started]:
    """A process and its words; who does not speak while it runs writes a file, which nobody must empty."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = processes.begin(argv, environ, subprocess.PIPE if speaks else log)
        with process.stdout or nullcontext():
            yield Started(name, process, process.stdout or log)


def _follow(started: Sequence[Started], sheet: Sheet, timeout: float) -> None:
    """Hear rank 0 to its end, then see how all have ended."""
    all_of_them = [each.process for each in started]
    watch, late = processes.Watch(all_of_them), threading.Event()

    def give_up() -> None:
        late.set()
        processes.end(*all_of_them, grace=_GRACE)

    overdue = threading.Timer(timeout, give_up)
    overdue.start()
    try:
        said, others = _hear(started[0].words, sheet)
        failed = watch.first_failure()
    finally:
        overdue.cancel()
    what, remedy = f"the ranks did not end within {timeout:g} s", "fewer or smaller things to measure"
    if failed is not None:
        first = started[failed]
        if not late.is_set():
            what, remedy = processes.ended(f"{first.name} of the measurement", first.process.returncode)
        words = others if failed == 0 else first.tail()
        raise JobFailed(what, found="\n".join(words) or "it said nothing", remedy=remedy)
    if not said:
        raise JobFailed(
            "the ranks ended well and said no results",
            found="\n".join(others) or "no word",
            remedy="--launcher: does it hand output on?",
        )


def _hear(words: Iterable[str], sheet: Sheet) -> tuple[int, deque[str]]:
    """Fill in what rank 0 says; how many lines of that there were, and the last others."""
    said, others = 0, deque[str](maxlen=_LAST_LINES)
    for line in words:
        if line.startswith(REFUSED):
            raise SpecError(**json.loads(line.removeprefix(REFUSED)))
        if line.startswith(SAID):
            hear(line.removeprefix(SAID), sheet)
            said += 1
        elif line.strip():
            others.append(line.rstrip())
    return said, others


def _main(program: str, asked: str) -> None:
    """One of the ranks: rank 0 speaks for all."""

    def say(line: str, kind: str = SAID) -> None:
        sys.stdout.write(f"\n{kind}{line}\n")
        sys.stdout.flush()

    try:
        import_module(program).main(json.loads(asked), Told(say))
    except SpecError as error:
        say(json.dumps({"what": error.what, "found": error.found, "remedy": error.remedy}), REFUSED)
        raise


if __name__ == "__main__":
    _main(*sys.argv[1:])
